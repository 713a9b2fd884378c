"""Compares methods: metrics with intervals, differences to a baseline, rates and times, per set and over all.

Over all sets together: the leading metric of each, the mean over them, and the time.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from retrieval.evaluation.intervals import (
    Interval,
    bootstrap,
    holm,
    num_groups,
    paired_bootstrap,
    percentiles,
    resampled_figures,
)
from retrieval.evaluation.labelled_sets import LabelledSet, MethodRun
from retrieval.evaluation.metrics import DEFAULT_METRICS, MetricValues, mean_value, measure, micro_average

RATES = ("NO_MATCH", "invalid", "duplicates", "errors")
_PERCENTILES = (50, 95, 99)


@dataclass(frozen=True, slots=True)
class Settings:
    """What figures are made how.

    Attributes:
        baseline: The method that others are compared with.
        metrics: Wanted; None: those that go with the kind of each set.
        num_resamples: Of the bootstrap.
        confidence: Of intervals.
        seed: Of the resampling.
    """

    baseline: str
    metrics: tuple[str, ...] | None = None
    num_resamples: int = 2000
    confidence: float = 0.95
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Figure:
    """One metric of one method on one set, the mean over its seeds.

    Attributes:
        interval: Value and interval, over queries.
        spread: Standard deviation over seeds; None with one.
    """

    interval: Interval
    spread: float | None = None


@dataclass(frozen=True, slots=True)
class Times:
    """Wall times of a method on a set, all seeds together.

    Attributes:
        p50_ms: Median time per query, in milliseconds, as the others.
        p95_ms: 95th percentile.
        p99_ms: 99th percentile.
        mean_ms: Mean.
        total_s: Of a pass over the set, in seconds.
        queries_per_s: Throughput.
    """

    p50_ms: float
    p95_ms: float
    p99_ms: float
    mean_ms: float
    total_s: float
    queries_per_s: float


@dataclass(frozen=True, slots=True)
class MethodFigures:
    """What one method reached on one set.

    Attributes:
        method: Its name.
        is_constrained: Whether it can only answer with entities of the index.
        seeds: Those it ran with; empty: it draws nothing.
        figures: By metric, rates not among them.
        rates: Shares of queries, by name.
        times: None where they are not known (a run of another system).
        difference: Of the leading metric to the baseline, with its p-value; None: it is the baseline.
        adjusted_p: That p-value, adjusted for the methods compared on this set (Holm).
        resampled: The leading metric of every resample, the same queries for all methods of a set and others
            for every set: for figures over several sets. Shape: (B,), float64.
    """

    method: str
    is_constrained: bool
    seeds: tuple[int, ...]
    figures: Mapping[str, Figure]
    rates: Mapping[str, float]
    times: Times | None
    difference: Interval | None = None
    adjusted_p: float | None = None
    resampled: npt.NDArray[np.float64] = field(default_factory=lambda: np.empty(0), compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class SetComparison:
    """All methods on one set.

    Attributes:
        labelled: The set.
        primary: The metric that leads.
        metrics: Those shown, the leading one first.
        methods: In the order of the command line.
        num_resampled: What intervals of the leading metric rest on: so many queries or documents.
        by_document: Whether documents are resampled and not queries.
    """

    labelled: LabelledSet
    primary: str
    metrics: tuple[str, ...]
    methods: tuple[MethodFigures, ...]
    num_resampled: int
    by_document: bool


def compare(
    sets: Sequence[LabelledSet], runs: Sequence[MethodRun], settings: Settings
) -> tuple[SetComparison, ...]:
    """Return the comparison of all methods on every set.

    Raises:
        InputError: a metric is unknown, or the baseline is none of the methods.
        MissingExtraError: ir-measures is not installed.
    """
    return tuple(
        _compare(labelled, [r for r in runs if r.set_name == labelled.name], settings, number)
        for number, labelled in enumerate(sets)
    )


def _compare(
    labelled: LabelledSet, runs: Sequence[MethodRun], settings: Settings, number: int
) -> SetComparison:
    asked = settings.metrics or DEFAULT_METRICS[labelled.kind]
    primary = labelled.primary if settings.metrics is None else settings.metrics[0]
    shown = [name for name in dict.fromkeys([primary, *asked]) if name not in RATES]
    groups = _groups(labelled)
    values: dict[str, dict[str, MetricValues]] = {}
    methods: dict[str, MethodFigures] = {}
    for method in dict.fromkeys(run.method for run in runs):
        mine = [run for run in runs if run.method == method]
        measured = [{m.name: m for m in measure(labelled, run, [*shown, *RATES])} for run in mine]
        pooled = {name: pool([by_name[name] for by_name in measured]) for name in [*shown, *RATES]}
        figures = {}
        for name in shown:
            interval = bootstrap(
                pooled[name], groups, settings.num_resamples, settings.confidence, settings.seed
            )
            figures[name] = Figure(interval, _spread([by_name[name].value for by_name in measured]))
        values[method] = pooled
        methods[method] = MethodFigures(
            method=method,
            is_constrained=mine[0].is_constrained,
            seeds=tuple(run.seed for run in mine if run.seed is not None),
            figures=figures,
            rates={name: pooled[name].value for name in RATES},
            times=_times(mine),
            resampled=resampled_figures(
                pooled[primary], groups, settings.num_resamples, (settings.seed, number)
            ),
        )
    compared = _with_differences(methods, values, primary, groups, settings)
    leading = next(iter(values.values()))[primary]
    return SetComparison(
        labelled,
        primary,
        tuple(shown),
        tuple(compared.values()),
        num_resampled=num_groups(leading, groups),
        by_document=groups is not None and len(set(groups)) > 1,
    )


def _with_differences(
    methods: Mapping[str, MethodFigures],
    values: Mapping[str, Mapping[str, MetricValues]],
    primary: str,
    groups: Sequence[str] | None,
    settings: Settings,
) -> dict[str, MethodFigures]:
    """Add the differences to the baseline; none where it did not run."""
    if settings.baseline not in methods:
        return dict(methods)
    differences = {
        name: paired_bootstrap(
            values[name][primary],
            values[settings.baseline][primary],
            groups,
            settings.num_resamples,
            settings.confidence,
            settings.seed,
        )
        for name in methods
        if name != settings.baseline
    }
    adjusted = dict(zip(differences, holm([d.p_value or 0.0 for d in differences.values()]), strict=True))
    return {
        name: replace(figures, difference=differences.get(name), adjusted_p=adjusted.get(name))
        for name, figures in methods.items()
    }


def pool(seeds: Sequence[MetricValues]) -> MetricValues:
    """Return a metric over several passes of a method: per query the mean, of counts as well."""
    if len(seeds) == 1:
        return seeds[0]
    name = seeds[0].name
    stacked = np.stack([values.per_query for values in seeds])
    known = ~np.isnan(stacked)
    number = known.sum(axis=0)
    sums = np.where(known, stacked, 0.0).sum(axis=0)
    mean = np.divide(sums, number, out=np.full(len(number), np.nan), where=number > 0)
    if seeds[0].counts is None:
        return MetricValues(name, mean_value(mean), mean)
    # Means and not sums: a micro-average is the same, and other methods may have other numbers of seeds.
    counts: npt.NDArray[np.float64] = np.mean([v.counts for v in seeds if v.counts is not None], axis=0)
    return MetricValues(name, float(micro_average(name, counts.sum(axis=0))), mean, counts)


def _spread(values: Sequence[float]) -> float | None:
    return float(np.std(values, ddof=1)) if len(values) > 1 else None


def _times(runs: Sequence[MethodRun]) -> Times | None:
    seconds = np.array([ranking.seconds for run in runs for ranking in run.rankings if ranking.error is None])
    if not seconds.any():
        return None
    percentiles = [float(value) * 1e3 for value in np.percentile(seconds, _PERCENTILES)]
    total = sum(run.seconds for run in runs) / len(runs)
    p50, p95, p99 = percentiles
    return Times(p50, p95, p99, float(seconds.mean()) * 1e3, total, len(runs[0].rankings) / total)


def _groups(labelled: LabelledSet) -> list[str] | None:
    """Return what queries are resampled with: their document, where any has one."""
    if all(query.document is None for query in labelled.queries):
        return None
    return [
        f"query {query.query_id}" if query.document is None else f"document {query.document}"
        for query in labelled.queries
    ]


Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class OverviewRow:
    """One method.

    Attributes:
        method: Its name.
        figures: Set -> its leading metric.
        mean: Over the sets, each counted once whatever its size.
        mean_low: Lower end of its interval, over queries like those of these sets; NaN where it has none.
        mean_high: Upper end.
        gain: The mean relative to that of the baseline, minus 1; None: it is the baseline, or that has 0.
        gain_low: Lower end of its interval, both resampled with the same queries; None: as `gain`, or a
            resample in which the baseline has 0.
        gain_high: Upper end.
        invalid: Mean over the sets of the share of answers that do not exist.
        milliseconds: Mean over the sets of the mean time per query; None where it is not known.
        seconds: For one pass over all sets; None where it is not known.
    """

    method: str
    figures: Mapping[str, float]
    mean: float
    mean_low: float
    mean_high: float
    gain: float | None
    gain_low: float | None
    gain_high: float | None
    invalid: float
    milliseconds: float | None
    seconds: float | None


@dataclass(frozen=True, slots=True)
class Overview:
    """All methods over all sets.

    Attributes:
        set_names: In order.
        metrics: The leading metric of each.
        baseline: The method that means are compared with.
        rows: One per method.
    """

    set_names: tuple[str, ...]
    metrics: tuple[str, ...]
    baseline: str
    rows: tuple[OverviewRow, ...]


def make_overview(comparisons: Sequence[SetComparison], baseline: str, confidence: float = 0.95) -> Overview:
    """Return what all sets come to. All have the same methods.

    Queries are resampled within their sets: intervals speak of further queries of these sets, and not of
    further sets.
    """
    methods = [m.method for m in comparisons[0].methods]
    by_method = {
        name: [(c, next(m for m in c.methods if m.method == name)) for c in comparisons] for name in methods
    }
    reference = _figures(by_method[baseline]) if baseline in by_method else None
    rows = [
        _row(
            name,
            [(c.labelled.name, c.primary, m) for c, m in of_sets],
            _figures(of_sets),
            None if name == baseline else reference,
            confidence,
        )
        for name, of_sets in by_method.items()
    ]
    return Overview(
        tuple(c.labelled.name for c in comparisons),
        tuple(c.primary for c in comparisons),
        baseline,
        tuple(rows),
    )


def _figures(of_sets: Sequence[tuple[SetComparison, MethodFigures]]) -> Floats:
    """Return the mean over the sets, and behind it that of every resample. Shape: (1 + B,)."""
    figures = [
        np.concatenate([[m.figures[comparison.primary].interval.value], m.resampled])
        for comparison, m in of_sets
    ]
    known = [row for row in figures if not math.isnan(row[0])]
    return np.mean(known, axis=0) if known else np.full(len(figures[0]), np.nan)


def _row(
    method: str,
    of_sets: Sequence[tuple[str, str, MethodFigures]],
    means: Floats,
    reference: Floats | None,
    confidence: float,
) -> OverviewRow:
    times = [m.times for _, _, m in of_sets if m.times is not None]
    has_times = len(times) == len(of_sets)
    low, high = percentiles(means[1:], confidence)
    gain, gain_low, gain_high = _gain(means, reference, confidence)
    return OverviewRow(
        method=method,
        figures={name: m.figures[metric].interval.value for name, metric, m in of_sets},
        mean=float(means[0]),
        mean_low=low,
        mean_high=high,
        gain=gain,
        gain_low=gain_low,
        gain_high=gain_high,
        invalid=_mean([m.rates["invalid"] for _, _, m in of_sets]),
        milliseconds=_mean([t.mean_ms for t in times]) if has_times else None,
        seconds=sum(t.total_s for t in times) if has_times else None,
    )


def _gain(
    means: Floats, reference: Floats | None, confidence: float
) -> tuple[float | None, float | None, float | None]:
    """Return the relative gain of the mean, and its interval."""
    if reference is None or not reference[0] > 0:
        return None, None, None
    gain = float(means[0] / reference[0] - 1)
    if not (reference[1:] > 0).all():
        return gain, None, None
    return gain, *percentiles(means[1:] / reference[1:] - 1, confidence)


def _mean(values: Sequence[float]) -> float:
    known = [value for value in values if not math.isnan(value)]
    return sum(known) / len(known) if known else math.nan
