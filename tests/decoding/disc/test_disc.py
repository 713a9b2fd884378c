"""DISC, plain and adaptive, against enumeration: laws, weights, counts, seeds, and edge cases.

Statistical tests are seeded, so they pass or fail for good; alpha is the chance that a correct
implementation would have failed at a seed picked blindly.
"""

from __future__ import annotations

import dataclasses
import math
from collections import Counter, defaultdict
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from genret.decoding.cancellation import CancelToken
from genret.decoding.counter_rng import uniforms
from genret.decoding.disc import DiscResult, disc
from genret.decoding.disc.algorithm import WeightedDraw, candidates, choose_by_weight
from genret.decoding.disc.draws import FIRST, SECOND, DrawBatch
from genret.decoding.disc.static_proposer import StaticProposer
from genret.decoding.disc.tree_proposer import TreeProposer
from genret.decoding.errors import DecodingCancelledError, InvalidLogitsError
from genret.decoding.params import DiscParams
from genret.decoding.trie.row_filter import FilteredTrie, RowFilter
from genret.decoding.trie.title_trie import TitleTrie
from genret.retrieval.types import RetrieveRequest
from tests.disc_oracles import (
    END,
    PROMPT,
    VOCAB,
    ByHand,
    assert_same_draws,
    batch_for,
    catalogue,
    counted,
    drawn,
    rows_of,
    target,
    true_mass,
    unlikely,
)
from tests.fakes import SelfCancelling, TableModel, chi_square, end_with

ALPHA = 1e-4


# Seeds of table models that give the three catalogues much probability.
SEEDS = {0: 11, 1: 12, 2: 13}


def likely(which: int) -> TableModel:
    return TableModel.random(VOCAB, SEEDS[which])


def sample(
    model: TableModel, rows, num_queries: int = 40, num_samples: int = 250, first_seed: int = 0, **params
) -> list[DiscResult]:
    """Every adaptive query has a history of its own, so the more queries, the more histories."""
    all_params = [
        DiscParams(num_samples=num_samples, seed=first_seed + n, **params) for n in range(num_queries)
    ]
    return drawn(model, rows, all_params)


def divergence(law: dict, results: list[DiscResult]) -> float:
    """KL of the target to all results, accepted or not; a row never seen counts as seen half a time."""
    counts = counted(results)
    total = sum(counts.values())
    return sum(p * math.log(p * total / (counts[row] or 0.5)) for row, p in law.items())


