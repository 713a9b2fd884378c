"""Compares methods: metrics with intervals, differences to a baseline, rates and times."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from genret.retrieval.evaluation.intervals import (
    Interval,
    bootstrap,
    holm,
    num_groups,
    paired_bootstrap,
    percentiles,
    resampled_figures,
)
from genret.retrieval.evaluation.labelled_sets import LabelledSet, MethodRun
from genret.retrieval.evaluation.metrics import (
    DEFAULT_METRICS,
    REPORTED_RATES,
    Floats,
    MetricValues,
    mean_value,
    measure,
    micro_average,
)


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings of all figures."""

    baseline: str  # method that others are compared with
    metrics: tuple[str, ...] | None = None  # metrics wanted; None: those that go with the kind of each set
    num_resamples: int = 2000  # number of bootstrap resamples
    confidence: float = 0.95  # confidence of intervals
    seed: int = 0  # seed of the resampling


@dataclass(frozen=True, slots=True)
class Figure:
    """One metric of one method on one set: its interval over queries, the mean over seeds.

    `spread` is the standard deviation over seeds; None with one.
    """

    interval: Interval
    spread: float | None = None


@dataclass(frozen=True, slots=True)
class Times:
    """Wall times of a method, all seeds together: milliseconds per query, and seconds of one pass."""

    p50_ms: float
    p95_ms: float
    p99_ms: float
    mean_ms: float
    total_s: float
    queries_per_s: float


