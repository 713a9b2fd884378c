"""Defines how states of a trie are packed, and the kernels that walk it by tensor operations.

A state is one integer, `row_end << 31 | position`. The position is that of the last edge in the trie's
tokens, in a node or in a tail (0: the root); the rows below it end before rank row_end. Inside a tail row_end
- 1 is the row itself, so a state never searches for its row. Under row filters lane n counts its ranks from n
* (R + 1) on. State -1 is "no such state".

`TorchKernels` run on any device, for a whole trie and under row filters. All but `children` have static
shapes and a fixed number of operations, never wait for the device, and can be traced by `torch.compile` and
captured in a CUDA graph. Under filters an edge is allowed if its filter's counts grow over its ranks. Each
lane's counts are read where they are: with static shapes that costs one look-up per lane, in the ragged form
one per run of neighbours in a lane.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Self

import numpy as np
import torch
from torch import Tensor

from genret.decoding.constraints import Children, PaddedChildren
from genret.decoding.trie.trie_arrays import IntArray, TrieArrays

_TOKEN_VIEWS: dict[np.dtype[np.integer], np.dtype[np.integer]] = {
    np.dtype(np.uint8): np.dtype(np.uint8),
    np.dtype(np.uint16): np.dtype(np.int16),
    np.dtype(np.uint32): np.dtype(np.int32),
}


@dataclass(frozen=True, slots=True, eq=False)
class TrieTables:
    """A trie's arrays (`trie_arrays.TrieArrays`) as tensors on one device; never written to."""

    token: Tensor  # The bits of unsigned tokens, read as signed. Shape: (N + T,), uint8, int16 or int32
    token_mask: int  # What takes the sign off again
    child_begin: Tensor  # Shape: (N + 1,), int32
    row_begin: Tensor  # Shape: (N + 1,), int32
    tail_begin: Tensor  # Shape: (R + 1,), int32
    search_steps: int  # Halvings needed to empty the widest run of siblings

    @classmethod
    def of(cls, arrays: TrieArrays, device: torch.device) -> TrieTables:
        """Put a trie's arrays on a device; zero-copy on the CPU."""
        # Torch has few operations on wide unsigned types, so their bits are read as signed and masked.
        token = arrays.token if arrays.token.dtype in _TOKEN_VIEWS else arrays.token.astype(np.uint32)
        return cls(
            token=_to_tensor(token.view(_TOKEN_VIEWS[token.dtype]), device),
            token_mask=int(np.iinfo(token.dtype).max),
            child_begin=_to_tensor(arrays.child_begin, device),
            row_begin=_to_tensor(arrays.row_begin, device),
            tail_begin=_to_tensor(arrays.tail_begin, device),
            search_steps=max(arrays.max_children, 1).bit_length(),
        )

    @property
    def num_nodes(self) -> int:
        """Number of nodes N, root included."""
        return len(self.child_begin) - 1

    @property
    def num_rows(self) -> int:
        """Number of rows R."""
        return len(self.tail_begin) - 1

    @property
    def num_bytes(self) -> int:
        """Memory of the tables."""
        tables = (self.token, self.child_begin, self.row_begin, self.tail_begin)
        return sum(table.numel() * table.element_size() for table in tables)


def _to_tensor(array: IntArray, device: torch.device) -> Tensor:
    with warnings.catch_warnings():
        # Torch has no read-only tensors, so it warns about a memory-mapped index. Nothing here writes to the
        # transitions: the pages stay clean and shared between processes.
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        tensor = torch.as_tensor(array)
    if device.type != "cuda":
        return tensor.to(device)
    # Pinned memory goes to the device in one piece, by DMA, and is given back at once.
    return tensor.pin_memory().to(device, non_blocking=True)


POSITION_BITS = 31
POSITION_MASK = (1 << POSITION_BITS) - 1


def pack(position: Tensor, row_end: Tensor) -> Tensor:
    """Return states. Any shape, int64."""
    return (row_end << POSITION_BITS) | position


def unpack(states: Tensor) -> tuple[Tensor, Tensor]:
    """Return (position, row_end) of states. Shapes: (n,), int64.

    State -1 gives a position behind every trie, which has no children, and row_end 0.
    """
    return states & POSITION_MASK, (states >> POSITION_BITS).clamp_(min=0)


