"""All sets together: the leading metric of each, the mean over them, and the time."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from retrieval.evaluation.reporting.comparison import MethodFigures, SetComparison


@dataclass(frozen=True, slots=True)
class OverviewRow:
    """One method.

    Attributes:
        method: Its name.
        figures: Set -> its leading metric.
        mean: Over the sets, each counted once whatever its size.
        gain: The mean relative to that of the baseline, minus 1; None: it is the baseline, or that has 0.
        invalid: Mean over the sets of the share of answers that do not exist.
        milliseconds: Mean over the sets of the mean time per query; None where it is not known.
        seconds: For one pass over all sets; None where it is not known.
    """

    method: str
    figures: Mapping[str, float]
    mean: float
    gain: float | None
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


def make_overview(comparisons: Sequence[SetComparison], baseline: str) -> Overview:
    """Return what all sets come to. All have the same methods."""
    methods = [m.method for m in comparisons[0].methods]
    by_set = {c.labelled.name: {m.method: m for m in c.methods} for c in comparisons}
    primary = {c.labelled.name: c.primary for c in comparisons}
    means = {
        method: _mean([by_set[name][method].figures[primary[name]].interval.value for name in by_set])
        for method in methods
    }
    rows = [
        _row(method, [(name, primary[name], by_set[name][method]) for name in by_set], means, baseline)
        for method in methods
    ]
    return Overview(tuple(by_set), tuple(primary.values()), baseline, tuple(rows))


def _row(
    method: str,
    figures: Sequence[tuple[str, str, MethodFigures]],
    means: Mapping[str, float],
    baseline: str,
) -> OverviewRow:
    reference = means.get(baseline, 0.0)
    times = [of_set.times for _, _, of_set in figures if of_set.times is not None]
    has_times = len(times) == len(figures)
    return OverviewRow(
        method=method,
        figures={name: of_set.figures[metric].interval.value for name, metric, of_set in figures},
        mean=means[method],
        gain=means[method] / reference - 1 if method != baseline and reference > 0 else None,
        invalid=_mean([of_set.rates["invalid"] for _, _, of_set in figures]),
        milliseconds=_mean([t.mean_ms for t in times]) if has_times else None,
        seconds=sum(t.total_s for t in times) if has_times else None,
    )


def _mean(values: Sequence[float]) -> float:
    known = [value for value in values if not math.isnan(value)]
    return sum(known) / len(known) if known else math.nan
