"""Lays out given rows as token trees: one tree per query, with one node for a beginning that rows share.

A row's last token is no node: nothing is asked behind it, so it needs no forward pass. Nodes are numbered in
preorder, so a subtree is an interval, and a tree cut in two needs only one path of the first part for the
second. The layout costs one sort per depth and no Python per node.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class RowTrees:
    """The nodes of Q token trees, tree by tree, in preorder. N nodes."""

    tokens: Ints  # Shape: (N,), int64
    parents: Ints  # Number of each node's parent, -1 below the prompt. Shape: (N,), int64
    depths: Ints  # Tokens from the prompt to the node, itself included. Shape: (N,), int64
    ends: Ints  # The subtree of node i is [i, ends[i]). Shape: (N,), int64
    offsets: Ints  # The nodes of query q are [offsets[q], offsets[q + 1]). Shape: (Q + 1,), int64
    widths: tuple[int, ...]  # Distinct rows per query. Length Q

    @property
    def num_queries(self) -> int:
        """Q."""
        return len(self.offsets) - 1

    def span(self, query: int) -> NodeSpan:
        """Return the whole tree of a query."""
        return NodeSpan(query, int(self.offsets[query]), int(self.offsets[query + 1]))

    def path(self, node: int) -> list[int]:
        """Return the ancestors of a node, nearest to the prompt first."""
        found = []
        while (node := int(self.parents[node])) >= 0:
            found.append(node)
        return found[::-1]


@dataclass(frozen=True, slots=True)
class NodeSpan:
    """Nodes [first, end) of `RowTrees`, of one query."""

    query: int
    first: int
    end: int


@dataclass(frozen=True, slots=True, eq=False)
class RowLayout:
    """Rows as trees, and the steps that each row takes in them. E distinct steps.

    A step writes one token behind a node or a prompt; the model is asked for its probability.
    """

    trees: RowTrees  # The nodes
    step_nodes: Ints  # Node before each step, -1 - q for the prompt of query q. Ascending. Shape: (E,), int64
    step_tokens: Ints  # Token of each step. Shape: (E,), int64
    row_steps: Ints  # The steps of all rows, one row after the other. Shape: (all tokens,), int64
    row_starts: Ints  # Start of each row in `row_steps`. Shape: (R + 1,), int64

    @classmethod
    def of(cls, rows: Sequence[Sequence[Sequence[int]]], vocab_size: int) -> RowLayout:
        """Lay out the rows of every query; ValueError for an empty row or a token outside the vocabulary."""
        counts = np.array([len(of_query) for of_query in rows], dtype=np.int64)
        lengths = np.fromiter(map(len, chain.from_iterable(rows)), dtype=np.int64, count=int(counts.sum()))
        starts = np.concatenate([[0], lengths.cumsum()])
        flat = chain.from_iterable(chain.from_iterable(rows))
        tokens = np.fromiter(flat, dtype=np.int64, count=int(starts[-1]))
        _check(counts, starts, tokens, vocab_size)
        levels, row_steps = _levels(counts, lengths, starts, tokens, vocab_size)
        return _numbered(counts, levels, row_steps, starts)

    def steps_behind(self, span: NodeSpan) -> slice:
        """Return the steps behind the nodes of a span."""
        first, end = np.searchsorted(self.step_nodes, [span.first, span.end])
        return slice(int(first), int(end))

    @property
    def steps_behind_prompts(self) -> slice:
        """The steps behind the prompts."""
        return slice(0, int(np.searchsorted(self.step_nodes, 0)))

    def row_sums(self, of_steps: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the sums over the steps of every row. Shapes: (E,) to (R,)."""
        if len(self.row_starts) == 1:
            return np.zeros(0)
        return np.add.reduceat(of_steps[self.row_steps], self.row_starts[:-1])


@dataclass(slots=True, eq=False)
class _Level:
    """The steps of one depth, sorted by what they follow and by token."""

    above: Ints  # Index of the step before, in the level above; the query at depth 1. Ascending
    tokens: Ints
    ends_here: NDArray[np.bool_]  # Whether the step is the last of some row
    sizes: Ints  # Nodes in the subtree that the step's node roots, 0 for a step that nothing follows
    numbers: Ints  # Number of the step's node, meaningless if nothing follows


