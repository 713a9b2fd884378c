"""Confidence intervals by the paired bootstrap over queries, or over documents where queries have one.

Queries of one document are not independent: an interval over single mentions would be too narrow, so
documents are drawn with replacement (Efron and Tibshirani 1993, chapter 8). A mean is resampled as sums and
numbers of queries, a micro-average as sums of its counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from genret.retrieval.evaluation.metrics import Floats, MetricValues, micro_average

_DRAWN_AT_ONCE = 1 << 21  # group numbers, 16 MiB


@dataclass(frozen=True, slots=True)
class Interval:
    """A figure with the ends of its interval; `p_value` (two-sided, of being 0) goes with a difference."""

    value: float
    low: float
    high: float
    p_value: float | None = None


def bootstrap(
    metric: MetricValues,
    groups: Sequence[str] | None = None,
    num_resamples: int = 2000,
    confidence: float = 0.95,
    seed: int = 0,
) -> Interval:
    """Return the percentile interval of a metric; the same seed draws the same queries for every metric.

    `groups` has the document of each query, resampled as one. If all queries have the same, queries are
    resampled: one document says nothing of how documents differ. There is at least one query.
    """
    figures = resampled_figures(metric, groups, num_resamples, seed)
    return Interval(metric.value, *percentiles(figures, confidence))


def paired_bootstrap(
    metric: MetricValues,
    baseline: MetricValues,
    groups: Sequence[str] | None = None,
    num_resamples: int = 2000,
    confidence: float = 0.95,
    seed: int = 0,
) -> Interval:
    """Return the interval of metric minus baseline, both resampled with the same queries (see `bootstrap`).

    The p-value is twice the smaller share of resamples on either side of 0; those at 0, and one more, count
    on both sides. It is also never below 2 ** (1 - m), where m is the number of groups in which the two
    differ: the least that a sign-flip test can give, and more than few queries can show otherwise.
    """
    ours, theirs = (resampled_figures(m, groups, num_resamples, seed) for m in (metric, baseline))
    differences = ours - theirs
    low, high = percentiles(differences, confidence)
    known = differences[~np.isnan(differences)]
    one_side = min(int((known <= 0).sum()), int((known >= 0).sum()))
    differs = np.abs(_group_sums(metric, groups) - _group_sums(baseline, groups)) > 1e-12
    num_different = int(differs.any(axis=1).sum())
    p_value = max(2 * (1 + one_side) / (1 + len(known)), 2.0 ** (1 - num_different))
    return Interval(metric.value - baseline.value, low, high, min(1.0, p_value))


def resampled_figures(
    metric: MetricValues,
    groups: Sequence[str] | None = None,
    num_resamples: int = 2000,
    seed: int | Sequence[int] = 0,
) -> Floats:
    """Return the metric of every resample; arguments are those of `bootstrap`.

    NaN where a resample holds no query that the metric has a meaning for. Shape: (num_resamples,).
    """
    sums = _group_sums(metric, groups)
    generator = np.random.default_rng(seed)
    at_once = max(1, _DRAWN_AT_ONCE // len(sums))
    figures = []
    for begin in range(0, num_resamples, at_once):
        drawn = generator.integers(len(sums), size=(min(at_once, num_resamples - begin), len(sums)))
        resampled = np.stack([column[drawn].sum(axis=1) for column in sums.T], axis=1)
        figures.append(_figure(metric, resampled))
    return np.concatenate(figures)


def percentiles(figures: Floats, confidence: float) -> tuple[float, float]:
    """Return the ends of the percentile interval of resampled figures; NaN if all figures are NaN."""
    known = figures[~np.isnan(figures)]
    if not len(known):
        return float("nan"), float("nan")
    tail = (1 - confidence) / 2
    low, high = np.quantile(known, [tail, 1 - tail])
    return float(low), float(high)


def num_groups(metric: MetricValues, groups: Sequence[str] | None) -> int:
    """Return the number of queries or documents behind an interval: those the metric has a meaning for."""
    known = ~np.isnan(metric.per_query)
    distinct = set() if groups is None else {g for g, k in zip(groups, known, strict=True) if k}
    return len(distinct) if len(distinct) > 1 else int(known.sum())


def holm(p_values: Sequence[float]) -> list[float]:
    """Return p-values, each in [0, 1], adjusted for their number by Holm's step-down method (1979)."""
    adjusted = [0.0] * len(p_values)
    largest = 0.0
    for rank, place in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[place]))
        adjusted[place] = largest
    return adjusted


def _group_sums(metric: MetricValues, groups: Sequence[str] | None) -> Floats:
    """Return the part of each group: the counts, or the sum of its values and their number. Shape: (G, c)."""
    if metric.counts is not None:
        parts = np.asarray(metric.counts, dtype=np.float64)
    else:
        known = ~np.isnan(metric.per_query)
        parts = np.stack([np.where(known, metric.per_query, 0.0), known.astype(np.float64)], axis=1)
    if groups is None or len(set(groups)) < 2:
        return parts
    numbers = {group: number for number, group in enumerate(dict.fromkeys(groups))}
    places = np.array([numbers[group] for group in groups])
    return np.stack([np.bincount(places, weights=part) for part in parts.T], axis=1)


def _figure(metric: MetricValues, sums: Floats) -> Floats:
    """Return the metric from sums. Shapes: (..., c) -> (...)."""
    if metric.counts is not None:
        return micro_average(metric.name, sums)
    number = sums[..., 1]
    return np.divide(sums[..., 0], number, out=np.full_like(number, np.nan), where=number > 0)
