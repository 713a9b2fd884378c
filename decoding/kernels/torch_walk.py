"""Walking a trie's tables by tensor operations: from places to the edges out of them, on any device.

Everything but `edges` has static shapes and a fixed number of operations and asks the device nothing.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from decoding.kernels.contract import TrieTables


class TrieEdges(NamedTuple):
    """Edges out of a batch of places, ragged, grouped by place.

    Attributes:
        owner: Index of the place each edge leaves. Shape: (E,), int64, non-decreasing.
        position: Of the edge in the trie's tokens. Shape: (E,), int64.
        row_end: One past the rank of the last row below the edge; where its next sibling begins. Shape: (E,),
            int64.
        first: First edge of each place, E for a place without any. Shape: (n,), int64.
    """

    owner: Tensor
    position: Tensor
    row_end: Tensor
    first: Tensor


class PaddedEdges(NamedTuple):
    """Some positions per place, each an edge out of it or not.

    Attributes:
        there: Whether there is such an edge. Shape: (n, M), bool.
        position: Of the edge in the trie's tokens; in range but meaningless where there is none. Shape:
            (n, M), int64.
        row_end: One past the rank of the last row below the edge; likewise. Shape: (n, M), int64.
    """

    there: Tensor
    position: Tensor
    row_end: Tensor


class TorchWalk:
    """Looks up edges; a place is a position and the rank before which the rows below it end.

    Args:
        tables: On any device.
    """

    def __init__(self, tables: TrieTables) -> None:
        self._tables = tables
        self._last = len(tables.token) - 1

    @property
    def num_rows(self) -> int:
        """Number of rows of the trie."""
        return self._tables.num_rows

    def edges(self, position: Tensor, row_end: Tensor) -> TrieEdges:
        """Return every edge out of each place, grouped by place, siblings ascending by token.

        Args:
            position: Shape: (n,), int64.
            row_end: Shape: (n,), int64.
        """
        begin, end = self._child_run(position, row_end)
        counts = (end - begin).clamp(min=0)
        past = counts.cumsum(0)  # one past each place's last edge
        owner = torch.repeat_interleave(counts)
        child = (begin - past + counts).index_select(0, owner)
        child += torch.arange(len(owner), device=child.device)
        # Rows below an edge end where its next sibling's begin, those of a last edge where the place's own
        # do. That is written into its slot; places without edges write into one more at the end.
        has_edges, num_edges = counts > 0, len(owner)
        ends = torch.empty(num_edges + 1, dtype=torch.int64, device=child.device)
        ends[:-1] = look_up(self._tables.row_begin, (child + 1).clamp_(max=self._tables.num_nodes))
        ends.scatter_(0, torch.where(has_edges, past - 1, num_edges), row_end)
        return TrieEdges(owner, child, ends[:-1], torch.where(has_edges, past - counts, num_edges))

    def padded_edges(self, position: Tensor, row_end: Tensor, width: int) -> PaddedEdges:
        """Return the edges out of each place in `width` columns, the first edge in the first.

        Args:
            position: Shape: (n,), int64.
            row_end: Shape: (n,), int64.
            width: At least the edges of every place.

        Raises:
            ValueError: a place on the CPU has more edges.
        """
        begin, end = self._child_run(position, row_end)
        if _can_look_at(position) and len(position):
            most = int((end - begin).max())
            if most > width:
                raise ValueError(f"width: expected at least {most}, the children of one state, got {width}")
        child = begin.unsqueeze(1) + torch.arange(width, device=begin.device)
        end = end.unsqueeze(1)
        return PaddedEdges(child < end, child.clamp(max=self._last), self._row_end(child, end, row_end))

    def find(self, position: Tensor, row_end: Tensor, token_ids: Tensor) -> PaddedEdges:
        """Look for M tokens among the edges out of each place, in a fixed number of halvings.

        Args:
            position: Shape: (n,), int64.
            row_end: Shape: (n,), int64.
            token_ids: Shape: (n, M), int64.
        """
        begin, end = (bound.unsqueeze(1) for bound in self._child_run(position, row_end))
        low, high = begin.expand(token_ids.shape), end.expand(token_ids.shape)
        for _ in range(self._tables.search_steps):
            middle = (low + high) // 2
            open_ = low < high
            smaller = self.token_at(middle.clamp(max=self._last)) < token_ids
            low = torch.where(open_ & smaller, middle + 1, low)
            high = torch.where(open_ & ~smaller, middle, high)
        child = low.clamp(max=self._last)
        hit = (low < end) & (self.token_at(child) == token_ids)
        return PaddedEdges(hit, child, self._row_end(child, end, row_end))

    def ends_row(self, position: Tensor, row_end: Tensor) -> Tensor:
        """Whether nothing follows a place that is not the root. Shapes: (n,)."""
        begin, end = self._child_run(position, row_end)
        return (begin == end) & (position > 0)

    def token_at(self, position: Tensor) -> Tensor:
        """Return the tokens at positions within the trie. Any shape, int64."""
        return look_up(self._tables.token, position).long() & self._tables.token_mask

    def row_begin(self, position: Tensor, row_end: Tensor) -> Tensor:
        """Return the rank of the first row below each place, -1 where it has no rows. Any shape, int64."""
        # Behind the nodes this reads R, and a place in a tail has one row.
        begin = look_up(self._tables.row_begin, position.clamp(max=self._tables.num_nodes)).long()
        return torch.minimum(begin, row_end - 1)

    def _row_end(self, child: Tensor, end: Tensor, row_end: Tensor) -> Tensor:
        """Return where the rows below children end. Shapes: (n, M), (n, 1), (n,) and (n, M)."""
        sibling = child + 1
        ends = look_up(self._tables.row_begin, sibling.clamp(max=self._tables.num_nodes)).long()
        return torch.where(sibling < end, ends, row_end.unsqueeze(1))

    def _child_run(self, position: Tensor, row_end: Tensor) -> tuple[Tensor, Tensor]:
        """Return the run of positions where the children of each place are, end < begin for no place."""
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


def look_up(table: Tensor, index: Tensor) -> Tensor:
    """Return table[index]. Shape: that of `index`."""
    # `take` and indexing cost eight to ten times as much on a CPU (180,000 of 6 M entries, torch 2.13).
    if index.ndim == 1:
        return table.index_select(0, index)
    return table.index_select(0, index.flatten()).view(index.shape)


def _can_look_at(tensor: Tensor) -> bool:
    """Whether the values are at hand: on the CPU, real, and not being traced."""
    return tensor.device.type == "cpu" and type(tensor) is Tensor and not torch.compiler.is_compiling()
