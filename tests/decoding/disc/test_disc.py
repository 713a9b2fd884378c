"""DISC, plain and adaptive, against enumeration: laws, weights, counts, seeds, and edge cases.

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

import genret.decoding.disc.tree_proposer
from genret.decoding.cancellation import CancelToken
from genret.decoding.counter_rng import uniforms
from genret.decoding.disc import DiscResult, disc
from genret.decoding.disc.algorithm import WeightedDraw, candidates, choose_by_weight
from genret.decoding.disc.draws import FIRST, SECOND, DrawBatch
from genret.decoding.disc.tree_proposer import TreeProposer
from genret.decoding.errors import DecodingCancelledError, InvalidLogitsError
from genret.decoding.params import DiscParams
from genret.decoding.stopping import StopPoll
from genret.decoding.trie.row_filter import FilteredTrie, RowFilter
from genret.decoding.trie.title_trie import TitleTrie
from tests.disc_oracles import (
    END,
    PROMPT,
    VOCAB,
    ByHand,
    CountingModel,
    catalogue,
    target,
    true_mass,
    unlikely,
)
from tests.fakes import TableModel, chi_square, end_with

ALPHA = 1e-4


def constrained_law(model: TableModel, rows):
    """Plain constrained sampling: P_L(s) divided by the valid masses met on the way."""
    return {row: math.exp(model.logprob(PROMPT, row)) / model.valid_masses(PROMPT, row, rows) for row in rows}


def sample(model: TableModel, rows, n: int, **params) -> list[DiscResult]:
    trie = TitleTrie.from_rows(rows, VOCAB)
    per_query = 250
    prompts = [PROMPT] * (n // per_query)
    all_params = [DiscParams(num_samples=per_query, seed=seed, **params) for seed in range(len(prompts))]
    return disc(model.prefill(prompts), trie, all_params)


@pytest.mark.statistical
@pytest.mark.parametrize("which", [0, 1, 2])
@pytest.mark.parametrize("reject_early", [True, False])
def test_accepted_draws_follow_the_target(which, reject_early):
    rows, model = catalogue(which), TableModel.random(VOCAB, 11 + which)
    law = target(model, rows)
    results = sample(model, rows, 10_000, num_draws=4, reject_early=reject_early)
    counts = Counter(s.hypothesis.token_ids for r in results for s in r.samples if s.accepted)
    assert sum(counts.values()) > 1000
    assert set(counts) <= rows
    assert chi_square(counts, law) > ALPHA


@pytest.mark.statistical
@pytest.mark.parametrize("which", [0, 1, 2])
def test_one_draw_is_plain_constrained_sampling(which):
    rows, model = catalogue(which), TableModel.random(VOCAB, 11 + which)
    results = sample(model, rows, 10_000, num_draws=1)
    counts = Counter(s.hypothesis.token_ids for r in results for s in r.samples)
    assert sum(counts.values()) == 10_000
    assert chi_square(counts, constrained_law(model, rows)) > ALPHA


@pytest.mark.statistical
def test_the_biased_law_would_be_noticed():
    """The chi-square test has power: constrained sampling does not pass for the target."""
    rows, model = catalogue(2), TableModel.random(VOCAB, 13)
    results = sample(model, rows, 10_000, num_draws=1)
    counts = Counter(s.hypothesis.token_ids for r in results for s in r.samples)
    assert chi_square(counts, target(model, rows)) < 1e-12


@pytest.mark.statistical
def test_temperature_is_applied_before_the_mass():
    rows, model = catalogue(0), TableModel.random(VOCAB, 11)
    results = sample(model, rows, 10_000, num_draws=6, temperature=0.6)
    accepted = [s for r in results for s in r.samples if s.accepted]
    counts = Counter(s.hypothesis.token_ids for s in accepted)
    assert chi_square(counts, target(model, rows, 0.6)) > ALPHA
    for s in accepted[:50]:
        exact = model.logprob(PROMPT, s.hypothesis.token_ids, 0.6)
        assert s.hypothesis.logprob == pytest.approx(exact, abs=1e-5)


@pytest.mark.statistical
def test_kl_falls_with_the_number_of_draws():
    """All results together (accepted or resampled) approach the target as K grows (Theorem 3.1)."""
    rows, model = catalogue(2), TableModel.random(VOCAB, 13)
    law = target(model, rows)
    divergence = []
    for num_draws in (1, 2, 4, 8):
        results = sample(model, rows, 20_000, num_draws=num_draws)
        counts = Counter(s.hypothesis.token_ids for r in results for s in r.samples)
        total = sum(counts.values())
        divergence.append(sum(p * math.log(p * total / (counts[row] + 0.5)) for row, p in law.items()))
    assert divergence == sorted(divergence, reverse=True)
    assert divergence[3] < 0.1 * divergence[0]


@pytest.mark.statistical
@pytest.mark.parametrize("num_draws", [2, 4, 8])
def test_the_number_of_draws_matches_its_formula(num_draws):
    """E[k] = (1 - p^K) / (1 - p) + K p^K with p = 1 - P_L(S) (Theorem 3.1), at four standard errors."""
    rows, model = catalogue(0), TableModel.random(VOCAB, 11)
    invalid = 1 - true_mass(model, rows)
    expected = (1 - invalid**num_draws) / (1 - invalid) + num_draws * invalid**num_draws
    results = sample(model, rows, 10_000, num_draws=num_draws)
    used = torch.tensor([float(s.num_draws) for r in results for s in r.samples])
    assert abs(float(used.mean()) - expected) < 4 * float(used.std()) / math.sqrt(len(used))


@pytest.mark.statistical
@pytest.mark.parametrize("reject_early", [True, False])
def test_the_mass_estimate_is_unbiased_and_its_error_honest(reject_early):
    rows, model = catalogue(0), TableModel.random(VOCAB, 11)
    truth = true_mass(model, rows)
    results = sample(model, rows, 10_000, num_draws=4, reject_early=reject_early)
    masses = torch.tensor([r.mass for r in results])
    errors = torch.tensor([r.mass_stderr for r in results])
    pooled = float(masses.std()) / math.sqrt(len(masses))
    assert abs(float(masses.mean()) - truth) < 4 * pooled
    assert float(errors.mean()) == pytest.approx(float(masses.std()), rel=0.4)


@settings(max_examples=150, deadline=None)
@given(seed=st.integers(0, 10**9), reject_early=st.booleans())
def test_weights_and_logprobs_are_exact(seed, reject_early):
    model, rows = TableModel.random(VOCAB, seed), catalogue(seed % 3)
    trie, ordered = TitleTrie.from_rows(rows, VOCAB), sorted(rows)
    params = DiscParams(num_samples=3, num_draws=3, seed=seed, reject_early=reject_early)
    (result,) = disc(model.prefill([PROMPT]), trie, [params])
    assert len(result.samples) == 3
    for s in result.samples:
        row = s.hypothesis.token_ids
        assert ordered[s.hypothesis.row] == row
        assert s.hypothesis.logprob == pytest.approx(model.logprob(PROMPT, row), abs=1e-5)
        assert s.log_weight == pytest.approx(math.log(model.valid_masses(PROMPT, row, rows)), abs=1e-5)


def test_the_same_seed_gives_the_same_samples_alone_and_in_a_crowd():
    model, rows = TableModel.random(VOCAB, 3), catalogue(0)
    trie = TitleTrie.from_rows(rows, VOCAB)
    params = DiscParams(num_samples=8, num_draws=4, seed=77)
    (alone,) = disc(model.prefill([(9,)]), trie, [params])
    crowd_params = [DiscParams(num_samples=1 + i % 5, num_draws=1 + i % 7, seed=i) for i in range(32)]
    crowd_params[20] = params
    prompts = [(i,) for i in range(32)]
    prompts[20] = (9,)
    crowded = disc(model.prefill(prompts), trie, crowd_params)[20]
    assert [s.hypothesis.token_ids for s in alone.samples] == [
        s.hypothesis.token_ids for s in crowded.samples
    ]
    assert alone.mass == crowded.mass
    other = disc(model.prefill([(9,)]), trie, [DiscParams(num_samples=8, num_draws=4, seed=78)])[0]
    assert [s.hypothesis.token_ids for s in other.samples] != [s.hypothesis.token_ids for s in alone.samples]


def test_draws_that_wrote_the_same_tokens_share_a_node():
    model, rows = TableModel.random(VOCAB, 3), catalogue(1)
    session = model.prefill([PROMPT])
    params = DiscParams(num_samples=50, num_draws=4, seed=1)
    (result,) = disc(session, TitleTrie.from_rows(rows, VOCAB), [params])
    prefixes = {row[:depth] for row in rows for depth in range(1, len(row))}
    # However many draws there are, in either phase.
    assert result.num_nodes == session.num_nodes <= len(prefixes)


@pytest.mark.statistical
def test_top_m_truncates_the_mass_and_is_not_the_default():
    """M = 1 follows the likeliest token only; the default reaches every row."""
    rows, model = catalogue(0), TableModel.random(VOCAB, 11)
    greedy = sample(model, rows, 1000, num_draws=1, top_m=1)
    assert len({s.hypothesis.token_ids for r in greedy for s in r.samples}) < len(rows)
    exact = sample(model, rows, 10_000, num_draws=1)
    assert {s.hypothesis.token_ids for r in exact for s in r.samples} == rows
    truth = true_mass(model, rows)
    biased = sample(model, rows, 10_000, num_draws=4, top_m=2, reject_early=False)
    estimate = sum(r.mass for r in biased) / len(biased)
    assert estimate < 0.9 * truth


def test_no_valid_token_in_the_top_m_falls_back_to_exact_children():
    """The printed algorithm divides 0 by 0 here."""
    model = TableModel(3, lambda *_: torch.tensor([0.0, 9.0, 0.0]))
    trie = TitleTrie.from_rows({(2, END)}, 3)
    (result,) = disc(model.prefill([(1,)]), trie, [DiscParams(num_draws=1, top_m=1)])
    assert result.samples[0].hypothesis.token_ids == (2, END)
    assert math.isfinite(result.samples[0].log_weight)


def test_rows_that_do_not_fit_are_outside_the_set():
    rows = {(1, END), (2, 2, 2, END)}
    trie = TitleTrie.from_rows(rows, 3)
    params = [DiscParams(num_samples=50, num_draws=2, seed=1)]
    (result,) = disc(TableModel.random(3, 3).prefill([(1,)]), trie, params, room=[2])
    assert {s.hypothesis.token_ids for s in result.samples} == {(1, END)}


def test_the_error_of_a_mass_of_zero_is_not_zero():
    """Sixteen refused draws do not prove that the catalogue has no probability."""
    tables = {(): [0.0, 8.0, 0.0], (1,): [-8.0, 8.0, 8.0], (2,): [9.0, 0.0, 0.0]}
    model = TableModel(3, lambda _, written: torch.tensor(tables[written]))
    trie = TitleTrie.from_rows({(1, END)}, 3)
    (result,) = disc(model.prefill([(1,)]), trie, [DiscParams(num_samples=4, num_draws=4)])
    assert result.mass == 0.0
    assert 0.01 < result.mass_stderr < 0.2


@pytest.mark.parametrize("option", [{"top_m": 3}, {"beam_size": 2}, {"adaptive": True}], ids=str)
def test_options_that_differ_between_queries_are_refused(option):
    trie = TitleTrie.from_rows({(1, END)}, 3)
    with pytest.raises(ValueError, match=f"{next(iter(option))} must be the same for all queries"):
        disc(TableModel.random(3, 1).prefill([(1,)] * 2), trie, [DiscParams(), DiscParams(**option)])


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        ({"num_draws": 0}, "num_draws"),
        ({"num_samples": 10**6}, "num_samples"),
        ({"temperature": 0.0}, "temperature"),
        ({"temperature": math.nan}, "temperature"),
        ({"top_m": 0}, "top_m"),
        ({"seed": 2**64}, "seed"),
    ],
)
def test_parameters_out_of_range_are_named(arguments, name):
    with pytest.raises(ValueError, match=f"{name} must be"):
        DiscParams(**arguments)


@pytest.mark.statistical
def test_counter_uniforms_are_uniform_and_uncorrelated():
    draws = torch.arange(200_000)
    u = uniforms(torch.tensor(5), 1, draws, 3)
    assert float(u.min()) > 0
    assert float(u.max()) < 1
    assert stats.kstest(u.numpy(), "uniform").pvalue > ALPHA
    for other in (uniforms(torch.tensor(6), 1, draws, 3), uniforms(torch.tensor(5), 1, draws, 4), u.roll(1)):
        assert stats.pearsonr(u.numpy(), other.numpy()).pvalue > ALPHA


# Seeds of table models that give the three catalogues this much probability at temperature 1.
SEEDS = {0: 11, 1: 12, 2: 13}


def sample_adaptively(
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
    counts = by_phase(sample_adaptively(model, rows, 4000, num_draws=3), 3)
    assert set(counts) == {1, 2}
    for mine in counts.values():
        assert sum(mine.values()) > 100
        assert chi_square(mine, law) > ALPHA / 2
    assert chi_square(sum(counts.values(), Counter()), law) > ALPHA


@pytest.mark.statistical
@pytest.mark.parametrize("temperature", [0.7, 1.6])
def test_the_target_is_the_one_at_the_temperature_asked_for(temperature):
    rows, model = catalogue(0), TableModel.random(VOCAB, SEEDS[0])
    results = sample_adaptively(model, rows, 4000, num_draws=8, temperature=temperature)
    counts = Counter(s.hypothesis.token_ids for r in results for s in r.samples if s.accepted)
    assert sum(counts.values()) > 3000
    assert chi_square(counts, target(model, rows, temperature)) > ALPHA


@pytest.mark.statistical
def test_a_weight_that_forgets_the_envelope_of_its_nodes_would_be_noticed(monkeypatch):
    """Power: the weight C(node) without / c(node) is wrong in the second phase, and is refused."""
    rows, model = catalogue(2), unlikely(2)
    counts = by_phase(sample_adaptively(model, rows, 4000, num_draws=6, reject_early=False), 6)
    assert chi_square(counts[2], target(model, rows)) > ALPHA

    class _Forgetful(genret.decoding.disc.tree_proposer.TreeProposer):
        def _sample_step(self, draws, node, key, depth):
            level = self._tree.levels[depth]
            kept = level.log_envelope
            level.log_envelope = torch.zeros_like(kept)
            chosen = super()._sample_step(draws, node, key, depth)
            level.log_envelope = kept
            return chosen

    monkeypatch.setattr("genret.decoding.disc.algorithm.TreeProposer", _Forgetful)
    counts = by_phase(sample_adaptively(model, rows, 4000, num_draws=6, reject_early=False), 6)
    assert chi_square(counts[2], target(model, rows)) < 1e-9


def test_the_first_phase_of_a_result_does_not_depend_on_the_others():
    rows, model = catalogue(2), unlikely(2)
    few, many = (
        [r for q in sample_adaptively(model, rows, 50, num_samples, num_draws=3) for r in q.samples[:2]]
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
    results = sample_adaptively(model, rows, 3000, num_samples=2, num_draws=20)
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
    """If plain constrained sampling is far from it, that is."""
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
    results = sample_adaptively(model, rows, 1500, num_samples=3, num_draws=6)
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


def test_adaptive_samples_are_the_same_alone_and_in_a_crowd():
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
    (result,) = sample_adaptively(unlikely(2), catalogue(2), 1, num_samples=100, num_draws=2, first_seed=5)
    assert len(result.samples) == 100
    decided = Counter((s.accepted, s.num_draws) for s in result.samples)
    assert set(decided) <= {(True, 1), (True, 2), (True, 3), (True, 4), (False, 4)}
    first = decided[True, 1] + decided[True, 2]
    assert 0 < first < 100
    assert decided[True, 3]
    assert result.num_draws == 2 * 100 + 2 * (100 - first)
    (alone,) = sample_adaptively(models(0)[1], catalogue(0), 1, num_draws=2, first_seed=4)
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
    results = sample_adaptively(
        model, rows, num_queries, num_samples, num_draws=num_draws, first_seed=seed, reject_early=reject_early
    )
    walks = 1 if num_draws == 1 else 2
    assert results[0].num_steps == model.num_forwards <= walks * (max(map(len, rows)) - 1)
    num_inner = len({row[:depth] for row in rows for depth in range(1, len(row))})
    assert all(result.num_nodes <= num_inner for result in results)


def test_what_is_known_costs_nothing():
    """A second phase of a query whose prefixes were all computed runs no model."""
    model, rows = CountingModel(TableModel.random(VOCAB, 9, scale=0.5)), catalogue(1)
    (result,) = sample_adaptively(model, rows, 1, num_samples=200, num_draws=4)
    assert max(s.num_draws for s in result.samples) > 4
    num_inner = len({row[:depth] for row in rows for depth in range(1, len(row))})
    assert result.num_nodes == len(set(model.nodes)) == len(model.nodes) == num_inner
    assert result.num_steps == model.num_forwards == max(map(len, rows)) - 1


class _CancelsItself(CancelToken):
    """Cancels at its n-th poll."""

    def __init__(self, polls: int) -> None:
        super().__init__()
        self._left = polls

    def check(self) -> None:
        self._left -= 1
        if self._left < 0:
            self.cancel()
        super().check()


@pytest.mark.parametrize("adaptive", [False, True])
@pytest.mark.parametrize("polls", [0, 1, 4, 7, 11])
def test_a_query_cancelled_at_any_time_leaves_the_others_as_they_are(adaptive, polls):
    rows, model = catalogue(2), unlikely(2)
    trie = TitleTrie.from_rows(rows, VOCAB)
    params = [DiscParams(num_samples=2, num_draws=6, seed=seed, adaptive=adaptive) for seed in range(3)]
    results = disc(
        model.prefill([PROMPT] * 3), trie, params, cancel=[None, _CancelsItself(polls), CancelToken()]
    )
    alone = [disc(model.prefill([PROMPT]), trie, [mine])[0] for mine in params]
    if isinstance(results[1], DiscResult):  # it was done before
        assert results[1].samples == alone[1].samples
        assert polls > 4
    else:
        assert isinstance(results[1], DecodingCancelledError)
    assert [results[query].samples for query in (0, 2)] == [alone[query].samples for query in (0, 2)]


@pytest.mark.statistical
def test_with_room_for_some_rows_the_others_are_outside_the_set():
    rows, model = catalogue(2), TableModel.random(VOCAB, 13)
    trie = TitleTrie.from_rows(rows, VOCAB)
    params = [DiscParams(num_draws=30, seed=seed, adaptive=True) for seed in range(3000)]
    results = disc(model.prefill([PROMPT] * 3000), trie, params, room=[3] * 3000)
    short = {row for row in rows if len(row) <= 3}
    counts = Counter(s.hypothesis.token_ids for r in results for s in r.samples if s.accepted)
    assert set(counts) <= short
    assert chi_square(counts, target(model, short)) > ALPHA
    truth = true_mass(model, short)
    assert all(r.mass_lower - 1e-6 <= truth <= r.mass_upper + 1e-6 for r in results)
    (none,) = disc(model.prefill([PROMPT]), trie, params[:1], room=[0])
    assert (none.samples, none.mass) == ((), 0.0)


@pytest.mark.parametrize("adaptive", [False, True])
@pytest.mark.parametrize("num_draws", [1, 3])
def test_a_query_without_rows_comes_back_empty_and_the_others_do_not(adaptive, num_draws):
    rows = sorted(catalogue(0))
    trie = TitleTrie.from_rows(rows, VOCAB)
    nothing = RowFilter.from_mask(np.zeros(len(rows), dtype=bool))
    one = RowFilter.from_mask(np.arange(len(rows)) == 2)
    constraint = FilteredTrie(trie, [nothing, None, one])
    params = [DiscParams(3, num_draws, seed=s, adaptive=adaptive) for s in range(3)]
    empty, whole, single = disc(TableModel.random(VOCAB, 1).prefill([PROMPT] * 3), constraint, params)
    assert (empty.samples, empty.mass, empty.mass_lower, empty.mass_upper) == ((), 0.0, 0.0, 0.0)
    assert len(whole.samples) == 3
    assert {s.hypothesis.token_ids for s in single.samples} == {rows[2]}


@pytest.mark.parametrize("adaptive", [False, True])
@pytest.mark.parametrize(
    "rows",
    [
        pytest.param({(2, END)}, id="one title"),
        pytest.param({(END,)}, id="one title, nothing but its end"),
        pytest.param({(1,), (2,), (3,)}, id="one-token titles"),
        pytest.param(end_with([(1,), (1, 1), (1, 1, 1), (1, 1, 1, 1)], END), id="prefixes of others"),
        pytest.param({(token,) for token in range(VOCAB)}, id="the whole vocabulary"),
        pytest.param(
            {(a, b) for a in range(1, VOCAB) for b in range(VOCAB)}, id="the whole vocabulary, again"
        ),
    ],
)
def test_sets_of_every_shape(adaptive, rows):
    model, trie = TableModel.random(VOCAB, 2), TitleTrie.from_rows(rows, VOCAB)
    params = DiscParams(num_samples=30, num_draws=8, seed=4, adaptive=adaptive)
    (result,) = disc(model.prefill([PROMPT]), trie, [params])
    assert len(result.samples) == 30  # more draws than titles
    assert {s.hypothesis.token_ids for s in result.samples} <= rows
    truth = true_mass(model, rows)
    assert result.mass_lower - 1e-6 <= truth <= result.mass_upper + 1e-6
    assert all(s.log_weight <= 0 for s in result.samples)


@pytest.mark.parametrize("adaptive", [False, True])
def test_no_titles_at_all(adaptive):
    (result,) = disc(
        TableModel.random(3, 1).prefill([(1,)]), TitleTrie.from_rows([], 3), [DiscParams(adaptive=adaptive)]
    )
    assert (result.samples, result.mass, result.mass_upper) == ((), 0.0, 0.0)


@pytest.mark.parametrize("adaptive", [False, True])
def test_valid_tokens_of_probability_zero_have_no_sample(adaptive):
    """At the root, and below it, where the way on is found closed by the first draw."""
    closed = torch.tensor([0.0, 0.0, -math.inf])
    for tables in ({(): closed}, {(): torch.zeros(3), (1,): closed}):
        model = TableModel(3, lambda _, written, tables=tables: tables[written])
        trie = TitleTrie.from_rows({(2, END)} if len(tables) == 1 else {(1, 2)}, 3)
        params = DiscParams(num_samples=2, num_draws=4, adaptive=adaptive, reject_early=False)
        (result,) = disc(model.prefill([(1,)]), trie, [params])
        assert (result.samples, result.mass, result.mass_lower) == ((), 0.0, 0.0)
        assert result.mass_upper == 0.0


@pytest.mark.parametrize("adaptive", [False, True])
@pytest.mark.parametrize("broken", [math.nan, math.inf])
@pytest.mark.parametrize("depth", [0, 1])
def test_logits_that_are_no_numbers_are_an_error(adaptive, broken, depth):
    def function(_, written):
        return torch.tensor([0.0, broken if len(written) == depth else 0.0, 0.0])

    trie = TitleTrie.from_rows({(1, 2, END)}, 3)
    params = DiscParams(num_draws=2, adaptive=adaptive, reject_early=False)
    with pytest.raises(InvalidLogitsError, match="NaN or infinite"):
        disc(TableModel(3, function).prefill([(1,)]), trie, [params])


@pytest.mark.parametrize("num_params", [0, 1, 3])
def test_params_of_another_number_than_the_queries_are_refused(num_params):
    trie = TitleTrie.from_rows({(1, END)}, 3)
    with pytest.raises(ValueError, match=f"params: expected one for each of .* 2 queries.* got {num_params}"):
        disc(TableModel.random(3, 1).prefill([(1,)] * 2), trie, [DiscParams()] * num_params)


@pytest.mark.parametrize("adaptive", [False, True])
def test_the_most_draws_that_can_be_asked_for_and_results_of_one_draw_beside_them(adaptive):
    model, rows = TableModel.random(VOCAB, 3), catalogue(0)
    trie = TitleTrie.from_rows(rows, VOCAB)
    params = [DiscParams(256, 32, seed=1, adaptive=adaptive), DiscParams(3, 1, seed=2, adaptive=adaptive)]
    many, single = disc(model.prefill([PROMPT] * 2), trie, params)
    assert (len(many.samples), len(single.samples)) == (256, 3)
    assert (single.num_draws, {s.num_draws for s in single.samples}) == (3, {1})
    assert 256 * 32 <= many.num_draws <= 2 * 256 * 32
    assert disc(model.prefill([PROMPT]), trie, params[1:])[0].samples == single.samples


@pytest.mark.parametrize("adaptive", [False, True])
def test_logits_that_break_in_the_second_phase_are_an_error(adaptive):
    """The prefix (4, 4, 4) is first entered by a fresh draw, at this seed; without the defect all is well."""
    trie = TitleTrie.from_rows(catalogue(2), VOCAB)
    params = [DiscParams(1, 2, seed=0, adaptive=adaptive)]

    def defective(_, written):
        late = written == (4, 4, 4) and not allowed
        return torch.full((VOCAB,), math.nan if late else 0.0)

    allowed = True
    (result,) = disc(TableModel(VOCAB, defective).prefill([PROMPT]), trie, params)
    assert result.num_draws == 4
    allowed = False
    with pytest.raises(InvalidLogitsError, match="NaN"):
        disc(TableModel(VOCAB, defective).prefill([PROMPT]), trie, params)


def batch_of(model: TableModel, rows, params: list[DiscParams]) -> DrawBatch:
    stop = StopPoll(len(params), None, None, torch.device("cpu"))
    return DrawBatch(
        model.prefill([PROMPT] * len(params)),
        TitleTrie.from_rows(rows, VOCAB),
        params,
        stop,
        range(len(params)),
    )


def two_phases(batch: DrawBatch, wanted):
    """The draws of both phases, the first for all results and the second for those wanted."""
    proposer, params = TreeProposer(batch), batch.params
    first = batch.new_draws(
        [(q, s, 0, p.num_draws) for q, p in enumerate(params) for s in range(p.num_samples)]
    )
    proposer.run(first, FIRST, None)
    fresh = batch.new_draws([(q, s, 0, params[q].num_draws) for q, s in wanted])
    proposer.run(fresh, SECOND, None)
    return first, fresh


def rows_of(draws) -> list[tuple[int, ...]]:
    written = torch.stack(draws.tokens, dim=1).tolist()
    return [tuple(token for token in tokens if token >= 0) for tokens in written]


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10**9), adaptive=st.booleans(), num_draws=st.integers(2, 5))
def test_candidates_are_the_rows_known_and_the_fresh_draws_of_others(seed, adaptive, num_draws):
    model, rows = TableModel.random(VOCAB, seed), catalogue(seed % 3)
    params = [DiscParams(3, num_draws, seed=seed + n, adaptive=adaptive) for n in range(2)]
    batch, wanted = batch_of(model, rows, params), [(0, 1), (1, 0), (1, 2)]
    first, fresh = two_phases(batch, wanted)
    first_rows, fresh_rows, by_hand = rows_of(first), rows_of(fresh), ByHand(model, rows)
    found = candidates(batch, first, fresh, wanted[:2])  # the third was decided
    assert list(found) == wanted[:2]
    for (query, number), mine in found.items():
        known = {r for q, r in zip(first.query.tolist(), first_rows, strict=True) if q == query}
        if not adaptive:
            known = set()
        old = [one for one in mine if not one.is_fresh]
        assert sorted(first_rows[one.draw] for one in old) == sorted(known)  # each once
        for one in old:
            assert first.query[one.draw] == query
            assert one.log_weight == pytest.approx(by_hand.logprob(first_rows[one.draw]), abs=1e-5)
        new = {one.draw: one.log_weight for one in mine if one.is_fresh}
        assert set(new) == {
            n
            for n, row in enumerate(fresh_rows)
            if (int(fresh.query[n]), int(fresh.sample[n])) == (query, number) and row not in known
        }
        for draw, log_weight in new.items():
            assert log_weight == float(fresh.log_weight[draw]) - math.log(num_draws)


@pytest.mark.statistical
@pytest.mark.parametrize("num_draws", [2, 5])
def test_what_all_candidates_are_worth_is_the_mass_on_average(num_draws):
    """The rows known, exactly, and the rest without bias: at four standard errors, alpha = 6e-5."""
    model, rows = TableModel.random(VOCAB, 12), catalogue(0)
    truth = math.fsum(math.exp(ByHand(model, rows).logprob(row)) for row in rows)
    for adaptive in (False, True):
        params = [DiscParams(2, num_draws, seed=n, adaptive=adaptive) for n in range(2000)]
        batch, wanted = batch_of(model, rows, params), [(n, 0) for n in range(2000)]
        found = candidates(batch, *two_phases(batch, wanted), wanted)
        worth = torch.tensor([math.fsum(math.exp(one.log_weight) for one in mine) for mine in found.values()])
        assert abs(float(worth.mean()) - truth) < 4 * float(worth.std()) / math.sqrt(len(worth))


@pytest.mark.statistical
def test_a_candidate_is_chosen_as_often_as_it_is_worth():
    weights = [0.5, 0.0, 1e-3, 2.0, 0.25, 0.0]
    mine = [
        WeightedDraw(n < 3, n, math.log(weight) - 700 if weight else -math.inf)
        for n, weight in enumerate(weights)
    ]
    batch = batch_of(TableModel.random(VOCAB, 1), catalogue(0), [DiscParams(seed=n) for n in range(500)])
    chosen = choose_by_weight(batch, {(n, s): mine for n in range(500) for s in range(40)})
    counts = Counter((one.draw,) for one in chosen.values())
    assert sum(counts.values()) == 20_000
    law = {(n,): weight / sum(weights) for n, weight in enumerate(weights) if weight}
    assert chi_square(counts, law) > ALPHA


def test_where_nothing_weighs_anything_nothing_is_chosen():
    batch = batch_of(TableModel.random(VOCAB, 1), catalogue(0), [DiscParams()])
    one = WeightedDraw(True, 4, -3.0)
    nothing = WeightedDraw(True, 3, -math.inf)
    chosen = choose_by_weight(batch, {(0, 0): [], (0, 1): [nothing], (0, 2): [nothing, one, nothing]})
    assert chosen == {(0, 2): one}
    assert choose_by_weight(batch, {}) == {}
