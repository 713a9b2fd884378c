"""The key/value cache of the token tree: the prompt once per query, one entry per written token after it.

A transformers cache layer, so stock models fill it through their ordinary `past_key_values.update` call.
The attention function reads the two parts directly; what `update` returns is never attended to.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache, CacheLayerMixin

# Slots reserved per branch of the first frontier; titles are mostly shorter, so most sessions never regrow.
INITIAL_DEPTH = 8


class TreeLayer(CacheLayerMixin):  # type: ignore[no-untyped-call]
    """One model layer: an immutable prompt segment and a preallocated, geometrically growing tail.

    The first `update` stores the prompt, every later one appends the tokens of one frontier.

    Attributes:
        prompt_keys: Shape: (Q, H_kv, T, D). None before the prompt was written.
        prompt_values: Shape: (Q, H_kv, T, D_v).
        used: Tail slots written so far.
    """

    is_sliding = False
    is_compileable = False
    is_croppable = False

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)  # type: ignore[no-untyped-call]
        self.prompt_keys: Tensor | None = None
        self.prompt_values: Tensor | None = None
        self.used = 0
        self._tail_keys: Tensor | None = None
        self._tail_values: Tensor | None = None

    @property
    def tail_keys(self) -> Tensor:
        """Keys of the written branches, a view. Shape: (Q, H_kv, used, D)."""
        assert self._tail_keys is not None
        return self._tail_keys[:, :, : self.used]

    @property
    def tail_values(self) -> Tensor:
        """Values of the written branches, a view. Shape: (Q, H_kv, used, D_v)."""
        assert self._tail_values is not None
        return self._tail_values[:, :, : self.used]

    @property
    def held_bytes(self) -> int:
        """Bytes of storage behind prompt and tail, unused capacity included."""
        held = (self.prompt_keys, self.prompt_values, self._tail_keys, self._tail_values)
        return sum(part.untyped_storage().nbytes() for part in held if part is not None)

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Take ownership of the prompt's keys and values."""
        self.prompt_keys = _own(key_states)
        self.prompt_values = _own(value_states)
        self.is_initialized = True

    def update(self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        """Store the prompt (first call) or append one frontier (later calls).

        Args:
            key_states: Shape: (Q, H_kv, T or B, D).
            value_states: Shape: (Q, H_kv, T or B, D_v).

        Returns:
            The tensors passed in: the attention function takes everything older from the layer itself.
        """
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
            return key_states, value_states
        width = key_states.shape[2]
        end = self.used + width
        self._tail_keys = _with_room(self._tail_keys, key_states, self.used, end)
        self._tail_values = _with_room(self._tail_values, value_states, self.used, end)
        self._tail_keys[:, :, self.used : end] = key_states
        self._tail_values[:, :, self.used : end] = value_states
        self.used = end
        return key_states, value_states

    def select(self, queries: Tensor, width: int, branches: bool) -> TreeLayer:
        """Return a layer with the prompts of some queries, cut to their longest.

        Args:
            queries: Shape: (n,), int64.
            width: Prompt slots kept, from the right: padding stands on the left.
            branches: Whether to copy the tails too. The copy has no room beyond what is used.
        """
        assert self.prompt_keys is not None
        assert self.prompt_values is not None
        other = TreeLayer()
        other.lazy_initialization(
            self.prompt_keys[:, :, -width:].index_select(0, queries),
            self.prompt_values[:, :, -width:].index_select(0, queries),
        )
        if branches and self.used:
            other._tail_keys = self.tail_keys.index_select(0, queries)
            other._tail_values = self.tail_values.index_select(0, queries)
            other.used = self.used
        return other

    def get_seq_length(self) -> int:
        """Slots held per query, prompt and tail. A slot count, not a position."""
        prompt = 0 if self.prompt_keys is None else self.prompt_keys.shape[2]
        return prompt + self.used

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Key length and offset that transformers would build a mask for; the tree passes its own."""
        return self.get_seq_length() + query_length, 0

    def get_max_length(self) -> int:
        """No bound."""
        return -1


class TreeCache(Cache):
    """One `TreeLayer` per model layer, created as the model reaches it."""

    def __init__(self) -> None:
        super().__init__(layer_class_to_replicate=TreeLayer)

    def tree_layer(self, index: int) -> TreeLayer:
        """The layer that the attention module with `layer_idx == index` has just updated."""
        layer = self.layers[index]
        assert isinstance(layer, TreeLayer)
        return layer

    @property
    def held_bytes(self) -> int:
        """Bytes of storage of all layers."""
        return sum(layer.held_bytes for layer in self._tree_layers())

    def select(self, queries: Tensor, width: int, branches: bool) -> TreeCache:
        """Return a cache with the prompts of some queries; see `TreeLayer.select`."""
        other = TreeCache()
        other.layers = [layer.select(queries, width, branches) for layer in self._tree_layers()]
        return other

    def _tree_layers(self) -> list[TreeLayer]:
        return [self.tree_layer(index) for index in range(len(self.layers))]


def _own(states: Tensor) -> Tensor:
    """A contiguous tensor with storage of its own size.

    A view into a fused query-key-value buffer would keep three times its own bytes alive.
    """
    states = states.contiguous()
    if states.untyped_storage().nbytes() != states.numel() * states.element_size():
        states = states.clone(memory_format=torch.contiguous_format)
    return states


def _with_room(buffer: Tensor | None, states: Tensor, used: int, needed: int) -> Tensor:
    """`buffer`, or a larger copy of its `used` slots when it cannot hold `needed` of them."""
    if buffer is not None and buffer.shape[2] >= needed:
        return buffer
    queries, heads, width, size = states.shape
    capacity = width * INITIAL_DEPTH if buffer is None else max(needed, 2 * buffer.shape[2])
    grown = states.new_empty(queries, heads, capacity, size)
    if buffer is not None:
        grown[:, :, :used] = buffer[:, :, :used]
    return grown