def both_ways(model: TableModel, rows, num_samples: int, num_draws: int) -> list[list[DiscResult]]:
    """About 3,000 results of plain and of adaptive draws."""
    options = {"num_draws": num_draws, "reject_early": False}
    return [
        sample(model, rows, 3000 // num_samples, num_samples, adaptive=adaptive, **options)
        for adaptive in (False, True)
    ]


@pytest.mark.statistical
@pytest.mark.parametrize("which", [0, 1, 2])
@pytest.mark.parametrize("reject_early", [True, False])
def test_accepted_draws_follow_the_target(which, reject_early):
    rows, model = catalogue(which), likely(which)
    law = target(model, rows)
    results = sample(model, rows, num_draws=4, reject_early=reject_early)
    counts = counted(results, accepted_only=True)
    assert sum(counts.values()) > 1000
    assert set(counts) <= rows
    assert chi_square(counts, law) > ALPHA


@pytest.mark.statistical
@pytest.mark.parametrize(("adaptive", "temperature"), [(False, 0.6), (True, 0.7), (True, 1.6)])
def test_temperature_is_applied_before_the_mass(adaptive, temperature):
    rows, model = catalogue(0), likely(0)
    queries, num_draws = ((4000, 1), 8) if adaptive else ((40, 250), 6)
    results = sample(model, rows, *queries, num_draws=num_draws, temperature=temperature, adaptive=adaptive)
    counts = counted(results, accepted_only=True)
    assert sum(counts.values()) > 3000
    assert chi_square(counts, target(model, rows, temperature)) > ALPHA
    for s in results[0].samples + results[1].samples:
        exact = model.logprob(PROMPT, s.hypothesis.token_ids, temperature)
        assert s.hypothesis.logprob == pytest.approx(exact, abs=1e-5)


@pytest.mark.statistical
def test_kl_falls_with_the_number_of_draws():
    """All results together (accepted or resampled) approach the target as K grows (Theorem 3.1)."""
    rows, model = catalogue(2), likely(2)
    law = target(model, rows)
    falling = [divergence(law, sample(model, rows, 80, num_draws=num_draws)) for num_draws in (1, 2, 4, 8)]
    assert falling == sorted(falling, reverse=True)
    assert falling[3] < 0.1 * falling[0]


@pytest.mark.statistical
@pytest.mark.parametrize(
    ("which", "of", "queries", "options", "rel"),
    [
        (0, likely, (40, 250), {"num_draws": 4}, 0.4),
        (0, likely, (40, 250), {"num_draws": 4, "reject_early": False}, 0.4),
        (2, unlikely, (1500, 3), {"num_draws": 6, "adaptive": True}, 0.3),
    ],
)
def test_the_mass_estimate_is_unbiased_and_its_error_honest(which, of, queries, options, rel):
    """At four standard errors, alpha = 6e-5. Only the first phase counts: whether there is a second depends
    on what came out of it."""
    rows, model = catalogue(which), of(which)
    results = sample(model, rows, *queries, **options)
    masses = torch.tensor([r.mass for r in results], dtype=torch.float64)
    errors = torch.tensor([r.mass_stderr for r in results], dtype=torch.float64)
    pooled = float(masses.std()) / math.sqrt(len(masses))
    assert abs(float(masses.mean()) - true_mass(model, rows)) < 4 * pooled
    assert float(errors.mean()) == pytest.approx(float(masses.std()), rel=rel)


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10**9), reject_early=st.booleans(), top_m=st.sampled_from([None, VOCAB]))
def test_weights_and_logprobs_are_exact(seed, reject_early, top_m):
    """Also where the top m are all tokens."""
    model, rows = TableModel.random(VOCAB, seed), catalogue(seed % 3)
    params = DiscParams(num_samples=3, num_draws=3, seed=seed, reject_early=reject_early, top_m=top_m)
    (result,) = drawn(model, rows, [params])
    by_hand, ordered = ByHand(model, rows), sorted(rows)
    assert len(result.samples) == 3
    for s in result.samples:
        row = s.hypothesis.token_ids
        assert ordered[s.hypothesis.row] == row
        assert s.hypothesis.logprob == pytest.approx(model.logprob(PROMPT, row), abs=1e-5)
        assert s.log_weight == pytest.approx(by_hand.log_weight(row), abs=1e-5)


@pytest.mark.statistical
def test_the_top_m_is_biased():
    """The draws and the mass of `DiscParams()` as it is are not: see the tests above."""
    rows, model = catalogue(0), likely(0)
    results = sample(model, rows, num_draws=4, reject_early=False, top_m=2)
    masses = torch.tensor([r.mass for r in results], dtype=torch.float64)
    error = float(masses.std()) / math.sqrt(len(masses))
    assert chi_square(counted(results, accepted_only=True), target(model, rows)) < 1e-12
    assert float(masses.mean()) < true_mass(model, rows) - 10 * error


@pytest.mark.parametrize("options", [DiscParams, RetrieveRequest])
def test_no_option_has_a_top_m_unless_it_is_asked_for(options):
    defaults = {field.name: field.default for field in dataclasses.fields(options)}
    assert defaults["top_m"] is None


def test_no_valid_token_in_the_top_m_falls_back_to_exact_children():
    """The printed algorithm divides 0 by 0 here."""
    model = TableModel(3, lambda *_: torch.tensor([0.0, 9.0, 0.0]))
    (result,) = drawn(model, {(2, END)}, [DiscParams(num_draws=1, top_m=1)])
    assert result.samples[0].hypothesis.token_ids == (2, END)
    assert math.isfinite(result.samples[0].log_weight)


def test_the_error_of_a_mass_of_zero_is_not_zero():
    """Sixteen refused draws do not prove that the catalogue has no probability."""
    tables = {(): [0.0, 8.0, 0.0], (1,): [-8.0, 8.0, 8.0], (2,): [9.0, 0.0, 0.0]}
    model = TableModel(3, lambda _, written: torch.tensor(tables[written]))
    (result,) = drawn(model, {(1, END)}, [DiscParams(num_samples=4, num_draws=4)])
    assert result.mass == 0.0
    assert 0.01 < result.mass_stderr < 0.2


