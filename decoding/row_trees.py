"""Lays out given rows as token trees: one tree per query, with one node for a beginning that rows share.

A row's last token is no node: nothing is asked behind it, so it needs no forward pass. Nodes are numbered in
preorder, so a subtree is an interval, and a tree cut in two needs only one path of the first part for the
second. Rows are sorted; each has its own nodes and steps behind what it shares with the row before. So the
layout costs one sort per depth and no Python per node.
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


def take_nodes(pending: list[NodeSpan], most: int) -> list[NodeSpan]:
    """Take the first `most` nodes off a list of spans, at least 1; what is left begins where they end."""
    spans: list[NodeSpan] = []
    while pending and most:
        span = pending.pop(0)
        cut = min(span.end, span.first + most)
        spans.append(NodeSpan(span.query, span.first, cut))
        most -= cut - span.first
        if cut < span.end:
            pending.insert(0, NodeSpan(span.query, cut, span.end))
    return spans


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
        queries = np.repeat(np.arange(len(counts)), counts)
        columns = np.arange(int(lengths.max(initial=0)))
        table = np.full((len(lengths), len(columns)), -1)
        there = columns < lengths[:, None]
        table[there] = tokens
        order = np.lexsort((*np.ascontiguousarray(table.T)[::-1], queries))
        ordered, owners = table[order], queries[order]
        trees, nodes, shared = _trees(ordered, lengths[order], owners, len(counts))
        is_new = (columns >= shared[:, None]) & there[order]
        behind = np.where(columns > 0, _above(nodes), -1 - owners[:, None])[is_new]
        by_node = np.argsort(behind, kind="stable")
        places = np.empty_like(by_node)
        places[by_node] = np.arange(len(by_node))
        row_steps = np.empty(table.shape, dtype=np.int64)
        row_steps[order] = _numbers(is_new)
        step_tokens = ordered[is_new][by_node]
        return cls(trees, behind[by_node], step_tokens, places[row_steps[there]], starts)

    def steps_behind(self, span: NodeSpan) -> slice:
        """Return the steps behind the nodes of a span."""
        first, end = np.searchsorted(self.step_nodes, [span.first, span.end])
        return slice(int(first), int(end))

    def row_sums(self, of_steps: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the sums over the steps of every row. Shapes: (E,) to (R,)."""
        if len(self.row_starts) == 1:
            return np.zeros(0)
        return np.add.reduceat(of_steps[self.row_steps], self.row_starts[:-1])


def _trees(table: Ints, lengths: Ints, queries: Ints, num_queries: int) -> tuple[RowTrees, Ints, Ints]:
    """Build the trees of rows in lexicographic order, query by query.

    `table` holds their tokens, -1 behind the end of a row, (R, longest). Also returns the node of every token
    but the last ones of rows, (R, longest), and how many leading tokens a row shares with the row before, of
    the same query, (R,).
    """
    alike = (table[1:] == table[:-1]) & (table[1:] >= 0) & (queries[1:] == queries[:-1])[:, None]
    shared, before = np.zeros_like(lengths), np.zeros_like(lengths)
    shared[1:] = np.logical_and.accumulate(alike, axis=1).sum(axis=1)
    before[1:] = lengths[:-1]
    # The last token of the row before is no node of it, and so not shared.
    known = np.minimum(shared, np.maximum(before - 1, 0))
    columns = np.arange(table.shape[1])
    inner = columns < lengths[:, None] - 1
    is_new = inner & (columns >= known[:, None])
    nodes, owners = _numbers(is_new), np.broadcast_to(queries[:, None], inner.shape)
    rows = np.broadcast_to(np.arange(len(table))[:, None], inner.shape)
    last = np.zeros(int(is_new.sum()), dtype=np.int64)
    last[nodes[inner]] = rows[inner]  # the last row below each node, since rows ascend
    sizes = np.bincount(owners[is_new], minlength=num_queries)
    repeated = (shared == lengths) & (before == lengths)
    trees = RowTrees(
        tokens=table[is_new],
        parents=_above(nodes)[is_new],
        depths=np.broadcast_to(columns + 1, inner.shape)[is_new],
        ends=is_new.sum(axis=1).cumsum()[last],
        offsets=np.concatenate([[0], sizes.cumsum()]).astype(np.int64),
        widths=tuple(np.bincount(queries[~repeated], minlength=num_queries).tolist()),
    )
    return trees, nodes, shared


def _numbers(is_new: NDArray[np.bool_]) -> Ints:
    """Number the new cells, row by row; another cell has the number of the last new one above it."""
    numbers = np.where(is_new, is_new.cumsum().reshape(is_new.shape) - 1, -1)
    return np.maximum.accumulate(numbers, axis=0)


def _above(nodes: Ints) -> Ints:
    """The node before every token, -1 for the prompt. Shape: (R, longest)."""
    above = np.full_like(nodes, -1)
    above[:, 1:] = nodes[:, :-1]
    return above


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
