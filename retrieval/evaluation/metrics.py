"""Metrics per query: those of ir-measures, R-precision over evidence sets, InKB micro-F1, and rates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from retrieval.evaluation.types import LabelledSet, MethodRun


@dataclass(frozen=True, slots=True)
class MetricValues:
    """One metric of one run.

    Attributes:
        name: "nDCG@10", "RR@10", "Success@1", "R@10", "Rprec(KILT)", "F1(InKB)", "P(InKB)", "R(InKB)",
            "NO_MATCH", "invalid", ...
        value: Over the whole set.
        per_query: One value per query, in the set's order, whose mean is `value`; of a micro-average, its
            contributions instead (see `counts`). Shape: (n,), float64.
        counts: Of a micro-averaged metric, per query: correct, predicted and gold. Shape: (n, 3); else None.
    """

    name: str
    value: float
    per_query: npt.NDArray[np.float64]
    counts: npt.NDArray[np.float64] | None = None


def measure(labelled: LabelledSet, run: MethodRun, names: Sequence[str] | None = None) -> list[MetricValues]:
    """Return the metrics of a run, in the order in which a report shows them.

    Args:
        labelled: The set.
        run: Of a method on it.
        names: Metrics wanted; None: those that go with the kind of the set.

    Raises:
        InputError: a name that is no metric; the text lists those there are.
        MissingExtraError: ir-measures is not installed.
    """
    raise NotImplementedError