@pytest.mark.statistical
def test_counter_uniforms_are_uniform_and_uncorrelated():
    draws = torch.arange(200_000)
    u = uniforms(torch.tensor(5), 1, draws, 3)
    assert float(u.min()) > 0
    assert float(u.max()) < 1
    assert stats.kstest(u.numpy(), "uniform").pvalue > ALPHA
    for other in (uniforms(torch.tensor(6), 1, draws, 3), uniforms(torch.tensor(5), 1, draws, 4), u.roll(1)):
        assert stats.pearsonr(u.numpy(), other.numpy()).pvalue > ALPHA


def by_phase(results: list[DiscResult], num_draws: int) -> dict[int, Counter]:
    """Accepted rows by the phase, 1 or 2, that the accepted draw belongs to."""
    counts: dict[int, Counter] = defaultdict(Counter)
    for result in results:
        for s in result.samples:
            if s.accepted:
                counts[1 if s.num_draws <= num_draws else 2][s.hypothesis.token_ids] += 1
    return counts


@pytest.mark.statistical
@pytest.mark.parametrize("which", [0, 1, 2])
@pytest.mark.parametrize("of", [likely, unlikely])
def test_accepted_draws_follow_the_target_in_either_phase(which, of):
    rows, model = catalogue(which), of(which)
    law = target(model, rows)
    counts = by_phase(sample(model, rows, 4000, 1, adaptive=True, num_draws=3), 3)
    assert set(counts) == {1, 2}
    for mine in counts.values():
        assert sum(mine.values()) > 100
        assert chi_square(mine, law) > ALPHA / 2
    assert chi_square(sum(counts.values(), Counter()), law) > ALPHA


def test_the_first_phase_of_a_result_does_not_depend_on_the_others():
    rows, model = catalogue(2), unlikely(2)
    few, many = (
        [r for q in sample(model, rows, 50, num_samples, adaptive=True, num_draws=3) for r in q.samples[:2]]
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
    rows, model = catalogue(2), likely(2)
    results = sample(model, rows, 3000, 2, adaptive=True, num_draws=20)
    pairs = Counter(tuple(s.hypothesis.token_ids for s in r.samples) for r in results)
    assert all(s.accepted for r in results for s in r.samples)
    assert sum(s.num_draws > 20 for r in results for s in r.samples) > 100
    law = target(model, rows)
    product = {(a, b): law[a] * law[b] for a in law for b in law}
    assert chi_square(pairs, product) > ALPHA
    common = [row for row in sorted(law) if law[row] > 0.02]
    table = np.array([[pairs[a, b] for b in common] for a in common])
    assert stats.chi2_contingency(table).pvalue > ALPHA


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


@pytest.mark.parametrize("options", [{"adaptive": True}, {"beam_size": 2}])
def test_early_rejection_is_for_plain_draws(options):
    """Refused draws of these are worth something: their rows, or their part in the estimate of the mass."""
    rows, model = catalogue(0), unlikely(0)
    early, late, plain = (
        drawn(model, rows, [DiscParams(5, 6, seed=3, reject_early=stops, **more)])
        for stops, more in ((True, options), (False, options), (True, {}))
    )
    assert early == late
    assert early != plain


def test_the_draws_of_a_result_are_counted_to_the_phase_that_decides_it():
    (result,) = sample(unlikely(2), catalogue(2), 1, 100, 5, adaptive=True, num_draws=2)
    assert len(result.samples) == 100
    decided = Counter((s.accepted, s.num_draws) for s in result.samples)
    assert set(decided) <= {(True, 1), (True, 2), (True, 3), (True, 4), (False, 4)}
    first = decided[True, 1] + decided[True, 2]
    assert 0 < first < 100
    assert decided[True, 3]
    assert result.num_draws == 2 * 100 + 2 * (100 - first)
    (alone,) = sample(unlikely(0), catalogue(0), 1, 1, 4, adaptive=True, num_draws=2)
    assert alone.num_draws in (2, 4)


@pytest.mark.statistical
def test_with_room_for_some_rows_the_others_are_outside_the_set():
    rows, model = catalogue(2), likely(2)
    params = [DiscParams(num_draws=30, seed=seed, adaptive=True) for seed in range(3000)]
    results = drawn(model, rows, params, room=[3] * 3000)
    short = {row for row in rows if len(row) <= 3}
    counts = counted(results, accepted_only=True)
    assert set(counts) <= short
    assert chi_square(counts, target(model, short)) > ALPHA
    truth = true_mass(model, short)
    assert all(r.mass_lower - 1e-6 <= truth <= r.mass_upper + 1e-6 for r in results)


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


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 10**9), adaptive=st.booleans(), num_draws=st.integers(2, 5))
def test_candidates_are_the_rows_known_and_the_fresh_draws_of_others(seed, adaptive, num_draws):
    model, rows = TableModel.random(VOCAB, seed), catalogue(seed % 3)
    params = [DiscParams(3, num_draws, seed=seed + n, adaptive=adaptive) for n in range(2)]
    batch, wanted = batch_for(model, rows, params), [(0, 1), (1, 0), (1, 2)]
    first, fresh = two_phases(batch, wanted)
    first_rows, fresh_rows, by_hand = rows_of(first.tokens), rows_of(fresh.tokens), ByHand(model, rows)
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
    model, rows = likely(1), catalogue(0)
    truth = true_mass(model, rows)
    for adaptive in (False, True):
        params = [DiscParams(2, num_draws, seed=n, adaptive=adaptive) for n in range(2000)]
        batch, wanted = batch_for(model, rows, params), [(n, 0) for n in range(2000)]
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
    batch = batch_for(TableModel.random(VOCAB, 1), catalogue(0), [DiscParams(seed=n) for n in range(500)])
    chosen = choose_by_weight(batch, {(n, s): mine for n in range(500) for s in range(40)})
    counts = Counter((one.draw,) for one in chosen.values())
    assert sum(counts.values()) == 20_000
    law = {(n,): weight / sum(weights) for n, weight in enumerate(weights) if weight}
    assert chi_square(counts, law) > ALPHA


