"""Methods side by side: metrics with intervals, differences to a baseline, rates and times."""

from __future__ import annotations

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
    resampled_figures,
)
from retrieval.evaluation.linking_metrics import micro_average
from retrieval.evaluation.metrics import DEFAULT_METRICS, MetricValues, mean_value, measure
from retrieval.evaluation.types import LabelledSet, MethodRun

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
