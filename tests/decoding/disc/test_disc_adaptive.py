"""Adaptive DISC: accepted draws of either phase are exact samples, and more of them are accepted.

Statistical tests are seeded, so they pass or fail for good; alpha is the chance that a correct
implementation would have failed at a seed picked blindly.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

import decoding.disc.tree_proposer
from decoding.disc import DiscResult, disc
from decoding.params import DiscParams
from decoding.trie.title_trie import TitleTrie
from tests.disc_oracles import PROMPT, VOCAB, CountingModel, catalogue, target, true_mass, unlikely
from tests.fakes import TableModel, chi_square

ALPHA = 1e-4
# Seeds of table models that give the three catalogues this much probability at temperature 1.
SEEDS = {0: 11, 1: 12, 2: 13}


def sample(
    model: TableModel, rows, num_queries: int, num_samples: int = 1, first_seed: int = 0, **params
) -> list[DiscResult]:
    """Every query has a history of its own, so the more queries, the more histories."""
    trie = TitleTrie.from_rows(rows, VOCAB)
    all_params = [
        DiscParams(num_samples=num_samples, seed=first_seed + n, adaptive=True, **params)
        for n in range(num_queries)
    ]
    return disc(model.prefill([PROMPT] * num_queries), trie, all_params)


def models(which: int) -> list[TableModel]:
    return [TableModel.random(VOCAB, SEEDS[which]), unlikely(which)]


def by_phase(results: list[DiscResult], num_draws: int) -> dict[int, Counter]:
    """Accepted rows by the phase, 1 or 2, that the accepted draw belongs to."""
    counts: dict[int, Counter] = defaultdict(Counter)
    for result in results:
        for s in result.samples:
            if s.accepted:
                counts[1 if s.num_draws <= num_draws else 2][s.hypothesis.token_ids] += 1
    return counts


def divergence(law: dict, results: list[DiscResult]) -> float:
    """KL of the target to all results, accepted or not; a row never seen counts as seen half a time."""
    counts = Counter(s.hypothesis.token_ids for r in results for s in r.samples)
    total = sum(counts.values())
    return sum(p * math.log(p * total / (counts[row] or 0.5)) for row, p in law.items())


def all_results(
    model: TableModel, rows, adaptive: bool, num_queries: int = 3000, **params
) -> list[DiscResult]:
    trie = TitleTrie.from_rows(rows, VOCAB)
    all_params = [DiscParams(seed=n, adaptive=adaptive, **params) for n in range(num_queries)]
    return disc(model.prefill([PROMPT] * num_queries), trie, all_params)


@pytest.mark.statistical
@pytest.mark.parametrize("which", [0, 1, 2])
@pytest.mark.parametrize("likely", [True, False])
def test_accepted_draws_follow_the_target_in_either_phase(which, likely):
    rows, model = catalogue(which), models(which)[0 if likely else 1]
    law = target(model, rows)
    counts = by_phase(sample(model, rows, 4000, num_draws=3), 3)
    assert set(counts) == {1, 2}
    for mine in counts.values():
        assert sum(mine.values()) > 100
        assert chi_square(mine, law) > ALPHA / 2
    assert chi_square(sum(counts.values(), Counter()), law) > ALPHA


@pytest.mark.statistical
@pytest.mark.parametrize("temperature", [0.7, 1.6])
def test_the_target_is_the_one_at_the_temperature_asked_for(temperature):
    rows, model = catalogue(0), TableModel.random(VOCAB, SEEDS[0])
    results = sample(model, rows, 4000, num_draws=8, temperature=temperature)
    counts = Counter(s.hypothesis.token_ids for r in results for s in r.samples if s.accepted)
    assert sum(counts.values()) > 3000
    assert chi_square(counts, target(model, rows, temperature)) > ALPHA


@pytest.mark.statistical
def test_a_weight_that_forgets_the_envelope_of_its_nodes_would_be_noticed(monkeypatch):
    """Power: the weight C(node) without / c(node) is wrong in the second phase, and is refused."""
    rows, model = catalogue(2), unlikely(2)
    counts = by_phase(sample(model, rows, 4000, num_draws=6, reject_early=False), 6)
    assert chi_square(counts[2], target(model, rows)) > ALPHA

    class _Forgetful(decoding.disc.tree_proposer.TreeProposer):
        def _sample_step(self, draws, node, key, depth):
            level = self._tree.levels[depth]
            kept = level.log_envelope
            level.log_envelope = torch.zeros_like(kept)
            chosen = super()._sample_step(draws, node, key, depth)
            level.log_envelope = kept
            return chosen

    monkeypatch.setattr("decoding.disc.algorithm.TreeProposer", _Forgetful)
    counts = by_phase(sample(model, rows, 4000, num_draws=6, reject_early=False), 6)
    assert chi_square(counts[2], target(model, rows)) < 1e-9


def test_the_first_phase_of_a_result_does_not_depend_on_the_others():
    rows, model = catalogue(2), unlikely(2)
    few, many = (
        [r for q in sample(model, rows, 50, num_samples, num_draws=3) for r in q.samples[:2]]
        for num_samples in (2, 20)
    )
    first = [n for n, one in enumerate(few) if one.accepted and one.num_draws <= 3]
    assert 10 < len(first) < len(few)
    assert [few[n] for n in first] == [many[n] for n in first]
    assert {n for n, one in enumerate(many) if one.accepted and one.num_draws <= 3} == set(first)


@pytest.mark.statistical
def test_two_results_of_a_query_are_independent():
    """Their second phases share what the first found, and still their joint law is the product. K is so
    large that none is left over: whether a result is accepted at all does depend on what the others found."""
    rows, model = catalogue(2), TableModel.random(VOCAB, SEEDS[2])
    results = sample(model, rows, 3000, num_samples=2, num_draws=20)
    pairs = Counter(tuple(s.hypothesis.token_ids for s in r.samples) for r in results)
    assert all(s.accepted for r in results for s in r.samples)
    assert sum(s.num_draws > 20 for r in results for s in r.samples) > 100
    law = target(model, rows)
    product = {(a, b): law[a] * law[b] for a in law for b in law}
    assert chi_square(pairs, product) > ALPHA
    common = [row for row in sorted(law) if law[row] > 0.02]
    table = np.array([[pairs[a, b] for b in common] for a in common])
    assert stats.chi2_contingency(table).pvalue > ALPHA


def both_ways(model: TableModel, rows, num_samples: int, num_draws: int) -> list[list[DiscResult]]:
    """About 3,000 results of plain and of adaptive draws."""
    return [
        all_results(
            model,
            rows,
            adaptive,
            num_queries=3000 // num_samples,
            num_samples=num_samples,
            num_draws=num_draws,
            reject_early=False,
        )
        for adaptive in (False, True)
    ]


@pytest.mark.statistical
@pytest.mark.parametrize("which", [0, 1])
@pytest.mark.parametrize("num_samples", [1, 8])
def test_at_equal_k_all_results_are_closer_to_the_target_than_plain_ones(which, num_samples):
    """Where plain constrained sampling is far from it, that is."""
    rows, model = catalogue(which), unlikely(which)
    law = target(model, rows)
    for num_draws in (2, 4):
        plain, adaptive = both_ways(model, rows, num_samples, num_draws)
        assert divergence(law, adaptive) < 0.25 * divergence(law, plain)


@pytest.mark.statistical
@pytest.mark.parametrize("num_samples", [1, 8])
def test_a_row_with_nearly_all_of_the_target_is_not_lost(num_samples):
    """Plain sampling proposes it as well, so the draws that adapt look elsewhere, mostly in vain; what the
    first phase wrote is then chosen with its exact probability."""
    rows, model = catalogue(2), unlikely(2)
    law = target(model, rows)
    assert max(law.values()) > 0.98
    for num_draws in (2, 4):
        plain, adaptive = both_ways(model, rows, num_samples, num_draws)
        assert sum(not s.accepted for r in adaptive for s in r.samples) > 100
        assert divergence(law, adaptive) < max(divergence(law, plain), 1e-3)


@pytest.mark.statistical
def test_the_mass_is_estimated_without_bias():
    """At four standard errors, alpha = 6e-5. Only the first phase counts: whether there is a second depends
    on what came out of it."""
    rows, model = catalogue(2), unlikely(2)
    results = sample(model, rows, 1500, num_samples=3, num_draws=6)
    masses = torch.tensor([r.mass for r in results], dtype=torch.float64)
    error = float(masses.std()) / math.sqrt(len(masses))
    assert abs(float(masses.mean()) - true_mass(model, rows)) < 4 * error
    errors = torch.tensor([r.mass_stderr for r in results], dtype=torch.float64)  # of all 18 draws of a query
    assert float(errors.mean()) == pytest.approx(float(masses.std()), rel=0.3)


@pytest.mark.parametrize("options", [{"adaptive": True}, {"beam_size": 2}])
def test_early_rejection_is_for_plain_draws(options):
    """Refused draws of these are worth something: their rows, or their part in the estimate of the mass."""
    rows, model = catalogue(0), unlikely(0)
    trie = TitleTrie.from_rows(rows, VOCAB)
    early, late, plain = (
        disc(model.prefill([PROMPT]), trie, [DiscParams(5, 6, seed=3, reject_early=stops, **more)])
        for stops, more in ((True, options), (False, options), (True, {}))
    )
    assert early == late
    assert early != plain


@pytest.mark.statistical
def test_one_adaptive_draw_is_one_plain_draw():
    rows, model = catalogue(0), TableModel.random(VOCAB, 3)
    trie = TitleTrie.from_rows(rows, VOCAB)
    plain, adaptive = (
        disc(
            model.prefill([PROMPT] * 1000),
            trie,
            [DiscParams(num_draws=1, seed=seed, adaptive=adaptive) for seed in range(1000)],
        )
        for adaptive in (False, True)
    )
    for one, other in zip(plain, adaptive, strict=True):
        assert [s.hypothesis for s in one.samples] == [s.hypothesis for s in other.samples]
        assert (one.mass, one.mass_lower) == pytest.approx((other.mass, other.mass_lower), rel=1e-12)
        assert [s.log_weight for s in one.samples] == pytest.approx([s.log_weight for s in other.samples])
    # Bounded by the mass at the root instead of by 1, some more would have been accepted.
    accepted = [sum(s.accepted for r in results for s in r.samples) for results in (plain, adaptive)]
    assert accepted[0] < accepted[1]


def test_the_same_seed_gives_the_same_samples_alone_and_in_a_crowd():
    model, rows = TableModel.random(VOCAB, 3), catalogue(2)
    trie = TitleTrie.from_rows(rows, VOCAB)
    prompts = [(i,) for i in range(32)]
    params = [DiscParams(1 + i % 5, 1 + i % 7, (1.0, 0.7)[i % 2], seed=i, adaptive=True) for i in range(32)]
    crowd = disc(model.prefill(prompts), trie, params)
    for prompt, mine, crowded in zip(prompts, params, crowd, strict=True):
        (alone,) = disc(model.prefill([prompt]), trie, [mine])
        assert alone.samples == crowded.samples
        assert (alone.mass, alone.num_draws, alone.num_nodes) == (
            crowded.mass,
            crowded.num_draws,
            crowded.num_nodes,
        )


def test_the_draws_of_a_result_are_counted_to_the_phase_that_decides_it():
    (result,) = sample(unlikely(2), catalogue(2), 1, num_samples=100, num_draws=2, first_seed=5)
    assert len(result.samples) == 100
    decided = Counter((s.accepted, s.num_draws) for s in result.samples)
    assert set(decided) <= {(True, 1), (True, 2), (True, 3), (True, 4), (False, 4)}
    first = decided[True, 1] + decided[True, 2]
    assert 0 < first < 100
    assert decided[True, 3]
    assert result.num_draws == 2 * 100 + 2 * (100 - first)
    (alone,) = sample(models(0)[1], catalogue(0), 1, num_draws=2, first_seed=4)
    assert alone.num_draws in (2, 4)


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10**9),
    num_queries=st.integers(1, 4),
    num_samples=st.integers(1, 6),
    num_draws=st.integers(1, 8),
    reject_early=st.booleans(),
)
def test_two_walks_of_the_tree_are_all_that_is_computed(
    seed, num_queries, num_samples, num_draws, reject_early
):
    """The last token of a row needs no forward, and what is known is not computed again."""
    model, rows = CountingModel(TableModel.random(VOCAB, seed)), catalogue(seed % 3)
    results = sample(
        model, rows, num_queries, num_samples, num_draws=num_draws, first_seed=seed, reject_early=reject_early
    )
    walks = 1 if num_draws == 1 else 2
    assert results[0].num_steps == model.num_forwards <= walks * (max(map(len, rows)) - 1)
    num_inner = len({row[:depth] for row in rows for depth in range(1, len(row))})
    assert all(result.num_nodes <= num_inner for result in results)


def test_what_is_known_costs_nothing():
    """A second phase of a query whose prefixes were all computed runs no model."""
    model, rows = CountingModel(TableModel.random(VOCAB, 9, scale=0.5)), catalogue(1)
    (result,) = sample(model, rows, 1, num_samples=200, num_draws=4)
    assert max(s.num_draws for s in result.samples) > 4
    num_inner = len({row[:depth] for row in rows for depth in range(1, len(row))})
    assert result.num_nodes == len(set(model.nodes)) == len(model.nodes) == num_inner
    assert result.num_steps == model.num_forwards == max(map(len, rows)) - 1