def test_where_nothing_weighs_anything_nothing_is_chosen():
    batch = batch_for(TableModel.random(VOCAB, 1), catalogue(0), [DiscParams()])
    one = WeightedDraw(True, 4, -3.0)
    nothing = WeightedDraw(True, 3, -math.inf)
    chosen = choose_by_weight(batch, {(0, 0): [], (0, 1): [nothing], (0, 2): [nothing, one, nothing]})
    assert chosen == {(0, 2): one}
    assert choose_by_weight(batch, {}) == {}


Kind = dict[str, Any]

STATIC: Kind = {"top_m": None}  # plain draws, made with static shapes

# Options of each kind of draw. A beam of 32 keeps every row there is, so its estimate is the mass.
KINDS: dict[str, Kind] = {
    "plain": {},
    "static": STATIC,
    "adaptive": {"adaptive": True},
    "beams": {"beam_size": 3},
    "all rows": {"beam_size": 32},
}


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Kind:
    if KINDS[request.param] == STATIC:
        monkeypatch.setattr("genret.decoding.disc.algorithm._proposer", StaticProposer)
    return KINDS[request.param]


def explores(kind: Kind) -> bool:
    """Whether the draws keep a tree that bounds the mass; others know the valid mass at the root alone."""
    return kind in (KINDS["plain"], KINDS["adaptive"])


def assert_bounded(result: DiscResult, truth: float, kind: Kind) -> None:
    assert result.mass_lower - 1e-6 <= truth <= result.mass_upper + 1e-6
    found = {s.hypothesis.token_ids: math.exp(s.hypothesis.logprob) for s in result.samples}
    assert result.mass_lower >= math.fsum(found.values()) - 1e-6
    if kind.get("beam_size") == 32:
        assert result.mass == pytest.approx(truth, rel=1e-5)


@pytest.mark.parametrize(
    "rows",
    [
        pytest.param({(2, END)}, id="one title"),
        pytest.param({(END,)}, id="one title, nothing but its end"),
        pytest.param(end_with([(1,), (1, 1), (1, 1, 1), (1, 1, 1, 1)], END), id="prefixes of others"),
        pytest.param(end_with([(1,), (2,), (3, 3, 3, 3)], END), id="fewer titles than prefixes"),
        pytest.param({(token,) for token in range(VOCAB)}, id="the whole vocabulary"),
        pytest.param({(a, b) for a in range(1, VOCAB) for b in range(VOCAB)}, id="it, and it again"),
        pytest.param({(3,) * 40 + (END,)}, id="a long title"),
    ],
)
@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_sets_of_every_shape(kind: Kind, rows: set[tuple[int, ...]], temperature: float) -> None:
    model = TableModel.random(VOCAB, 2)
    params = DiscParams(num_samples=30, num_draws=8, seed=4, temperature=temperature, **kind)
    (result,) = drawn(model, rows, [params])
    assert len(result.samples) == 30  # more draws than titles
    assert {s.hypothesis.token_ids for s in result.samples} <= rows
    assert all(s.log_weight <= 0 for s in result.samples)
    assert_bounded(result, true_mass(model, rows, temperature=temperature), kind)
    if len(rows) == 30:
        assert all(s.accepted for s in result.samples)


