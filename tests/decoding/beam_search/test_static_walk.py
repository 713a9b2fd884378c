"""Beam search with static shapes: the same as the trimmed walk's, and without waiting for the device."""

from __future__ import annotations

import dataclasses
import itertools
import math
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from genret.decoding.beam_search import BeamResult, beam_search
from genret.decoding.beam_search import trie_beam_search as walks_module
from genret.decoding.beam_search.trie_beam_search import suits_static
from genret.decoding.cancellation import CancelToken
from genret.decoding.constraints import MAX_CELLS
from genret.decoding.errors import InvalidLogitsError
from genret.decoding.late_flag import LateFlag
from genret.decoding.params import BeamParams
from genret.decoding.trie.row_filter import FilteredTrie, RowFilter
from genret.decoding.trie.title_trie import TitleTrie
from tests.beam_batches import END, random_params
from tests.beam_oracles import (
    Row,
    Truth,
    assert_same_lists,
    check_certificate,
    close,
    is_true_top_k,
    scores_of,
    truth_of,
)
from tests.no_sync import LazyEvent, no_sync
from tests.tables_model import LOGITS, HashedModel, TablesModel
from tests.text_constraint import Text, free_text, random_text
from tests.trie_oracles import filtered_catalogues


@contextmanager
def walked_statically(lag: int | None = None, max_cells: int = MAX_CELLS) -> Iterator[None]:
    """Have searches walk with static shapes; with a `lag`, flags are as late as a device's."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(walks_module, "suits_static", lambda _: True)
        patch.setattr("genret.decoding.beam_search.beams.MAX_CELLS", max_cells)
        if lag is not None:
            patch.setattr(walks_module, "LateFlag", partial(LateFlag, lag=lag, new_event=LazyEvent))
        yield


@st.composite
def cases(draw: st.DrawFn):
    """A catalogue, a filter per query, parameters of unlike queries, and room."""
    vocab, constraint, queries, room = draw(filtered_catalogues())
    params = [
        BeamParams(
            k=draw(st.integers(1, 12)),
            beam_size=draw(st.none() | st.integers(1, 9)),
            length_penalty=draw(st.sampled_from([0.0, 0.0, 0.7, 2.0, -1.0])),
        )
        for _ in range(queries)
    ]
    return vocab, constraint, params, room


def model_of(vocab: int, seed: int) -> HashedModel:
    """Every third model is full of exact ties, every second has tokens of probability zero."""
    model = HashedModel.random(vocab, seed)
    if seed % 3 == 0:
        model.table = model.table.round()
    if seed % 2 and vocab > 2:
        model.table[:, :: max(3, vocab // 3)] = -math.inf
    return model


def assert_same(trimmed: list, static: list) -> None:
    assert_same_lists(trimmed, static)
    for mine, theirs in zip(trimmed, static, strict=True):
        assert mine.num_steps <= theirs.num_steps


@settings(max_examples=150, deadline=None)
@given(
    case=cases(),
    seed=st.integers(0, 50),
    lag=st.none() | st.integers(0, 3),
    max_cells=st.sampled_from([1 << 22, 1, 7, 40]),
)
def test_both_walks_find_the_same_to_the_bit(case, seed, lag, max_cells):
    vocab, constraint, params, room = case
    model = model_of(vocab, seed)
    trimmed = beam_search(model.prefill(range(len(params))), constraint, params, room=room)
    with walked_statically(lag, max_cells):
        static = beam_search(model.prefill(range(len(params))), constraint, params, room=room)
    assert_same(trimmed, static)


def catalogue(vocab: int = 40, count: int = 300) -> TitleTrie:
    rng = np.random.default_rng(1)
    lengths = rng.integers(1, 5, size=count)
    rows = [(*rng.integers(1, vocab, size=n).tolist(), 0) for n in lengths]
    return TitleTrie.from_rows(rows, vocab, kernels="torch")  # as on a device; `no_sync` sees what it does


def watched(steps: Callable[..., None]) -> Callable[..., None]:
    def run(*arguments: object) -> None:
        with pytest.MonkeyPatch.context() as patch, no_sync():
            # On the CPU the trie compares widths with values, as it would not on a device.
            patch.setattr("genret.decoding.trie.trie_kernels._can_look_at", lambda _: False)
            steps(*arguments)

    return run


PARAMS = [BeamParams(5, 7), BeamParams(3, 2, length_penalty=1.0), BeamParams(20, 1, length_penalty=-0.5)]


def test_the_steps_never_wait_for_the_device(monkeypatch):
    calls = []
    steps = walks_module._static_steps
    monkeypatch.setattr(walks_module, "_static_steps", lambda *a: (calls.append(1), watched(steps)(*a)))
    trie = catalogue()
    keep = RowFilter.from_mask(np.arange(trie.num_rows) % 3 == 0)
    model = HashedModel.random(trie.vocab_size, 1)
    cancel = [CancelToken(), None, None]
    for constraint in (trie, FilteredTrie(trie, [keep, None, keep])):
        with walked_statically():
            static = beam_search(model.prefill(range(3)), constraint, PARAMS, cancel, [None, 3, 4])
        assert_same(beam_search(model.prefill(range(3)), constraint, PARAMS, cancel, [None, 3, 4]), static)
    assert len(calls) == 2


@pytest.mark.parametrize("lag", [0, 2])
def test_a_late_flag_costs_few_steps_more(lag: int):
    rows = [(1, 0), *((2,) * n + (0,) for n in range(5, 60, 5))]
    trie = TitleTrie.from_rows(rows, 3)
    model = HashedModel(torch.tensor([[0.0, 8.0, -30.0]]))
    prompt = beam_search(model.prefill([0]), trie, [BeamParams(1, 2)])
    with walked_statically(lag):
        delayed = beam_search(model.prefill([0]), trie, [BeamParams(1, 2)])
    assert_same(prompt, delayed)
    assert delayed[0].num_steps == prompt[0].num_steps + lag + 1


@pytest.mark.parametrize("lag", [None, 0, 3])
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_broken_logits_are_an_error_however_late(bad: float, lag: int | None):
    trie = catalogue()
    table = HashedModel.random(trie.vocab_size, 1).table
    table[1:, 0] = bad
    with walked_statically(lag), pytest.raises(InvalidLogitsError, match="NaN or inf"):
        beam_search(HashedModel(table).prefill([0]), trie, [BeamParams(5)])


def test_which_searches_have_static_shapes():
    trie = catalogue()

    def suits(
        device: str = "cuda", constraint: object = trie, held_open: bool = False, recorder: object = None
    ) -> bool:
        nodes = {0: None} if held_open else {}
        return suits_static(
            SimpleNamespace(device=torch.device(device), constraint=constraint, open=nodes, recorder=recorder)
        )

    assert suits()
    assert suits(constraint=FilteredTrie(trie, [None]))
    assert not suits(device="cpu")
    assert not suits(held_open=True)
    assert not suits(recorder=object())
    assert not suits(constraint=SimpleNamespace(max_depth=3))


@dataclasses.dataclass(frozen=True)
class Case:
    """Several queries over one kind of text, with everything it may say scored."""

    wide: Text
    listed: Text
    model: TablesModel
    truths: list[Truth]
    rows: list[Row]

    @classmethod
    def random(cls, seed: int, num_queries: int = 20) -> Case:
        rng = random.Random(seed)
        vocab_size, length = rng.choice([(40, 3), (12, 4), (6, 6), (200, 2), (25, 3)])
        share = rng.choice([0.1, 0.5, 0.9, 1.0])
        if rng.random() < 0.3:
            wide, listed = (free_text(vocab_size, length, is_wide) for is_wide in (True, False))
        else:
            end = rng.choice([END, END, None])
            wide, listed = (
                random_text(seed, vocab_size, length, share, is_wide, end) for is_wide in (True, False)
            )
        rows = listed.enumerate()
        kinds = [rng.choice(list(LOGITS)) for _ in range(num_queries)]
        model = TablesModel.random(seed, kinds, vocab_size)
        truths = [dataclasses.replace(truth_of(rows, mine), rows=()) for mine in model.logprobs(rows)]
        return cls(wide, listed, model, truths, rows)

    def search(self, constraint: Text, params: list[BeamParams]) -> list[BeamResult]:
        session = self.model.prefill()
        results = beam_search(session, constraint, params)
        for query, (result, mine) in enumerate(zip(results, params, strict=True)):
            assert isinstance(result, BeamResult)
            check_certificate(result, self.truths[query], mine)
            assert result.num_nodes == session.meter.nodes[query]
            assert result.num_exact_nodes <= (mine.exact_budget if mine.exact else 0)
        return results


@pytest.mark.parametrize("seed", range(10))
def test_certificates_of_wide_constraints_are_the_truth(seed: int) -> None:
    case = Case.random(seed)
    params = random_params(random.Random(seed), 20, exact_share=0.0)
    wide, listed = (case.search(constraint, params) for constraint in (case.wide, case.listed))
    for mine, some, every in zip(params, wide, listed, strict=True):
        if some.certified and every.certified:
            both = (scores_of(result, mine.length_penalty) for result in (some, every))
            assert all(close(left, right) for left, right in zip(*both, strict=True))
        # Looking at fewer tokens can only lose rows, and what is lost is counted as dropped.
        assert some.best_pruned_score >= every.best_pruned_score or not some.certified or every.certified


@pytest.mark.parametrize("seed", range(300, 304))
def test_a_query_in_a_crowd_gets_what_it_gets_alone(seed: int) -> None:
    """Each query lists its own number of tokens, whatever the others list."""
    case = Case.random(seed, num_queries=12)
    params = random_params(random.Random(seed), 12, exact_share=0.7)
    for query, crowded in enumerate(case.search(case.wide, params)):
        (alone,) = beam_search(case.model.only([query]).prefill(), case.wide, [params[query]])
        assert isinstance(alone, BeamResult)
        assert dataclasses.replace(crowded, num_steps=0) == dataclasses.replace(alone, num_steps=0)


@pytest.mark.slow
@pytest.mark.parametrize("exact", [False, True])
def test_certificates_of_wide_constraints_in_many_cases(exact: bool) -> None:
    certified = wrong = 0
    for seed in range(1000, 1120):
        case = Case.random(seed)
        params = random_params(random.Random(seed), 20, exact_share=0.7 * exact)
        for query, result in enumerate(case.search(case.wide, params)):
            certified += result.certified and math.isfinite(result.best_pruned_score)
            wrong += not is_true_top_k(result, case.truths[query], params[query])
    assert certified > 100
    assert wrong > 100


@pytest.mark.parametrize("seed", range(100, 104))
def test_exact_certifies_wide_constraints_too(seed: int) -> None:
    """The last token looked at stands for those that were not; where they matter, they are looked at."""
    case = Case.random(seed, num_queries=8)
    params = [
        dataclasses.replace(mine, exact=True, exact_budget=1_000_000)
        for mine in random_params(random.Random(seed), 8, exact_share=1.0)
    ]
    for query, result in enumerate(case.search(case.wide, params)):
        assert result.certified
        assert is_true_top_k(result, case.truths[query], params[query])


def test_a_row_that_ends_with_an_unlikely_token_is_not_forgotten() -> None:
    """If short rows are favoured, the end token's own length bounds what was not looked at.

    Vocabulary of 40, one beam of width 1: at the root only four tokens are looked at, and the end token,
    which completes a row of one token, is the fifth.
    """
    allowed = torch.ones(1, 40, dtype=torch.bool)
    text = Text(allowed, 3, END, is_wide=True)
    table = torch.full((1, 40), -9.0)
    table[0, 1:5] = torch.tensor([1.0, 0.9, 0.8, 0.7])
    table[0, END] = 0.6
    model = TablesModel(table.unsqueeze(0), [3])
    truth = dataclasses.replace(truth_of(rows := text.enumerate(), model.logprobs(rows)[0]), rows=())
    for penalty in (-2.0, -1.0, 0.0):
        params = BeamParams(k=1, beam_size=1, length_penalty=penalty)
        assert truth.ranking(penalty)[0].row == (END,)
        (result,) = beam_search(model.prefill(), text, [params])
        check_certificate(result, truth, params)
        if not is_true_top_k(result, truth, params):
            assert not result.certified
            assert result.best_pruned_score >= truth.ranking(penalty)[0].score - 1e-5


def test_only_likely_tokens_are_looked_at_where_most_may_follow() -> None:
    text = free_text(500, 6)
    model = TablesModel.random(3, ["usual"] * 3, vocab_size=500)
    results = beam_search(model.prefill(), text, [BeamParams(k=3, beam_size=4)] * 3)
    assert all(len(result.hypotheses) == 3 for result in results)
    # Listed only before the last token, where nothing but the end may follow.
    assert text.num_listed <= 3 * 4


def test_the_same_beam_whether_listed_or_not() -> None:
    """With twice as many tokens looked at as the beam is wide, none that the beam keeps is missed."""
    for seed, width in itertools.product(range(400, 404), (1, 3, 7)):
        model = TablesModel.random(seed, ["usual", "peaked", "impossible tokens"], vocab_size=120)
        params = [BeamParams(k=width, beam_size=width)] * 3
        for rows in (free_text, lambda size, length, wide: random_text(1, size, length, 0.6, wide)):
            wide, listed = (
                beam_search(model.prefill(), rows(120, 5, flag), params) for flag in (True, False)
            )
            for some, every in zip(wide, listed, strict=True):
                if rows is free_text:
                    assert some.hypotheses == every.hypotheses
                    assert some.num_nodes == every.num_nodes
                assert some.best_pruned_score >= every.best_pruned_score
