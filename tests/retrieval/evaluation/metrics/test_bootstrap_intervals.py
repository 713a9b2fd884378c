"""Bootstrap intervals: against scipy's, known cases, and how often they hold the truth."""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from genret.retrieval.evaluation.intervals import (
    bootstrap,
    holm,
    num_groups,
    paired_bootstrap,
    percentiles,
    resampled_figures,
)
from genret.retrieval.evaluation.metrics import MetricValues, mean_value


def _metric(values: object, name: str = "nDCG@10") -> MetricValues:
    array = np.asarray(values, dtype=np.float64)
    return MetricValues(name, mean_value(array), array)


def _micro(counts: object, name: str = "F1(InKB)") -> MetricValues:
    array = np.asarray(counts, dtype=np.float64)
    correct, predicted, gold = array.sum(axis=0)
    return MetricValues(name, 2 * correct / (predicted + gold), array[:, 0], array)


def _f1(correct: np.ndarray, predicted: np.ndarray, gold: np.ndarray, axis: int = -1) -> np.ndarray:
    return 2 * correct.sum(axis) / (predicted.sum(axis) + gold.sum(axis))


def test_a_mean_has_the_interval_of_scipy() -> None:
    values = np.random.default_rng(7).beta(0.6, 0.9, size=150)
    ours = bootstrap(_metric(values), num_resamples=20_000)
    theirs = stats.bootstrap((values,), np.mean, n_resamples=20_000, method="percentile", rng=1)
    assert ours.value == values.mean()
    assert (ours.low, ours.high) == pytest.approx(tuple(theirs.confidence_interval), abs=0.003)
    assert ours.p_value is None


def test_a_micro_average_has_the_interval_of_scipy() -> None:
    generator = np.random.default_rng(8)
    predicted, gold = generator.random((2, 200)) < 0.8
    correct = predicted & gold & (generator.random(200) < 0.6)
    counts = np.stack([correct, predicted, gold], axis=1).astype(float)
    ours = bootstrap(_micro(counts), num_resamples=20_000, confidence=0.9)
    how = {"paired": True, "vectorized": True, "n_resamples": 20_000, "method": "percentile", "rng": 1}
    theirs = stats.bootstrap(tuple(counts.T), _f1, confidence_level=0.9, **how)
    assert (ours.low, ours.high) == pytest.approx(tuple(theirs.confidence_interval), abs=0.004)


def test_a_difference_has_the_interval_of_scipy() -> None:
    generator = np.random.default_rng(9)
    base = generator.random(120)
    better = np.clip(base + generator.normal(0.05, 0.2, size=120), 0, 1)
    ours = paired_bootstrap(_metric(better), _metric(base), num_resamples=20_000)
    theirs = stats.bootstrap((better - base,), np.mean, n_resamples=20_000, method="percentile", rng=1)
    assert ours.value == pytest.approx((better - base).mean())
    assert (ours.low, ours.high) == pytest.approx(tuple(theirs.confidence_interval), abs=0.002)


def test_equal_runs_differ_by_nothing() -> None:
    metric = _metric([0.0, 1.0, 0.5])
    found = paired_bootstrap(metric, metric)
    assert (found.value, found.low, found.high, found.p_value) == (0.0, 0.0, 0.0, 1.0)
    alone = bootstrap(_metric([0.5]))  # a single query says nothing of others
    assert (alone.value, alone.low, alone.high) == (0.5, 0.5, 0.5)


def test_one_that_is_better_everywhere_is_surely_better() -> None:
    found = paired_bootstrap(
        _metric([0.9, 0.8, 1.0, 0.7] * 4), _metric([0.1, 0.2, 0.3, 0.0] * 4), num_resamples=999
    )
    assert 0 < found.low < found.value < found.high
    assert found.p_value == pytest.approx(2 / 1000)


@pytest.mark.parametrize(("num_queries", "least"), [(1, 1.0), (2, 0.5), (5, 1 / 16), (8, 1 / 128)])
def test_few_queries_show_no_more_than_a_sign_test(num_queries: int, least: float) -> None:
    better, worse = _metric([1.0] * num_queries + [0.5] * 40), _metric([0.0] * num_queries + [0.5] * 40)
    p_value = paired_bootstrap(better, worse, num_resamples=999).p_value
    assert p_value >= stats.binomtest(num_queries, num_queries).pvalue == least
    alone = paired_bootstrap(_metric([1.0] * num_queries), _metric([0.0] * num_queries), num_resamples=999)
    assert alone.p_value == least


def test_few_documents_show_no_more_either() -> None:
    better, worse = _metric([1.0] * 60), _metric([0.0] * 60)
    groups = [f"d{i % 3}" for i in range(60)]
    assert paired_bootstrap(better, worse, groups, 999).p_value == 0.25
    assert num_groups(better, groups) == 3
    assert num_groups(better, ["d"] * 60) == num_groups(better, None) == 60
    assert num_groups(_metric([1.0, math.nan, 0.0]), None) == 2


