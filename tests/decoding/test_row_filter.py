"""Filters against brute force over the allowed rows, alone and under beam search and DISC.

Statistical tests are seeded, so they pass or fail for good; alpha is the chance that a correct
implementation would have failed at a seed picked blindly.
"""

from __future__ import annotations

import itertools
import math
import random
from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import decoding.trie.row_filter as row_filter_module
from decoding.beam_search import BeamResult, beam_search
from decoding.disc import DiscResult, disc
from decoding.params import BeamParams, DiscParams
from decoding.trie.row_filter import FilteredTrie, RowFilter
from decoding.trie.title_trie import TitleTrie
from tests.fakes import TableModel, all_sequences, chi_square, end_with, normalise, roots
from tests.trie_oracles import BACKENDS, Row, brute_children, catalogues, edges_of, padded_edges_of

every_backend = pytest.mark.parametrize(("device", "kernels"), BACKENDS)
END = 0
ALPHA = 1e-4


def allowed_rows(ordered: list[Row], mask: np.ndarray | None) -> set[Row]:
    return set(ordered) if mask is None else set(itertools.compress(ordered, mask))


def masks(num_rows: int) -> st.SearchStrategy[np.ndarray | None]:
    """None, nothing, everything, and any mask."""
    some = st.lists(st.booleans(), min_size=num_rows, max_size=num_rows)
    fixed = st.sampled_from([[False] * num_rows, [True] * num_rows])
    return st.none() | st.one_of(some, fixed).map(lambda mask: np.array(mask, dtype=bool))


def check_all_states(trie: FilteredTrie, ordered: list[Row], allowed: list[set[Row]], tokens) -> None:
    """Walk every prefix that every query may write, all queries in one batch, asking everything."""
    level = [(query, (), state) for query, state in enumerate(roots(trie, len(allowed)).tolist())]
    seen: set[tuple[int, Row]] = set()
    while level:
        states = torch.tensor([state for *_, state in level] + [-1], device=trie.device)
        found = edges_of(trie.children(states), len(states))
        width = trie.width_at(len(level[0][1]))
        assert padded_edges_of(trie.padded_children(states, width)) == found
        assert padded_edges_of(trie.padded_children(states, width + 1)) == found
        finals, ranks = trie.is_final(states).tolist(), trie.row(states).tolist()
        candidates = torch.tensor([tokens] * len(states), device=trie.device)
        verified = trie.verify(states, candidates).tolist()
        assert trie.advance(states, candidates[:, 0]).tolist() == [row[0] for row in verified]
        assert (found[-1], finals[-1], ranks[-1], set(verified[-1])) == ({}, False, -1, {-1})
        following = []
        for at, (query, prefix, _) in enumerate(level):
            seen.add((query, prefix))
            assert set(found[at]) == brute_children(allowed[query], prefix)
            assert list(found[at]) == sorted(found[at])
            assert finals[at] == (prefix in allowed[query])
            if finals[at]:
                assert ordered[ranks[at]] == prefix
            assert verified[at] == [found[at].get(token, -1) for token in tokens]
            following += [(query, (*prefix, token), state) for token, state in found[at].items()]
        level = following
    for query, rows in enumerate(allowed):
        assert {prefix for q, prefix in seen if q == query} >= rows


@every_backend
@settings(max_examples=200, deadline=None)
@given(catalogue=catalogues(max_rows=20), data=st.data())
def test_a_batch_of_filters_equals_brute_force_over_the_allowed_rows(device, kernels, catalogue, data):
    rows, vocab_size = catalogue
    ordered = sorted(rows)
    trie = TitleTrie.from_rows(rows, vocab_size, device, kernels)
    distinct = data.draw(st.lists(masks(len(rows)), min_size=1, max_size=3))
    filters = [None if mask is None else RowFilter.from_mask(mask, device) for mask in distinct]
    chosen = data.draw(st.lists(st.integers(0, len(distinct) - 1), min_size=1, max_size=5))
    filtered = FilteredTrie(trie, [filters[i] for i in chosen])
    tokens = data.draw(st.lists(st.integers(0, vocab_size - 1), min_size=3, max_size=3))
    tokens += [row[0] for row in ordered[:2]]
    check_all_states(filtered, ordered, [allowed_rows(ordered, distinct[i]) for i in chosen], tokens)
    assert filtered.max_depth == trie.max_depth


