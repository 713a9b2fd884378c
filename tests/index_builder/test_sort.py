from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from index_builder.runs import gather_rows, sort_rows


def _flatten(rows: list[list[int]]) -> tuple[np.ndarray, np.ndarray]:
    tokens = np.array([token for row in rows for token in row], dtype=np.uint32)
    return tokens, np.cumsum([0, *map(len, rows)])


@given(
    st.sampled_from([1, 2, 3, 255, 65_537, 2**31 - 1]).flatmap(
        lambda vocab: st.tuples(
            st.just(vocab),
            st.lists(
                st.lists(
                    st.sampled_from(sorted({0, 1 % vocab, vocab // 2, vocab - 1})), min_size=1, max_size=12
                ),
                min_size=1,
                max_size=60,
            ),
        )
    )
)
def test_order_and_runs_equal_brute_force(case: tuple[int, list[list[int]]]) -> None:
    vocab, rows = case
    tokens, offsets = _flatten(rows)
    order, first = sort_rows(tokens, offsets, vocab)
    assert order.tolist() == sorted(range(len(rows)), key=lambda i: rows[i])  # stable, prefixes first
    ordered = [rows[i] for i in order]
    assert first.tolist() == [i == 0 or ordered[i] != ordered[i - 1] for i in range(len(rows))]
    gathered, gathered_offsets = gather_rows(tokens, offsets, order)
    assert gathered.tolist() == [token for row in ordered for token in row]
    assert gathered_offsets.tolist() == np.cumsum([0, *map(len, ordered)]).tolist()


def test_many_random_rows() -> None:
    random = np.random.default_rng(0)
    rows = [random.integers(0, 4, random.integers(1, 30)).tolist() for _ in range(5000)]
    order, _ = sort_rows(*_flatten(rows), 50_257)
    assert order.tolist() == sorted(range(len(rows)), key=lambda i: rows[i])


def test_rows_of_ten_thousand_tokens() -> None:
    rows = [[1] * 10_000 + [2], [1] * 10_000 + [0], [1] * 9_999, [1] * 10_000 + [2]]
    order, first = sort_rows(*_flatten(rows), 3)
    assert order.tolist() == [2, 1, 0, 3]
    assert first.tolist() == [True, True, True, False]


def test_no_rows() -> None:
    order, first = sort_rows(np.empty(0, np.uint8), np.zeros(1, np.int64), 5)
    assert len(order) == len(first) == 0


@pytest.mark.parametrize("rows", [[0], [1, 1], []])
def test_gather_takes_any_rows(rows: list[int]) -> None:
    tokens, offsets = _flatten([[7], [8, 9]])
    gathered, _ = gather_rows(tokens, offsets, np.array(rows, dtype=np.int64))
    assert gathered.tolist() == [token for r in rows for token in ([7], [8, 9])[r]]
