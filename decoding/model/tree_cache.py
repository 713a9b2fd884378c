"""Caches the token tree's keys and values: the prompt once per query, then one entry per written token.

`TreeLayer` is a transformers cache layer, so stock models fill it through `past_key_values.update`; the
attention function reads its parts directly. Sizes follow from shapes, so asking for them never waits for the
device. A `TreePrefix` holds the keys and values of tokens that many prompts begin with, run once.

A packed frontier leaves padding branches out. Queries of a batch have different numbers of live branches, yet
a frontier is a rectangle. Every layer but attention works token by token, so there the live branches of all
queries run as rows of a single sequence; attention and cache keep the rectangle.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel
from transformers.cache_utils import Cache, CacheLayerMixin

from genret.decoding.language_model import PromptPrefix

# Keys and values of one layer. Of a shared prefix, shapes: (1, H_kv, S, D) and (1, H_kv, S, D_v).
KeysAndValues = tuple[Tensor, Tensor]


class TreeLayer(CacheLayerMixin):  # type: ignore[no-untyped-call]
    """One model layer: an immutable prompt segment and a preallocated tail.

    The first `update` stores the prompt, every later one appends one frontier, for which `resize` has made
    room.
    """

    is_sliding = False
    is_compileable = False
    is_croppable = False

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)  # type: ignore[no-untyped-call]
        self._prompt: KeysAndValues | None = None  # None before it is written. Shapes: (Q, H_kv, T, D or D_v)
        self.used = 0  # Tail slots written so far
        self._tail: KeysAndValues | None = None  # Buffers of the written branches

    @property
    def prompt(self) -> KeysAndValues:
        """Keys and values of the prompts."""
        assert self._prompt is not None
        return self._prompt

    @property
    def tail(self) -> KeysAndValues:
        """Keys and values of the written branches, views. Shapes: (Q, H_kv, used, D or D_v)."""
        assert self._tail is not None
        keys, values = self._tail
        return keys[:, :, : self.used], values[:, :, : self.used]

    @property
    def slot_bytes(self) -> tuple[int, int]:
        """Bytes of one slot's keys and of its values."""
        keys, values = (part.shape[1] * part.shape[3] * part.element_size() for part in self.prompt)
        return keys, values

    @property
    def held_bytes(self) -> int:
        """Bytes of storage behind prompt and tail, unused capacity included."""
        return sum(part.untyped_storage().nbytes() for part in (*(self._prompt or ()), *(self._tail or ())))

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Take ownership of the prompt's keys and values."""
        self._prompt = _own(key_states), _own(value_states)
        self.is_initialized = True

    def update(self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        """Store the prompt (first call) or append one frontier (later calls), and return what was passed in.

        Shapes: key_states (Q, H_kv, T or B, D), value_states (Q, H_kv, T or B, D_v).
        """
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
            return key_states, value_states
        self.used += key_states.shape[2]
        for part, new in zip(self.tail, (key_states, value_states), strict=True):
            part[:, :, -new.shape[2] :] = new
        return key_states, value_states

    def resize(self, capacity: int) -> None:
        """Move the tail to buffers of `capacity` slots, keys before values."""
        keys, values = self._tail or (None, None)
        keys = _resized(keys, self.prompt[0], self.used, capacity)
        if values is not None:
            self._tail = keys, values  # frees the old keys before the new values are made
        self._tail = keys, _resized(values, self.prompt[1], self.used, capacity)

    def compact(self, rows: Tensor, width: int, capacity: int) -> None:
        """Keep `width` slots per query in buffers of `capacity` slots; buffers of that size are reused.

        `rows` are the slots of every query and head, as rows of a buffer. Shape: (Q * H_kv * width,).
        """
        assert self._tail is not None
        self._tail = _compacted(self._tail[0], rows, width, capacity), self._tail[1]
        self._tail = self._tail[0], _compacted(self._tail[1], rows, width, capacity)
        self.used = width

    def select(self, queries: Tensor, width: int, branches: bool) -> TreeLayer:
        """Return a layer with the prompts of some queries, (n,), cut to their last `width` slots.

        `branches` says whether to copy the tails too, without spare room.
        """
        keys, values = (part[:, :, -width:].index_select(0, queries) for part in self.prompt)
        other = TreeLayer()
        other.lazy_initialization(keys, values)
        if branches and self.used:
            keys, values = (part.index_select(0, queries) for part in self.tail)
            other._tail, other.used = (keys, values), self.used
        return other

    def get_seq_length(self) -> int:
        """Slots held per query, prompt and tail. A slot count, not a position."""
        prompt = 0 if self._prompt is None else self._prompt[0].shape[2]
        return prompt + self.used

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Key length and offset of the mask that transformers would build; the tree uses its own."""
        return self.get_seq_length() + query_length, 0

    def get_max_length(self) -> int:
        """Return -1: no bound."""
        return -1


def _own(states: Tensor) -> Tensor:
    """Return a contiguous tensor with storage of its own size.

    A view into a fused query-key-value buffer would keep three times its own bytes alive.
    """
    states = states.contiguous()
    if states.untyped_storage().nbytes() != states.numel() * states.element_size():
        states = states.clone(memory_format=torch.contiguous_format)
    return states


def _resized(buffer: Tensor | None, prompt: Tensor, used: int, capacity: int) -> Tensor:
    """Return a buffer of `capacity` slots like the prompt's, with the first `used` slots of the old one."""
    queries, heads, _, size = prompt.shape
    resized = prompt.new_empty(queries, heads, capacity, size)
    if buffer is not None:
        resized[:, :, :used] = buffer[:, :, :used]
    return resized


def _compacted(buffer: Tensor, rows: Tensor, width: int, capacity: int) -> Tensor:
    """Return the buffer, or a new one of `capacity` slots, with the chosen rows in front."""
    queries, heads, _, size = buffer.shape
    live = buffer.view(-1, size).index_select(0, rows).view(queries, heads, width, size)
    if buffer.shape[2] != capacity:
        buffer = buffer.new_empty(queries, heads, capacity, size)
    buffer[:, :, :width] = live
    return buffer


# Frontiers for which room is reserved at a time; titles are mostly shorter, so most tails never grow.
INITIAL_DEPTH = 8
# Frontiers that must fit after a collection. With less room the next collection would be due at once, and
# every one waits for the device.
LEAST_ROOM = 4


class TreeCache(Cache):
    """One `TreeLayer` per model layer, created as the model reaches it.

    `prefix`: keys and values of the shared prefix by model layer, never copied; empty without one.
    """

    def __init__(self, prefix: tuple[KeysAndValues, ...] = ()) -> None:
        super().__init__(layer_class_to_replicate=TreeLayer)
        self.prefix = prefix
        self.capacity = 0  # Tail slots per query for which there is room
        self._peak_bytes = 0

    def tree_layer(self, index: int) -> TreeLayer:
        """The layer of the attention module with `layer_idx == index`."""
        layer = self.layers[index]
        assert isinstance(layer, TreeLayer)
        return layer

    def prefix_of(self, layer: int) -> KeysAndValues | None:
        """Keys and values of the shared prefix in one layer, None without one."""
        return self.prefix[layer] if self.prefix else None

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
        """Bytes of prompt slots and written tail slots."""
        queries = self.tree_layer(0).prompt[0].shape[0]
        return queries * self.tree_layer(0).get_seq_length() * self.slot_bytes

    @property
    def peak_bytes(self) -> int:
        """Most bytes held at any time, the copies of growing and compacting included."""
        return max(self._peak_bytes, self.held_bytes)

    def make_room(self, width: int) -> None:
        """Reserve room for one more frontier of `width` branches."""
        if self.used + width <= self.capacity:
            return
        before, replaced = self.held_bytes, self.capacity
        self.capacity = _roomy(self.used, width)
        for layer in self._tree_layers():
            layer.resize(self.capacity)
        self._note_peak(before, copied=replaced)

    def compact(self, kept: Tensor, width: int) -> None:
        """Keep the slots `kept`, (Q, m), of every tail. Copies those alone, and layer by layer.

        Buffers grow if the next frontier, of `width` branches, leaves little room, and shrink if most of them
        is spare: otherwise one wide moment, such as a query with many branches that soon died, would set the
        session's memory to its end.
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
        """Count in the peak what a pass over whole trees holds beside the cache.

        Those of the `tokens` written are held in one layer at a time, those of `path` tokens in all layers.
        """
        largest = max(sum(layer.slot_bytes) for layer in self._tree_layers())
        beside = tokens * largest + path * self.slot_bytes
        self._peak_bytes = max(self._peak_bytes, self.held_bytes + beside)

    def _note_peak(self, before: int, copied: int) -> None:
        """Count in the peak what was held while buffers were replaced one at a time.

        `copied`: slots held twice, of one layer's keys or values at any time.
        """
        queries = self.tree_layer(0).prompt[0].shape[0]
        largest = max(max(layer.slot_bytes) for layer in self._tree_layers())
        self._peak_bytes = max(self._peak_bytes, max(before, self.held_bytes) + queries * copied * largest)

    def _tree_layers(self) -> list[TreeLayer]:
        return [self.tree_layer(index) for index in range(len(self.layers))]


def _roomy(used: int, width: int) -> int:
    """Slots to reserve: a quarter more than `used`, and at least some frontiers of `width`.

    Geometric growth keeps copying a constant share of the work; more than a quarter would waste memory.
    """
    return used + max(used // 4, INITIAL_DEPTH * width)


def _rows(kept: Tensor, heads: int, capacity: int) -> Tensor:
    """Slots of every query as rows of a buffer (Q * heads * capacity, D). Shape: (Q * heads * m,), int64."""
    queries = kept.shape[0]
    first = torch.arange(queries * heads, device=kept.device).view(queries, heads, 1) * capacity
    return (first + kept[:, None]).flatten()


class TreePrefix:
    """Keys and values of tokens that many prompts begin with (`decoding.language_model.PromptPrefix`).

    Immutable; sessions refer to the segments, one per model layer, and never copy them. Does not keep the
    model alive.
    """

    def __init__(self, model: PreTrainedModel, token_ids: Sequence[int], cache: TreeCache) -> None:
        """Take the one prompt of a cache."""
        self._model = weakref.ref(model)
        self._model_type: str = model.config.model_type
        self.token_ids = tuple(token_ids)
        # Shapes: (1, H_kv, S, D) and (1, H_kv, S, D_v).
        self.segments = tuple(cache.tree_layer(index).prompt for index in range(len(cache.layers)))

    @property
    def kv_bytes(self) -> int:
        """Bytes of key/value cache it holds."""
        return sum(part.untyped_storage().nbytes() for segment in self.segments for part in segment)


def checked_prefix(prefix: PromptPrefix, model: PreTrainedModel) -> TreePrefix:
    """Return the prefix; ValueError if another model made it, or this one has been moved since."""
    name = model.config.model_type
    if not isinstance(prefix, TreePrefix):
        raise ValueError(
            f"prefix must come from this model's share_prefix (model type {name!r}), "
            f"got a {type(prefix).__name__}"
        )
    if prefix._model() is not model:
        raise ValueError(
            f"prefix was made by another model (model type {prefix._model_type!r}) than this one "
            f"(model type {name!r}); keys and values mean nothing to another model"
        )
    made: tuple[torch.dtype, torch.device] = (prefix.segments[0][0].dtype, prefix.segments[0][0].device)
    if made != (model.dtype, model.device):
        raise ValueError(
            f"prefix was made when model type {name!r} computed in {made[0]} on {made[1]}, "
            f"it now computes in {model.dtype} on {model.device}"
        )
    return prefix


# A frontier is packed if at least one in this many branches is padding; with less, moving rows in every layer
# costs more than it saves.
_LEAST_PADDING = 8


@dataclass(frozen=True, slots=True, eq=False)
class PackedFrontier:
    """The live branches of a frontier, P of Q * B."""

    cells: Tensor  # The live branches, numbered query by query. Shape: (P,), int64, ascending
    num_queries: int  # Q
    branches: int  # B

    @classmethod
    def of(cls, parents: Tensor) -> PackedFrontier | None:
        """Pack a frontier; None if few branches or all of them are padding. Waits for the device.

        `parents` is -1 for padding branches. Shape: (Q, B), int64.
        """
        cells = torch.nonzero(parents.flatten() >= 0).flatten()
        padding = parents.numel() - len(cells)
        if not len(cells) or padding * _LEAST_PADDING < parents.numel():
            return None
        return cls(cells, *parents.shape)

    def columns(self, first: int, end: int) -> PackedFrontier:
        """Pack some columns only; where all of them are padding, one of them is computed."""
        queries, columns = self.cells // self.branches, self.cells % self.branches
        inside = (columns >= first) & (columns < end)
        cells = (queries * (end - first) + columns - first)[inside]
        return PackedFrontier(cells if len(cells) else self.cells.new_zeros(1), self.num_queries, end - first)

    def pack(self, rectangle: Tensor) -> Tensor:
        """Take one value per live branch. Shape: (1, P) of (Q, B)."""
        return rectangle.flatten().index_select(0, self.cells)[None]

    def unpack(self, rows: Tensor) -> Tensor:
        """Put rows back into the rectangle, zeros on padding. Shape: (Q, B, V) of (1, P, V)."""
        return self._spread(rows[0]).view(self.num_queries, self.branches, -1)

    def pack_heads(self, attended: Tensor) -> Tensor:
        """Take the attention output of live branches. Shape: (1, H, P, D) of (Q, H, B, D)."""
        heads, size = attended.shape[1], attended.shape[3]
        rows = attended.transpose(1, 2).reshape(-1, heads * size).index_select(0, self.cells)
        return rows.view(1, -1, heads, size).transpose(1, 2)

    def unpack_heads(self, states: Tensor) -> Tensor:
        """Put queries, keys or values back. Shape: (Q, H, B, D) of (1, H, P, D)."""
        _, heads, count, size = states.shape
        rows = states[0].transpose(0, 1).reshape(count, heads * size)
        return self._spread(rows).view(self.num_queries, self.branches, heads, size).transpose(1, 2)

    def _spread(self, rows: Tensor) -> Tensor:
        """Rows of all branches, zeros on padding. Shape: (Q * B, n) of (P, n)."""
        return rows.new_zeros(self.num_queries * self.branches, rows.shape[1]).index_copy_(
            0, self.cells, rows
        )


class PackedWrites(Cache):
    """A tree's cache for one packed pass: writes the live branches into the rectangle."""

    def __init__(self, cache: TreeCache, frontier: PackedFrontier) -> None:
        super().__init__(layers=cache.layers)
        self._frontier = frontier

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Append the frontier to a layer. Shapes: (1, H_kv, P, D) and (1, H_kv, P, D_v)."""
        unpack = self._frontier.unpack_heads
        super().update(unpack(key_states), unpack(value_states), layer_idx, *args, **kwargs)
        return key_states, value_states
