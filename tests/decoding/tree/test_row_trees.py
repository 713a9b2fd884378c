"""Rows as trees: every beginning is one node, in preorder, and every row finds its steps."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from decoding.row_trees import NodeSpan, RowLayout

VOCAB = 4
ROWS = st.lists(st.lists(st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=5), max_size=8), max_size=4)


def beginnings(rows: list[list[int]]) -> list[tuple[int, ...]]:
    """What some row goes on behind, in preorder."""
    return sorted({tuple(row[:length]) for row in rows for length in range(1, len(row))})


@settings(max_examples=200, deadline=None)
@given(ROWS)
def test_nodes_are_the_beginnings_of_rows_in_preorder(rows: list[list[list[int]]]) -> None:
    trees = RowLayout.of(rows, VOCAB).trees
    assert trees.num_queries == len(rows)
    for query, of_query in enumerate(rows):
        wanted, span = beginnings(of_query), trees.span(query)
        nodes = range(span.first, span.end)
        assert [tuple(trees.tokens[[*trees.path(node), node]].tolist()) for node in nodes] == wanted
        assert trees.depths[span.first : span.end].tolist() == [len(path) for path in wanted]
        below = [sum(other[: len(path)] == path for other in wanted) for path in wanted]
        assert (trees.ends[span.first : span.end] - np.arange(span.first, span.end)).tolist() == below
        assert trees.widths[query] == len(set(map(tuple, of_query)))


@settings(max_examples=200, deadline=None)
@given(ROWS)
def test_rows_take_the_steps_of_their_tokens(rows: list[list[list[int]]]) -> None:
    layout = RowLayout.of(rows, VOCAB)
    number = 0
    for query, of_query in enumerate(rows):
        places = {path: place for place, path in enumerate(beginnings(of_query), layout.trees.offsets[query])}
        for row in of_query:
            steps = layout.row_steps[layout.row_starts[number] : layout.row_starts[number + 1]]
            assert layout.step_tokens[steps].tolist() == row
            behind = [-1 - query, *(places[tuple(row[:length])] for length in range(1, len(row)))]
            assert layout.step_nodes[steps].tolist() == behind
            number += 1
    assert number == len(layout.row_starts) - 1
    distinct = {
        (query, *row[:n]) for query, some in enumerate(rows) for row in some for n in range(1, len(row) + 1)
    }
    assert len(layout.step_nodes) == len(distinct)
    assert (np.diff(layout.step_nodes) >= 0).all()
    values = np.arange(len(layout.step_nodes), dtype=np.float64) ** 2
    sums = (
        [values[part].sum() for part in np.split(layout.row_steps, layout.row_starts[1:-1])] if number else []
    )
    np.testing.assert_allclose(layout.row_sums(values), sums)


def test_spans_find_the_steps_behind_them() -> None:
    layout = RowLayout.of([[[1, 2, 3], [1, 3]], [[2, 2]]], VOCAB)
    assert layout.step_tokens[layout.steps_behind_prompts].tolist() == [2, 1]
    assert layout.step_tokens[layout.steps_behind(layout.trees.span(0))].tolist() == [2, 3, 3]
    assert layout.step_tokens[layout.steps_behind(NodeSpan(0, 1, 2))].tolist() == [3]
    assert layout.step_tokens[layout.steps_behind(layout.trees.span(1))].tolist() == [2]


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ([[[1]], [[1], []]], "a row must have at least one token, row 1 of query 1 has none"),
        ([[[1, 4]]], r"token ids must be in \[0, 4\), row 0 of query 0 has 4"),
        ([[], [[1], [0, -1]]], r"token ids must be in \[0, 4\), row 1 of query 1 has -1"),
    ],
)
def test_rows_that_are_none_are_refused(rows: list[list[list[int]]], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        RowLayout.of(rows, VOCAB)
