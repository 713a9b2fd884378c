"""Measures runs per query: metrics of ir-measures, KILT's over evidence sets, InKB micro-F1, and rates.

All count the same answers (`labelled_sets.judge`): an answer given twice counts once, namesakes of a judged
entity count as that entity, and a relevant answer that the index lacks is never found.

An evidence set of KILT holds the pages that together support one answer (Petroni et al. 2021, section 5, and
its scripts/eval_retrieval). Pages that are guessed twice count once.

Micro-averages of entity linking are GERBIL's InKB (Röder et al. 2018), with the index as the knowledge base:

- gold: mentions with a right answer in the index;
- predicted: mentions answered with an entity of the index, not with NO_MATCH or a text that is no title;
- correct: mentions that are both, where the entity is a right one.

An entity named where the label is NIL, or where the index lacks the right answer, lowers precision and not
recall. If every mention has its answer in the index and is answered with an entity, precision, recall, F1 and
accuracy are one number.

Rates need no labels: how often there is no answer, no title, the same answer again, or an error.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from genret.retrieval.errors import InputError, require_package
from genret.retrieval.evaluation.labelled_sets import (
    JudgedRanking,
    LabelledQuery,
    LabelledSet,
    MethodRun,
    RankedAnswers,
    judge,
)

Floats = npt.NDArray[np.float64]
MICRO_METRICS = ("F1(InKB)", "P(InKB)", "R(InKB)")


def inkb_counts(judged: Sequence[JudgedRanking]) -> Floats:
    """Return correct, predicted and gold of every mention, each 0 or 1. Shape: (n, 3)."""
    counts = [(j.is_hit and j.is_answerable, j.prediction is not None, j.is_answerable) for j in judged]
    return np.array(counts, dtype=np.float64).reshape(-1, 3)


def micro_average(name: str, sums: Floats) -> Floats:
    """Return a micro-average from sums of counts (..., 3); 0 where its denominator is 0. Shape: (...)."""
    correct, predicted, gold = sums[..., 0], sums[..., 1], sums[..., 2]
    above, below = {
        "F1(InKB)": (2 * correct, predicted + gold),
        "P(InKB)": (correct, predicted),
        "R(InKB)": (correct, gold),
    }[name]
    return np.divide(above, below, out=np.zeros_like(below, dtype=np.float64), where=below > 0)


def accuracy(judged: Sequence[JudgedRanking]) -> Floats:
    """Return 1 where the first answer is right, else 0; without a right answer in the index, NO_MATCH is."""
    return np.array(
        [j.is_hit if j.is_answerable else not j.ranking.entities and j.ranking.error is None for j in judged],
        dtype=np.float64,
    )


def evidence_sets(query: LabelledQuery) -> tuple[frozenset[str], ...]:
    """Return the distinct evidence sets of a query; without any, every relevant entity is one."""
    distinct = tuple(pages for pages in dict.fromkeys(query.evidence) if pages)
    if distinct:
        return distinct
    return tuple(frozenset([entity]) for entity, grade in query.gold.items() if grade > 0)


def r_precision(sets: Collection[frozenset[str]], guesses: Sequence[str]) -> float:
    """Return the share of a set's R pages among the first R guesses, for the best set; 0.0 without sets."""
    return max((len(pages.intersection(guesses[: len(pages)])) / len(pages) for pages in sets), default=0.0)


def evidence_ranks(sets: Collection[frozenset[str]], guesses: Sequence[str]) -> list[bool]:
    """Return for each place of the ranking, with every evidence set as one answer, if it completes a set.

    Pages of a set share one place, that of the last one guessed. A guess that is in no set has a place to
    itself; a page in several sets has a place in each.
    """
    left = [set(pages) for pages in sets]
    places: list[int | bool] = []  # True: complete; False: in no set; a number from 2: of an open set, plus 2
    for page in guesses:
        in_some = False
        for number, pages in enumerate(left):
            if page not in pages:
                continue
            in_some = True
            pages.remove(page)
            mark = number + 2
            if mark in places:
                places.remove(mark)
            places.append(mark if pages else True)
        if not in_some:
            places.append(False)
    return [place is True for place in places]


def _share(number: int, ranking: RankedAnswers) -> float:
    return number / len(ranking.entities) if ranking.entities else 0.0


def _duplicates(ranking: RankedAnswers) -> float:
    distinct = {entity.entity_id for entity in ranking.entities}
    return _share(len(ranking.entities) - len(distinct), ranking)


RATES: Mapping[str, Callable[[RankedAnswers], float]] = {
    "NO_MATCH": lambda ranking: float(not ranking.entities and ranking.error is None),
    "invalid": lambda ranking: _share(sum(not entity.is_valid for entity in ranking.entities), ranking),
    "invalid@1": lambda ranking: float(bool(ranking.entities) and not ranking.entities[0].is_valid),
    "duplicates": _duplicates,
    "errors": lambda ranking: float(ranking.error is not None),
}


