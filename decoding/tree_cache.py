"""The key/value cache of the token tree: the prompt once per query, one entry per written token after it.

A transformers cache layer, so stock models fill it through their ordinary `past_key_values.update` call.
The attention function reads the parts directly; what `update` returns is never attended to. How much is held
follows from shapes, so asking never waits for the device.
"""

from __future__ import annotations

import torch
from torch import Tensor
from transformers.cache_utils import Cache

from decoding.tree_layer import TreeLayer

# Frontiers for which room is reserved at a time; titles are mostly shorter, so most tails never grow.
INITIAL_DEPTH = 8
# Frontiers that must fit after a collection. With less room the next one would be due at once, and every
# collection waits for the device.
LEAST_ROOM = 4

# Keys and values that every query's prompt begins with. Shapes: (1, H_kv, S, D) and (1, H_kv, S, D_v).
PrefixSegment = tuple[Tensor, Tensor]


class TreeCache(Cache):
    """One `TreeLayer` per model layer, created as the model reaches it.

    Args:
        prefix: What the prompts begin with, by model layer; referred to, never copied. Empty without.

    Attributes:
        capacity: Tail slots per query for which there is room.
        prefix: As given.
    """

    def __init__(self, prefix: tuple[PrefixSegment, ...] = ()) -> None:
        super().__init__(layer_class_to_replicate=TreeLayer)
        self.prefix = prefix
        self.capacity = 0
        self._peak_bytes = 0

    def tree_layer(self, index: int) -> TreeLayer:
        """The layer that the attention module with `layer_idx == index` has just updated."""
        layer = self.layers[index]
        assert isinstance(layer, TreeLayer)
        return layer

    @property
    def used(self) -> int:
        """Tail slots written and kept, per query."""
        return self.tree_layer(0).used

    @property
    def slot_bytes(self) -> int:
        """Bytes of one token of one query in all layers."""
        return sum(sum(layer.slot_bytes) for layer in self._tree_layers())

    @property
    def held_bytes(self) -> int:
        """Bytes of storage of all layers, without the prefix."""
        return sum(layer.held_bytes for layer in self._tree_layers())

    @property
    def used_bytes(self) -> int:
        """Bytes behind prompt slots and written tail slots."""
        queries = self.tree_layer(0).prompt[0].shape[0]
        return queries * self.tree_layer(0).get_seq_length() * self.slot_bytes

    @property
    def peak_bytes(self) -> int:
        """Most bytes held at any time, the copies of growing and compacting included."""
        return max(self._peak_bytes, self.held_bytes)

    def make_room(self, width: int) -> None:
        """Let one more frontier of `width` branches fit."""
        if self.used + width > self.capacity:
            self._resize(_roomy(self.used, width))

    def compact(self, kept: Tensor, width: int) -> None:
        """Keep some slots of every tail. Copies those only, layer by layer, and never the prompts.

        Where little room is left the buffers are replaced by larger ones, and where most of them is left
        over by smaller ones: one wide moment, such as a query with many branches that soon died, would
        otherwise decide what a session holds to its end.

        Args:
            kept: For every slot to be, which it is now. Shape: (Q, m), int64.
            width: Branches of the next frontier.
        """
        before, slots, capacity = self.held_bytes, kept.shape[1], self.capacity
        roomy = _roomy(slots, width)
        if slots + LEAST_ROOM * width > capacity or capacity > 2 * roomy:
            capacity = roomy
        rows: dict[int, Tensor] = {}
        for layer in self._tree_layers():
            heads = layer.prompt[0].shape[1]
            if heads not in rows:
                rows[heads] = _rows(kept, heads, self.capacity)
            layer.compact(rows[heads], slots, capacity)
        moved = 0 if capacity == self.capacity else min(capacity, self.capacity)
        self.capacity = capacity
        self._note_peak(before, copied=slots + moved)

    def select(self, queries: Tensor, width: int, branches: bool) -> TreeCache:
        """Return a cache with the prompts of some queries; see `TreeLayer.select`."""
        other = TreeCache(self.prefix)
        other.layers = [layer.select(queries, width, branches) for layer in self._tree_layers()]
        other.capacity = other.used
        return other

    def note_beside(self, tokens: int, path: int) -> None:
        """Count what a pass over whole trees holds beside the cache: no tail, but what it is writing.

        Args:
            tokens: Tokens that are written, whose keys and values are held in one layer at a time.
            path: Tokens that all layers keep.
        """
        largest = max(sum(layer.slot_bytes) for layer in self._tree_layers())
        beside = tokens * largest + path * self.slot_bytes
        self._peak_bytes = max(self._peak_bytes, self.held_bytes + beside)

    def _resize(self, capacity: int) -> None:
        before, replaced = self.held_bytes, self.capacity
        for layer in self._tree_layers():
            layer.resize(capacity)
        self.capacity = capacity
        self._note_peak(before, copied=replaced)

    def _note_peak(self, before: int, copied: int) -> None:
        """Count what was held while buffers were replaced one at a time.

        Args:
            before: Bytes held before.
            copied: Slots that were held twice, of one layer's keys or values at any time.
        """
        queries = self.tree_layer(0).prompt[0].shape[0]
        largest = max(max(layer.slot_bytes) for layer in self._tree_layers())
        self._peak_bytes = max(self._peak_bytes, max(before, self.held_bytes) + queries * copied * largest)

    def _tree_layers(self) -> list[TreeLayer]:
        return [self.tree_layer(index) for index in range(len(self.layers))]


def _roomy(used: int, width: int) -> int:
    """Slots to hold `used` and go on: a quarter more, and enough for some frontiers of `width`.

    Geometric, so that moving what is used stays a constant share of the work however long outputs are; and no
    more than a quarter, since room that long outputs never use is memory all the same.
    """
    return used + max(used // 4, INITIAL_DEPTH * width)


def _rows(kept: Tensor, heads: int, capacity: int) -> Tensor:
    """Slots of every query as rows of a buffer (Q * heads * capacity, D). Shape: (Q * heads * m,), int64."""
    queries = kept.shape[0]
    first = torch.arange(queries * heads, device=kept.device).view(queries, heads, 1) * capacity
    return (first + kept[:, None]).flatten()
