"""Measures runs per query: metrics of ir-measures, KILT's over evidence sets, InKB micro-F1, and rates.

What counts as an answer is the same for all of them (`labelled_sets.judge`): answers given twice count once,
namesakes of an entity that is judged count as that entity, and a relevant answer that the index lacks is
never found.

Ranking metrics (nDCG@10, RR@10, Success@1, AP) are those of ir-measures, which for most of them is trec_eval.

KILT's metrics are over evidence sets (Petroni et al. 2021, section 5, and its scripts/eval_retrieval). An
evidence set holds the pages that together support one answer. Pages that are guessed twice count once.

Micro-averages of entity linking are GERBIL's InKB (Röder et al. 2018), with the index as the knowledge base.
InKB leaves out what names nothing in the knowledge base on both sides, in the labels and in the answers, and
then counts matches:

- gold: mentions with a right answer in the index;
- predicted: mentions that are answered with an entity of the index. NO_MATCH is no prediction, and neither
  is a text that is no title;
- correct: mentions that are both, and the entity is a right one. The match is strong: mentions are given with
  their ends, so an answer belongs to one mention.

An entity named where the label is NIL, or where the index lacks the right answer, is thus a wrong prediction:
it lowers precision and not recall. Where every mention has its answer in the index and is answered with an
entity, precision, recall, F1 and accuracy are one number.

Rates need no labels: how often there is no answer, no title, the same answer again, or an error.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt

from retrieval.errors import InputError, MissingExtraError
from retrieval.evaluation.labelled_sets import (
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
    """Return a micro-average from sums of counts; 0 where nothing was predicted, or nothing was to be.

    Args:
        name: One of `MICRO_METRICS`.
        sums: Correct, predicted and gold. Shape: (..., 3).

    Returns:
        Shape: (...).
    """
    correct, predicted, gold = sums[..., 0], sums[..., 1], sums[..., 2]
    above, below = {
        "F1(InKB)": (2 * correct, predicted + gold),
        "P(InKB)": (correct, predicted),
        "R(InKB)": (correct, gold),
    }[name]
    return np.divide(above, below, out=np.zeros_like(below, dtype=np.float64), where=below > 0)


def accuracy(judged: Sequence[JudgedRanking]) -> Floats:
    """Return 1 where the first answer is right, 0 elsewhere.

    Where the index has no right answer, NO_MATCH is the right one; an error is none.
    """
    return np.array(
        [j.is_hit if j.is_answerable else not j.ranking.entities and j.ranking.error is None for j in judged],
        dtype=np.float64,
    )


def evidence_sets(query: LabelledQuery) -> tuple[frozenset[str], ...]:
    """Return the distinct sets of a query; where it has none, every relevant entity is one."""
    distinct = tuple(pages for pages in dict.fromkeys(query.evidence) if pages)
    if distinct:
        return distinct
    return tuple(frozenset([entity]) for entity, grade in query.gold.items() if grade > 0)


def r_precision(sets: Collection[frozenset[str]], guesses: Sequence[str]) -> float:
    """Return the share of a set's R pages among the first R guesses, for the set where it is largest.

    Args:
        sets: Evidence sets; 0.0 without any.
        guesses: Distinct, best first.
    """
    return max((len(pages.intersection(guesses[: len(pages)])) / len(pages) for pages in sets), default=0.0)


def evidence_ranks(sets: Collection[frozenset[str]], guesses: Sequence[str]) -> list[bool]:
    """Return the ranking in which each evidence set is one answer: whether each place completes a set.

    All pages of a set that have been guessed share one place, that of the last of them, until another one is
    guessed; the place is right when the set is complete. A guess that is in no set has a place to itself. A
    page in several sets has a place in each.
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


def evidence_recall(sets: Collection[frozenset[str]], guesses: Sequence[str], k: int) -> float:
    """Return the share of the evidence sets that are complete in the first k places."""
    return sum(evidence_ranks(sets, guesses)[:k]) / len(sets) if sets else 0.0


def evidence_success(sets: Collection[frozenset[str]], guesses: Sequence[str], k: int) -> float:
    """Return 1.0 where a whole evidence set is in the first k places, else 0.0."""
    return float(any(evidence_ranks(sets, guesses)[:k]))