@settings(max_examples=200, deadline=None)
@given(counts=st.lists(st.integers(0, 3), max_size=30), base=st.integers(0, 5))
def test_counts_of_anything_make_the_same_filter_as_their_mask(counts, base):
    prefix = base + np.cumsum([0, *counts])
    mask = np.array(counts, dtype=int) > 0
    by_prefix, by_mask = RowFilter.from_prefix(prefix), RowFilter.from_mask(mask)
    assert by_prefix.num_allowed == by_mask.num_allowed == mask.sum()
    assert by_prefix.num_rows == by_mask.num_rows == len(counts)
    assert by_prefix.num_bytes == by_mask.num_bytes == 4 * (len(counts) + 1)
    assert torch.equal(by_prefix.prefix[1:] > by_prefix.prefix[:-1], torch.from_numpy(mask))
    assert torch.equal(by_mask.prefix[1:] > by_mask.prefix[:-1], torch.from_numpy(mask))


def test_masks_that_are_views_and_counts_that_are_read_only_are_taken():
    mask = np.array([True, False, True, True, False, False])
    assert RowFilter.from_mask(mask[::2]).prefix.tolist() == [0, 1, 2, 2]
    prefix = np.array([0, 1, 1], dtype=np.int32)
    prefix.setflags(write=False)
    assert RowFilter.from_prefix(prefix).prefix.tolist() == [0, 1, 1]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: RowFilter.from_mask(np.zeros(3, dtype=np.int8)), "one dimension of bool, got 1 of int8"),
        (lambda: RowFilter.from_mask(np.zeros((2, 2), dtype=bool)), "got 2 of bool"),
        (lambda: RowFilter.from_prefix(np.array([0, 2, 1])), "decreases from rank 1 to 2"),
        (lambda: RowFilter.from_prefix(np.array([0.0, 1.0])), "signed integers"),
        (lambda: RowFilter.from_prefix(np.array([], dtype=np.int32)), "at least one"),
        (lambda: RowFilter.from_prefix(np.array([0, 2**31])), "values of 32 bits"),
    ],
)
def test_what_makes_no_filter_is_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_filters_that_do_not_fit_are_refused_by_number(monkeypatch):
    trie = TitleTrie.from_rows([(1, END), (2, END)], 3)
    fits, other = RowFilter.from_mask(np.ones(2, dtype=bool)), RowFilter.from_mask(np.ones(3, dtype=bool))
    wide = RowFilter(fits.prefix.long(), 2)
    with pytest.raises(ValueError, match=r"filters\[1\]: expected counts of torch.int32, got torch.int64"):
        FilteredTrie(trie, [fits, wide])
    with pytest.raises(ValueError, match=r"filters\[1\]: expected a filter over 2 rows, got 3"):
        FilteredTrie(trie, [fits, other])
    monkeypatch.setattr(row_filter_module, "_MAX_ROW_ENDS", 6)
    second = RowFilter.from_mask(np.zeros(2, dtype=bool))
    FilteredTrie(trie, [fits, second, fits])
    with pytest.raises(
        ValueError, match=r"3 different ones over 2 rows, none counting as one, .* at most 2 do"
    ):
        FilteredTrie(trie, [fits, None, second])


@every_backend
def test_the_last_lane_that_fits_into_a_state_is_told_apart(device, kernels):
    """65,536 lanes of 65,536 ranks fill 32 bits: the last one is walked, and one more is refused."""
    num_rows = 2**16 - 1
    trie = TitleTrie.from_rows([(token, END) for token in range(1, num_rows + 1)], 2**16, device, kernels)
    half = RowFilter.from_mask(np.arange(num_rows) % 2 == 0, device)
    odd = RowFilter.from_mask(np.arange(num_rows) % 2 == 1, device)
    lanes = [*(RowFilter(half.prefix, half.num_allowed) for _ in range(2**16 - 1)), odd]
    filtered = FilteredTrie(trie, lanes)
    states = filtered.start(torch.tensor([2**16 - 1, 0], device=device))
    assert states[0] == (2**32 - 1) << 31
    children = filtered.children(states)
    assert children.token[children.owner == 0].tolist() == list(range(2, num_rows + 1, 2))
    assert children.token[children.owner == 1].tolist() == list(range(1, num_rows + 1, 2))
    last = children.next_state[children.owner == 0][-1:]
    ended = filtered.children(last)
    assert ended.token.tolist() == [END]
    assert filtered.is_final(ended.next_state).tolist() == [True]
    assert filtered.row(ended.next_state).tolist() == [num_rows - 2]
    with pytest.raises(ValueError, match="65537 different ones over 65535 rows"):
        FilteredTrie(trie, [*lanes, None])