class TrieEdges(NamedTuple):
    """Edges out of a batch of places, ragged, grouped by place."""

    owner: Tensor  # Index of the place each edge leaves. Shape: (E,), int64, non-decreasing
    position: Tensor  # Position in the trie's tokens. Shape: (E,), int64
    # One past the rank of the last row below the edge; where its next sibling begins. Shape: (E,), int64.
    row_end: Tensor
    first: Tensor  # First edge of each place, E for a place without any. Shape: (n,), int64


class PaddedEdges(NamedTuple):
    """A fixed number of edges per place; position and row_end are in range, meaningless if not `there`."""

    there: Tensor  # Whether the edge exists. Shape: (n, M), bool
    # Of the edge in the trie's tokens; in range but meaningless where there is none. Shape: (n, M), int64.
    position: Tensor
    row_end: Tensor  # One past the rank of the last row below the edge; likewise. Shape: (n, M), int64


class TorchKernels:
    """The questions a decoder asks of a trie, by tensor operations over its tables on any device.

    Faster kernels for some device override them. `prefixes` are `RowFilter.prefix` of each lane, at least
    one, (R + 1,), int32; None allows all rows. A *place* is a position and the rank before which the rows
    below it end.
    """

    name = "torch"

    def __init__(self, tables: TrieTables, prefixes: Sequence[Tensor | None] = (None,)) -> None:
        self._tables = tables
        self._last = len(tables.token) - 1
        self._stride = tables.num_rows + 1
        self._prefixes = list(prefixes)
        self._allows_all = len(prefixes) == 1 and prefixes[0] is None

    def children(self, states: Tensor) -> Children:
        """List every allowed continuation. `states` shape: (n,).

        On CUDA this waits for the device once, for the answer's size, under filters twice, and once more if
        lanes differ.
        """
        place, place_end, lane = self._unpack(states)
        owner, position, row_end, first = self._edges(place, place_end)
        if self._allows_all:
            return Children(owner, self._token_at(position), pack(position, row_end))
        place_begin = self._row_begin(place, place_end).clamp_(min=0)  # -1 for state -1
        at_places, upto = self._counts(lane, owner, place_begin, row_end)
        # Rows below an edge begin where its previous sibling's end: one look-up per edge, not two.
        before = upto.new_empty(len(upto) + 1)
        before[1:] = upto
        before.scatter_(0, first, at_places)
        allowed = upto > before[:-1]
        kept = _true_at(allowed)
        owner, position = owner.index_select(0, kept), position.index_select(0, kept)
        row_end = row_end.index_select(0, kept)
        if lane is not None:
            row_end += lane.index_select(0, owner) * self._stride
        return Children(owner, self._token_at(position), pack(position, row_end))

    def padded_children(self, states: Tensor, width: int) -> PaddedChildren:
        """List every allowed continuation in `width` columns: static shapes, no host synchronisation.

        Column j is child j of the node, -1 for a child that is not allowed. Raises ValueError if a state
        needs more columns, unless that check would wait for a device or break a trace.
        """
        position, row_end, lane = self._unpack(states)
        edges = self._padded_edges(position, row_end, width)
        next_state = self._next_states(edges, lane)
        return PaddedChildren(torch.where(next_state >= 0, self._token_at(edges.position), -1), next_state)

    def verify(self, states: Tensor, token_ids: Tensor) -> Tensor:
        """Return the next state per candidate, -1 for none. Shapes: (n,), (n, M), (n, M).

        A parallel binary search; under filters a look-up per candidate and lane.
        """
        position, row_end, lane = self._unpack(states)
        return self._next_states(self._find(position, row_end, token_ids), lane)

    def is_final(self, states: Tensor) -> Tensor:
        """Return whether a whole row has been written: nothing follows a place other than the root. (n,)."""
        position, row_end, _ = self._unpack(states)
        begin, end = self._child_run(position, row_end)
        return (begin == end) & (position > 0)

    def under(self, prefixes: Sequence[Tensor | None]) -> Self:
        """Return the kernels of the whole trie under other filters, one lane each; nothing is copied."""
        return type(self)(self._tables, prefixes)

    def _next_states(self, edges: PaddedEdges, lane: Tensor | None) -> Tensor:
        """States behind allowed edges, -1 for the others. Shape: (n, M), int64."""
        there, position, row_end = edges
        if self._allows_all:
            return torch.where(there, pack(position, row_end), -1)
        # An edge that is not there may have no rows, or ones that end before they begin.
        begin = self._row_begin(position, row_end).clamp_(min=0)
        if lane is None:
            allowed = _grows(self._prefixes[0], begin, row_end)
            return torch.where(there & allowed, pack(position, row_end), -1)
        lane = lane.unsqueeze(1)
        allowed = torch.zeros_like(there)
        for number, prefix in enumerate(self._prefixes):
            allowed |= (lane == number) & _grows(prefix, begin, row_end)
        return torch.where(there & allowed, pack(position, row_end + lane * self._stride), -1)

    def _unpack(self, states: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        """(position, row_end, lane), lane None if there is only one. Shapes: (n,), int64."""
        position, row_end = unpack(states)
        if len(self._prefixes) == 1:
            return position, row_end, None
        lane = row_end // self._stride
        return position, row_end - lane * self._stride, lane

    def _counts(
        self, lane: Tensor | None, owner: Tensor, place_begin: Tensor, row_end: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Count the allowed rows before a rank of each place, (n,), and before a rank of each edge, (E,).

        Each filter counts from a base of its own. `lane` is that of each place, None if there is only one;
        `owner` the place of each edge, non-decreasing. Returns int32.
        """
        if lane is None:
            return _count(self._prefixes[0], place_begin), _count(self._prefixes[0], row_end)
        runs, num_places = torch.unique_consecutive(lane, return_counts=True)
        ends = torch.searchsorted(owner, num_places.cumsum(0))
        num_edges = ends.diff(prepend=ends.new_zeros(1))
        lanes, of_places, of_edges = torch.stack([runs, num_places, num_edges]).tolist()
        counts = []
        for ranks, lengths in ((place_begin, of_places), (row_end, of_edges)):
            pieces = zip(lanes, ranks.split_with_sizes(lengths), strict=True)
            nothing = ranks.new_empty(0, dtype=torch.int32)
            counts.append(torch.cat([nothing, *(_count(self._prefixes[n], piece) for n, piece in pieces)]))
        return counts[0], counts[1]

    def _edges(self, position: Tensor, row_end: Tensor) -> TrieEdges:
        """Every edge out of each place, grouped by place, siblings ascending by token."""
        begin, end = self._child_run(position, row_end)
        counts = (end - begin).clamp(min=0)
        past = counts.cumsum(0)  # one past each place's last edge
        owner = torch.repeat_interleave(counts)
        child = (begin - past + counts).index_select(0, owner)
        child += torch.arange(len(owner), device=child.device)
        # Rows below an edge end where its next sibling's begin; below the last edge, where the place's end.
        # Places without edges write into an extra slot at the end.
        has_edges, num_edges = counts > 0, len(owner)
        ends = torch.empty(num_edges + 1, dtype=torch.int64, device=child.device)
        ends[:-1] = look_up(self._tables.row_begin, (child + 1).clamp_(max=self._tables.num_nodes))
        ends.scatter_(0, torch.where(has_edges, past - 1, num_edges), row_end)
        return TrieEdges(owner, child, ends[:-1], torch.where(has_edges, past - counts, num_edges))

    def _padded_edges(self, position: Tensor, row_end: Tensor, width: int) -> PaddedEdges:
        """The edges out of each place, (n,), in `width` columns, the first edge in the first.

        Raises ValueError if a place on the CPU has more edges.
        """
        begin, end = self._child_run(position, row_end)
        if _can_look_at(position) and len(position):
            most = int((end - begin).max())
            if most > width:
                raise ValueError(f"width: expected at least {most}, the children of one state, got {width}")
        child = begin.unsqueeze(1) + torch.arange(width, device=begin.device)
        end = end.unsqueeze(1)
        return PaddedEdges(child < end, child.clamp(max=self._last), self._row_end(child, end, row_end))

    def _find(self, position: Tensor, row_end: Tensor, token_ids: Tensor) -> PaddedEdges:
        """Search for M tokens, (n, M), among the edges of each place, (n,), in a fixed number of halvings."""
        begin, end = (bound.unsqueeze(1) for bound in self._child_run(position, row_end))
        low, high = begin.expand(token_ids.shape), end.expand(token_ids.shape)
        for _ in range(self._tables.search_steps):
            middle = (low + high) // 2
            open_ = low < high
            smaller = self._token_at(middle.clamp(max=self._last)) < token_ids
            low = torch.where(open_ & smaller, middle + 1, low)
            high = torch.where(open_ & ~smaller, middle, high)
        child = low.clamp(max=self._last)
        hit = (low < end) & (self._token_at(child) == token_ids)
        return PaddedEdges(hit, child, self._row_end(child, end, row_end))

    def _token_at(self, position: Tensor) -> Tensor:
        """Return the tokens at positions within the trie. Any shape, int64."""
        return look_up(self._tables.token, position).long() & self._tables.token_mask

    def _row_begin(self, position: Tensor, row_end: Tensor) -> Tensor:
        """Return the rank of the first row below each place, -1 if it has no rows. Any shape, int64."""
        # Behind the nodes the table gives R; a place in a tail has one row.
        begin = look_up(self._tables.row_begin, position.clamp(max=self._tables.num_nodes)).long()
        return torch.minimum(begin, row_end - 1)

    def _row_end(self, child: Tensor, end: Tensor, row_end: Tensor) -> Tensor:
        """Rank at which the rows below children end. Shapes: (n, M), (n, 1), (n,) and (n, M)."""
        sibling = child + 1
        ends = look_up(self._tables.row_begin, sibling.clamp(max=self._tables.num_nodes)).long()
        return torch.where(sibling < end, ends, row_end.unsqueeze(1))

    def _child_run(self, position: Tensor, row_end: Tensor) -> tuple[Tensor, Tensor]:
        """Run of positions of each place's children, end < begin for no place."""
        tables = self._tables
        # The last node is a leaf (or a root without rows), so a position in a tail reads "no child nodes".
        node = position.clamp(max=tables.num_nodes - 1)
        begin = tables.child_begin.index_select(0, node)
        end = tables.child_begin.index_select(0, node + 1)
        single = begin == end
        tail_end = tables.tail_begin.index_select(0, row_end)
        tail_begin = tables.tail_begin.index_select(0, (row_end - 1).clamp_(min=0))
        following = torch.where(position < tables.num_nodes, tail_begin, position + 1)
        begin = torch.where(single, following, begin)
        return begin, torch.where(single, torch.minimum(following + 1, tail_end), end)


def _grows(prefix: Tensor | None, begin: Tensor, end: Tensor) -> Tensor:
    """Whether a filter allows a row of [begin, end). Any shape, bool."""
    return _count(prefix, end) > _count(prefix, begin)


def _count(prefix: Tensor | None, ranks: Tensor) -> Tensor:
    """Count the rows a filter allows before each rank. Any shape, int32."""
    return ranks.int() if prefix is None else look_up(prefix, ranks)


def _true_at(mask: Tensor) -> Tensor:
    """Return where a mask is true. Shapes: (n,) and (k,), int64."""
    if mask.device.type == "cpu":  # five times as fast as torch's (180,000 edges, torch 2.13)
        return torch.from_numpy(np.flatnonzero(mask.numpy()))
    return torch.nonzero(mask).squeeze(1)


def look_up(table: Tensor, index: Tensor) -> Tensor:
    """Return table[index]. Shape: that of `index`."""
    # `take` and indexing cost eight to ten times as much on a CPU (180,000 of 6 M entries, torch 2.13).
    if index.ndim == 1:
        return table.index_select(0, index)
    return table.index_select(0, index.flatten()).view(index.shape)


def _can_look_at(tensor: Tensor) -> bool:
    """Whether reading values costs no wait: on the CPU, real, and not being traced."""
    return tensor.device.type == "cpu" and type(tensor) is Tensor and not torch.compiler.is_compiling()
