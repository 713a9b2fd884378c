"""DISC against the enumerated distribution: the law, the weights, the counts and the seeds.

Statistical tests are seeded, so they pass or fail for good; alpha is the chance that a correct
implementation would have failed at a seed picked blindly.
"""

from __future__ import annotations

import math
from collections import Counter

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from decoding.cancellation import CancelToken
from decoding.counter_rng import uniforms
from decoding.disc import DiscResult, disc
from decoding.errors import DecodingCancelledError, InvalidLogitsError
from decoding.params import DiscParams
from decoding.trie.title_trie import TitleTrie
from tests.disc_oracles import END, PROMPT, VOCAB, catalogue, target, true_mass
from tests.fakes import TableModel, chi_square

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


def test_a_catalogue_of_probability_zero_has_no_sample():
    model = TableModel(3, lambda *_: torch.tensor([0.0, 0.0, -math.inf]))
    trie = TitleTrie.from_rows({(2, END)}, 3)
    (result,) = disc(model.prefill([(1,)]), trie, [DiscParams(num_draws=4)])
    assert result.samples == ()
    assert result.mass == 0.0


def test_an_empty_catalogue_has_no_sample():
    trie = TitleTrie.from_rows([], 3)
    (result,) = disc(TableModel.random(3, 1).prefill([(1,)]), trie, [DiscParams()])
    assert result.samples == ()


def test_rows_that_do_not_fit_are_outside_the_set():
    rows = {(1, END), (2, 2, 2, END)}
    trie = TitleTrie.from_rows(rows, 3)
    params = [DiscParams(num_samples=50, num_draws=2, seed=1)]
    (result,) = disc(TableModel.random(3, 3).prefill([(1,)]), trie, params, room=[2])
    assert {s.hypothesis.token_ids for s in result.samples} == {(1, END)}


def test_a_cancelled_query_leaves_and_the_others_are_unchanged():
    model, rows = TableModel.random(VOCAB, 3), catalogue(0)
    trie = TitleTrie.from_rows(rows, VOCAB)
    token = CancelToken()
    token.cancel()
    params = [DiscParams(seed=1), DiscParams(seed=2)]
    results = disc(model.prefill([(1,), (2,)]), trie, params, cancel=[token, None])
    assert isinstance(results[0], DecodingCancelledError)
    assert results[1].samples == disc(model.prefill([(2,)]), trie, params[1:])[0].samples


def test_the_error_of_a_mass_of_zero_is_not_zero():
    """Sixteen refused draws do not prove that the catalogue has no probability."""
    tables = {(): [0.0, 8.0, 0.0], (1,): [-8.0, 8.0, 8.0], (2,): [9.0, 0.0, 0.0]}
    model = TableModel(3, lambda _, written: torch.tensor(tables[written]))
    trie = TitleTrie.from_rows({(1, END)}, 3)
    (result,) = disc(model.prefill([(1,)]), trie, [DiscParams(num_samples=4, num_draws=4)])
    assert result.mass == 0.0
    assert 0.01 < result.mass_stderr < 0.2


def test_nan_logits_are_an_error():
    trie = TitleTrie.from_rows({(1, END)}, 3)
    model = TableModel(3, lambda *_: torch.tensor([0.0, math.nan, 0.0]))
    with pytest.raises(InvalidLogitsError, match="NaN"):
        disc(model.prefill([(1,)]), trie, [DiscParams()])


def test_mixed_top_m_is_refused():
    trie = TitleTrie.from_rows({(1, END)}, 3)
    with pytest.raises(ValueError, match="top_m"):
        disc(TableModel.random(3, 1).prefill([(1,)] * 2), trie, [DiscParams(), DiscParams(top_m=3)])


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
