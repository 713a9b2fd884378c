"""Confidence intervals: the paired bootstrap over queries, or over documents where queries have one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from retrieval.evaluation.metrics import MetricValues


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
    """Return the percentile interval of a metric. `groups`: per query what is resampled as one."""
    raise NotImplementedError


def paired_bootstrap(
    metric: MetricValues,
    baseline: MetricValues,
    groups: Sequence[str] | None = None,
    num_resamples: int = 2000,
    confidence: float = 0.95,
    seed: int = 0,
) -> Interval:
    """Return the interval of metric minus baseline, both resampled with the same queries."""
    raise NotImplementedError
