"""Beam search against full enumeration on table models."""

from __future__ import annotations

import math
import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from decoding.beam_search import BeamResult, beam_search
from decoding.cancellation import CancelToken
from decoding.errors import DeadlineExceededError, DecodingCancelledError, InvalidLogitsError
from decoding.params import BeamParams
from decoding.trie.title_trie import TitleTrie
from tests.fakes import TableModel, all_sequences, end_with
from tests.hashed_model import HashedModel

END = 0


def random_rows(rng: random.Random, vocab_size: int) -> set[tuple[int, ...]]:
    titles = all_sequences(range(1, vocab_size), 3)
    return end_with(rng.sample(titles, rng.randint(1, min(30, len(titles)))), END)


def true_ranking(model: TableModel, prompt: tuple[int, ...], rows: set[tuple[int, ...]]):
    return sorted(((model.logprob(prompt, row), row) for row in rows), reverse=True)


@settings(max_examples=300, deadline=None)
@given(seed=st.integers(0, 10**9), k=st.integers(1, 40), width=st.integers(1, 8))
def test_results_are_valid_distinct_ordered_and_certificates_hold(seed, k, width):
    rng = random.Random(seed)
    vocab_size = rng.randint(2, 6)
    rows = random_rows(rng, vocab_size)
    model = TableModel.random(vocab_size, seed)
    trie = TitleTrie.from_rows(rows, vocab_size)
    ordered = sorted(rows)
    prompts = [(1,), (1, 1)]
    results = beam_search(model.prefill(prompts), trie, [BeamParams(k, width), BeamParams(3, 100)])
    for prompt, result, want in zip(prompts, results, (k, 3), strict=True):
        assert isinstance(result, BeamResult)
        truth = true_ranking(model, prompt, rows)
        found = [h.token_ids for h in result.hypotheses]
        assert len(set(found)) == len(found) <= want
        assert set(found) <= rows
        for hypothesis in result.hypotheses:
            assert ordered[hypothesis.row] == hypothesis.token_ids
            exact = model.logprob(prompt, hypothesis.token_ids)
            assert hypothesis.logprob == pytest.approx(exact, abs=1e-5)
        scores = [h.logprob for h in result.hypotheses]
        assert scores == sorted(scores, reverse=True)
        if result.certified:
            assert found == [row for _, row in truth[:want]]
    assert results[1].certified  # a beam wider than the catalogue prunes nothing
    assert len(results[1].hypotheses) == min(3, len(rows))


def test_fewer_titles_than_k_gives_them_all_and_nothing_else():
    rows = {(1, END), (2, 2, END)}
    trie = TitleTrie.from_rows(rows, 4)
    (result,) = beam_search(TableModel.random(4, 1).prefill([(1,)]), trie, [BeamParams(k=10)])
    assert {h.token_ids for h in result.hypotheses} == rows
    assert result.certified


def test_an_empty_catalogue_gives_an_empty_certified_list():
    trie = TitleTrie.from_rows([], 4)
    (result,) = beam_search(TableModel.random(4, 1).prefill([(1,)]), trie, [BeamParams(k=2)])
    assert result.hypotheses == ()
    assert result.certified


def test_k_and_width_of_one_query_do_not_change_another():
    rows = random_rows(random.Random(5), 6)
    trie = TitleTrie.from_rows(rows, 6)
    model = TableModel.random(6, 5)
    alone = beam_search(model.prefill([(2,)]), trie, [BeamParams(2, 2)])[0]
    crowd = beam_search(
        model.prefill([(1,), (2,), (3,)]), trie, [BeamParams(20, 20), BeamParams(2, 2), BeamParams(1, 1)]
    )[1]
    assert alone.hypotheses == crowd.hypotheses
    assert alone.certified == crowd.certified
    assert alone.best_pruned_score == crowd.best_pruned_score


