"""Draws that keep several prefixes against enumeration: the rows, the one proposed, its weight, the mass.

Statistical tests are seeded, so they pass or fail for good; alpha is the chance that a correct
implementation would have failed at a seed picked blindly.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import decoding.disc.beam_proposer as beam_proposer_module
import decoding.disc.beam_proposer as gumbel_module
from decoding.counter_rng import uniforms
from decoding.disc import DiscResult, disc
from decoding.disc.beam_proposer import BeamPool, BeamProposer
from decoding.disc.draws import ACCEPT, FIRST, DrawBatch, Draws
from decoding.params import DiscParams
from decoding.stopping import StopPoll
from decoding.trie.title_trie import TitleTrie
from tests.disc_oracles import END, PROMPT, VOCAB, Row, catalogue
from tests.fakes import TableModel, chi_square, normalise

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