@dataclass(frozen=True, slots=True)
class MethodFigures:
    """Figures of one method on one set."""

    method: str  # name of the method
    is_constrained: bool  # whether it can only answer with entities of the index
    seeds: tuple[int, ...]  # seeds it ran with; empty if it draws nothing
    figures: Mapping[str, Figure]  # figures by metric, without rates
    rates: Mapping[str, float]  # shares of queries by name
    times: Times | None  # times; None where they are not known (a run of another system)
    # Difference of the leading metric to the baseline's; None for the baseline
    difference: Interval | None = None
    adjusted_p: float | None = None  # its p-value, adjusted for the methods compared on this set (Holm)
    # Leading metric of every resample, the same queries for all methods of a set, others for every set.
    # Shape: (B,), float64
    resampled: Floats = field(default_factory=lambda: np.empty(0), compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class SetComparison:
    """All methods on one set."""

    labelled: LabelledSet  # the set
    primary: str  # leading metric
    metrics: tuple[str, ...]  # metrics shown, the leading one first
    methods: tuple[MethodFigures, ...]  # figures in the order of the command line
    num_resampled: int  # number of queries or documents behind the leading metric's intervals
    by_document: bool  # whether documents are resampled and not queries


def compare(
    sets: Sequence[LabelledSet], runs: Sequence[MethodRun], settings: Settings
) -> tuple[SetComparison, ...]:
    """Return the comparison of all methods on every set; errors are those of `measure`."""
    return tuple(
        _compare(labelled, [r for r in runs if r.set_name == labelled.name], settings, number)
        for number, labelled in enumerate(sets)
    )


def _compare(
    labelled: LabelledSet, runs: Sequence[MethodRun], settings: Settings, number: int
) -> SetComparison:
    usual = DEFAULT_METRICS[labelled.kind]
    asked = dict.fromkeys(settings.metrics or usual)
    shown = [name for name in asked if name not in REPORTED_RATES] or [usual[0]]
    primary = shown[0]
    groups = _groups(labelled)
    values: dict[str, dict[str, MetricValues]] = {}
    methods: dict[str, MethodFigures] = {}
    for method in dict.fromkeys(run.method for run in runs):
        mine = [run for run in runs if run.method == method]
        measured = [{m.name: m for m in measure(labelled, run, [*shown, *REPORTED_RATES])} for run in mine]
        values[method] = pooled = {
            name: pool([by_name[name] for by_name in measured]) for name in measured[0]
        }
        figures = {}
        for name in shown:
            of_seeds = [by_name[name].value for by_name in measured]
            figures[name] = Figure(
                bootstrap(pooled[name], groups, settings.num_resamples, settings.confidence, settings.seed),
                float(np.std(of_seeds, ddof=1)) if len(of_seeds) > 1 else None,
            )
        methods[method] = MethodFigures(
            method=method,
            is_constrained=mine[0].is_constrained,
            seeds=tuple(run.seed for run in mine if run.seed is not None),
            figures=figures,
            rates={name: pooled[name].value for name in REPORTED_RATES},
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
    mean = np.full(len(number), np.nan)
    np.divide(np.where(known, stacked, 0.0).sum(axis=0), number, out=mean, where=number > 0)
    if seeds[0].counts is None:
        return MetricValues(name, mean_value(mean), mean)
    # Means and not sums: a micro-average is the same, and other methods may have other numbers of seeds.
    counts: Floats = np.mean([v.counts for v in seeds if v.counts is not None], axis=0)
    return MetricValues(name, float(micro_average(name, counts.sum(axis=0))), mean, counts)


def _times(runs: Sequence[MethodRun]) -> Times | None:
    seconds = np.array([ranking.seconds for run in runs for ranking in run.rankings if ranking.error is None])
    if not seconds.any():
        return None
    p50, p95, p99 = (float(value) * 1e3 for value in np.percentile(seconds, (50, 95, 99)))
    total = sum(run.seconds for run in runs) / len(runs)
    return Times(p50, p95, p99, float(seconds.mean()) * 1e3, total, len(runs[0].rankings) / total)


def _groups(labelled: LabelledSet) -> list[str] | None:
    """Return the document of each query, by which queries are resampled; None if no query has one."""
    if all(query.document is None for query in labelled.queries):
        return None
    return [
        f"query {query.query_id}" if query.document is None else f"document {query.document}"
        for query in labelled.queries
    ]


@dataclass(frozen=True, slots=True)
class OverviewRow:
    """One method over all sets; NaN and None stand for what is not known."""

    method: str  # name of the method
    figures: Mapping[str, float]  # set -> its leading metric
    mean: float  # mean over the sets, each counted once whatever its size
    mean_low: float  # lower end of its interval, over further queries of these sets
    mean_high: float  # upper end
    gain: float | None  # mean relative to the baseline's, minus 1; None for the baseline, or if that has 0
    gain_low: float | None  # lower end of its interval; None also if the baseline has 0 in a resample
    gain_high: float | None  # upper end
    invalid: float  # mean over the sets of the share of answers that do not exist
    milliseconds: float | None  # mean over the sets of the mean time per query
    seconds: float | None  # time of one pass over all sets


@dataclass(frozen=True, slots=True)
class Overview:
    """All methods over all sets: each set's leading metric, and the baseline that means are compared with."""

    set_names: tuple[str, ...]
    metrics: tuple[str, ...]
    baseline: str
    rows: tuple[OverviewRow, ...]


_OnSet = tuple[SetComparison, MethodFigures]


def make_overview(comparisons: Sequence[SetComparison], baseline: str, confidence: float = 0.95) -> Overview:
    """Return the overview of several sets that have the same methods.

    Queries are resampled within their sets: intervals speak of further queries of these sets, and not of
    further sets.
    """
    by_method: dict[str, list[_OnSet]] = {}
    for comparison in comparisons:
        for method in comparison.methods:
            by_method.setdefault(method.method, []).append((comparison, method))
    reference = _figures(by_method[baseline]) if baseline in by_method else None
    return Overview(
        tuple(c.labelled.name for c in comparisons),
        tuple(c.primary for c in comparisons),
        baseline,
        tuple(
            _row(name, on_sets, None if name == baseline else reference, confidence)
            for name, on_sets in by_method.items()
        ),
    )


def _figures(on_sets: Sequence[_OnSet]) -> Floats:
    """Return the mean over the sets, and behind it that of every resample. Shape: (1 + B,)."""
    figures = [np.concatenate([[m.figures[c.primary].interval.value], m.resampled]) for c, m in on_sets]
    known = [row for row in figures if not math.isnan(row[0])]
    return np.mean(known, axis=0) if known else np.full(len(figures[0]), np.nan)


def _row(method: str, on_sets: Sequence[_OnSet], reference: Floats | None, confidence: float) -> OverviewRow:
    means = _figures(on_sets)
    times = [m.times for _, m in on_sets if m.times is not None]
    has_times = len(times) == len(on_sets)
    low, high = percentiles(means[1:], confidence)
    gain = gain_low = gain_high = None
    if reference is not None and reference[0] > 0:
        gain = float(means[0] / reference[0] - 1)
        if (reference[1:] > 0).all():
            gain_low, gain_high = percentiles(means[1:] / reference[1:] - 1, confidence)
    return OverviewRow(
        method=method,
        figures={c.labelled.name: m.figures[c.primary].interval.value for c, m in on_sets},
        mean=float(means[0]),
        mean_low=low,
        mean_high=high,
        gain=gain,
        gain_low=gain_low,
        gain_high=gain_high,
        invalid=mean_value(np.array([m.rates["invalid"] for _, m in on_sets])),
        milliseconds=mean_value(np.array([t.mean_ms for t in times])) if has_times else None,
        seconds=sum(t.total_s for t in times) if has_times else None,
    )
