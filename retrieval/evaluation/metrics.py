"""Metrics per query: those of ir-measures, R-precision over evidence sets, InKB micro-F1, and rates.

What counts as an answer is the same for all of them (`retrieval.evaluation.judged`): answers given twice
count once, namesakes of an entity that is judged count as that entity, and a relevant answer that the index
lacks is never found.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from retrieval.errors import InputError
from retrieval.evaluation.answer_rates import RATES
from retrieval.evaluation.evidence_metrics import (
    evidence_precision,
    evidence_recall,
    evidence_sets,
    evidence_success,
    r_precision,
)
from retrieval.evaluation.judged import JudgedRanking, judge
from retrieval.evaluation.linking_metrics import MICRO_METRICS, accuracy, inkb_counts, micro_average
from retrieval.evaluation.ranking_metrics import parse_measure, ranking_values
from retrieval.evaluation.types import LabelledSet, MethodRun

Floats = npt.NDArray[np.float64]
PRIMARY_METRICS: Mapping[str, str] = {"queries": "nDCG@10", "kilt": "Rprec(KILT)", "mentions": "F1(InKB)"}
_RANKED = ("Success@1", "Success@10", "RR@10", "R@10")
_RATES = ("NO_MATCH", "invalid", "duplicates", "errors")
DEFAULT_METRICS: Mapping[str, tuple[str, ...]] = {
    "queries": ("nDCG@10", *_RANKED, *_RATES),
    "kilt": ("Rprec(KILT)", "R@5(KILT)", "Success@5(KILT)", *_RANKED, *_RATES),
    "mentions": (*MICRO_METRICS, "accuracy", *_RANKED, *_RATES),
}
_AT_K: Mapping[str, Callable[..., float]] = {
    "R": evidence_recall,
    "Success": evidence_success,
    "P": evidence_precision,
}
_KILT = re.compile(r"(?:Rprec|(?P<at>R|Success|P)@(?P<k>[1-9][0-9]{0,5}))\(KILT\)")
_KNOWN = (
    f"those of ir-measures (nDCG@10, RR@10, Success@1, R@100, Rprec, AP, …), Rprec(KILT), R@K(KILT), "
    f"Success@K(KILT), P@K(KILT), {', '.join(MICRO_METRICS)}, accuracy, {', '.join(RATES)}"
)


@dataclass(frozen=True, slots=True)
class MetricValues:
    """One metric of one run.

    Attributes:
        name: "nDCG@10", "RR@10", "Success@1", "R@10", "Rprec(KILT)", "F1(InKB)", "P(InKB)", "R(InKB)",
            "NO_MATCH", "invalid", ...
        value: Over the whole set; NaN where it has no meaning for any query.
        per_query: One value per query, in the set's order, whose mean is `value`; NaN where the metric has no
            meaning for a query, which the mean leaves out (a ranking metric, of a mention labelled NIL). Of a
            micro-average, whether the query was answered rightly (see `counts`). Shape: (n,), float64.
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
        InputError: a name that is no metric; the text lists those there are. Or the run is not of this set.
        MissingExtraError: ir-measures is not installed.
    """
    wanted = list(dict.fromkeys(DEFAULT_METRICS[labelled.kind] if names is None else names))
    ranked = check_metrics(wanted)
    judged = judge(labelled, run)
    of_rankings = ranking_values(judged, ranked)
    return [_measured(name, judged, of_rankings) for name in wanted]


def check_metrics(names: Sequence[str]) -> list[str]:
    """Refuse names that are no metrics, before any work is done.

    Returns:
        Those that ir-measures computes.

    Raises:
        InputError: a name that is no metric; the text lists those there are.
        MissingExtraError: ir-measures is not installed and is needed.
    """
    ranked = [n for n in names if n not in (*MICRO_METRICS, "accuracy", *RATES) and not _KILT.fullmatch(n)]
    for name in ranked:
        try:
            parse_measure(name)
        except InputError as error:
            raise InputError("metrics", f"{error.message}; expected one of {_KNOWN}") from error
    return ranked


def _measured(name: str, judged: Sequence[JudgedRanking], of_rankings: Mapping[str, Floats]) -> MetricValues:
    if name in MICRO_METRICS:
        counts = inkb_counts(judged)
        return MetricValues(name, float(micro_average(name, counts.sum(axis=0))), counts[:, 0], counts)
    if name == "accuracy":
        values = accuracy(judged)
    elif name in RATES:
        values = np.array([RATES[name](j.ranking) for j in judged], dtype=np.float64)
    elif name in of_rankings:
        values = of_rankings[name]
    else:
        values = _of_evidence(name, judged)
    return MetricValues(name, mean_value(values), values)


def mean_value(values: Floats) -> float:
    """Return the mean of the values that are not NaN; NaN without any."""
    known = values[~np.isnan(values)]
    return float(known.mean()) if len(known) else float("nan")


def _of_evidence(name: str, judged: Sequence[JudgedRanking]) -> Floats:
    match = _KILT.fullmatch(name)
    assert match is not None  # `check_metrics` let it through
    values = np.full(len(judged), np.nan)
    for place, ranking in enumerate(judged):
        if not ranking.is_judged:
            continue
        sets = evidence_sets(ranking.query)
        if match["at"] is None:
            values[place] = r_precision(sets, ranking.entity_ids)
        else:
            values[place] = _AT_K[match["at"]](sets, ranking.entity_ids, int(match["k"]))
    return values
