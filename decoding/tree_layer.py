"""One model layer's keys and values: an immutable prompt segment and a tail of written branches."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import CacheLayerMixin


class TreeLayer(CacheLayerMixin):  # type: ignore[no-untyped-call]
    """One model layer: an immutable prompt segment and a preallocated tail.

    The first `update` stores the prompt, every later one appends the tokens of one frontier, for which
    `resize` has made room.

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
    def prompt(self) -> tuple[Tensor, Tensor]:
        """Keys and values of the prompts."""
        assert self.prompt_keys is not None
        assert self.prompt_values is not None
        return self.prompt_keys, self.prompt_values

    @property
    def slot_bytes(self) -> tuple[int, int]:
        """Bytes of one slot's keys and of its values."""
        keys, values = (part.shape[1] * part.shape[3] * part.element_size() for part in self.prompt)
        return keys, values

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
        self.used += key_states.shape[2]
        self.tail_keys[:, :, -key_states.shape[2] :] = key_states
        self.tail_values[:, :, -key_states.shape[2] :] = value_states
        return key_states, value_states

    def resize(self, capacity: int) -> None:
        """Move the tail to buffers of `capacity` slots, keys before values."""
        keys, values = self.prompt
        self._tail_keys = _resized(self._tail_keys, keys, self.used, capacity)
        self._tail_values = _resized(self._tail_values, values, self.used, capacity)

    def compact(self, rows: Tensor, width: int, capacity: int) -> None:
        """Keep some slots of the tail, in buffers of `capacity` slots.

        Args:
            rows: The slots to keep, of every query and head, as rows of a buffer. Shape: (Q * H_kv * width,).
            width: Slots kept per query.
            capacity: Slots afterwards, at least `width`. Buffers that have as many stay.
        """
        assert self._tail_keys is not None
        assert self._tail_values is not None
        self._tail_keys = _compacted(self._tail_keys, rows, width, capacity)
        self._tail_values = _compacted(self._tail_values, rows, width, capacity)
        self.used = width

    def select(self, queries: Tensor, width: int, branches: bool) -> TreeLayer:
        """Return a layer with the prompts of some queries, cut to their longest.

        Args:
            queries: Shape: (n,), int64.
            width: Prompt slots kept, from the right: padding stands on the left.
            branches: Whether to copy the tails too. The copy has no room beyond what is used.
        """
        keys, values = self.prompt
        other = TreeLayer()
        other.lazy_initialization(
            keys[:, :, -width:].index_select(0, queries), values[:, :, -width:].index_select(0, queries)
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


def _own(states: Tensor) -> Tensor:
    """A contiguous tensor with storage of its own size.

    A view into a fused query-key-value buffer would keep three times its own bytes alive.
    """
    states = states.contiguous()
    if states.untyped_storage().nbytes() != states.numel() * states.element_size():
        states = states.clone(memory_format=torch.contiguous_format)
    return states


def _resized(buffer: Tensor | None, prompt: Tensor, used: int, capacity: int) -> Tensor:
    """A buffer of `capacity` slots of the prompt's kind, with the first `used` slots of the old one."""
    queries, heads, _, size = prompt.shape
    resized = prompt.new_empty(queries, heads, capacity, size)
    if buffer is not None:
        resized[:, :, :used] = buffer[:, :, :used]
    return resized


def _compacted(buffer: Tensor, rows: Tensor, width: int, capacity: int) -> Tensor:
    """The buffer, or one of `capacity` slots, with the chosen rows in front."""
    queries, heads, _, size = buffer.shape
    live = buffer.view(-1, size).index_select(0, rows).view(queries, heads, width, size)
    if buffer.shape[2] != capacity:
        buffer = buffer.new_empty(queries, heads, capacity, size)
    buffer[:, :, :width] = live
    return buffer
