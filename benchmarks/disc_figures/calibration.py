"""What `mass` tells: queries whose answer is in the catalogue against the same with the answer denied."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click
import numpy as np
from harness.divergence import Array
from scipy import stats

from disc_figures.sample_retriever import Query, answers
from genret import RetrievalResult, Retriever, RetrieveRequest

_THRESHOLDS = (0.05, 0.1, 0.25, 0.5, 0.75)
_QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)


def calibration(retriever: Retriever, queries: Sequence[Query]) -> dict[str, Any]:
    """Compare the masses of both groups, and those of right first answers with those of wrong ones."""
    present = answers(retriever, [_request(q, n, ()) for n, q in enumerate(queries)])
    absent = answers(retriever, [_request(q, n, (q.entity_id,)) for n, q in enumerate(queries)])
    inside, outside = _masses(present), _masses(absent)
    right = np.array([_is_right(q, r) for q, r in zip(queries, present, strict=True)])
    figures = {
        "queries": len(queries),
        "right_first": float(right.mean()),
        "quantiles": list(_QUANTILES),
        "mass_answer_present": np.quantile(inside, _QUANTILES).tolist(),
        "mass_answer_denied": np.quantile(outside, _QUANTILES).tolist(),
        "auc_present_against_denied": auc(inside, outside),
        "auc_right_against_wrong": auc(inside[right], inside[~right]),
        "thresholds": [_at(threshold, inside, outside, right) for threshold in _THRESHOLDS],
    }
    _describe(figures)
    return figures


def auc(above: Array, below: Array) -> float | None:
    """Return the probability that one of the first is larger than one of the second, ties counted half."""
    if not len(above) or not len(below):
        return None
    return float(stats.mannwhitneyu(above, below).statistic) / (len(above) * len(below))


def _request(query: Query, number: int, denied: tuple[str, ...]) -> RetrieveRequest:
    return RetrieveRequest(query.text, k=1, method="disc", seed=number, deny_ids=denied)


def _masses(results: Sequence[RetrievalResult]) -> Array:
    return np.array([result.bounded_mass for result in results], dtype=np.float64)


def _is_right(query: Query, result: RetrievalResult) -> bool:
    return bool(result.candidates) and result.candidates[0].entity_id == query.entity_id


def _at(threshold: float, inside: Array, outside: Array, right: Array) -> dict[str, float]:
    """Say what a `min_mass` would do."""
    answered = inside >= threshold
    return {
        "min_mass": threshold,
        "answered_though_denied": float((outside >= threshold).mean()),
        "answered": float(answered.mean()),
        "right_among_answered": float(right[answered].mean()) if answered.any() else 0.0,
    }


def _describe(figures: dict[str, Any]) -> None:
    def masses(name: str) -> str:
        return ", ".join(f"{value:.2f}" for value in figures[name])

    click.echo(
        f"mass of {figures['queries']} queries, quantiles {', '.join(map(str, _QUANTILES))}:\n"
        f"  answer in the catalogue {masses('mass_answer_present')}\n"
        f"  answer denied           {masses('mass_answer_denied')}\n"
        f"  AUC {figures['auc_present_against_denied']:.3f}; of right against wrong first answers "
        f"{figures['auc_right_against_wrong']:.3f}"
    )
    for entry in figures["thresholds"]:
        click.echo(
            f"  min_mass {entry['min_mass']}: answers {entry['answered']:.1%} of those in the catalogue "
            f"({entry['right_among_answered']:.1%} of these right) and {entry['answered_though_denied']:.1%} "
            f"of those denied"
        )