def test_a_greedy_beam_that_misses_the_best_title_is_not_certified():
    # Token 1 looks best but leads only to an improbable end; token 2 leads to a certain one.
    tables = {(): [-9.0, 1.0, 0.0], (1,): [-9.0, 5.0, 5.0], (2,): [9.0, 0.0, 0.0]}
    model = TableModel(3, lambda _, written: torch.tensor(tables[written]))
    trie = TitleTrie.from_rows({(1, END), (2, END)}, 3)
    narrow, wide = (beam_search(model.prefill([(1,)]), trie, [BeamParams(1, width)])[0] for width in (1, 2))
    assert narrow.hypotheses[0].token_ids == (1, END)
    assert not narrow.certified
    assert wide.hypotheses[0].token_ids == (2, END)
    assert wide.certified


def test_titles_of_probability_zero_are_left_out():
    logits = torch.tensor([0.0, 0.0, -math.inf])
    trie = TitleTrie.from_rows({(1, END), (2, END)}, 3)
    (result,) = beam_search(TableModel(3, lambda *_: logits).prefill([(1,)]), trie, [BeamParams(5)])
    assert [h.token_ids for h in result.hypotheses] == [(1, END)]


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_broken_logits_are_an_error(bad):
    trie = TitleTrie.from_rows({(1, END)}, 3)
    model = TableModel(3, lambda *_: torch.tensor([0.0, bad, 0.0]))
    with pytest.raises(InvalidLogitsError, match="NaN or infinite"):
        beam_search(model.prefill([(1,)]), trie, [BeamParams(5)])


def test_room_ends_a_query_and_takes_the_certificate():
    trie = TitleTrie.from_rows({(1, END), (2, 2, 2, END)}, 3)
    model = TableModel.random(3, 3)
    tight, free = beam_search(
        model.prefill([(1,), (1,)]), trie, [BeamParams(5), BeamParams(5)], room=[2, None]
    )
    assert [h.token_ids for h in tight.hypotheses] == [(1, END)]
    assert not tight.certified
    assert len(free.hypotheses) == 2
    assert free.certified


def test_a_cancelled_query_leaves_and_the_others_finish():
    rows = random_rows(random.Random(5), 6)
    trie = TitleTrie.from_rows(rows, 6)
    model = TableModel.random(6, 5)
    cancelled, late = CancelToken(), CancelToken(deadline=0.0)
    cancelled.cancel()
    params = [BeamParams(3)] * 3
    results = beam_search(model.prefill([(1,), (2,), (3,)]), trie, params, [cancelled, None, late])
    assert isinstance(results[0], DecodingCancelledError)
    assert isinstance(results[2], DeadlineExceededError)
    assert results[1].hypotheses == beam_search(model.prefill([(2,)]), trie, params[:1])[0].hypotheses


@pytest.mark.parametrize("arguments", [{"k": 0}, {"k": 10**6}, {"k": True}, {"beam_size": 0}, {"k": 1.5}])
def test_parameters_out_of_range_are_named(arguments):
    with pytest.raises(ValueError, match=f"{next(iter(arguments))} must be an integer in"):
        BeamParams(**arguments)


@pytest.mark.parametrize("count", [0, 1, 3])
def test_parameters_for_another_number_of_queries_are_refused(count):
    trie = TitleTrie.from_rows({(1, END)}, 3)
    session = TableModel.random(3, 1).prefill([(1,), (2,)])
    with pytest.raises(ValueError, match=rf"params must have one entry per query \(2\), got {count}"):
        beam_search(session, trie, [BeamParams(5)] * count)


def test_rows_of_thousands_of_tokens_are_written_out_whole():
    rows = [(*(1 + (n * i) % 3 for n in range(2000 + i)), END) for i in range(1, 8)]
    model = HashedModel.random(4, 1)
    (result,) = beam_search(model.prefill([0]), TitleTrie.from_rows(rows, 4), [BeamParams(7, exact=True)])
    assert {hypothesis.token_ids for hypothesis in result.hypotheses} == set(rows)
    for hypothesis in result.hypotheses:
        assert hypothesis.logprob == pytest.approx(model.logprob(0, hypothesis.token_ids), rel=1e-6)
