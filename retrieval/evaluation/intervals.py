"""Confidence intervals: the paired bootstrap over queries, or over documents where queries have one.

Queries of one document are not independent: an interval over single mentions would be too narrow, so what is
drawn with replacement is documents (Efron and Tibshirani 1993, chapter 8). A mean is resampled as sums and
numbers of queries, a micro-average as sums of its counts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from retrieval.errors import InputError
from retrieval.evaluation.metrics import MetricValues, micro_average

Floats = npt.NDArray[np.float64]
_DRAWN_AT_ONCE = 1 << 21  # group numbers, 16 MiB


@dataclass(frozen=True, slots=True)
class Interval:
    """A figure with its interval.

    Attributes:
        value: The figure.
        low: Lower end.
        high: Upper end.
        p_value: Of a difference: two-sided, that it is 0; None for a plain figure.
    """

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
    """Return the percentile interval of a metric. `groups`: per query what is resampled as one.

    Where all queries are of one group, queries are resampled: one document says nothing of how documents
    differ, and the interval is then about further queries like these.

    Raises:
        InputError: an argument is out of range, or there are not as many groups as queries.
    """
    _check(metric, groups, num_resamples, confidence)
    sums = _group_sums(metric, groups)
    figures = np.concatenate([_figure(metric, s) for s in _resampled([sums], num_resamples, seed)[0]])
    return Interval(metric.value, *percentiles(figures, confidence))


def paired_bootstrap(
    metric: MetricValues,
    baseline: MetricValues,
    groups: Sequence[str] | None = None,
    num_resamples: int = 2000,
    confidence: float = 0.95,
    seed: int = 0,
) -> Interval:
    """Return the interval of metric minus baseline, both resampled with the same queries.

    Groups are as for `bootstrap`. The p-value is that of the percentile interval: twice the smaller share of
    the resamples on either side of 0, those at 0 on both, one more counted on either side. It is never 0 and
    at most 1, and but for that one more it is below 1 - confidence where the interval leaves 0 out.

    Few queries cannot show what the bootstrap then claims: resamples of two differences of one sign are all
    of that sign. So the p-value is also never below 2 ** (1 - m), where the two differ in m groups: the least
    that a test by exchange of the two in every group (a sign-flip test) can give.

    Raises:
        InputError: as `bootstrap`, or the two are not one metric of one set.
    """
    _check(metric, groups, num_resamples, confidence)
    if metric.name != baseline.name or len(metric.per_query) != len(baseline.per_query):
        raise InputError(
            "baseline",
            f"expected {metric.name} of {len(metric.per_query)} queries, "
            f"got {baseline.name} of {len(baseline.per_query)}",
        )
    ours, theirs = _group_sums(metric, groups), _group_sums(baseline, groups)
    resampled = _resampled([ours, theirs], num_resamples, seed)
    differences = np.concatenate(
        [_figure(metric, a) - _figure(baseline, b) for a, b in zip(*resampled, strict=True)]
    )
    low, high = percentiles(differences, confidence)
    known = differences[~np.isnan(differences)]
    below, above = int((known <= 0).sum()), int((known >= 0).sum())
    num_different = int(_group_differs(ours, theirs).sum())
    p_value = max(2 * (1 + min(below, above)) / (1 + len(known)), 2.0 ** (1 - num_different))
    p_value = min(1.0, p_value)
    return Interval(metric.value - baseline.value, low, high, p_value)


def resampled_figures(
    metric: MetricValues,
    groups: Sequence[str] | None = None,
    num_resamples: int = 2000,
    seed: int | Sequence[int] = 0,
) -> Floats:
    """Return the metric of every resample: the same queries for every metric of a set, given one seed.

    For figures over several sets, whose queries are drawn independently: with a seed of its own for each set.

    Returns:
        NaN where a resample holds no query that the metric has a meaning for. Shape: (num_resamples,).

    Raises:
        InputError: as `bootstrap`.
    """
    _check(metric, groups, num_resamples, 0.5)
    (blocks,) = _resampled([_group_sums(metric, groups)], num_resamples, seed)
    return np.concatenate([_figure(metric, sums) for sums in blocks])


def percentiles(figures: Floats, confidence: float) -> tuple[float, float]:
    """Return the ends of the percentile interval of resampled figures; NaN where all of them are."""
    known = figures[~np.isnan(figures)]
    if not len(known):
        return float("nan"), float("nan")
    tail = (1 - confidence) / 2
    low, high = np.quantile(known, [tail, 1 - tail])
    return float(low), float(high)


def num_groups(metric: MetricValues, groups: Sequence[str] | None) -> int:
    """Return how many queries or documents an interval of the metric rests on: those it has a meaning for."""
    known = ~np.isnan(metric.per_query)
    distinct = set() if groups is None else {g for g, k in zip(groups, known, strict=True) if k}
    return len(distinct) if len(distinct) > 1 else int(known.sum())


def holm(p_values: Sequence[float]) -> list[float]:
    """Return p-values adjusted for being many (Holm 1979): all at most alpha are significant together.

    The step-down method: it holds whatever the comparisons have to do with each other.

    Raises:
        InputError: one is outside [0, 1].
    """
    for number, p in enumerate(p_values):
        if not 0 <= p <= 1:
            raise InputError(f"p_values[{number}]", f"must be in [0, 1], got {p}")
    adjusted = [0.0] * len(p_values)
    largest = 0.0
    for rank, place in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[place]))
        adjusted[place] = largest
    return adjusted


def _group_sums(metric: MetricValues, groups: Sequence[str] | None) -> Floats:
    """Return what each group adds: the counts, or the sum of its values and their number. Shape: (G, c)."""
    if metric.counts is not None:
        parts = np.asarray(metric.counts, dtype=np.float64)
    else:
        known = ~np.isnan(metric.per_query)
        parts = np.stack([np.where(known, metric.per_query, 0.0), known.astype(np.float64)], axis=1)
    if groups is None or len(set(groups)) < 2:
        return parts
    numbers: dict[str, int] = {}
    places = np.array([numbers.setdefault(group, len(numbers)) for group in groups])
    columns = [np.bincount(places, weights=part, minlength=len(numbers)) for part in parts.T]
    return np.stack(columns, axis=1)


def _figure(metric: MetricValues, sums: Floats) -> Floats:
    """Return the metric from sums. Shapes: (..., c) -> (...)."""
    if metric.counts is not None:
        return micro_average(metric.name, sums)
    number = sums[..., 1]
    return np.divide(sums[..., 0], number, out=np.full_like(number, np.nan), where=number > 0)


def _group_differs(ours: Floats, theirs: Floats) -> npt.NDArray[np.bool_]:
    """Return for which groups the two are not the same. Shapes: (G, c), (G, c) -> (G,)."""
    differs: npt.NDArray[np.bool_] = np.any(np.abs(ours - theirs) > 1e-12, axis=1)
    return differs


def _resampled(tables: Sequence[Floats], num_resamples: int, seed: int | Sequence[int]) -> list[list[Floats]]:
    """Return, per table, blocks of sums over groups drawn with replacement, the same for all tables.

    Args:
        tables: Shape of each: (G, c).
        num_resamples: B.
        seed: The same one draws the same groups.

    Returns:
        Per table, blocks whose rows together are (B, c).
    """
    blocks: list[list[Floats]] = [[] for _ in tables]
    for drawn in _draws(len(tables[0]), num_resamples, seed):
        for table, found in zip(tables, blocks, strict=True):
            found.append(np.stack([column[drawn].sum(axis=1) for column in table.T], axis=1))
    return blocks


def _draws(num_groups: int, num_resamples: int, seed: int | Sequence[int]) -> Iterator[npt.NDArray[np.int64]]:
    generator = np.random.default_rng(seed)
    at_once = max(1, _DRAWN_AT_ONCE // num_groups)
    for begin in range(0, num_resamples, at_once):
        yield generator.integers(num_groups, size=(min(at_once, num_resamples - begin), num_groups))


def _check(metric: MetricValues, groups: Sequence[str] | None, num_resamples: int, confidence: float) -> None:
    if not len(metric.per_query):
        raise InputError("metric", "has no queries to resample")
    if groups is not None and len(groups) != len(metric.per_query):
        raise InputError("groups", f"expected {len(metric.per_query)}, one per query, got {len(groups)}")
    if num_resamples < 1:
        raise InputError("num_resamples", f"must be at least 1, got {num_resamples}")
    if not 0 < confidence < 1:
        raise InputError("confidence", f"must be above 0 and below 1, got {confidence}")