_RANKED = ("Success@1", "Success@10", "RR@10", "R@10")
REPORTED_RATES = ("NO_MATCH", "invalid", "duplicates", "errors")  # in columns of their own
# By the kind of a set; the first one leads.
DEFAULT_METRICS: Mapping[str, tuple[str, ...]] = {
    "queries": ("nDCG@10", *_RANKED, *REPORTED_RATES),
    "kilt": ("Rprec(KILT)", "R@5(KILT)", "Success@5(KILT)", *_RANKED, *REPORTED_RATES),
    "mentions": (*MICRO_METRICS, "accuracy", *_RANKED, *REPORTED_RATES),
}
# A metric at k of KILT, from the number of evidence sets complete in the first k places, all sets, and k.
_AT_K: Mapping[str, Callable[[int, int, int], float]] = {
    "R": lambda complete, num_sets, k: complete / num_sets if num_sets else 0.0,
    "Success": lambda complete, num_sets, k: float(complete > 0),
    "P": lambda complete, num_sets, k: complete / k,
}
_KILT = re.compile(r"(?:Rprec|(?P<at>R|Success|P)@(?P<k>[1-9][0-9]{0,5}))\(KILT\)")
_KNOWN = (
    f"those of ir-measures (nDCG@10, RR@10, Success@1, R@100, Rprec, AP, …), Rprec(KILT), R@K(KILT), "
    f"Success@K(KILT), P@K(KILT), {', '.join(MICRO_METRICS)}, accuracy, {', '.join(RATES)}"
)


class MetricValues(NamedTuple):
    """One metric of one run."""

    name: str  # "nDCG@10", "Rprec(KILT)", "F1(InKB)", "NO_MATCH", ..
    value: float  # value over the whole set; NaN if it has no meaning for any query
    # One value per query, in the set's order, whose mean without NaN is `value`; NaN where the metric has
    # no meaning (a ranking metric, for a mention labelled NIL). For a micro-average, whether the query was
    # answered rightly (see `counts`). Shape: (n,), float64
    per_query: npt.NDArray[np.float64]
    # Correct, predicted and gold per query of a micro-average, else None. Shape: (n, 3), float64
    counts: npt.NDArray[np.float64] | None = None


def measure(labelled: LabelledSet, run: MethodRun, names: Sequence[str] | None = None) -> list[MetricValues]:
    """Return the metrics of a run; None for `names` gives those that go with the kind of the set.

    Raises:
        InputError: a name is no metric; the text lists all.
        MissingExtraError: ir-measures is not installed.
    """
    wanted = list(dict.fromkeys(DEFAULT_METRICS[labelled.kind] if names is None else names))
    ranked = check_metrics(wanted)
    judged = judge(labelled, run)
    of_rankings = ranking_values(judged, ranked)
    return [_measured(name, judged, of_rankings) for name in wanted]


def check_metrics(names: Sequence[str]) -> list[str]:
    """Refuse names that are no metrics with an InputError that lists all, and return those of ir-measures.

    A MissingExtraError says that ir-measures is needed and not installed.
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
            k = int(match["k"])
            complete = sum(evidence_ranks(sets, ranking.entity_ids)[:k])
            values[place] = _AT_K[match["at"]](complete, len(sets), k)
    return values


def parse_measure(name: str) -> Any:
    """Return the measure of ir-measures with this name.

    An InputError says why there is none, or that no installed library computes it.
    """
    ir_measures = _library()
    try:
        measure = ir_measures.parse_measure(name)
        ir_measures.evaluator([measure], {"query": {"document": 1}})  # whether anything here computes it
    except (NameError, ValueError, TypeError, AttributeError, AssertionError, RuntimeError) as error:
        raise InputError("metrics", f"{name!r} is no metric: {error}") from error
    return measure


def ranking_values(judged: Sequence[JudgedRanking], names: Sequence[str]) -> dict[str, Floats]:
    """Return name -> values of ir-measures per query, NaN where nothing is judged. Shape: (len(judged),).

    Only the order counts: trec_eval sees places in the ranking as scores, and so no ties to break by id. A
    query without answers has the value that ir-measures gives a query that a run lacks: 0, as a rule.
    """
    measures = {name: parse_measure(name) for name in names}
    values = {name: np.full(len(judged), np.nan) for name in names}
    # Queries go by their places: any text may be an id.
    qrels = {str(i): dict(j.query.gold) for i, j in enumerate(judged) if j.is_judged}
    run = {
        str(i): {entity_id: float(-place) for place, entity_id in enumerate(j.entity_ids)}
        for i, j in enumerate(judged)
        if j.is_judged and j.entity_ids
    }
    by_measure: dict[Any, list[str]] = {}
    for name, measure in measures.items():
        values[name][[int(i) for i in qrels]] = float(measure.DEFAULT or 0.0)
        by_measure.setdefault(measure, []).append(name)
    if run and measures:
        for found in _library().iter_calc(list(by_measure), qrels, run):
            for name in by_measure[found.measure]:
                values[name][int(found.query_id)] = found.value
    return values


def _library() -> ModuleType:
    require_package("ir_measures", "eval")
    import ir_measures

    return ir_measures
