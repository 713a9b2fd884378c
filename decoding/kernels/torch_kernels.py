"""The trie's hot loops as tensor operations, on any device: for a whole trie, and under row filters.

Everything but `children` has static shapes and a fixed number of operations, asks the device nothing, and
can be traced by `torch.compile` and captured in a CUDA graph.

Under filters an edge is allowed where its filter's counts grow over the edge's ranks. Each lane's counts
are read where they are, so what has static shapes pays one look-up per lane, and the ragged form one per run
of neighbours in a lane.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from decoding.kernels.contract import TrieKernels, TrieTables
from decoding.kernels.states import pack, unpack
from decoding.kernels.torch_walk import PaddedEdges, TorchWalk, look_up
from decoding.types import Children, PaddedChildren


class TorchKernels:
    """Tensor operations over a trie's tables (`decoding.kernels.contract.TrieKernels`).

    Args:
        tables: On any device.
    """

    name = "torch"

    def __init__(self, tables: TrieTables) -> None:
        self._walk = TorchWalk(tables)

    def children(self, states: Tensor) -> Children:
        """List every continuation; on CUDA this waits for the device once, for the answer's size."""
        owner, position, row_end, _ = self._walk.edges(*unpack(states))
        return Children(owner, self._walk.token_at(position), pack(position, row_end))

    def padded_children(self, states: Tensor, width: int) -> PaddedChildren:
        """List every continuation in `width` columns."""
        edges = self._walk.padded_edges(*unpack(states), width)
        token = torch.where(edges.there, self._walk.token_at(edges.position), -1)
        return PaddedChildren(token, torch.where(edges.there, pack(edges.position, edges.row_end), -1))

    def verify(self, states: Tensor, token_ids: Tensor) -> Tensor:
        """Check candidates by parallel binary search among the state's children."""
        hit, position, row_end = self._walk.find(*unpack(states), token_ids)
        return torch.where(hit, pack(position, row_end), -1)

    def is_final(self, states: Tensor) -> Tensor:
        """Return whether nothing follows a place that is not the root."""
        return self._walk.ends_row(*unpack(states))

    def under(self, prefixes: Sequence[Tensor | None]) -> TrieKernels:
        """Return the kernels under row filters."""
        return TorchLaneKernels(self._walk, prefixes)


class TorchLaneKernels:
    """Tensor operations over a trie narrowed down by lane (`decoding.kernels.contract.TrieKernels`).

    Args:
        walk: Of the trie that is narrowed down.
        prefixes: Of each lane, None for all rows; at least one. Each of shape (R + 1,), int32.
    """

    name = "torch"

    def __init__(self, walk: TorchWalk, prefixes: Sequence[Tensor | None]) -> None:
        self._walk = walk
        self._stride = walk.num_rows + 1
        self._prefixes = list(prefixes)

    def children(self, states: Tensor) -> Children:
        """List every allowed continuation.

        On CUDA this waits for the device twice, and once more where lanes differ.
        """
        place, place_end, lane = self._unpack(states)
        owner, position, row_end, first = self._walk.edges(place, place_end)
        place_begin = self._walk.row_begin(place, place_end).clamp_(min=0)  # -1 for state -1
        at_places, upto = self._counts(lane, owner, place_begin, row_end)
        # Rows below an edge begin where those of its sibling before it end: one look-up per edge, not two.
        before = upto.new_empty(len(upto) + 1)
        before[1:] = upto
        before.scatter_(0, first, at_places)
        allowed = upto > before[:-1]
        kept = _true_at(allowed)
        owner, position = owner.index_select(0, kept), position.index_select(0, kept)
        row_end = row_end.index_select(0, kept)
        if lane is not None:
            row_end += lane.index_select(0, owner) * self._stride
        return Children(owner, self._walk.token_at(position), pack(position, row_end))

    def padded_children(self, states: Tensor, width: int) -> PaddedChildren:
        """List every allowed continuation in `width` columns, -1 where a child is not allowed."""
        position, row_end, lane = self._unpack(states)
        edges = self._walk.padded_edges(position, row_end, width)
        next_state = self._next_states(edges, lane)
        return PaddedChildren(
            torch.where(next_state >= 0, self._walk.token_at(edges.position), -1), next_state
        )

    def verify(self, states: Tensor, token_ids: Tensor) -> Tensor:
        """Check candidates, at one look-up per candidate and lane."""
        position, row_end, lane = self._unpack(states)
        return self._next_states(self._walk.find(position, row_end, token_ids), lane)

    def is_final(self, states: Tensor) -> Tensor:
        """Return whether nothing follows a place that is not the root."""
        position, row_end, _ = self._unpack(states)
        return self._walk.ends_row(position, row_end)

    def under(self, prefixes: Sequence[Tensor | None]) -> TrieKernels:
        """Return the kernels of the whole trie under other filters."""
        return TorchLaneKernels(self._walk, prefixes)

    def _next_states(self, edges: PaddedEdges, lane: Tensor | None) -> Tensor:
        """Return the states behind allowed edges, -1 for the others. Shape: (n, M), int64."""
        there, position, row_end = edges
        # An edge that is not there may have no rows, or ones that end before they begin.
        begin = self._walk.row_begin(position, row_end).clamp_(min=0)
        if lane is None:
            allowed = _grows(self._prefixes[0], begin, row_end)
            return torch.where(there & allowed, pack(position, row_end), -1)
        lane = lane.unsqueeze(1)
        allowed = torch.zeros_like(there)
        for number, prefix in enumerate(self._prefixes):
            allowed |= (lane == number) & _grows(prefix, begin, row_end)
        return torch.where(there & allowed, pack(position, row_end + lane * self._stride), -1)

    def _unpack(self, states: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        """Return (position, row_end, lane), None for lane where there is but one. Shapes: (n,), int64."""
        position, row_end = unpack(states)
        if len(self._prefixes) == 1:
            return position, row_end, None
        lane = row_end // self._stride
        return position, row_end - lane * self._stride, lane

    def _counts(
        self, lane: Tensor | None, owner: Tensor, place_begin: Tensor, row_end: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Count the allowed rows before some ranks, those of each place and its edges by its own filter.

        Args:
            lane: Of each place; None: there is but one. Shape: (n,), int64.
            owner: Place of each edge, non-decreasing. Shape: (E,), int64.
            place_begin: A rank for each place. Shape: (n,), int64.
            row_end: A rank for each edge. Shape: (E,), int64.

        Returns:
            Counts for places and for edges, each from a base of its filter's own. Shapes: (n,) and (E,),
            int32.
        """
        if lane is None:
            return _count(self._prefixes[0], place_begin), _count(self._prefixes[0], row_end)
        # Runs of neighbours in one lane are looked up together.
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
