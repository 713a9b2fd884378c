"""Draws that keep several prefixes against enumeration, their edge cases, and their arithmetic.

Statistical tests are seeded, so they pass or fail for good; alpha is the chance that a correct
implementation would have failed at a seed picked blindly.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

import genret.decoding.disc.beam_proposer as beam_proposer_module
import genret.decoding.disc.beam_proposer as gumbel_module
from genret.decoding.cancellation import CancelToken
from genret.decoding.constraints import Edges
from genret.decoding.counter_rng import extend_key, hash_key, uniforms, uniforms_of
from genret.decoding.disc import DiscResult, disc
from genret.decoding.disc.beam_proposer import (
    BeamPool,
    BeamProposer,
    Branches,
    best_edges,
    condition_on_maximum,
    gumbels,
    log1m_exp,
    log_inclusion,
)
from genret.decoding.disc.draws import ACCEPT, FIRST, DrawBatch, Draws
from genret.decoding.errors import DecodingCancelledError, InvalidLogitsError
from genret.decoding.language_model import KvUsage
from genret.decoding.params import DiscParams
from genret.decoding.stopping import StopPoll
from genret.decoding.trie.row_filter import FilteredTrie, RowFilter
from genret.decoding.trie.title_trie import TitleTrie
from tests.disc_oracles import END, PROMPT, VOCAB, Row, catalogue
from tests.fakes import TableModel, all_sequences, chi_square, end_with, normalise

ALPHA = 1e-4


class DoubleTableModel(TableModel):
    """Logits in float64, so that weights can be compared to nine digits."""

    def logits(self, prompt: Row, written: Row) -> torch.Tensor:
        return super().logits(prompt, written).double()


def model_of(which: int) -> DoubleTableModel:
    return DoubleTableModel.random(VOCAB, 11 + which)


def probabilities(model: TableModel, rows: set[Row]) -> dict[Row, float]:
    return {row: math.exp(model.logprob(PROMPT, row)) for row in rows}


def constrained_law(model: TableModel, rows: set[Row]) -> dict[Row, float]:
    """q: every step renormalised over the valid tokens."""
    return {row: p / model.valid_masses(PROMPT, row, rows) for row, p in probabilities(model, rows).items()}


def likeliest(model: TableModel, rows: set[Row]) -> Row:
    return max(rows, key=lambda row: model.logprob(PROMPT, row))


def propose(
    monkeypatch: pytest.MonkeyPatch,
    model: TableModel,
    trie: TitleTrie,
    beam_size: int,
    number: int,
    seed: int,
) -> tuple[Draws, BeamPool]:
    """Make draws of one query; returns them with what they kept."""
    pools = []
    end = beam_proposer_module._propose

    def noted(draws: Draws, pool: BeamPool, constraint: TitleTrie) -> None:
        pools.append(pool)
        end(draws, pool, constraint)

    monkeypatch.setattr(beam_proposer_module, "_propose", noted)
    params = [DiscParams(beam_size=beam_size, seed=seed)]
    session = model.prefill([PROMPT])
    batch = DrawBatch(session, trie, params, StopPoll(1, None, None, torch.device("cpu")), [0])
    draws = batch.new_draws([(0, 0, 0, number)])
    BeamProposer(batch).run(draws, FIRST, None)
    (pool,) = pools
    return draws, pool


def written(columns: list[torch.Tensor]) -> list[Row]:
    return [tuple(t for t in tokens if t >= 0) for tokens in torch.stack(columns, dim=1).tolist()]


def kept_rows(pool: BeamPool) -> list[tuple[Row, ...]]:
    """The finished rows of every draw, largest perturbed value first."""
    num_draws, width = pool.finished.shape
    entries = [written(pool.tokens(torch.full((num_draws,), entry))) for entry in range(width)]
    return [
        tuple(row for row, done in zip(rows, finished, strict=True) if done)
        for rows, finished in zip(zip(*entries, strict=True), pool.finished.tolist(), strict=True)
    ]


@pytest.mark.statistical
@pytest.mark.parametrize("which", [0, 1, 2])
def test_a_beam_of_one_is_plain_constrained_sampling(monkeypatch, which):
    rows, model = catalogue(which), model_of(which)
    draws, _ = propose(monkeypatch, model, TitleTrie.from_rows(rows, VOCAB), 1, 10_000, seed=1)
    assert bool(draws.finished.all())
    counts = Counter(written(draws.tokens))
    assert chi_square(counts, constrained_law(model, rows)) > ALPHA
    assert chi_square(counts, normalise(probabilities(model, rows))) < 1e-12  # the test has power


@pytest.mark.statistical
@pytest.mark.parametrize("which", [0, 1, 2])
@pytest.mark.parametrize("beam_size", [2, 3])
def test_rows_are_sampled_without_replacement(monkeypatch, which, beam_size):
    """Ordered by perturbed value: q(a), then q(b) / (1 - q(a)), and so on."""
    rows, model = catalogue(which), model_of(which)
    q = constrained_law(model, rows)
    law = {}
    for kept in itertools.permutations(sorted(rows), beam_size):
        left = itertools.accumulate((q[row] for row in kept[:-1]), lambda a, b: a - b, initial=1.0)
        law[kept] = math.prod(q[row] / rest for row, rest in zip(kept, left, strict=True))
    assert math.fsum(law.values()) == pytest.approx(1)
    _, pool = propose(monkeypatch, model, TitleTrie.from_rows(rows, VOCAB), beam_size, 20_000, seed=2)
    counts = Counter(kept_rows(pool))
    assert set(counts) <= set(law)
    assert chi_square(counts, law) > ALPHA


@settings(max_examples=100, deadline=None)
@given(seed=st.integers(0, 10**9), beam_size=st.integers(1, 8))
def test_the_best_row_kept_is_proposed_with_its_own_weight(seed, beam_size):
    rows, model = catalogue(seed % 3), DoubleTableModel.random(VOCAB, seed)
    ordered = sorted(rows)
    with pytest.MonkeyPatch.context() as patch:
        draws, pool = propose(patch, model, TitleTrie.from_rows(rows, VOCAB), beam_size, 20, seed)
    for i, (kept, proposed) in enumerate(zip(kept_rows(pool), written(draws.tokens), strict=True)):
        assert len(set(kept)) == min(beam_size, len(rows))
        assert set(kept) <= rows
        assert proposed == max(kept, key=lambda row: model.logprob(PROMPT, row))
        assert ordered[int(pool_row(draws, rows)[i])] == proposed
        assert float(draws.logprob[i]) == pytest.approx(model.logprob(PROMPT, proposed), abs=1e-9)
        weight = math.log(model.valid_masses(PROMPT, proposed, rows))
        assert float(draws.log_weight[i]) == pytest.approx(weight, abs=1e-9)
    q, phi = constrained_law(model, rows), pool.logprob - pool.log_weight
    for i, kept in enumerate(kept_rows(pool)):
        assert phi[i][pool.finished[i]].tolist() == pytest.approx(
            [math.log(q[row]) for row in kept], abs=1e-9
        )
    assert (pool.perturbed[pool.finished] > pool.threshold.unsqueeze(1).expand_as(phi)[pool.finished]).all()


def pool_row(draws: Draws, rows: set[Row]) -> torch.Tensor:
    """Ranks of the rows that draws proposed."""
    return TitleTrie.from_rows(rows, VOCAB).row(draws.state)


def test_of_equally_likely_rows_the_lowest_is_proposed(monkeypatch):
    rows = {(a, b) for a in (1, 2, 3) for b in (0, 4)}
    model = TableModel(VOCAB, lambda *_: torch.zeros(VOCAB))
    draws, pool = propose(monkeypatch, model, TitleTrie.from_rows(rows, VOCAB), 3, 200, seed=3)
    proposed = written(draws.tokens)
    assert proposed == [min(kept) for kept in kept_rows(pool)]
    assert len(set(proposed)) == 4  # the lowest of three rows among six


@pytest.mark.statistical
@pytest.mark.parametrize("which", [0, 1, 2])
@pytest.mark.parametrize("beam_size", [2, 3, 4])
def test_the_mass_is_estimated_without_bias(monkeypatch, which, beam_size):
    """At four standard errors, alpha = 6e-5."""
    rows, model = catalogue(which), model_of(which)
    truth = math.fsum(probabilities(model, rows).values())
    draws, _ = propose(monkeypatch, model, TitleTrie.from_rows(rows, VOCAB), beam_size, 20_000, seed=4)
    assert draws.log_estimate is not None
    estimates = draws.log_estimate.exp()
    error = float(estimates.std()) / math.sqrt(len(estimates))
    assert error < 0.02 * truth
    assert abs(float(estimates.mean()) - truth) < 4 * error
    # The weights of what was proposed would not do: they are those of likely rows.
    weights = draws.log_weight.exp()
    assert abs(float(weights.mean()) - truth) > 8 * float(weights.std()) / math.sqrt(len(weights))


@pytest.mark.statistical
def test_prefixes_that_cannot_go_on_leave_the_mass_unbiased(monkeypatch):
    """The model gives the end of every title that begins with 1 no probability."""
    rows, base = catalogue(1), DoubleTableModel.random(VOCAB, 8)

    def function(prompt: Row, before: Row) -> torch.Tensor:
        logits = base.logits(prompt, before).clone()
        if before[:1] == (1,) and len(before) > 1:
            logits[[END, 1, 2]] = -math.inf
        return logits

    model, trie = DoubleTableModel(VOCAB, function), TitleTrie.from_rows(rows, VOCAB)
    truth = math.fsum(probabilities(model, rows).values())
    assert 0 < truth < math.fsum(probabilities(base, rows).values())
    for beam_size in (2, 4):
        draws, _ = propose(monkeypatch, model, trie, beam_size, 20_000, seed=5)
        estimates = draws.log_estimate.exp()
        error = float(estimates.std()) / math.sqrt(len(estimates))
        assert abs(float(estimates.mean()) - truth) < 4 * error
        monkeypatch.undo()
    draws, pool = propose(monkeypatch, model, trie, 14, 50, seed=5)
    assert draws.log_estimate.exp().tolist() == pytest.approx([truth] * 50, rel=1e-12)
    assert bool((pool.perturbed > -math.inf).sum(dim=1).gt(pool.finished.sum(dim=1)).all())


@pytest.mark.parametrize("which", [0, 1, 2])
def test_a_beam_as_large_as_the_set_is_exact(which):
    rows, model = catalogue(which), model_of(which)
    truth = math.fsum(probabilities(model, rows).values())
    for beam_size in (len(rows), 64):
        params = DiscParams(num_samples=16, num_draws=4, beam_size=beam_size, seed=which)
        (result,) = disc(model.prefill([PROMPT]), TitleTrie.from_rows(rows, VOCAB), [params])
        assert {s.hypothesis.token_ids for s in result.samples} == {likeliest(model, rows)}
        assert len(result.samples) == 16
        assert result.mass == pytest.approx(truth, rel=1e-12)
        assert result.mass_stderr < 1e-12
        assert result.mass_lower <= truth <= result.mass_upper < 1


@pytest.mark.parametrize("beam_size", [2, 4, 64])
@pytest.mark.parametrize("num_draws", [1, 3])
def test_disc_accepts_with_the_weight_of_the_proposed_row(beam_size, num_draws):
    for which in (0, 1, 2):
        rows, model = catalogue(which), model_of(which)
        params = DiscParams(num_samples=40, num_draws=num_draws, beam_size=beam_size, seed=which)
        (result,) = disc(model.prefill([PROMPT]), TitleTrie.from_rows(rows, VOCAB), [params])
        assert len(result.samples) == 40
        for number, s in enumerate(result.samples):
            row = s.hypothesis.token_ids
            assert sorted(rows)[s.hypothesis.row] == row
            assert s.hypothesis.logprob == pytest.approx(model.logprob(PROMPT, row), abs=1e-9)
            assert s.log_weight == pytest.approx(math.log(model.valid_masses(PROMPT, row, rows)), abs=1e-9)
            if s.accepted or num_draws == 1:
                u = uniforms(torch.tensor(which), ACCEPT, number, s.num_draws - 1, 0)
                assert s.accepted == (math.log(u) < s.log_weight)
            else:
                assert s.num_draws == 2 * num_draws
        assert any(s.accepted for s in result.samples)


@pytest.mark.statistical
def test_accepted_rows_of_a_beam_are_no_samples_of_the_target():
    rows, model = catalogue(2), model_of(2)
    law, favourite = normalise(probabilities(model, rows)), likeliest(model, rows)
    shares = []
    for beam_size in (1, 2, 4):
        params = [
            DiscParams(num_samples=250, num_draws=4, beam_size=beam_size, seed=seed) for seed in range(20)
        ]
        results = disc(model.prefill([PROMPT] * 20), TitleTrie.from_rows(rows, VOCAB), params)
        counts = Counter(s.hypothesis.token_ids for r in results for s in r.samples if s.accepted)
        if beam_size == 1:
            assert chi_square(counts, law) > ALPHA
        else:
            assert chi_square(counts, law) < 1e-12
        shares.append(counts[favourite] / sum(counts.values()))
    assert shares == sorted(shares)
    assert shares[2] > shares[0] + 0.1


def crowd() -> tuple[list[Row], list[DiscParams]]:
    params = [
        DiscParams(
            num_samples=1 + i % 5,
            num_draws=1 + i % 7,
            beam_size=3,
            seed=i,
            temperature=(1.0, 0.5, 2.0)[i % 3],
        )
        for i in range(32)
    ]
    return [(i,) for i in range(32)], params


@pytest.mark.parametrize("cells", [1, 64, 1 << 18])
def test_the_same_seed_gives_the_same_draws_alone_and_in_a_crowd(monkeypatch, cells):
    model, trie = DoubleTableModel.random(VOCAB, 3), TitleTrie.from_rows(catalogue(1), VOCAB)
    prompts, params = crowd()
    alone = [disc(model.prefill([q]), trie, [p])[0] for q, p in zip(prompts, params, strict=True)]
    monkeypatch.setattr(gumbel_module, "_CHUNK_CELLS", cells)
    together = disc(model.prefill(prompts), trie, params)
    second_phase = 0
    for left, right, mine in zip(alone, together, params, strict=True):
        assert isinstance(right, DiscResult)
        assert [s.hypothesis.token_ids for s in left.samples] == [
            s.hypothesis.token_ids for s in right.samples
        ]
        assert [s.accepted for s in left.samples] == [s.accepted for s in right.samples]
        assert len(left.samples) == mine.num_samples
        assert left.mass == pytest.approx(right.mass, rel=1e-12)
        assert (left.num_nodes, left.num_draws) == (right.num_nodes, right.num_draws)
        second_phase += mine.num_draws > 1 and not all(s.accepted for s in left.samples)
    assert second_phase > 3


def test_another_seed_gives_other_draws():
    model, trie = model_of(1), TitleTrie.from_rows(catalogue(1), VOCAB)
    answers = [
        [s.hypothesis.token_ids for s in disc(model.prefill([PROMPT]), trie, [params])[0].samples]
        for params in (DiscParams(num_samples=20, beam_size=2, seed=seed) for seed in (1, 2))
    ]
    assert answers[0] != answers[1]


def test_draws_share_the_nodes_of_equal_prefixes():
    model, rows = model_of(1), catalogue(1)
    session = model.prefill([PROMPT])
    params = DiscParams(num_samples=50, num_draws=1, beam_size=4, seed=1)
    (result,) = disc(session, TitleTrie.from_rows(rows, VOCAB), [params])
    prefixes = {row[:depth] for row in rows for depth in range(1, len(row))}
    assert result.num_nodes == session.num_nodes == len(prefixes)
    assert result.num_steps == session.num_forwards == max(map(len, rows)) - 1


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


INF = math.inf


def row(*values: float) -> torch.Tensor:
    return torch.tensor([values], dtype=torch.float64)


@settings(max_examples=200, deadline=None)
@given(
    values=st.lists(st.floats(-20, 20), min_size=1, max_size=8, unique=True),
    maximum=st.floats(-20, 20),
    padding=st.integers(0, 3),
)
def test_the_shift_is_the_plain_formula_where_that_is_representable(values, maximum, padding):
    """-log(exp(-T) - exp(-Z) + exp(-G)), Kool et al., algorithm 1."""
    largest = max(values)
    shifted = condition_on_maximum(row(*values, *[-INF] * padding), row(maximum)[0])[0]
    for before, after in zip(values, shifted.tolist(), strict=False):
        terms = [math.exp(-maximum), -math.exp(-largest), math.exp(-before)]
        plain = -math.log(math.fsum(terms))
        # What the plain formula loses by cancellation, relative to its result.
        lost = max(map(abs, terms)) / math.fsum(terms) * 1e-15
        assert after == pytest.approx(plain, abs=1e-9 + 4 * lost)
    assert shifted.max() == maximum
    assert shifted[len(values) :].tolist() == [-INF] * padding


def test_the_shift_keeps_the_order_and_survives_extremes():
    values = row(3.0, 3.0 - 1e-13, -700.0, 900.0, -1e5, -INF)
    for maximum in (-2e5, -800.0, 0.0, 40.0, 1e5):
        shifted = condition_on_maximum(values, row(maximum)[0])[0]
        assert shifted[3] == maximum
        assert shifted[5] == -INF
        assert not shifted.isnan().any()
        assert (shifted <= maximum).all()
        order = values[0].argsort(descending=True)
        assert (shifted[order].diff()[:-1] <= 0).all()
    assert condition_on_maximum(row(-5.0), row(7.0)[0]).tolist() == [[7.0]]


def test_inclusion_probabilities_are_precise_on_both_sides():
    gaps = [-30.0, -5.0, -0.4, 0.0, 0.4, 3.0, 6.0]
    zero = torch.zeros(len(gaps), dtype=torch.float64)
    values = log_inclusion(torch.tensor(gaps, dtype=torch.float64), zero).tolist()
    assert values == pytest.approx([math.log(-math.expm1(-math.exp(gap))) for gap in gaps], rel=1e-14)
    far = log_inclusion(row(-900.0, -45.0, 800.0)[0], torch.zeros(3).double()).tolist()
    assert far == [-900.0, -45.0, 0.0]
    assert log_inclusion(row(-3.0), row(-INF))[0].tolist() == [0.0]
    assert log1m_exp(row(0.0, -INF, -1e-20)).tolist() == [[-INF, 0.0, pytest.approx(math.log(1e-20))]]


@pytest.mark.statistical
def test_gumbels_have_their_law():
    u = uniforms(torch.tensor(3), torch.arange(100_000))
    assert stats.kstest(gumbels(u).numpy(), "gumbel_r").pvalue > ALPHA


def test_extended_keys_are_those_of_all_coordinates():
    seeds, last = torch.arange(-3, 4), torch.tensor([2**40, -1, 0, 1, 5, 7, 9])
    key = extend_key(hash_key(seeds, 1, 2), last, 8)
    assert torch.equal(uniforms_of(key), uniforms(seeds, 1, 2, last, 8))


def random_branches(num_nodes: int, num_branches: int, seed: int):
    generator = torch.Generator().manual_seed(seed)
    counts = torch.randint(1, 9, (num_nodes,), generator=generator)
    counts[0] = 300
    owner = torch.arange(num_nodes).repeat_interleave(counts)
    logprob = torch.randn(len(owner), generator=generator, dtype=torch.float64)
    token = torch.cat([torch.arange(count) for count in counts.tolist()])
    edges = Edges(owner, token, torch.arange(len(owner)), logprob)
    node = torch.randint(0, num_nodes, (num_branches,), generator=generator)
    numbers = torch.arange(num_branches)
    values = torch.randn(num_branches, generator=generator, dtype=torch.float64)
    return edges, counts, Branches(node, hash_key(numbers, 5), values, values + 1)


@pytest.mark.parametrize("cells", [1, 50, 1000])
@pytest.mark.parametrize("number", [1, 3, 12])
def test_edges_do_not_depend_on_chunks_or_on_other_branches(monkeypatch, cells, number):
    edges, counts, branches = random_branches(6, 40, 1)
    values, chosen = best_edges(edges, counts, branches, number)
    monkeypatch.setattr(gumbel_module, "_CHUNK_CELLS", cells)
    again = best_edges(edges, counts, branches, number)
    assert torch.equal(values, again[0])
    there = torch.isfinite(values)
    assert torch.equal(chosen[there], again[1][there])
    for i in range(len(branches.node)):
        alone = best_edges(edges, counts, Branches(*(column[i : i + 1] for column in branches)), number)
        assert torch.equal(alone[0][0], values[i])


def test_best_edges_are_the_largest_of_each_branch_in_order():
    edges, counts, branches = random_branches(6, 40, 2)
    every, _ = best_edges(edges, counts, branches, int(counts.max()))
    values, chosen = best_edges(edges, counts, branches, 4)
    assert torch.equal(values, every[:, :4])
    there = torch.isfinite(values)
    assert torch.equal(there.sum(dim=1), counts[branches.node].clamp(max=4))
    assert torch.equal(edges.owner[chosen][there], branches.node.unsqueeze(1).expand(-1, 4)[there])
    assert torch.equal(values[:, 0], branches.perturbed)  # the largest is the parent's own value
    assert all(
        len(set(row.tolist())) == 4 for row, all_there in zip(chosen, there.all(1), strict=True) if all_there
    )


@pytest.mark.statistical
def test_the_first_edge_is_a_categorical_draw():
    weights = torch.tensor([0.5, 0.3, 0.15, 0.05], dtype=torch.float64)
    n = 20_000
    edges = Edges(torch.zeros(4).long(), torch.arange(4), torch.arange(4), weights.log())
    zeros = torch.zeros(n, dtype=torch.float64)
    branches = Branches(zeros.long(), hash_key(torch.tensor(1), torch.arange(n)), zeros, zeros)
    _, chosen = best_edges(edges, torch.tensor([4]), branches, 1)
    counts = chosen[:, 0].bincount(minlength=4).numpy()
    assert stats.chisquare(counts, (weights * n).numpy()).pvalue > ALPHA
