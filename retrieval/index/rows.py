"""Rows by rank and rank by row, over the length buckets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from retrieval.index.arrow_files import as_numpy, single_chunk
from retrieval.index.layout import MAX_COLUMNAR_LENGTH

IntArray = npt.NDArray[np.signedinteger]


@dataclass(frozen=True, slots=True)
class RowBucket:
    """The n rows of one length, in lexicographic order.

    Attributes:
        length: Tokens per row, end token included.
        columns: Token i of every row, for each i. Shapes: (n,), unsigned.
        ranks: Rank of every row, ascending. Shape: (n,), int32.
    """

    length: int
    columns: tuple[IntArray, ...]
    ranks: IntArray

    @classmethod
    def from_table(cls, length: int, table: pa.Table, name: str) -> RowBucket:
        """Wrap the table of a rows file, zero-copy.

        Raises:
            IndexFormatError: the table is stored in several pieces.
        """
        columns: tuple[IntArray, ...]
        if length <= MAX_COLUMNAR_LENGTH:
            columns = tuple(as_numpy(single_chunk(table, name, f"t{i}")) for i in range(length))
        else:
            flat = as_numpy(single_chunk(table, name, "tokens").flatten())
            matrix = flat.reshape(-1, length)
            columns = tuple(matrix[:, i] for i in range(length))
        return cls(length, columns, as_numpy(single_chunk(table, name, "rank")))

    def find(self, token_ids: Sequence[int]) -> int:
        """Return the rank of a row of this length; -1 when there is none."""
        low, high = 0, len(self.ranks)
        for column, token in zip(self.columns, token_ids, strict=True):
            if not 0 <= token <= np.iinfo(column.dtype).max:
                return -1
            wanted = column.dtype.type(token)  # another type would copy the column at every search
            part = column[low:high]
            low, high = (
                low + int(np.searchsorted(part, wanted, "left")),
                low + int(np.searchsorted(part, wanted, "right")),
            )
            if low == high:
                return -1
        return int(self.ranks[low])

    def lower_bound(self, token_ids: Sequence[int]) -> int:
        """Return how many rows of this length sort before a row of any length."""
        low, high = 0, len(self.ranks)
        for column, token in zip(self.columns, token_ids, strict=False):
            part = column[low:high]
            if not 0 <= token <= np.iinfo(column.dtype).max:
                return high if token > 0 else low
            wanted = column.dtype.type(token)
            low, high = (
                low + int(np.searchsorted(part, wanted, "left")),
                low + int(np.searchsorted(part, wanted, "right")),
            )
            if low == high:
                return low
        return high if self.length < len(token_ids) else low  # a row sorts before its extensions

    def position(self, rank: int) -> int:
        """Return where `rank` is in this bucket; -1 when it has another length."""
        at = int(np.searchsorted(self.ranks, self.ranks.dtype.type(rank)))
        return at if at < len(self.ranks) and self.ranks[at] == rank else -1


class RowBuckets:
    """All rows of an index.

    Args:
        buckets: One per length.
    """

    def __init__(self, buckets: Sequence[RowBucket]) -> None:
        self._by_length = {bucket.length: bucket for bucket in buckets}
        # The fullest bucket first: a rank is most likely there.
        self._by_size = sorted(buckets, key=lambda bucket: -len(bucket.ranks))
        self.num_rows = sum(len(bucket.ranks) for bucket in buckets)
        self._dtype = self._by_size[0].columns[0].dtype if buckets else np.dtype(np.uint8)

    def token_ids(self, rank: int) -> tuple[int, ...]:
        """Return the row of a rank.

        Raises:
            ValueError: no such rank.
        """
        if 0 <= rank < self.num_rows:
            for bucket in self._by_size:
                at = bucket.position(rank)
                if at >= 0:
                    return tuple(int(column[at]) for column in bucket.columns)
        raise ValueError(f"rank: expected 0 <= rank < {self.num_rows}, got {rank}")

    def token_ids_of(self, ranks: IntArray) -> list[tuple[int, ...]]:
        """Return the rows of several ranks, in their order: much faster than one after the other.

        Args:
            ranks: Shape: (n,).

        Raises:
            ValueError: a rank has no row.
        """
        rows: list[tuple[int, ...]] = [()] * len(ranks)
        missing = np.arange(len(ranks))
        for bucket in self._by_size:
            if not len(missing):
                break
            wanted = ranks[missing]
            # Another type would copy the bucket's ranks; what it cannot hold has no row.
            at = np.searchsorted(bucket.ranks, np.clip(wanted, -1, self.num_rows).astype(bucket.ranks.dtype))
            here = np.flatnonzero(at < len(bucket.ranks))
            here = here[bucket.ranks[at[here]] == wanted[here]]
            tokens = [column[at[here]].tolist() for column in bucket.columns]
            for place, row in zip(missing[here].tolist(), zip(*tokens, strict=True), strict=True):
                rows[place] = row
            missing = np.delete(missing, here)
        if len(missing):
            raise ValueError(f"rank: expected 0 <= rank < {self.num_rows}, got {int(ranks[missing[0]])}")
        return rows

    def find(self, token_ids: Sequence[int]) -> int:
        """Return the rank of a row; -1 when there is none."""
        bucket = self._by_length.get(len(token_ids))
        return -1 if bucket is None else bucket.find(token_ids)

    def lower_bound(self, token_ids: Sequence[int]) -> int:
        """Return how many rows sort before a row, which is its rank if it is there."""
        return sum(bucket.lower_bound(token_ids) for bucket in self._by_size)

    def slice(self, begin: int, end: int) -> tuple[IntArray, IntArray]:
        """Return a copy of the rows of ranks begin … end - 1, in order of rank.

        Returns:
            tokens: The rows, concatenated. Shape: (total tokens,).
            offsets: Row i is tokens[offsets[i] : offsets[i + 1]]. Shape: (end - begin + 1,), int64.

        Raises:
            ValueError: a rank among them has no row.
        """
        lengths = np.zeros(end - begin, dtype=np.int64)
        spans: list[tuple[RowBucket, int, int]] = []
        for bucket in self._by_size:
            low, high = np.searchsorted(bucket.ranks, np.array([begin, end], dtype=bucket.ranks.dtype))
            lengths[bucket.ranks[low:high] - begin] = bucket.length
            spans.append((bucket, int(low), int(high)))
        if (lengths == 0).any():
            raise ValueError(f"no row has rank {begin + int((lengths == 0).argmax())}")
        offsets = np.zeros(end - begin + 1, dtype=np.int64)
        np.cumsum(lengths, out=offsets[1:])
        tokens: IntArray = np.empty(int(offsets[-1]), dtype=self._dtype)
        for bucket, low, high in spans:
            starts = offsets[bucket.ranks[low:high] - begin]
            for i, column in enumerate(bucket.columns):
                tokens[starts + i] = column[low:high]
        return tokens, offsets

    def flat(self) -> tuple[IntArray, IntArray]:
        """Return a copy of all rows in rank order.

        Returns:
            tokens: All rows, concatenated. Shape: (total tokens,).
            offsets: Row r is tokens[offsets[r] : offsets[r + 1]]. Shape: (R + 1,), int64.

        Raises:
            ValueError: the buckets' ranks are no permutation of 0 … R - 1.
        """
        lengths = np.zeros(self.num_rows, dtype=np.int64)
        for bucket in self._by_size:
            ranks = bucket.ranks
            if len(ranks) and (ranks.min() < 0 or ranks.max() >= self.num_rows):
                raise ValueError(f"rows of length {bucket.length}: a rank is outside 0 … {self.num_rows - 1}")
            lengths[ranks] = bucket.length
        if (lengths == 0).any():  # as many ranks as rows, so a missing one means that another is double
            raise ValueError(f"no row has rank {int((lengths == 0).argmax())}")
        offsets = np.zeros(self.num_rows + 1, dtype=np.int64)
        np.cumsum(lengths, out=offsets[1:])
        tokens: IntArray = np.empty(int(offsets[-1]), dtype=self._dtype)
        for bucket in self._by_size:
            starts = offsets[bucket.ranks]
            for i, column in enumerate(bucket.columns):
                tokens[starts + i] = column
        return tokens, offsets