def test_the_seed_decides_and_blocks_of_draws_do_not(monkeypatch: pytest.MonkeyPatch) -> None:
    metric, groups = _metric(np.random.default_rng(3).random(60)), [str(i // 3) for i in range(60)]
    whole = bootstrap(metric, groups, seed=4)
    assert whole != bootstrap(metric, groups, seed=5)
    monkeypatch.setattr("genret.retrieval.evaluation.intervals._DRAWN_AT_ONCE", 64)
    assert bootstrap(metric, groups, seed=4) == whole


def test_resamples_are_those_of_the_interval() -> None:
    metric = _metric(np.random.default_rng(3).random(50))
    figures = resampled_figures(metric, None, 400, seed=7)
    assert figures.shape == (400,)
    found = bootstrap(metric, None, 400, seed=7)
    assert percentiles(figures, 0.95) == (found.low, found.high)
    assert not np.array_equal(figures, resampled_figures(metric, None, 400, seed=(7, 1)))
    assert all(math.isnan(end) for end in percentiles(np.full(3, math.nan), 0.95))


def test_the_other_way_round_is_the_mirror_image() -> None:
    generator = np.random.default_rng(3)
    one, other = _metric(generator.random(50)), _metric(generator.random(50))
    here, there = paired_bootstrap(one, other), paired_bootstrap(other, one)
    assert (here.value, here.low, here.high) == pytest.approx((-there.value, -there.high, -there.low))
    assert here.p_value == there.p_value


def test_groups_are_drawn_as_one() -> None:
    """Twenty documents of ten equal mentions say no more than twenty mentions."""
    single = np.random.default_rng(5).random(20)
    groups = [f"d{i // 10}" for i in range(200)]
    grouped = bootstrap(_metric(np.repeat(single, 10)), groups, seed=2)
    alone = bootstrap(_metric(single), seed=2)
    assert (grouped.low, grouped.high) == pytest.approx((alone.low, alone.high))
    as_if_independent = bootstrap(_metric(np.repeat(single, 10)))
    assert grouped.high - grouped.low > 2 * (as_if_independent.high - as_if_independent.low)
    uneven = bootstrap(_metric([1.0] * 8 + [0.0, 0.0]), ["big"] * 8 + ["small"] * 2, num_resamples=4000)
    assert (uneven.value, uneven.low, uneven.high) == (0.8, 0.0, 1.0)


def test_groups_of_counts_are_summed() -> None:
    counts = np.random.default_rng(6).integers(0, 2, size=(90, 3)).astype(float)
    groups = [str(i % 9) for i in range(90)]
    summed = np.stack([counts[i::9].sum(axis=0) for i in range(9)])
    by_group, of_sums = bootstrap(_micro(counts), groups), bootstrap(_micro(summed))
    assert (by_group.low, by_group.high) == pytest.approx((of_sums.low, of_sums.high))


def test_queries_without_a_meaning_are_no_part_of_the_mean() -> None:
    values = np.array([1.0, math.nan, 0.0, 1.0, math.nan])
    found = bootstrap(_metric(values))
    assert found.value == pytest.approx(2 / 3)
    assert (found.low, found.high) == (0.0, 1.0)
    nothing = bootstrap(_metric([math.nan, math.nan]))
    assert math.isnan(nothing.value)
    assert math.isnan(nothing.low)


def test_queries_of_a_single_document_are_resampled_themselves() -> None:
    metric, baseline = _metric([0.0, 1.0, 0.3]), _metric([0.5, 0.5, 0.2])
    assert bootstrap(metric, ["d"] * 3) == bootstrap(metric)
    assert paired_bootstrap(metric, baseline, ["d"] * 3) == paired_bootstrap(metric, baseline)


def _num_rejected(pairs: Iterable[np.ndarray]) -> int:
    """The number of pairs whose difference has a p-value below 0.05."""
    rejected = 0
    for trial, (one, other) in enumerate(pairs):
        found = paired_bootstrap(_metric(one), _metric(other), num_resamples=400, seed=trial)
        rejected += found.p_value < 0.05
    return rejected


@pytest.mark.statistical
@pytest.mark.parametrize(("num_queries", "share"), [(3, 0.0), (5, 0.0), (30, 0.07)])
def test_p_values_of_few_queries_are_small_rarely(num_queries: int, share: float) -> None:
    """1,000 pairs of n queries that do not differ, at alpha 1e-4; without the bound 5 would give 0.17."""
    generator = np.random.default_rng(15)
    rejected = _num_rejected(generator.random((2, num_queries)) for _ in range(1000))
    assert rejected <= stats.binom.ppf(1 - 1e-4, 1000, share)


def test_an_interval_leaves_0_out_where_the_p_value_is_small() -> None:
    generator = np.random.default_rng(14)
    for trial in range(60):
        one, other = generator.random(40), generator.random(40) + 0.1
        found = paired_bootstrap(_metric(one), _metric(other), num_resamples=999, seed=trial)
        if abs(found.p_value - 0.05) > 0.01:
            assert (found.p_value < 0.05) == (not found.low <= 0 <= found.high)


@given(st.lists(st.floats(0, 1), max_size=8), st.floats(0.001, 0.5))
def test_holm_is_the_step_down_procedure(p_values: list[float], alpha: float) -> None:
    order = sorted(range(len(p_values)), key=p_values.__getitem__)
    rejected: set[int] = set()
    for rank, place in enumerate(order):
        if (len(p_values) - rank) * p_values[place] > alpha:
            break
        rejected.add(place)
    assert {i for i, p in enumerate(holm(p_values)) if p <= alpha} == rejected
