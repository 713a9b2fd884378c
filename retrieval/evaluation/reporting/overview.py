"""All sets together: the leading metric of each, the mean over them, and the time."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from retrieval.evaluation.intervals import percentiles
from retrieval.evaluation.reporting.comparison import MethodFigures, SetComparison

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
