"""Draws that keep several prefixes against enumeration, their edge cases, and their arithmetic.

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

import genret.decoding.disc.beam_proposer as beam_proposer_module
from genret.decoding.constraints import Edges
from genret.decoding.counter_rng import hash_key
from genret.decoding.disc import disc
from genret.decoding.disc.beam_proposer import (
    BeamPool,
    BeamProposer,
    Branches,
    best_edges,
    condition_on_maximum,
    log1m_exp,
    log_inclusion,
)
from genret.decoding.disc.draws import FIRST, Draws
from genret.decoding.params import DiscParams
from genret.decoding.trie.title_trie import TitleTrie
from tests.disc_oracles import (
    END,
    PROMPT,
    VOCAB,
    ByHand,
    Row,
    batch_for,
    catalogue,
    constrained_law,
    drawn,
    rows_of,
    true_mass,
)
from tests.fakes import TableModel, all_sequences, chi_square, end_with

ALPHA = 1e-4


def exact_model(seed: int) -> TableModel:
    """Logits in float64, so that weights can be compared to nine digits."""
    return TableModel.random(VOCAB, seed, dtype=torch.float64)


def model_of(which: int) -> TableModel:
    return exact_model(11 + which)


def likeliest(model: TableModel, rows: set[Row]) -> Row:
    return max(rows, key=lambda row: model.logprob(PROMPT, row))


def propose(
    monkeypatch: pytest.MonkeyPatch,
    model: TableModel,
    rows: set[Row],
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
    batch = batch_for(model, rows, [DiscParams(beam_size=beam_size, seed=seed)])
    draws = batch.new_draws([(0, 0, 0, number)])
    BeamProposer(batch).run(draws, FIRST, None)
    (pool,) = pools
    return draws, pool


def kept_rows(pool: BeamPool) -> list[tuple[Row, ...]]:
    """The finished rows of every draw, largest perturbed value first."""
    num_draws, width = pool.finished.shape
    entries = [rows_of(pool.tokens(torch.full((num_draws,), entry))) for entry in range(width)]
    kept = zip(zip(*entries, strict=True), pool.finished.tolist(), strict=True)
    return [tuple(itertools.compress(rows, finished)) for rows, finished in kept]


@pytest.mark.statistical
@pytest.mark.parametrize("which", [0, 1, 2])
@pytest.mark.parametrize("beam_size", [1, 2, 3])
def test_rows_are_sampled_without_replacement(monkeypatch, which, beam_size):
    """Ordered by perturbed value: q(a), then q(b) / (1 - q(a)), and so on."""
    rows, model = catalogue(which), model_of(which)
    q = constrained_law(model, rows)
    law = {}
    for kept in itertools.permutations(sorted(rows), beam_size):
        left = itertools.accumulate((q[row] for row in kept[:-1]), lambda a, b: a - b, initial=1.0)
        law[kept] = math.prod(q[row] / rest for row, rest in zip(kept, left, strict=True))
    assert math.fsum(law.values()) == pytest.approx(1)
    _, pool = propose(monkeypatch, model, rows, beam_size, 20_000, seed=2)
    counts = Counter(kept_rows(pool))
    assert set(counts) <= set(law)
    assert chi_square(counts, law) > ALPHA


@settings(max_examples=100, deadline=None)
@given(seed=st.integers(0, 10**9), beam_size=st.integers(1, 8))
def test_the_best_row_kept_is_proposed_with_its_own_weight(seed, beam_size):
    rows, model = catalogue(seed % 3), exact_model(seed)
    ordered, by_hand = sorted(rows), ByHand(model, rows)
    with pytest.MonkeyPatch.context() as patch:
        draws, pool = propose(patch, model, rows, beam_size, 20, seed)
    ranks = TitleTrie.from_rows(rows, VOCAB).row(draws.state).tolist()
    for i, (kept, proposed) in enumerate(zip(kept_rows(pool), rows_of(draws.tokens), strict=True)):
        assert len(set(kept)) == min(beam_size, len(rows))
        assert set(kept) <= rows
        assert proposed == max(kept, key=lambda row: model.logprob(PROMPT, row))
        assert ordered[ranks[i]] == proposed
        assert float(draws.logprob[i]) == pytest.approx(model.logprob(PROMPT, proposed), abs=1e-9)
        assert float(draws.log_weight[i]) == pytest.approx(by_hand.log_weight(proposed), abs=1e-9)
    q, phi = constrained_law(model, rows), pool.logprob - pool.log_weight
    for i, kept in enumerate(kept_rows(pool)):
        assert phi[i][pool.finished[i]].tolist() == pytest.approx(
            [math.log(q[row]) for row in kept], abs=1e-9
        )
    assert (pool.perturbed[pool.finished] > pool.threshold.unsqueeze(1).expand_as(phi)[pool.finished]).all()


def test_of_equally_likely_rows_the_lowest_is_proposed(monkeypatch):
    rows = {(a, b) for a in (1, 2, 3) for b in (0, 4)}
    model = TableModel(VOCAB, lambda *_: torch.zeros(VOCAB))
    draws, pool = propose(monkeypatch, model, rows, 3, 200, seed=3)
    proposed = rows_of(draws.tokens)
    assert proposed == [min(kept) for kept in kept_rows(pool)]
    assert len(set(proposed)) == 4  # the lowest of three rows among six


@pytest.mark.statistical
@pytest.mark.parametrize("which", [0, 1, 2])
@pytest.mark.parametrize("beam_size", [2, 3, 4])
def test_the_mass_is_estimated_without_bias(monkeypatch, which, beam_size):
    """At four standard errors, alpha = 6e-5."""
    rows, model = catalogue(which), model_of(which)
    truth = true_mass(model, rows)
    draws, _ = propose(monkeypatch, model, rows, beam_size, 20_000, seed=4)
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
    rows, base = catalogue(1), exact_model(8)

    def function(prompt: Row, before: Row) -> torch.Tensor:
        logits = base.logits(prompt, before).clone()
        if before[:1] == (1,) and len(before) > 1:
            logits[[END, 1, 2]] = -math.inf
        return logits

    model = TableModel(VOCAB, function, torch.float64)
    truth = true_mass(model, rows)
    assert 0 < truth < true_mass(base, rows)
    for beam_size in (2, 4):
        draws, _ = propose(monkeypatch, model, rows, beam_size, 20_000, seed=5)
        estimates = draws.log_estimate.exp()
        error = float(estimates.std()) / math.sqrt(len(estimates))
        assert abs(float(estimates.mean()) - truth) < 4 * error
        monkeypatch.undo()
    draws, pool = propose(monkeypatch, model, rows, 14, 50, seed=5)
    assert draws.log_estimate.exp().tolist() == pytest.approx([truth] * 50, rel=1e-12)
    assert bool((pool.perturbed > -math.inf).sum(dim=1).gt(pool.finished.sum(dim=1)).all())


@pytest.mark.parametrize("which", [0, 1, 2])
def test_a_beam_as_large_as_the_set_is_exact(which):
    rows, model = catalogue(which), model_of(which)
    truth = true_mass(model, rows)
    for beam_size in (len(rows), 64):
        params = DiscParams(num_samples=16, num_draws=4, beam_size=beam_size, seed=which)
        (result,) = drawn(model, rows, [params])
        assert {s.hypothesis.token_ids for s in result.samples} == {likeliest(model, rows)}
        assert len(result.samples) == 16
        assert result.mass == pytest.approx(truth, rel=1e-12)
        assert result.mass_stderr < 1e-12
        assert result.mass_lower <= truth <= result.mass_upper < 1


def test_draws_share_the_nodes_of_equal_prefixes():
    model, rows = model_of(1), catalogue(1)
    session = model.prefill([PROMPT])
    params = DiscParams(num_samples=50, num_draws=1, beam_size=4, seed=1)
    (result,) = disc(session, TitleTrie.from_rows(rows, VOCAB), [params])
    prefixes = {row[:depth] for row in rows for depth in range(1, len(row))}
    assert result.num_nodes == session.num_nodes == len(prefixes)
    assert result.num_steps == session.num_forwards == max(map(len, rows)) - 1


ROWS = sorted(end_with(all_sequences((1, 2, 3), 2), END))


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
    some, every = (
        drawn(model, ROWS, [DiscParams(beam_size=len(ROWS), top_m=top_m)])[0] for top_m in (3, None)
    )
    assert some.mass == pytest.approx(true_mass(model, reached), rel=1e-5)
    assert some.mass < 0.9 * true_mass(model, set(ROWS))
    assert some.mass_upper == 1.0
    assert every.mass_upper < 1.0


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
    monkeypatch.setattr(beam_proposer_module, "_CHUNK_CELLS", cells)
    again = best_edges(edges, counts, branches, number)
    assert torch.equal(values, again[0])
    there = torch.isfinite(values)
    assert torch.equal(chosen[there], again[1][there])
    for i in range(len(branches.node)):
        alone = best_edges(edges, counts, Branches(*(column[i : i + 1] for column in branches)), number)
        assert torch.equal(alone[0][0], values[i])