def test_queries_with_one_filter_are_in_one_lane():
    trie = TitleTrie.from_rows([(1, END), (2, END)], 3)
    one, other = (RowFilter.from_mask(np.array(mask)) for mask in ([True, False], [False, True]))
    first, unfiltered, third, fourth = roots(FilteredTrie(trie, [one, None, one, other]), 4).tolist()
    assert first == third
    assert len({first, unfiltered, fourth}) == 3


@every_backend
@pytest.mark.parametrize("number", [0, 1, 2])
def test_a_batch_without_states_has_no_children(device, kernels, number):
    trie = TitleTrie.from_rows([(1, END), (2, END)], 3, device, kernels)
    filters = [None, RowFilter.from_mask(np.array([True, False]), device)][:number]
    nothing = torch.zeros(0, dtype=torch.int64, device=device)
    children = FilteredTrie(trie, filters).children(nothing)
    assert [len(column) for column in children] == [0, 0, 0]
    assert FilteredTrie(trie, filters).verify(nothing, nothing.view(0, 3)).shape == (0, 3)


@every_backend
def test_states_are_for_the_queries_asked_in_any_order(device, kernels):
    trie = TitleTrie.from_rows([(1, END), (2, END)], 3, device, kernels)
    one, other = (RowFilter.from_mask(np.array(mask), device) for mask in ([True, False], [False, True]))
    states = FilteredTrie(trie, [one, other, None]).start(torch.tensor([2, 1, 0, 1], device=device))
    children = FilteredTrie(trie, [one, other, None]).children(states)
    assert children.owner.tolist() == [0, 0, 1, 2, 3]
    assert children.token.tolist() == [1, 2, 2, 1, 2]


@settings(max_examples=200, deadline=None)
@given(seed=st.integers(0, 10**9), k=st.integers(1, 20))
def test_beam_search_finds_the_best_allowed_rows_of_every_query(seed, k):
    rng = random.Random(seed)
    titles = all_sequences(range(1, 4), 3)
    rows = end_with(rng.sample(titles, rng.randint(1, len(titles))), END)
    ordered = sorted(rows)
    chosen = [None, *(np.array([rng.random() < share for _ in rows]) for share in (0.5, 0.1, 0.0))]
    model = TableModel.random(4, seed)
    filters = [None if mask is None else RowFilter.from_mask(mask) for mask in chosen]
    trie = FilteredTrie(TitleTrie.from_rows(rows, 4), filters)
    prompts = [(1, query) for query in range(4)]
    results = beam_search(model.prefill(prompts), trie, [BeamParams(k, 100)] * 4)
    for prompt, mask, result in zip(prompts, chosen, results, strict=True):
        assert isinstance(result, BeamResult)
        allowed = allowed_rows(ordered, mask)
        truth = sorted(((model.logprob(prompt, row), row) for row in allowed), reverse=True)[:k]
        assert result.certified
        assert [h.token_ids for h in result.hypotheses] == [row for _, row in truth]
        for hypothesis, (logprob, row) in zip(result.hypotheses, truth, strict=True):
            assert ordered[hypothesis.row] == row
            assert hypothesis.logprob == pytest.approx(logprob, abs=1e-5)


# Titles that are prefixes of others, shared prefixes, one-token titles; two filters and none.
DISC_ROWS = sorted(end_with([(1,), (1, 2), (1, 2, 3), (2,), (2, 2), (4, 1), (3, 3), (3, 4)], END))
DISC_MASKS = [
    np.array([row[:2] in {(1, 2), (3, 3), (3, 4)} for row in DISC_ROWS]),
    np.array([row[0] != 1 for row in DISC_ROWS]),
    None,
]
DISC_PROMPT = (1,)