def evidence_precision(sets: Collection[frozenset[str]], guesses: Sequence[str], k: int) -> float:
    """Return the number of evidence sets complete in the first k places, divided by k."""
    return sum(evidence_ranks(sets, guesses)[:k]) / k


def no_match(ranking: RankedAnswers) -> float:
    """Return 1.0 where the method said that nothing answers."""
    return float(not ranking.entities and ranking.error is None)


def invalid(ranking: RankedAnswers) -> float:
    """Return the share of the answers that are no entity of the index."""
    return _share(sum(not entity.is_valid for entity in ranking.entities), ranking)


def invalid_first(ranking: RankedAnswers) -> float:
    """Return 1.0 where the first answer is no entity of the index."""
    return float(bool(ranking.entities) and not ranking.entities[0].is_valid)


def duplicates(ranking: RankedAnswers) -> float:
    """Return the share of the answers that were given before, for the same query."""
    distinct = {entity.entity_id for entity in ranking.entities}
    return _share(len(ranking.entities) - len(distinct), ranking)


def errors(ranking: RankedAnswers) -> float:
    """Return 1.0 where there is no answer because of an error."""
    return float(ranking.error is not None)


RATES: Mapping[str, Callable[[RankedAnswers], float]] = {
    "NO_MATCH": no_match,
    "invalid": invalid,
    "invalid@1": invalid_first,
    "duplicates": duplicates,
    "errors": errors,
}


def _share(number: int, ranking: RankedAnswers) -> float:
    return number / len(ranking.entities) if ranking.entities else 0.0


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


def parse_measure(name: str) -> Any:
    """Return the measure of ir-measures with this name.

    Raises:
        InputError: there is none, a parameter of it is wrong, or nothing that is installed computes it.
        MissingExtraError: ir-measures is not installed.
    """
    ir_measures = _library()
    try:
        measure = ir_measures.parse_measure(name)
        ir_measures.evaluator([measure], {"query": {"document": 1}})  # whether anything here computes it
    except (NameError, ValueError, TypeError, AttributeError, AssertionError, RuntimeError) as error:
        raise InputError("metrics", f"{name!r} is no metric: {error}") from error
    return measure


def ranking_values(judged: Sequence[JudgedRanking], names: Sequence[str]) -> dict[str, Floats]:
    """Compute measures per query; NaN where nothing is judged.

    Only the order counts, not the scores: places in the ranking are the scores that trec_eval sees, so there
    are no ties for it to break by id. A query that was answered nothing has what ir-measures gives a query
    that a run lacks: 0, as a rule.

    Returns:
        Name -> values in the order of `judged`. Shape: (len(judged),).

    Raises:
        InputError: a name is no measure.
        MissingExtraError: ir-measures is not installed.
    """
    measures = {name: parse_measure(name) for name in names}
    values = {name: np.full(len(judged), np.nan) for name in names}
    # Queries go by their places: any text may be an id.
    qrels = {str(i): dict(j.query.gold) for i, j in enumerate(judged) if j.is_judged}
    if not qrels or not measures:
        return values
    run = {str(i): _scores(judged[int(i)].entity_ids) for i in qrels if judged[int(i)].entity_ids}
    for name, measure in measures.items():
        values[name][[int(i) for i in qrels]] = float(measure.DEFAULT or 0.0)
    by_measure: dict[Any, list[str]] = {}
    for name, measure in measures.items():
        by_measure.setdefault(measure, []).append(name)
    for found in _calculated(list(by_measure), qrels, run):
        for name in by_measure[found.measure]:
            values[name][int(found.query_id)] = found.value
    return values


def _calculated(measures: list[Any], qrels: dict[str, dict[str, int]], run: dict[str, Any]) -> list[Any]:
    if not run:
        return []
    return list(_library().iter_calc(measures, qrels, run))


def _scores(entity_ids: Sequence[str]) -> dict[str, float]:
    return {entity_id: float(len(entity_ids) - place) for place, entity_id in enumerate(entity_ids)}


def _library() -> ModuleType:
    try:
        import ir_measures
    except ImportError as error:
        raise MissingExtraError("ir_measures", "eval") from error
    return ir_measures
