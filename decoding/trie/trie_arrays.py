"""Derives a path-compressed title trie, four flat arrays, from sorted rows. NumPy only.

A trie node is a prefix that several rows share, or the first prefix that one row has for itself; the rest of
such a leaf's row is its *tail*, which has no branches and is stored as it is. Nodes are numbered in level
order, siblings ascending by token, root 0: the children of a node are one contiguous run. A node is also a
contiguous interval of row ranks, and its first rank is stored.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

_T = TypeVar("_T")
IntArray = npt.NDArray[np.integer]

# A position in `token` is 31 bits of a decoder's state.
MAX_POSITIONS = 2**31 - 1

# Tokens handled in one piece, which bounds the eight-byte temporaries: about 100 bytes for each.
_CHUNK_TOKENS = 1 << 20


class TrieArrays(NamedTuple):
    """A trie of N nodes over R rows, node 0 the root, with T tokens in tails.

    Attributes:
        token: Token on the edge into each node (0 for the root), then the tails in order of rank. Shape: (N +
            T,), the unsigned type of the rows.
        child_begin: Children of node i are nodes [child_begin[i], child_begin[i + 1]); a leaf, a node of a
            single row, has none. Shape: (N + 1,), int32, non-decreasing.
        row_begin: Rank of the first row below each node, then R. Shape: (N + 1,), int32.
        tail_begin: Tail of row r is token[tail_begin[r] : tail_begin[r + 1]], possibly empty; begins at N.
            Shape: (R + 1,), int32, non-decreasing.
        depth: Length in tokens of the longest row.
        max_children: Largest number of children of one node.
    """

    token: IntArray
    child_begin: IntArray
    row_begin: IntArray
    tail_begin: IntArray
    depth: int
    max_children: int

    @property
    def num_nodes(self) -> int:
        """Number of nodes N, root included."""
        return len(self.child_begin) - 1

    @property
    def num_rows(self) -> int:
        """Number of rows R."""
        return len(self.tail_begin) - 1


def check_trie(arrays: TrieArrays, largest_token: int) -> None:
    """Check that every walk from the root ends and stays inside the arrays, whose lengths fit together.

    Kernels read without looking. One pass over each array; what stands in a sound trie may still be wrong.
    ValueError names the array.
    """
    token, child_begin, row_begin, tail_begin, depth, _ = arrays
    num_nodes = arrays.num_nodes
    if int(token.max()) > largest_token:
        raise ValueError(f"column 'token' is not at most {largest_token} everywhere")
    for name, bounds, begin in (("child_begin", child_begin, 1), ("tail_begin", tail_begin, num_nodes)):
        if int(bounds[0]) != begin or bool((bounds[1:] < bounds[:-1]).any()):
            raise ValueError(f"column {name!r} is not ascending from {begin}")
    begins = [0, 1]  # of the levels; then the end, twice
    while begins[-1] > begins[-2] and len(begins) < depth + 3:
        begins.append(int(child_begin[begins[-1]]))
    if begins[-2:] != [num_nodes, num_nodes]:
        raise ValueError(f"column 'child_begin' is not of {num_nodes} nodes in {depth + 1} levels")
    first, last = np.array(begins[:-2]), np.array(begins[1:-1]) - 1
    falls = np.flatnonzero(row_begin[2:-1] <= row_begin[1:-2]) + 2
    lowest, highest = int(row_begin[first].min()), int(row_begin[last].max())
    if lowest < 0 or highest > max(arrays.num_rows - 1, 0) or not np.isin(falls, first).all():
        raise ValueError(f"column 'row_begin' is not ascending below {arrays.num_rows} in every level")


def derive_trie(tokens: IntArray, offsets: IntArray) -> TrieArrays:
    """Derive the trie of R distinct rows, none a prefix of another, in lexicographic order.

    Args:
        tokens: All rows, concatenated in rank order; their type becomes that of the trie's tokens. Shape:
            (total tokens,), integer.
        offsets: Row r is tokens[offsets[r] : offsets[r + 1]]. Shape: (R + 1,), integer.

    Raises:
        ValueError: a row is empty, out of order, a duplicate or a prefix of its successor (the text names the
            rank), or there is too much for one trie.
    """
    deriver = TrieDeriver(tokens.dtype)
    deriver.add(tokens, offsets)
    return deriver.finish()


class TrieDeriver:
    """Derives a trie from blocks of rows that arrive in rank order, in bounded memory.

    Row r shares lcp(r) tokens with the row before it. With m the larger of lcp(r) and lcp(r + 1), the nodes
    of depth lcp(r) + 1 to m + 1 are met first in row r, and its tail begins behind m + 1 tokens. So a row and
    its two neighbours determine its nodes, and blocks may end anywhere.

    Kept are per node its token and its first rank (int32), per row the length of its tail (int32) and the
    tail's tokens. A title has about 1.4 nodes and 3 tail tokens, so 18 bytes of two-byte tokens. `finish`
    makes the trie, about 26 bytes per title, and frees each piece once it is copied.

    Args:
        dtype: Type of the trie's tokens: the smallest unsigned one that holds the vocabulary.
        keep: Stores a piece and returns a function that loads it, once; None keeps all in memory.
    """

    def __init__(
        self, dtype: npt.DTypeLike, keep: Callable[[IntArray], Callable[[], IntArray]] | None = None
    ) -> None:
        self._dtype = np.dtype(dtype)
        self._keep = keep or (lambda piece: lambda: piece)
        self._num_rows = 0
        self._num_tail_tokens = 0
        self._depth = 0
        # Per level below the root: number, tokens and first ranks of its nodes, piece by piece, in order.
        self._levels: list[list[tuple[int, Callable[[], IntArray], Callable[[], IntArray]]]] = []
        self._tails: list[Callable[[], IntArray]] = []
        self._tail_lengths: list[Callable[[], IntArray]] = []
        # The last row waits for its successor: its tokens, and how many it shares with its predecessor.
        self._last: IntArray = np.zeros(0, dtype=self._dtype)
        self._last_shared = 0

    def add(self, tokens: IntArray, offsets: IntArray) -> None:
        """Append a block of rows.

        Args:
            tokens: Shape: (any,), integer.
            offsets: Row i of the block is tokens[offsets[i] : offsets[i + 1]]. Shape: (n + 1,), integer.

        Raises:
            ValueError: a row is empty, out of order, a duplicate, a prefix of its successor, or holds a token
                that does not fit the type. The deriver cannot be used afterwards.
        """
        count = len(offsets) - 1
        if count < 1:
            return
        self._check_block(tokens, offsets)
        shared = np.zeros(count, dtype=np.int32)
        if self._num_rows:
            first = tokens[offsets[0] : offsets[1]].astype(self._dtype, copy=False)
            pair = np.concatenate([self._last, first])
            ends = np.array([0, len(self._last), len(pair)])
            shared[:1] = _shared_with_previous(pair, ends, self._num_rows)
            self._emit(pair, ends[:2], np.array([self._last_shared]), shared[:1], self._num_rows - 1)
        for begin, end in _chunks(offsets):
            begin = max(begin, 1)
            if begin < end:
                rank = self._num_rows + begin
                shared[begin:end] = _shared_with_previous(tokens, offsets[begin - 1 : end + 1], rank)
        following = shared[1:]
        for begin, end in _chunks(offsets[:-1]):
            rank = self._num_rows + begin
            self._emit(tokens, offsets[begin : end + 1], shared[begin:end], following[begin:end], rank)
        self._last = tokens[offsets[-2] : offsets[-1]].astype(self._dtype)
        self._last_shared = int(shared[-1])
        self._num_rows += count

    def finish(self) -> TrieArrays:
        """Return the trie of all rows, and empty the deriver; ValueError for 2**31 nodes and tail tokens."""
        if self._num_rows:
            ends = np.array([0, len(self._last)])
            self._emit(self._last, ends, np.array([self._last_shared]), np.zeros(1, int), self._num_rows - 1)
        sizes = [1, *(sum(size for size, _, _ in level) for level in self._levels)]
        num_nodes = sum(sizes)
        num_positions = num_nodes + self._num_tail_tokens
        if num_positions > MAX_POSITIONS:
            raise ValueError(
                f"the trie has {num_nodes} nodes and {num_positions - num_nodes} tokens in tails; "
                f"together at most {MAX_POSITIONS} are supported"
            )
        token = np.zeros(num_positions, dtype=self._dtype)
        row_begin = np.zeros(num_nodes + 1, dtype=np.int32)
        row_begin[-1] = self._num_rows
        at = 1
        for level in _drain(self._levels):
            for size, edge_tokens, ranks in _drain(level):
                token[at : at + size] = edge_tokens()
                row_begin[at : at + size] = ranks()
                at += size
        for load in _drain(self._tails):
            tail = load()
            token[at : at + len(tail)] = tail
            at += len(tail)
        child_begin, max_children = _child_runs(row_begin, sizes)
        return TrieArrays(
            token=token,
            child_begin=child_begin,
            row_begin=row_begin,
            tail_begin=self._tail_begin(num_nodes),
            depth=self._depth,
            max_children=max_children,
        )

    def _check_block(self, tokens: IntArray, offsets: IntArray) -> None:
        lengths = np.diff(offsets)
        if lengths.min() < 1:
            rank = self._num_rows + int(lengths.argmin())
            raise ValueError(f"row {rank} is empty; every row needs its end token")
        self._depth = max(self._depth, int(lengths.max()))
        if tokens.dtype != self._dtype:
            least, largest = int(tokens.min()), int(tokens.max())
            bounds = np.iinfo(self._dtype)
            if least < bounds.min or largest > bounds.max:
                raise ValueError(f"tokens: expected {self._dtype}, got {least} … {largest}")

    def _emit(
        self, tokens: IntArray, offsets: IntArray, shared: IntArray, following: IntArray, rank: int
    ) -> None:
        """Store the new nodes and the tails of n rows.

        `shared` and `following`, (n,), are the tokens each row shares with its predecessor and its successor;
        `rank` is that of the first row.
        """
        starts = np.asarray(offsets[:-1], dtype=np.int64)
        last_node = np.maximum(shared, following)  # depth of the leaf, less one
        counts = last_node - shared + 1
        row = np.repeat(np.arange(len(counts), dtype=np.int32), counts)
        level = np.arange(len(row)) - np.repeat(np.cumsum(counts) - counts - shared, counts)
        if self._depth <= np.iinfo(np.uint16).max:
            level = level.astype(np.uint16)  # NumPy sorts 16 bits by radix
        order = np.argsort(level, kind="stable")
        row, level = row[order], level[order]
        token = tokens[starts[row] + level].astype(self._dtype, copy=False)
        row += np.int32(rank)
        begin = 0
        for depth, size in enumerate(np.bincount(level).tolist()):
            if depth == len(self._levels):
                self._levels.append([])
            if size:  # copies, so that one level can be released before the next
                piece = slice(begin, begin + size)
                kept = self._keep(token[piece].copy()), self._keep(row[piece].copy())
                self._levels[depth].append((size, *kept))
                begin += size
        lengths = np.diff(offsets)
        in_tail = np.arange(offsets[0], offsets[-1]) > np.repeat(starts + last_node, lengths)
        tail = tokens[offsets[0] : offsets[-1]][in_tail]
        self._num_tail_tokens += len(tail)
        self._tails.append(self._keep(tail.astype(self._dtype, copy=False)))
        self._tail_lengths.append(self._keep((lengths - last_node - 1).astype(np.int32)))

    def _tail_begin(self, num_nodes: int) -> IntArray:
        tail_begin = np.zeros(self._num_rows + 1, dtype=np.int32)
        tail_begin[0] = num_nodes
        at = 1
        for load in _drain(self._tail_lengths):
            lengths = load()
            tail_begin[at : at + len(lengths)] = lengths
            at += len(lengths)
        np.cumsum(tail_begin, out=tail_begin)
        return tail_begin


def _chunks(offsets: IntArray) -> Iterator[tuple[int, int]]:
    """Cut n rows into runs [begin, end) of few tokens, of one row at least."""
    begin, count = 0, len(offsets) - 1
    while begin < count:
        end = int(np.searchsorted(offsets, int(offsets[begin]) + _CHUNK_TOKENS, side="right")) - 1
        end = min(max(end, begin + 1), count)
        yield begin, end
        begin = end


def _shared_with_previous(tokens: IntArray, offsets: IntArray, rank: int) -> IntArray:
    """Count the leading tokens that each of n + 1 rows but the first shares with the one before. (n,), int32.

    `offsets`, (n + 2,), point into `tokens`; `rank` is that of the second row. Raises ValueError if two
    neighbours are out of order, equal, or one is a prefix of the other.
    """
    starts = np.asarray(offsets, dtype=np.int64)
    left, right = starts[:-2], starts[1:-1]
    lengths = np.diff(starts)
    shorter = np.minimum(lengths[:-1], lengths[1:])
    shared = np.zeros(len(shorter), dtype=np.int32)
    depth = 0
    active = np.arange(len(shorter))
    while len(active):
        active = active[tokens[left[active] + depth] == tokens[right[active] + depth]]
        depth += 1
        shared[active] = depth
        active = active[shorter[active] > depth]
    differ = np.minimum(shared, shorter - 1)
    ended = shared == shorter
    wrong = ended | (tokens[left + differ] > tokens[right + differ])
    if wrong.any():
        at = int(wrong.argmax())
        _refuse(rank + at, bool(ended[at]), int(lengths[at]) < int(lengths[at + 1]))
    return shared


def _refuse(rank: int, ended: bool, grows: bool) -> None:
    if not ended:
        raise ValueError(f"row {rank} sorts before row {rank - 1}; rows must be in lexicographic order")
    if grows:
        raise ValueError(f"row {rank - 1} is a prefix of row {rank}; every row needs its end token")
    raise ValueError(f"row {rank} equals row {rank - 1} or is a prefix of it; rows must be distinct")


def _child_runs(row_begin: IntArray, sizes: list[int]) -> tuple[IntArray, int]:
    """Return `child_begin` and the most children of one node; `sizes` are the nodes of every level."""
    num_nodes = len(row_begin) - 1
    child_begin = np.full(num_nodes + 1, num_nodes, dtype=np.int32)
    begin, largest = 0, 0
    for size, below in zip(sizes, [*sizes[1:], 0], strict=True):
        end = begin + size
        ranks = row_begin[end : end + below]
        for at in range(begin, end, _CHUNK_TOKENS):
            piece = slice(at, min(at + _CHUNK_TOKENS, end))
            child_begin[piece] = end + np.searchsorted(ranks, row_begin[piece])
        begin = end
    for at in range(0, num_nodes, _CHUNK_TOKENS):
        largest = max(largest, int(np.diff(child_begin[at : at + _CHUNK_TOKENS + 1]).max()))
    return child_begin, largest


def _drain(items: list[_T]) -> Iterator[_T]:
    """Hand out the items in order, freeing each."""
    items.reverse()
    while items:
        yield items.pop()
