"""What a trie must answer, by brute force over sets of rows, and random catalogues to ask about."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import strategies as st

from genret.decoding.constraints import Children, Constraint, PaddedChildren
from genret.decoding.trie.row_filter import FilteredTrie, RowFilter
from genret.decoding.trie.title_trie import TitleTrie

Row = tuple[int, ...]

needs_numba = pytest.mark.skipif(importlib.util.find_spec("numba") is None, reason="numba is not installed")
needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")

# (device, kernels): every way of walking a trie, all held to the same brute force.
BACKENDS = [
    pytest.param("cpu", "torch", id="torch"),
    pytest.param("cpu", "numba", id="numba", marks=needs_numba),
    pytest.param("cuda", "torch", id="torch-cuda", marks=needs_cuda),
]


SIZES = (2, 3, 5, 17, 300, 65_536, 70_000, 200_000)  # of vocabularies


def flatten(rows: Sequence[Sequence[int]], dtype: npt.DTypeLike = "u4") -> tuple[np.ndarray, np.ndarray]:
    """Rows as an index has them: all tokens, and where each row begins and ends."""
    return np.array([t for row in rows for t in row], dtype=dtype), np.cumsum([0, *map(len, rows)])


def edges_of(children: Children, num_states: int) -> list[dict[int, int]]:
    """Next state by token, per state; every token at most once."""
    found: list[dict[int, int]] = [{} for _ in range(num_states)]
    assert children.owner.tolist() == sorted(children.owner.tolist())
    for owner, token, state in zip(*(column.tolist() for column in children), strict=True):
        assert token not in found[owner]
        found[owner][token] = state
    return found


def padded_edges_of(children: PaddedChildren) -> list[dict[int, int]]:
    """The same of padded children: a gap has neither a token nor a state."""
    assert torch.equal(children.token == -1, children.next_state == -1)
    assert torch.equal(children.token >= 0, children.next_state >= 0)
    return [
        {token: state for token, state in zip(tokens, states, strict=True) if token >= 0}
        for tokens, states in zip(children.token.tolist(), children.next_state.tolist(), strict=True)
    ]


def brute_children(rows: set[Row], prefix: Row) -> set[int]:
    depth = len(prefix)
    return {row[depth] for row in rows if len(row) > depth and row[:depth] == prefix}


def prefixes(rows: set[Row]) -> set[Row]:
    return {row[:depth] for row in rows for depth in range(len(row) + 1)} | {()}


def shared_tokens(left: Row, right: Row) -> int:
    """Length of the common prefix of two different rows, none a prefix of the other."""
    return next(i for i, (a, b) in enumerate(zip(left, right, strict=False)) if a != b)


def node_prefixes(rows: set[Row]) -> list[Row]:
    """Nodes of the compressed trie by level: root, shared prefixes, the first each row has for itself."""
    found: set[Row] = {()}
    for row in rows:
        shared = max((shared_tokens(row, other) for other in rows if other != row), default=0)
        found |= {row[:depth] for depth in range(shared + 2)}
    return sorted(found, key=lambda prefix: (len(prefix), prefix))


@st.composite
def catalogues(draw: st.DrawFn, max_rows: int = 40, sizes: Sequence[int] = SIZES) -> tuple[set[Row], int]:
    """Rows closed by an end token: shared prefixes, prefixes of one another, one-token titles."""
    vocab_size = draw(st.sampled_from(sizes))
    tokens = st.one_of(
        st.integers(0, min(3, vocab_size - 1)), st.integers(0, vocab_size - 1), st.just(vocab_size - 1)
    )
    titles = draw(st.lists(st.lists(tokens, max_size=6), max_size=max_rows))
    end = draw(st.integers(0, vocab_size - 1))
    rows = {(*(t for t in title if t != end), end) for title in titles}
    return rows, vocab_size


@st.composite
def filtered_catalogues(
    draw: st.DrawFn, max_rows: int = 40
) -> tuple[int, Constraint, int, list[int | None] | None]:
    """A vocabulary size, a trie or filters over one, a number of queries, and the room of each."""
    rows, vocab_size = draw(catalogues(max_rows, SIZES[:5]))
    trie = TitleTrie.from_rows(rows, vocab_size)
    queries = draw(st.integers(1, 4))
    room = draw(st.none() | st.lists(st.none() | st.integers(0, 5), min_size=queries, max_size=queries))
    if not draw(st.booleans()):
        return vocab_size, trie, queries, room
    bits = np.random.default_rng(draw(st.integers(0, 99)))
    filters = [None, *(RowFilter.from_mask(bits.random(trie.num_rows) < p) for p in (0.0, 0.5, 0.9))]
    chosen = [draw(st.sampled_from(filters)) for _ in range(queries)]
    return vocab_size, FilteredTrie(trie, chosen), queries, room
