"""Draws that keep several prefixes where there is little to draw from, or where something is in the way."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest
import torch

from decoding.cancellation import CancelToken
from decoding.disc import DiscResult, disc
from decoding.errors import DecodingCancelledError, InvalidLogitsError
from decoding.language_model import KvUsage
from decoding.params import DiscParams
from decoding.trie.row_filter import FilteredTrie, RowFilter
from decoding.trie.title_trie import TitleTrie
from tests.fakes import TableModel, all_sequences, end_with

END = 0
VOCAB = 5
PROMPT = (1,)

Row = tuple[int, ...]
ROWS = sorted(end_with(all_sequences((1, 2, 3), 2), END))


def answer(model: TableModel, rows, vocab_size: int = VOCAB, **params) -> DiscResult:
    trie = TitleTrie.from_rows(rows, vocab_size)
    (result,) = disc(model.prefill([PROMPT]), trie, [DiscParams(**{"beam_size": 4, **params})])
    assert isinstance(result, DiscResult)
    return result


def total(model: TableModel, prompt: Row, rows, temperature: float = 1.0) -> float:
    return math.fsum(math.exp(model.logprob(prompt, row, temperature)) for row in rows)


@pytest.mark.parametrize(
    ("rows", "why"),
    [
        ({(END,)}, "a title of one token"),
        ({(1, END)}, "one title"),
        ({(1, END), (1, 2, END)}, "a title that is the beginning of another"),
        ({(token,) for token in range(VOCAB)}, "the whole vocabulary at the root"),
        ({(1, END), (2, END), (3, 3, 3, 3, END)}, "fewer titles than prefixes"),
    ],
)
@pytest.mark.parametrize("beam_size", [2, 8])
def test_small_catalogues(rows, why, beam_size):
    model = TableModel.random(VOCAB, 5)
    result = answer(model, rows, num_samples=30, num_draws=2, beam_size=beam_size, seed=1)
    assert len(result.samples) == 30, why
    found = {s.hypothesis.token_ids for s in result.samples}
    assert found <= rows
    if beam_size >= len(rows):
        assert found == {max(rows, key=lambda row: model.logprob(PROMPT, row))}
        assert result.mass == pytest.approx(total(model, PROMPT, rows), rel=1e-5)


class ConstantSession:
    """The same logits after everything: a table of ten thousand prefixes takes longer than the search."""

    usage = KvUsage()

    def __init__(self, logits: torch.Tensor) -> None:
        self._logits = logits
        self.root_logits = logits.unsqueeze(0)

    def step(self, parents: torch.Tensor, token_ids: torch.Tensor) -> torch.Tensor:
        return self._logits.expand(*token_ids.shape, -1)

    def select(self, queries: Sequence[int]) -> ConstantSession:
        return self


@pytest.mark.parametrize("length", [600, pytest.param(10_000, marks=pytest.mark.slow)])
def test_a_very_long_title(length):
    short = (*[1] * (length // 2), 2, END)
    rows, logits = {(*[1] * (length - 1), END), short}, torch.tensor([0.0, 3.0, 0.0])
    trie = TitleTrie.from_rows(rows, 3)
    (result,) = disc(ConstantSession(logits), trie, [DiscParams(num_draws=1, beam_size=4)])
    (sample,) = result.samples
    assert sample.hypothesis.token_ids == short
    step = logits.double().log_softmax(-1)
    assert sample.hypothesis.logprob == pytest.approx(float(length // 2 * step[1] + 2 * step[0]), rel=1e-6)
    assert sample.log_weight < -20


def test_an_empty_catalogue_and_one_of_probability_zero_have_no_sample():
    empty = answer(TableModel.random(3, 1), [], 3)
    assert (empty.samples, empty.mass) == ((), 0.0)
    model = TableModel(3, lambda *_: torch.tensor([0.0, 0.0, -math.inf]))
    impossible = answer(model, {(2, END)}, 3)
    assert (impossible.samples, impossible.mass, impossible.mass_upper) == ((), 0.0, 0.0)


@pytest.mark.parametrize("broken", [math.nan, math.inf])
@pytest.mark.parametrize("depth", [0, 1])
def test_broken_logits_are_an_error(broken, depth):
    def function(_, before):
        return torch.tensor([0.0, broken if len(before) == depth else 0.0, 0.0])

    with pytest.raises(InvalidLogitsError, match="NaN or infinite"):
        answer(TableModel(3, function), {(1, END), (2, 1, END), (2, 2, END)}, 3)


def masks() -> list[np.ndarray | None]:
    chosen = [None, [0, 3, 7], [], [5], range(6), [0, 3, 7]]
    return [None if ranks is None else np.isin(np.arange(len(ROWS)), list(ranks)) for ranks in chosen]


@pytest.mark.parametrize("beam_size", [2, 16])
def test_every_query_of_a_batch_keeps_to_its_own_filter(beam_size):
    model, trie = TableModel.random(VOCAB, 6), TitleTrie.from_rows(ROWS, VOCAB)
    filters = [None if mask is None else RowFilter.from_mask(mask) for mask in masks()]
    prompts = [(i,) for i in range(len(filters))]
    params = [
        DiscParams(num_samples=10, num_draws=3, beam_size=beam_size, seed=i) for i in range(len(filters))
    ]
    results = disc(model.prefill(prompts), FilteredTrie(trie, filters), params)
    for i, (mask, result) in enumerate(zip(masks(), results, strict=True)):
        assert isinstance(result, DiscResult)
        allowed = [row for rank, row in enumerate(ROWS) if mask is None or mask[rank]]
        found = [s.hypothesis for s in result.samples]
        assert len(found) == (10 if allowed else 0)
        assert all(ROWS[h.row] == h.token_ids and h.token_ids in allowed for h in found)
        if beam_size >= len(allowed) and allowed:
            assert {h.token_ids for h in found} == {max(allowed, key=lambda r: model.logprob((i,), r))}
            assert result.mass == pytest.approx(total(model, (i,), allowed), rel=1e-5)
        (alone,) = disc(model.prefill([(i,)]), FilteredTrie(trie, [filters[i]]), [params[i]])
        assert [s.hypothesis.row for s in alone.samples] == [h.row for h in found]
        assert alone.mass == pytest.approx(result.mass)


def test_temperature_comes_first():
    model = TableModel.random(VOCAB, 7)
    for temperature in (0.5, 2.0):
        result = answer(model, ROWS, beam_size=len(ROWS), temperature=temperature)
        assert result.mass == pytest.approx(total(model, PROMPT, ROWS, temperature), rel=1e-5)


def test_top_m_gives_the_mass_of_the_rows_it_can_reach():
    model = TableModel.random(VOCAB, 29)

    def reachable(row: Row) -> bool:
        for depth, token in enumerate(row):
            top = model.logits(PROMPT, row[:depth]).topk(3).indices.tolist()
            valid = {r[depth] for r in ROWS if r[:depth] == row[:depth] and len(r) > depth}
            if token not in (valid & set(top) or valid):  # none valid among the top: all of them
                return False
        return True

    reached = {row for row in ROWS if reachable(row)}
    assert 1 < len(reached) < len(ROWS)
    result = answer(model, ROWS, beam_size=len(ROWS), top_m=3)
    assert result.mass == pytest.approx(total(model, PROMPT, reached), rel=1e-5)
    assert result.mass < 0.9 * total(model, PROMPT, ROWS)
    assert result.mass_upper == 1.0
    assert answer(model, ROWS, beam_size=len(ROWS)).mass_upper < 1.0


@pytest.mark.statistical
def test_rows_that_do_not_fit_are_outside_the_set():
    """At four standard errors, alpha = 6e-5."""
    model, trie = TableModel.random(VOCAB, 9), TitleTrie.from_rows(ROWS, VOCAB)
    short = {row for row in ROWS if len(row) <= 2}
    for beam_size in (3, len(ROWS)):
        params = [DiscParams(num_samples=250, num_draws=1, beam_size=beam_size, seed=i) for i in range(8)]
        results = disc(model.prefill([PROMPT] * 8), trie, params, room=[2] * 8)
        assert {s.hypothesis.token_ids for r in results for s in r.samples} <= short
        error = math.hypot(*(r.mass_stderr for r in results)) / 8
        assert abs(sum(r.mass for r in results) / 8 - total(model, PROMPT, short)) <= 4 * error + 1e-6
    (result,) = disc(model.prefill([PROMPT]), trie, params[:1], room=[1])
    assert result.samples == ()
    assert result.mass == 0.0


def test_a_cancelled_query_leaves_and_the_others_are_unchanged():
    model, trie = TableModel.random(VOCAB, 3), TitleTrie.from_rows(ROWS, VOCAB)
    token = CancelToken()
    token.cancel()
    params = [DiscParams(seed=seed, beam_size=2, num_samples=3) for seed in (1, 2)]
    results = disc(model.prefill([(1,), (2,)]), trie, params, cancel=[token, None])
    assert isinstance(results[0], DecodingCancelledError)
    assert results[1].samples == disc(model.prefill([(2,)]), trie, params[1:])[0].samples


def test_a_query_cancelled_in_the_second_phase_says_so():
    class LateCancel(CancelToken):
        polls = 0

        def check(self) -> None:
            self.polls += 1
            if self.polls > 4:
                self.cancel()
            super().check()

    model = TableModel(VOCAB, lambda *_: torch.tensor([0.0, 0.0, 0.0, 0.0, 9.0]))  # accepts nothing
    trie = TitleTrie.from_rows(ROWS, VOCAB)
    params = [DiscParams(seed=seed, beam_size=2, num_draws=2) for seed in (1, 2)]
    results = disc(model.prefill([(1,), (2,)]), trie, params, cancel=[None, LateCancel()])
    assert isinstance(results[0], DiscResult)
    assert results[0].samples[0].num_draws == 4
    assert isinstance(results[1], DecodingCancelledError)


def test_mixed_beam_sizes_are_refused():
    trie = TitleTrie.from_rows(ROWS, VOCAB)
    params = [DiscParams(), DiscParams(beam_size=2)]
    with pytest.raises(ValueError, match="beam_size"):
        disc(TableModel.random(VOCAB, 1).prefill([PROMPT] * 2), trie, params)
