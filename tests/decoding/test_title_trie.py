"""The trie against a brute-force set of sequences, and the paper's listing against both."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from decoding.title_trie import TitleTrie
from decoding.trie_arrays import derive_trie
from tests.fakes import roots

DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
Row = tuple[int, ...]


def brute_children(rows: set[Row], prefix: Row) -> set[int]:
    depth = len(prefix)
    return {row[depth] for row in rows if len(row) > depth and row[:depth] == prefix}


def prefixes(rows: set[Row]) -> set[Row]:
    return {row[:depth] for row in rows for depth in range(len(row) + 1)} | {()}


def branching_prefixes(rows: set[Row]) -> set[Row]:
    """Nodes of the compressed trie: the root, what rows share, the first prefix each has for itself."""
    found = {()}
    for row in rows:
        shared = max((lcp(row, other) for other in rows if other != row), default=0)
        found |= {row[:depth] for depth in range(shared + 2)}
    return found


def lcp(left: Row, right: Row) -> int:
    return next(i for i, (a, b) in enumerate(zip(left, right, strict=False)) if a != b)


@st.composite
def catalogues(draw: st.DrawFn) -> tuple[set[Row], int]:
    """Rows closed by an end token: shared prefixes, prefixes of one another, one-token titles."""
    vocab_size = draw(st.sampled_from([2, 3, 5, 17, 300, 65_536, 70_000, 200_000]))
    tokens = st.one_of(
        st.integers(0, min(3, vocab_size - 1)), st.integers(0, vocab_size - 1), st.just(vocab_size - 1)
    )
    titles = draw(st.lists(st.lists(tokens, max_size=6), max_size=40))
    end = draw(st.integers(0, vocab_size - 1))
    rows = {(*(t for t in title if t != end), end) for title in titles}
    return rows, vocab_size


@pytest.mark.parametrize("device", DEVICES)
@settings(max_examples=1500, deadline=None)
@given(catalogue=catalogues(), data=st.data())
def test_children_verify_advance_and_final_equal_brute_force(device, catalogue, data):
    rows, vocab_size = catalogue
    trie = TitleTrie.from_rows(rows, vocab_size, device)
    ordered = sorted(rows)
    states = {(): int(roots(trie)[0])}
    todo = [()]
    while todo:  # breadth first over every prefix there is
        level = torch.tensor([states[p] for p in todo], device=device)
        children = trie.children(level)
        found: list[dict[int, int]] = [{} for _ in todo]
        for owner, token, state in zip(*(x.tolist() for x in children), strict=True):
            assert token not in found[owner]
            found[owner][token] = state
        finals = trie.is_final(level).tolist()
        ranks = trie.row(level).tolist()
        following = []
        for prefix, edges, final, rank in zip(todo, found, finals, ranks, strict=True):
            assert set(edges) == brute_children(rows, prefix)
            assert list(edges) == sorted(edges)
            assert final == (prefix in rows)
            if final:
                assert ordered[rank] == prefix
            for token, state in edges.items():
                states[(*prefix, token)] = state
                following.append((*prefix, token))
        candidates = torch.tensor(
            data.draw(
                st.lists(
                    st.lists(st.integers(0, vocab_size - 1), min_size=4, max_size=4),
                    min_size=len(todo),
                    max_size=len(todo),
                )
            ),
            device=device,
        ).reshape(len(todo), 4)
        verified = trie.verify(level, candidates).tolist()
        for prefix, tokens, nexts in zip(todo, candidates.tolist(), verified, strict=True):
            for token, state in zip(tokens, nexts, strict=True):
                assert state == states.get((*prefix, token), -1)
        advanced = trie.advance(level, candidates[:, 0])
        assert advanced.tolist() == [row[0] for row in verified]
        todo = following
    assert set(states) == prefixes(rows)
    assert len(set(states.values())) == len(states)
    assert trie.num_nodes == len(branching_prefixes(rows))


def test_batches_of_mixed_depths_and_dead_states():
    rows = {(1, 2, 0), (1, 0), (3, 0)}
    trie = TitleTrie.from_rows(rows, 5)
    one = trie.advance(roots(trie), torch.tensor([1]))
    states = torch.tensor([int(roots(trie)), -1, int(one)])
    children = trie.children(states)
    assert children.owner.tolist() == [0, 0, 2, 2]
    assert children.token.tolist() == [1, 3, 0, 2]
    assert trie.verify(states, torch.tensor([[1, 4], [1, 3], [2, 1]]))[1].tolist() == [-1, -1]
    assert trie.is_final(states).tolist() == [False, False, False]
    assert trie.row(torch.tensor([-1])).tolist() == [-1]


def test_an_empty_catalogue_allows_nothing_and_is_not_final():
    trie = TitleTrie.from_rows([], 5)
    assert trie.children(roots(trie, 3)).owner.tolist() == []
    assert trie.is_final(roots(trie)).tolist() == [False]
    assert trie.verify(roots(trie, 2), torch.tensor([[0], [1]])).tolist() == [[-1], [-1]]


def test_the_whole_vocabulary_at_the_root():
    trie = TitleTrie.from_rows([(t, 0) for t in range(1, 5000)], 5000)
    assert trie.children(roots(trie)).token.tolist() == list(range(1, 5000))
    every = torch.arange(5000).unsqueeze(0)
    assert (trie.verify(roots(trie), every)[0] >= 0).tolist() == [False] + [True] * 4999


def test_a_title_of_ten_thousand_tokens():
    long = (*([7] * 10_000), 0)
    trie = TitleTrie.from_rows([long, (7, 0)], 10)
    state = roots(trie)
    for token in long:
        state = trie.advance(state, torch.tensor([token]))
    assert bool(trie.is_final(state))
    assert trie.max_depth == 10_001


@pytest.mark.parametrize(
    ("rows", "vocab_size", "message"),
    [
        ([(1, 2), (1, 2, 3)], 5, "row 0 is a prefix of row 1"),
        ([(), (1,)], 5, "row 0 is empty"),
        ([(5,)], 5, "token id 5 is outside the vocabulary of 5"),
        ([(-1, 2)], 5, "negative"),
    ],
)
def test_rows_that_make_no_trie_are_refused(rows, vocab_size, message):
    with pytest.raises(ValueError, match=message):
        TitleTrie.from_rows(rows, vocab_size)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([(2, 0), (1, 0)], "row 1 sorts before row 0"),
        ([(1, 0), (1, 0)], "row 1 equals row 0"),
        ([(1, 2, 0), (1, 1, 0)], "row 1 sorts before row 0"),
        ([(1, 2), (1, 2, 0)], "row 0 is a prefix of row 1"),
    ],
)
def test_the_derivation_checks_its_input(rows, message):
    tokens = np.array([t for row in rows for t in row])
    offsets = np.cumsum([0, *(len(row) for row in rows)])
    with pytest.raises(ValueError, match=message):
        derive_trie(tokens, offsets)


# --- the two faults of the paper's printed listing -------------------------------------------------


def printed_listing(prefix: torch.Tensor, matrix: torch.Tensor, candidates: torch.Tensor) -> torch.Tensor:
    """The search of DISC's Listing 1 as printed, candidates given: which continue `prefix`."""
    queries = torch.cat([prefix.expand(len(candidates), -1), candidates.unsqueeze(1)], dim=1)
    low = torch.zeros(len(candidates), dtype=torch.long)
    high = torch.full_like(low, len(matrix))
    for _ in range(200):
        if not (low < high).any():
            break
        middle = (low + high) // 2
        against = matrix[middle][:, : queries.shape[1]]
        signs = (queries > against).float() - (queries < against).float()
        greater = signs.cumsum(dim=1)[:, -1] > 0  # the fault: a sum of signs is no lexicographic order
        low = torch.where(greater, middle + 1, low)
        high = torch.where(~greater, middle, high)
    inside = low < len(matrix)
    valid = torch.zeros(len(candidates), dtype=torch.bool)
    valid[inside] = (queries[inside] == matrix[low[inside], : queries.shape[1]]).all(dim=1)
    return valid


def test_regression_lexicographic_order_is_not_a_sum_of_signs():
    rows = [(1, 9, 9), (5, 1, 1), (5, 2, 2), (5, 3, 3)]
    matrix = torch.tensor(rows)
    candidates = torch.tensor([1, 2, 3])
    trie = TitleTrie.from_rows(rows, 10)
    state = trie.advance(roots(trie), torch.tensor([5]))
    assert (trie.verify(state, candidates.unsqueeze(0))[0] >= 0).tolist() == [True, True, True]
    assert not printed_listing(torch.tensor([5]), matrix, candidates).all()


def test_regression_a_candidate_above_the_last_row():
    rows = [(1, 0), (2, 0)]  # 9 converges past the end while 1 is still searching
    matrix = torch.tensor(rows)
    candidates = torch.tensor([9, 1])
    trie = TitleTrie.from_rows(rows, 10)
    assert (trie.verify(roots(trie), candidates.unsqueeze(0))[0] >= 0).tolist() == [False, True]
    with pytest.raises(IndexError):
        printed_listing(torch.tensor([], dtype=torch.long), matrix, candidates)