def _check(counts: Ints, starts: Ints, tokens: Ints, vocab_size: int) -> None:
    lengths = np.diff(starts)
    if len(lengths) and lengths.min() == 0:
        raise ValueError(
            f"a row must have at least one token, {_name(counts, int(lengths.argmin()))} has none"
        )
    outside = (tokens < 0) | (tokens >= vocab_size)
    if outside.any():
        place = int(outside.argmax())
        row = int(np.searchsorted(starts, place, side="right")) - 1
        raise ValueError(
            f"token ids must be in [0, {vocab_size}), {_name(counts, row)} has {int(tokens[place])}"
        )


def _name(counts: Ints, row: int) -> str:
    ends = counts.cumsum()
    query = int(np.searchsorted(ends, row, side="right"))
    return f"row {row - int(ends[query] - counts[query])} of query {query}"


def _levels(
    counts: Ints, lengths: Ints, starts: Ints, tokens: Ints, vocab_size: int
) -> tuple[list[_Level], Ints]:
    """Find the distinct steps of each depth, and each row's steps, numbered level by level."""
    queries = np.repeat(np.arange(len(counts)), counts)
    row_steps = np.empty(len(tokens), dtype=np.int64)
    levels: list[_Level] = []
    active, above, done = np.arange(len(lengths)), queries, 0
    while len(active):
        depth = len(levels)
        keys = above * vocab_size + tokens[starts[active] + depth]
        # Rows stay in order from level to level, which a stable sort makes use of.
        order = np.argsort(keys, kind="stable")
        active, keys = active[order], keys[order]
        first = np.concatenate([[True], keys[1:] != keys[:-1]])
        places = first.cumsum() - 1
        row_steps[starts[active] + depth] = done + places
        distinct = keys[first]
        ends_here = np.zeros(len(distinct), dtype=np.bool_)
        goes_on = lengths[active] > depth + 1
        ends_here[places[~goes_on]] = True
        nothing = np.zeros(len(distinct), dtype=np.int64)
        levels.append(
            _Level(distinct // vocab_size, distinct % vocab_size, ends_here, nothing, nothing.copy())
        )
        done += len(distinct)
        active, above = active[goes_on], places[goes_on]
    return levels, row_steps


def _numbered(counts: Ints, levels: list[_Level], row_steps: Ints, starts: Ints) -> RowLayout:
    """Number the nodes in preorder: subtree sizes from the bottom up, numbers from the top down."""
    below = np.zeros(0, dtype=np.int64)
    for number in range(len(levels) - 1, -1, -1):
        level = levels[number]
        followed = np.zeros(len(level.tokens), dtype=np.bool_)
        if number + 1 < len(levels):
            followed[levels[number + 1].above] = True
            level.sizes[:] = np.where(followed, below + 1, 0)
        wanted = len(levels[number - 1].tokens) if number else len(counts)
        below = np.bincount(level.above, weights=level.sizes, minlength=wanted).astype(np.int64)
    sizes = below if levels else np.zeros(len(counts), dtype=np.int64)
    offsets = np.concatenate([[0], sizes.cumsum()]).astype(np.int64)
    tokens, parents_of, depths, ends = (np.empty(int(offsets[-1]), dtype=np.int64) for _ in range(4))
    step_nodes = []
    above, prompts = offsets[:-1] - 1, -1 - np.arange(len(counts))
    for depth, level in enumerate(levels, start=1):
        before = level.sizes.cumsum() - level.sizes
        first_sibling = np.searchsorted(level.above, level.above)
        level.numbers[:] = above[level.above] + 1 + before - before[first_sibling]
        parents = prompts[level.above] if depth == 1 else above[level.above]
        step_nodes.append(parents)
        inner = level.sizes > 0
        numbers = level.numbers[inner]
        tokens[numbers] = level.tokens[inner]
        parents_of[numbers] = np.maximum(parents[inner], -1)
        depths[numbers] = depth
        ends[numbers] = numbers + level.sizes[inner]
        above = level.numbers
    trees = RowTrees(tokens, parents_of, depths, ends, offsets, _widths(len(counts), levels))
    behind = np.concatenate(step_nodes) if levels else np.zeros(0, dtype=np.int64)
    step_tokens = np.concatenate([level.tokens for level in levels]) if levels else behind.copy()
    order = np.argsort(behind, kind="stable")
    place = np.empty_like(order)
    place[order] = np.arange(len(order))
    return RowLayout(trees, behind[order], step_tokens[order], place[row_steps], starts)


def _widths(num_queries: int, levels: list[_Level]) -> tuple[int, ...]:
    """Distinct rows per query."""
    totals = np.zeros(num_queries, dtype=np.int64)
    owners = np.arange(num_queries)
    for level in levels:
        owners = owners[level.above]
        totals += np.bincount(owners[level.ends_here], minlength=num_queries)
    return tuple(totals.tolist())
