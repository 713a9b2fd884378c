"""Keys and values that one pass over a token tree leaves to the next: a path, whatever the tree's size."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache

from decoding.tree_cache import TreeCache


class KeptPath(Cache):
    """The path above the next node, in all layers, as transformers' own cache.

    Nodes come in preorder, so those to come descend from this path and from nothing else that was written. A
    pass leaves keys and values of one layer after the other, so no more than one layer's are ever held.

    Args:
        cache: The prompts' cache, whose length models ask for. Nothing is written to it.

    Attributes:
        length: Tokens on the path.
    """

    def __init__(self, cache: TreeCache) -> None:
        super().__init__(layers=cache.layers)
        self.length = 0
        self._slots: Tensor | None = None
        self._kept: dict[int, tuple[Tensor, Tensor]] = {}
        self._next: dict[int, tuple[Tensor, Tensor]] = {}
        self._seen: tuple[int, tuple[Tensor, Tensor]] | None = None

    def leave(self, slots: Tensor) -> None:
        """Say what the next pass is to leave. Shape of `slots`, among the path and the pass: (k,), int64."""
        self._slots = slots

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *_: Any, **__: Any
    ) -> tuple[Tensor, Tensor]:
        """Take the keys and values of a pass in one layer.

        Args:
            key_states: Shape: (1, H_kv, P, D).
            value_states: Shape: (1, H_kv, P, D_v).
            layer_idx: Number of the model layer.

        Returns:
            The tensors passed in.
        """
        seen = (key_states, value_states)
        if self.length:
            before = self._kept.pop(layer_idx)
            keys, values = (torch.cat(pair, dim=2) for pair in zip(before, seen, strict=True))
            seen = (keys, values)
        if self._slots is not None and len(self._slots):
            keys, values = (part.index_select(2, self._slots) for part in seen)
            self._next[layer_idx] = (keys, values)
        self._seen = (layer_idx, seen)
        return key_states, value_states

    def seen(self, layer: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values of the path and of the pass, of the layer that has just been updated.

        A layer that has written none of its own attends to what it is given.
        """
        if self._seen is not None and self._seen[0] == layer:
            return self._seen[1]
        return key, value

    def finish(self) -> None:
        """End a pass."""
        self.length = 0 if self._slots is None else len(self._slots)
        self._kept, self._next = self._next, {}
        self._slots, self._seen = None, None
