"""Narrows a title trie down to some of its rows, per query of a batch, without rebuilding it.

A node of the trie is an interval of row ranks. With counts of the allowed rows before every rank, one
subtraction tells whether a node leads to an allowed row; so a filter over six million rows is made in
milliseconds and a step pays for two look-ups per edge.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from genret.decoding.trie.title_trie import TitleTrie, WalkedTrie
from genret.decoding.trie.trie_kernels import POSITION_BITS

# Room in a state for one past the last rank of an interval, with its lane.
_MAX_ROW_ENDS = 2**32


# Rows summed at once: 65,536 counts stay in the cache, which halves the time of the sum (6 M rows: 5 ms).
_BLOCK_ROWS = 1 << 16


@dataclass(frozen=True, slots=True, eq=False)
class RowFilter:
    """The allowed rows of a trie. Immutable; made by `from_mask` or `from_prefix`."""

    prefix: Tensor  # grows from rank r to r + 1 exactly if row r is allowed. Shape: (R + 1,), int32.
    num_allowed: int  # number of rows allowed

    @classmethod
    def from_mask(cls, mask: npt.NDArray[np.bool_], device: torch.device | str | None = None) -> RowFilter:
        """Allow the rows for which a mask is true.

        Args:
            mask: By rank. Shape: (R,), bool.
            device: Device of the trie's states.

        Raises:
            ValueError: the mask has another shape or type.
        """
        if mask.ndim != 1 or mask.dtype != np.bool_:
            raise ValueError(f"mask: expected one dimension of bool, got {mask.ndim} of {mask.dtype}")
        prefix = counts_before(np.ascontiguousarray(mask).view(np.int8))
        return cls(torch.from_numpy(prefix).to(device or "cpu"), int(prefix[-1]))

    @classmethod
    def from_prefix(
        cls, prefix: npt.NDArray[np.signedinteger], device: torch.device | str | None = None
    ) -> RowFilter:
        """Allow row r if prefix[r + 1] > prefix[r]: counts of anything that makes a row allowed.

        Args:
            prefix: Non-decreasing, below 2**31. Not copied if it is int32 and stays on the CPU: do not change
                it afterwards. Shape: (R + 1,), integer.
            device: Device of the trie's states.

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
        """Number of the trie's rows, R."""
        return len(self.prefix) - 1

    @property
    def num_bytes(self) -> int:
        """Memory of the counts."""
        return self.prefix.numel() * self.prefix.element_size()


class FilteredTrie(WalkedTrie):
    """A title trie under one filter per query: a constraint whose sequences are the allowed rows.

    A state carries its query's *lane*, the number of its filter: lane n shifts the ranks of a state by
    n * (R + 1). Queries with the same filter object share a lane. Nothing is copied: a step reads the counts
    of each lane where they are. Ranks of rows are those of the trie.

    Args:
        trie: The trie of all rows.
        filters: One per query of the batch; None allows all rows.

    Raises:
        ValueError: a filter is over another number of rows or on another device, or there
            are more filters than states can tell apart.
    """

    def __init__(self, trie: TitleTrie, filters: Sequence[RowFilter | None]) -> None:
        for number, row_filter in enumerate(filters):
            if row_filter is not None:
                _check_fits(trie, row_filter, number)
        self._trie = trie
        self.num_rows = trie.num_rows
        stride = trie.num_rows + 1
        # The filter of each lane; a batch without queries has one as well.
        filter_of_lane: list[RowFilter | None] = list(dict.fromkeys(filters)) or [None]
        if len(filter_of_lane) * stride > _MAX_ROW_ENDS:
            raise ValueError(
                f"filters: {len(filter_of_lane)} different ones over {trie.num_rows} rows, none "
                f"counting as one, do not fit into one batch; at most {_MAX_ROW_ENDS // stride} do"
            )
        numbers = {row_filter: lane for lane, row_filter in enumerate(filter_of_lane)}
        lanes = [numbers[row_filter] for row_filter in filters]
        self.kernels = trie.kernels.under([None if f is None else f.prefix for f in filter_of_lane])
        self._lane_of_query = torch.tensor(lanes, dtype=torch.int64, device=trie.device)
        self.num_queries = len(lanes)
        self.device = trie.device
        self.vocab_size = trie.vocab_size
        self.max_depth = trie.max_depth

    def start(self, queries: Tensor) -> Tensor:
        """Return the root under the filter of each query. Shapes: (n,), int64."""
        lane = self._lane_of_query[queries]
        return (lane * (self.num_rows + 1) + self.num_rows) << POSITION_BITS

    def width_at(self, depth: int) -> int:
        """Return the most children of any of the trie's states at a depth; see `TitleTrie.width_at`."""
        return self._trie.width_at(depth)


def _check_fits(trie: TitleTrie, row_filter: RowFilter, number: int) -> None:
    if row_filter.num_rows != trie.num_rows:
        raise ValueError(
            f"filters[{number}]: expected a filter over {trie.num_rows} rows, got {row_filter.num_rows}"
        )
    if row_filter.prefix.device.type != trie.device.type:
        raise ValueError(
            f"filters[{number}]: expected a filter on {trie.device}, got one on {row_filter.prefix.device}"
        )


def counts_before(ones: npt.NDArray[np.int8]) -> npt.NDArray[np.int32]:
    """Return the number of ones before every place and in all. Shapes: (n,) and (n + 1,)."""
    # By NumPy, because torch's sum takes twenty times as long (6 M rows, one core).
    counts = np.empty(len(ones) + 1, dtype=np.int32)
    counts[0] = 0
    for begin in range(0, len(ones), _BLOCK_ROWS):
        block = counts[begin + 1 : begin + 1 + _BLOCK_ROWS]
        np.cumsum(ones[begin : begin + _BLOCK_ROWS], dtype=np.int32, out=block)
        block += counts[begin]
    return counts