def disc_batch(model: TableModel, repeats: int, **params) -> list[list[DiscResult]]:
    """Run one batch in which the filters take turns; return the results of each filter."""
    filters = [None if mask is None else RowFilter.from_mask(mask) for mask in DISC_MASKS] * repeats
    trie = FilteredTrie(TitleTrie.from_rows(DISC_ROWS, 5), filters)
    all_params = [DiscParams(num_samples=250, seed=seed, **params) for seed in range(len(filters))]
    results = disc(model.prefill([DISC_PROMPT] * len(filters)), trie, all_params)
    return [results[which :: len(DISC_MASKS)] for which in range(len(DISC_MASKS))]


@pytest.mark.statistical
@pytest.mark.parametrize("top_m", [None, 2])
def test_disc_samples_each_query_from_its_own_allowed_rows(top_m):
    """Three laws in one batch, each against its enumeration: chi-square at alpha, mass at four errors."""
    model = TableModel.random(5, 11)
    truth = {row: math.exp(model.logprob(DISC_PROMPT, row)) for row in DISC_ROWS}
    for mask, results in zip(DISC_MASKS, disc_batch(model, 40, num_draws=4, top_m=top_m), strict=True):
        allowed = allowed_rows(DISC_ROWS, mask)
        samples = [sample for result in results for sample in result.samples]
        assert len(samples) == 40 * 250
        assert any(not sample.accepted for sample in samples)  # the second phase knows the queries, too
        assert {sample.hypothesis.token_ids for sample in samples} <= allowed
        assert all(DISC_ROWS[s.hypothesis.row] == s.hypothesis.token_ids for s in samples)
        if top_m is not None:
            continue  # unlikely tokens are never asked about, so the law is another
        counts = Counter(s.hypothesis.token_ids for s in samples if s.accepted)
        assert chi_square(counts, normalise({row: truth[row] for row in sorted(allowed)})) > ALPHA
        masses = torch.tensor([result.mass for result in results], dtype=torch.float64)
        error = float(masses.std()) / math.sqrt(len(masses))
        assert abs(float(masses.mean()) - math.fsum(truth[row] for row in allowed)) < 4 * error


def test_a_query_that_is_done_leaves_the_others_their_filters():
    """Only the last query needs a second phase, where it is alone: it must stay under its own filter."""
    rows = sorted(end_with([(1,), (2,)], END))
    likely = torch.tensor([-30.0, 20.0, 0.0])
    model = TableModel(3, lambda _, written: likely if not written else torch.tensor([20.0, 0.0, 0.0]))
    first, second = (RowFilter.from_mask(np.array(mask)) for mask in ([True, False], [False, True]))
    trie = FilteredTrie(TitleTrie.from_rows(rows, 3), [first, first, second])
    results = disc(model.prefill([(1,)] * 3), trie, [DiscParams(5, 3, seed=s) for s in range(3)])
    for result, row, accepted in zip(results, [rows[0], rows[0], rows[1]], [True, True, False], strict=True):
        assert isinstance(result, DiscResult)
        assert [(s.hypothesis.token_ids, s.accepted) for s in result.samples] == [(row, accepted)] * 5


def test_an_empty_filter_gives_no_rows_and_no_mass():
    rows = sorted(end_with([(1,), (2,)], END))
    trie = TitleTrie.from_rows(rows, 3)
    nothing = RowFilter.from_mask(np.zeros(2, dtype=bool))
    model = TableModel.random(3, 1)
    filtered = FilteredTrie(trie, [nothing, None])
    assert nothing.num_allowed == 0
    empty, full = disc(model.prefill([(1,)] * 2), filtered, [DiscParams(3, 2)] * 2)
    assert isinstance(empty, DiscResult)
    assert isinstance(full, DiscResult)
    assert (empty.samples, empty.mass, len(full.samples)) == ((), 0.0, 3)
    empty_list, full_list = beam_search(model.prefill([(1,)] * 2), filtered, [BeamParams(5, 5)] * 2)
    assert isinstance(empty_list, BeamResult)
    assert isinstance(full_list, BeamResult)
    assert (empty_list.hypotheses, empty_list.certified, len(full_list.hypotheses)) == ((), True, 2)


@pytest.mark.parametrize("num_rows", [0, 1, 65_535, 65_536, 65_537, 200_000])
def test_counts_go_on_over_the_borders_of_blocks(num_rows: int) -> None:
    mask = np.random.default_rng(num_rows).random(num_rows) < 0.3
    row_filter = RowFilter.from_mask(mask)
    assert row_filter.prefix.tolist() == [0, *np.cumsum(mask).tolist()]
    assert row_filter.num_allowed == mask.sum()
