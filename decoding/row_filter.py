"""Row filters: a title trie narrowed down to some of its rows, per query of a batch, without rebuilding it.

A node of the trie is an interval of row ranks. With counts of the allowed rows before every rank, whether
a node leads to an allowed row is one subtraction, so a filter over six million rows is made in
milliseconds and a step pays for two look-ups per edge.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from decoding.title_trie import TitleTrie, pack, unpack
from decoding.types import Children

# What a state has room for besides a position: one past the last rank of an interval, with its lane.
_MAX_ROW_ENDS = 2**32


@dataclass(frozen=True, slots=True, eq=False)
class RowFilter:
    """Which rows of a trie are allowed. Immutable; make one with `from_mask` or `from_prefix`.

    Attributes:
        prefix: Grows from rank r to r + 1 exactly where row r is allowed. Shape: (R + 1,), int32.
        num_allowed: Number of rows allowed.
    """

    prefix: Tensor
    num_allowed: int

    @classmethod
    def from_mask(cls, mask: npt.NDArray[np.bool_], device: torch.device | str | None = None) -> RowFilter:
        """Allow the rows where a mask is true.

        Args:
            mask: By rank. Shape: (R,), bool.
            device: Where the trie's states live.

        Raises:
            ValueError: the mask has another shape or type.
        """
        if mask.ndim != 1 or mask.dtype != np.bool_:
            raise ValueError(f"mask: expected one dimension of bool, got {mask.ndim} of {mask.dtype}")
        prefix = np.zeros(len(mask) + 1, dtype=np.int32)
        # NumPy's sum over bytes, because torch's takes twenty times as long (6 M rows, one core).
        np.cumsum(np.ascontiguousarray(mask).view(np.int8), dtype=np.int32, out=prefix[1:])
        return cls(torch.from_numpy(prefix).to(device or "cpu"), int(prefix[-1]))

    @classmethod
    def from_prefix(
        cls, prefix: npt.NDArray[np.signedinteger], device: torch.device | str | None = None
    ) -> RowFilter:
        """Allow row r where prefix[r + 1] > prefix[r]: counts of anything that makes a row allowed.

        Args:
            prefix: Non-decreasing, below 2**31. Not copied where it is int32 and stays on the CPU: do not
                change it afterwards. Shape: (R + 1,), integer.
            device: Where the trie's states live.

        Raises:
            ValueError: it is empty, has another shape or type, decreases or is too large.
        """
        if prefix.ndim != 1 or not len(prefix) or not np.issubdtype(prefix.dtype, np.signedinteger):
            raise ValueError(
                f"prefix: expected one dimension of signed integers, at least one, got shape {prefix.shape} "
                f"of {prefix.dtype}"
            )
        grows = prefix[1:] > prefix[:-1]
        num_allowed = int(np.count_nonzero(grows))
        if num_allowed + int(np.count_nonzero(prefix[1:] == prefix[:-1])) < len(grows):
            rank = int((prefix[1:] < prefix[:-1]).argmax())
            raise ValueError(f"prefix: it decreases from rank {rank} to {rank + 1}")
        bounds = np.iinfo(np.int32)
        if prefix[0] < bounds.min or prefix[-1] > bounds.max:
            raise ValueError(f"prefix: expected values of 32 bits, got {prefix[0]} … {prefix[-1]}")
        small = np.ascontiguousarray(prefix, dtype=np.int32)
        if not small.flags.writeable:  # torch has no read-only tensors
            small = small.copy()
        return cls(torch.from_numpy(small).to(device or "cpu"), num_allowed)

    @property
    def num_rows(self) -> int:
        """Number of rows the filter speaks of, R."""
        return len(self.prefix) - 1

    @property
    def num_bytes(self) -> int:
        """Memory of the counts."""
        return self.prefix.numel() * self.prefix.element_size()


class FilteredTrie:
    """A title trie under one filter per query: a constraint whose sequences are the rows allowed.

    States know their query's *lane*, that is, which filter they stand under: in the ranks of a state, lane
    n is n * (R + 1) further on. Queries with the same filter object share a lane; several filters of one
    batch are copied into one table. Ranks of rows are those of the trie.

    Args:
        trie: What is narrowed down.
        filters: One per query of the batch; None allows all rows.

    Raises:
        ValueError: a filter is over another number of rows or on another device, or there are more filters
            than states can tell apart.
    """

    def __init__(self, trie: TitleTrie, filters: Sequence[RowFilter | None]) -> None:
        for number, row_filter in enumerate(filters):
            if row_filter is not None:
                _check_fits(trie, row_filter, number)
        distinct = list(dict.fromkeys(f for f in filters if f is not None))
        lanes = {row_filter: lane for lane, row_filter in enumerate(distinct)}
        stride = trie.num_rows + 1
        self._has_unfiltered = None in filters
        if (len(distinct) + self._has_unfiltered) * stride > _MAX_ROW_ENDS:
            raise ValueError(
                f"filters: {len(distinct)} different ones over {trie.num_rows} rows do not fit into one "
                f"batch; at most {_MAX_ROW_ENDS // stride} do, counting unfiltered queries as one"
            )
        self._trie = trie
        self._stride = stride
        self._prefix = _table([row_filter.prefix for row_filter in distinct], trie.device)
        self._unfiltered = len(distinct) * stride  # where the ranks of the unfiltered lane begin
        bases = [self._unfiltered if f is None else lanes[f] * stride for f in filters]
        self._base = torch.tensor(bases, dtype=torch.int64, device=trie.device)
        self._owns_table = len(distinct) > 1
        self.device = trie.device
        self.vocab_size = trie.vocab_size

    @property
    def max_depth(self) -> int:
        """Length in tokens of the trie's longest row, allowed or not."""
        return self._trie.max_depth

    @property
    def num_bytes(self) -> int:
        """Memory beyond the trie and the filters: the table of a batch with several filters."""
        return self._prefix.numel() * self._prefix.element_size() if self._owns_table else 0

    def start(self, queries: Tensor) -> Tensor:
        """Return the root under the filter of each query. Shapes: (n,), int64."""
        row_end = self._base[queries] + self._trie.num_rows
        return pack(torch.zeros_like(row_end), row_end)

    def children(self, states: Tensor) -> Children:
        """Return every continuation that leads to an allowed row; on CUDA this waits for the device twice.

        Args:
            states: Shape: (n,), int64.
        """
        position, row_end, base = self._unpack(states)
        owner, position, row_end = self._trie.edges(position, row_end)
        lane = base.index_select(0, owner)
        kept = torch.nonzero(self._allowed(position, row_end, lane)).squeeze(1)
        owner, position = owner.index_select(0, kept), position.index_select(0, kept)
        row_end = (row_end + lane).index_select(0, kept)
        return Children(owner, self._trie.token_at(position), pack(position, row_end))

    def verify(self, states: Tensor, token_ids: Tensor) -> Tensor:
        """Check M candidates per state; no host synchronisation.

        Args:
            states: Shape: (n,), int64.
            token_ids: Shape: (n, M), int64.

        Returns:
            Next state, -1 where the candidate leads to no allowed row. Shape: (n, M), int64.
        """
        position, row_end, base = self._unpack(states)
        hit, position, row_end = self._trie.find(position, row_end, token_ids)
        lane = base.unsqueeze(1)
        hit = hit & self._allowed(position, row_end, lane)
        return torch.where(hit, pack(position, row_end + lane), -1)

    def advance(self, states: Tensor, token_ids: Tensor) -> Tensor:
        """Follow one token per state; -1 where it leads nowhere. Shapes: (n,), int64."""
        return self.verify(states, token_ids.unsqueeze(1)).squeeze(1)

    def is_final(self, states: Tensor) -> Tensor:
        """Whether a whole row, end token included, has been written. Shape: (n,), bool."""
        position, row_end, _ = self._unpack(states)
        return self._trie.ends_row(position, row_end)

    def row(self, states: Tensor) -> Tensor:
        """Return the rank of the row a final state stands for, -1 for state -1. Shape: (n,), int64."""
        _, row_end, _ = self._unpack(states)
        return row_end - 1

    def _unpack(self, states: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return (position, row_end, first rank of the lane). Shapes: (n,), int64."""
        position, lane_end = unpack(states)
        row_end = lane_end % self._stride
        return position, row_end, lane_end - row_end

    def _allowed(self, position: Tensor, row_end: Tensor, lane: Tensor) -> Tensor:
        """Whether an allowed row is below each edge. Any shape, bool."""
        begin = (self._trie.row_begin(position, row_end) + lane).clamp_(min=0)
        end = row_end + lane
        if not self._has_unfiltered:
            return self._prefix.take(end) > self._prefix.take(begin)
        last = len(self._prefix) - 1
        some = self._prefix.take(end.clamp_(max=last)) > self._prefix.take(begin.clamp_(max=last))
        return some | (lane == self._unfiltered)


def _check_fits(trie: TitleTrie, row_filter: RowFilter, number: int) -> None:
    if row_filter.num_rows != trie.num_rows:
        raise ValueError(
            f"filters[{number}]: expected a filter over {trie.num_rows} rows, got {row_filter.num_rows}"
        )
    if row_filter.prefix.device.type != trie.device.type:
        raise ValueError(
            f"filters[{number}]: expected a filter on {trie.device}, got one on {row_filter.prefix.device}"
        )


def _table(prefixes: list[Tensor], device: torch.device) -> Tensor:
    if len(prefixes) == 1:
        return prefixes[0]
    if not prefixes:
        return torch.zeros(1, dtype=torch.int32, device=device)
    return torch.cat(prefixes)
