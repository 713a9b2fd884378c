"""The transitions of a title trie as three flat arrays, derived from sorted rows. NumPy only.

The nodes of the trie are numbered in level order, siblings ascending by token, root 0. The children of a
node are then one contiguous run of nodes, and nothing but the run's start has to be stored. A node is
also a contiguous interval of row ranks; its first rank is stored, so a finished node names its row.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

IntArray = npt.NDArray[np.signedinteger]


class TrieArrays(NamedTuple):
    """A trie of N nodes over R rows, node 0 the root.

    Attributes:
        token: Token on the edge into each node; -1 for the root. Shape: (N,), int32.
        child_begin: Children of node i are nodes [child_begin[i], child_begin[i + 1]).
            Shape: (N + 1,), int32, non-decreasing.
        row_begin: Rank of the first row below each node. Shape: (N,), int32.
        depth: Length in tokens of the longest row.
        max_children: Largest number of children of one node.
    """

    token: IntArray
    child_begin: IntArray
    row_begin: IntArray
    depth: int
    max_children: int


def derive_trie(tokens: IntArray, offsets: IntArray) -> TrieArrays:
    """Derive the trie of R distinct rows, none a prefix of another, in lexicographic order.

    Works level by level over the rows still alive, so the time is O(total tokens) plus one binary
    search per node, and a row of 10,000 tokens costs no more than 10,000 rows of one.

    Args:
        tokens: All rows, concatenated in rank order. Shape: (total tokens,), integer.
        offsets: Row r is tokens[offsets[r] : offsets[r + 1]]. Shape: (R + 1,), integer.

    Raises:
        ValueError: a row is empty, out of order, a duplicate or a prefix of its successor; the text
            names the rank.
    """
    starts = np.asarray(offsets[:-1], dtype=np.int64)
    lengths = np.diff(np.asarray(offsets, dtype=np.int64))
    if len(lengths) and lengths.min() < 1:
        raise ValueError(f"row {int(lengths.argmin())} is empty; every row needs its end token")
    level_rows = [np.zeros(1, dtype=np.int64)]  # first rank of every node of the level; root: rank 0
    level_tokens = [np.full(1, -1, dtype=np.int64)]
    counts: list[npt.NDArray[np.int64]] = []
    active = np.arange(len(lengths))
    shared = np.ones(len(lengths), dtype=bool)  # whether the row equals its predecessor so far
    shared[:1] = False
    depth = 0
    while len(active):
        column = np.asarray(tokens[starts[active] + depth], dtype=np.int64)
        shared = _still_shared(active, column, shared)
        first = np.flatnonzero(~shared)
        rows = active[first]
        parents = np.searchsorted(level_rows[-1], rows, side="right") - 1
        counts.append(np.bincount(parents, minlength=len(level_rows[-1])))
        level_rows.append(rows)
        level_tokens.append(column[first])
        depth += 1
        longer = lengths[active] > depth
        _refuse_duplicates(active, shared, longer)
        active, shared = active[longer], shared[longer]
    counts.append(np.zeros(len(level_rows[-1]), dtype=np.int64))
    per_node = np.concatenate(counts)
    child_begin = np.concatenate([np.ones(1, dtype=np.int64), 1 + np.cumsum(per_node)])
    if child_begin[-1] > np.iinfo(np.int32).max:
        raise ValueError(f"the trie has {child_begin[-1]} nodes; at most 2**31 - 1 are supported")
    return TrieArrays(
        token=np.concatenate(level_tokens).astype(np.int32),
        child_begin=child_begin.astype(np.int32),
        row_begin=np.concatenate(level_rows).astype(np.int32),
        depth=depth,
        max_children=int(per_node.max(initial=0)),
    )


def _still_shared(active: IntArray, column: IntArray, shared: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
    """Extend "equals its predecessor so far" by one column, checking the order on the way."""
    follows = np.zeros(len(active), dtype=bool)
    follows[1:] = active[1:] == active[:-1] + 1
    orphans = shared & ~follows
    if orphans.any():
        rank = int(active[orphans.argmax()])
        raise ValueError(f"row {rank - 1} is a prefix of row {rank}; every row needs its end token")
    step = np.zeros(len(active), dtype=np.int64)
    step[1:] = column[1:] - column[:-1]
    if (shared & (step < 0)).any():
        rank = int(active[(shared & (step < 0)).argmax()])
        raise ValueError(f"row {rank} sorts before row {rank - 1}; rows must be in lexicographic order")
    same: npt.NDArray[np.bool_] = shared & (step == 0)
    return same


def _refuse_duplicates(
    active: IntArray, shared: npt.NDArray[np.bool_], longer: npt.NDArray[np.bool_]
) -> None:
    ended = shared & ~longer  # ended while still equal to the row before it
    if ended.any():
        rank = int(active[ended.argmax()])
        raise ValueError(f"row {rank} equals row {rank - 1} or is a prefix of it; rows must be distinct")