def test_no_titles_at_all(kind: Kind) -> None:
    (result,) = drawn(TableModel.random(3, 1), [], [DiscParams(**kind)])
    assert (result.samples, result.mass) == ((), 0.0)
    assert result.mass_upper == (0.0 if explores(kind) else 1.0)


def test_valid_tokens_of_probability_zero_have_no_sample(kind: Kind) -> None:
    """At the root, and below it, where the way on is found closed by the first draw."""
    closed = torch.tensor([0.0, 0.0, -math.inf])
    for tables in ({(): closed}, {(): torch.zeros(3), (1,): closed}):
        model = TableModel(3, lambda _, written, tables=tables: tables[written])
        params = DiscParams(num_samples=2, num_draws=4, reject_early=False, **kind)
        (result,) = drawn(model, {(2, END)} if len(tables) == 1 else {(1, 2)}, [params])
        assert (result.samples, result.mass, result.mass_lower) == ((), 0.0, 0.0)
        assert result.mass_upper == (0.0 if explores(kind) or len(tables) == 1 else pytest.approx(1 / 3))


def test_a_valid_token_of_probability_zero_is_never_written(kind: Kind) -> None:
    model = TableModel(VOCAB, lambda *_: torch.tensor([0.0, -math.inf, 1.0, -math.inf, 0.0]))
    rows = {(1, END), (2, END), (3, END), (2, 3, END)}
    (result,) = drawn(model, rows, [DiscParams(num_samples=50, num_draws=2, **kind)])
    assert {s.hypothesis.token_ids for s in result.samples} == {(2, END)}


@pytest.mark.parametrize("broken", [math.nan, math.inf])
@pytest.mark.parametrize("depth", [0, 1, 3])
def test_logits_that_are_no_numbers_are_an_error(kind: Kind, broken: float, depth: int) -> None:
    def function(_: tuple[int, ...], written: tuple[int, ...]) -> torch.Tensor:
        return torch.tensor([0.0, broken if len(written) == depth else 0.0, 0.0])

    params = DiscParams(num_draws=2, reject_early=False, **kind)
    with pytest.raises(InvalidLogitsError, match="NaN or infinite"):
        drawn(TableModel(3, function), {(1, 1, 1, END), (2, 2, 2, END)}, [params])


@pytest.mark.parametrize("kind", ["plain", "static", "adaptive"], indirect=True)
def test_logits_that_break_in_the_second_phase_are_an_error(kind: Kind) -> None:
    """The prefix (4, 4, 4) is first entered by a fresh draw, at this seed; without the defect all is well."""
    params = [DiscParams(1, 2, seed=0, **kind)]

    def defective(_: tuple[int, ...], written: tuple[int, ...]) -> torch.Tensor:
        late = written == (4, 4, 4) and not allowed
        return torch.full((VOCAB,), math.nan if late else 0.0)

    allowed = True
    (result,) = drawn(TableModel(VOCAB, defective), catalogue(2), params)
    assert result.num_draws == 4
    allowed = False
    with pytest.raises(InvalidLogitsError, match="NaN"):
        drawn(TableModel(VOCAB, defective), catalogue(2), params)


@pytest.mark.parametrize("room", [0, 2, 3])
def test_rows_that_do_not_fit_are_outside_the_set(kind: Kind, room: int) -> None:
    model, rows = TableModel.random(VOCAB, 13), catalogue(0)
    params = [DiscParams(num_samples=50, num_draws=2, seed=1, **kind)]
    (result,) = drawn(model, rows, params, room=[room])
    short = {row for row in rows if len(row) <= room}
    assert {s.hypothesis.token_ids for s in result.samples} <= short
    assert bool(result.samples) == bool(short)
    assert_bounded(result, true_mass(model, short), kind)


MASKS = [None, range(6), [], [4], [0, 3, 5]]


