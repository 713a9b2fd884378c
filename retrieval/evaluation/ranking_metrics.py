"""Metrics of ir-measures, which for most of them is trec_eval: nDCG@10, RR@10, Success@1, AP."""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt

from retrieval.errors import InputError, MissingExtraError
from retrieval.evaluation.judged import JudgedRanking

Floats = npt.NDArray[np.float64]


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