def test_queries_of_a_crowd_keep_to_their_filters_and_draw_what_they_draw_alone(kind: Kind) -> None:
    model, rows = TableModel.random(VOCAB, 3), sorted(catalogue(0))
    trie = TitleTrie.from_rows(rows, VOCAB)
    ranks = np.arange(len(rows))
    made = [None if mask is None else RowFilter.from_mask(np.isin(ranks, list(mask))) for mask in MASKS]
    prompts, filters = [(i,) for i in range(32)], [made[i % 5] for i in range(32)]
    params = [DiscParams(1 + i % 4, 1 + i % 7, (1.0, 0.5, 2.0)[i % 3], seed=i, **kind) for i in range(32)]
    crowd = disc(model.prefill(prompts), FilteredTrie(trie, filters), params)
    for i, (prompt, crowded) in enumerate(zip(prompts, crowd, strict=True)):
        (alone,) = disc(model.prefill([prompt]), FilteredTrie(trie, [filters[i]]), [params[i]])
        assert_same_draws([alone], [crowded])
        assert alone.num_nodes == crowded.num_nodes
        mask = MASKS[i % 5]
        allowed = {rows[rank] for rank in (ranks if mask is None else mask)}
        assert len(crowded.samples) == (params[i].num_samples if allowed else 0)
        assert {s.hypothesis.token_ids for s in crowded.samples} <= allowed
        assert all(rows[s.hypothesis.row] == s.hypothesis.token_ids for s in crowded.samples)
        assert_bounded(crowded, true_mass(model, allowed, prompt, params[i].temperature), kind)
    assert any(len({s.accepted for s in result.samples}) == 2 for result in crowd)


@pytest.mark.parametrize("polls", [0, 1, 4, 7, 11, 20])
def test_a_query_cancelled_at_any_time_leaves_the_others_as_they_are(kind: Kind, polls: int) -> None:
    rows, model = catalogue(2), unlikely(2)
    params = [DiscParams(num_samples=2, num_draws=6, seed=seed, **kind) for seed in range(3)]
    results = drawn(model, rows, params, cancel=[None, SelfCancelling(polls), CancelToken()])
    alone = [drawn(model, rows, [mine])[0] for mine in params]
    if isinstance(results[1], DiscResult):  # it was done before
        assert results[1].samples == alone[1].samples
        assert polls > 4
    else:
        assert isinstance(results[1], DecodingCancelledError)
        assert polls < 20
    assert [results[query].samples for query in (0, 2)] == [alone[query].samples for query in (0, 2)]


@pytest.mark.parametrize("kind", ["plain", "adaptive"], indirect=True)
def test_the_most_draws_that_can_be_asked_for_and_results_of_one_draw_beside_them(kind: Kind) -> None:
    model, rows = TableModel.random(VOCAB, 3), catalogue(0)
    params = [DiscParams(256, 32, seed=1, **kind), DiscParams(3, 1, seed=2, **kind)]
    many, single = drawn(model, rows, params)
    assert (len(many.samples), len(single.samples)) == (256, 3)
    assert (single.num_draws, {s.num_draws for s in single.samples}) == (3, {1})
    assert 256 * 32 <= many.num_draws <= 2 * 256 * 32
    assert drawn(model, rows, params[1:])[0].samples == single.samples


@pytest.mark.parametrize("num_params", [0, 1, 3])
def test_params_of_another_number_than_the_queries_are_refused(num_params: int) -> None:
    trie = TitleTrie.from_rows({(1, END)}, 3)
    with pytest.raises(ValueError, match=f"params: expected one for each of .* 2 queries.* got {num_params}"):
        disc(TableModel.random(3, 1).prefill([(1,)] * 2), trie, [DiscParams()] * num_params)


@pytest.mark.parametrize("option", [{"top_m": 3}, {"beam_size": 2}, {"adaptive": True}], ids=str)
def test_options_that_differ_between_queries_are_refused(option: Kind) -> None:
    with pytest.raises(ValueError, match=f"{next(iter(option))} must be the same for all queries"):
        drawn(TableModel.random(3, 1), {(1, END)}, [DiscParams(), DiscParams(**option)])


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
def test_parameters_out_of_range_are_named(arguments: Kind, name: str) -> None:
    with pytest.raises(ValueError, match=f"{name} must be"):
        DiscParams(**arguments)
