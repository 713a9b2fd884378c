"""Fitting a ranking to queries whose answers are known: two convex problems."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.optimize import minimize
from scipy.special import expit

from retrieval.errors import InputError
from retrieval.evidence.evidence import FEATURE_NUMBER, FEATURES
from retrieval.ranking.model import (
    NOTHING_FEATURES,
    FloatArray,
    Provenance,
    Ranking,
    filled,
    nothing_features,
)

# Fewer queries say too little about two dozen weights.
MIN_QUERIES = 20
# What the weights, of features with a spread of 1, are kept small by.
_RIDGE, _NOTHING_RIDGE = 1e-3, 3e-3
# Fits leave past queries out that are the same as the one asked, so they cannot tell what such queries are
# worth. They get this weight: who was meant each time before is some fifty times as likely as others.
SAME_WEIGHT = 4.0
_SAME = FEATURE_NUMBER["queries.same"]
# At least this share of queries is taken to be for nothing in the index.
NOTHING_SHARE = 0.05
# More of what such a feature measures never speaks against an entity.
_FREE = frozenset(
    number
    for number, feature in enumerate(FEATURES)
    if feature.name == "length" or feature.name.endswith("_long")
)


@dataclass(frozen=True, slots=True, eq=False)
class Example:
    """A query whose answer is known.

    Attributes:
        features: Of the candidates. Shape: (n, number of features), float32.
        right: Which candidates are right; none where nothing is, or it was not found. Shape: (n,).
        logprobs: log P(e | q) of the candidates, or None without a model. Shape: (n,).
        weight: How much the query counts.
        is_nothing: Whether nothing of the index is meant, rather than something that was not found.
    """

    features: npt.NDArray[np.float32]
    right: npt.NDArray[np.bool_]
    logprobs: FloatArray | None = None
    weight: float = 1.0
    is_nothing: bool = False

    def table(self) -> FloatArray:
        """Return the features, those of the model filled in."""
        return filled(self.features, self.logprobs)


def fit(examples: Sequence[Example], provenance: Provenance) -> Ranking:
    """Return the weights under which the right candidates are likeliest.

    Args:
        examples: All with a model or all without.
        provenance: Of the result.

    Raises:
        InputError: too few queries have their answer among the candidates.
    """
    answered = [example for example in examples if example.right.any()]
    if len(answered) < MIN_QUERIES:
        raise InputError(
            "queries",
            f"expected at least {MIN_QUERIES} with their entity among the candidates, got {len(answered)}",
        )
    if all(example.right.all() for example in answered):
        raise InputError(
            "queries", "every candidate of every query is right: there is nothing to choose from"
        )
    weights = _fit_weights(answered)
    return Ranking(weights, _fit_nothing(examples, weights), provenance)


def _fit_weights(examples: Sequence[Example]) -> FloatArray:
    table = np.concatenate([example.table() for example in examples])
    right = np.concatenate([example.right for example in examples])
    ends = np.cumsum([len(example.right) for example in examples])
    begins = np.concatenate([[0], ends[:-1]])
    query = np.repeat(np.arange(len(examples)), np.diff(ends, prepend=0))
    shares = np.array([example.weight for example in examples])
    shares = shares / shares.sum()
    # What does not tell the candidates of a query apart has no weight.
    spread = np.sqrt(np.add.reduceat(_centred(table, begins, query) ** 2, begins).sum(0) / len(table))
    used = np.flatnonzero(spread > 1e-6)
    weights: FloatArray = np.zeros(len(FEATURES))
    if FEATURE_NUMBER["queries.nearest"] in used:
        weights[_SAME] = SAME_WEIGHT
    if not len(used):
        return weights
    scaled = table[:, used] / spread[used]
    logs = np.where(right, 0.0, -np.inf)

    def loss(weights: FloatArray) -> tuple[float, FloatArray]:
        scores = scaled @ weights
        among_all, of_all = _log_sums(scores, begins, query)
        among_right, of_right = _log_sums(scores + logs, begins, query)
        value = float(shares @ (among_all - among_right)) + _RIDGE * float(weights @ weights)
        slope = scaled.T @ ((of_all - of_right) * shares[query]) + 2 * _RIDGE * weights
        return value, slope

    bounds = [(None, None) if number in _FREE else (0.0, None) for number in used]
    found = minimize(
        loss, np.zeros(len(used)), jac=True, method="L-BFGS-B", bounds=bounds, options={"maxiter": 500}
    )
    weights[used] = found.x / spread[used]
    return weights


def _centred(table: FloatArray, begins: npt.NDArray[np.int64], query: npt.NDArray[np.int64]) -> FloatArray:
    sizes = np.bincount(query)[:, None]
    centred: FloatArray = table - (np.add.reduceat(table, begins) / sizes)[query]
    return centred


def _log_sums(
    scores: FloatArray, begins: npt.NDArray[np.int64], query: npt.NDArray[np.int64]
) -> tuple[FloatArray, FloatArray]:
    """Return the log of the sum of exp over each query, and every candidate's part of its sum."""
    most = np.maximum.reduceat(scores, begins)
    parts = np.exp(scores - most[query])
    sums = np.add.reduceat(parts, begins)
    return most + np.log(sums), parts / sums[query]


def _fit_nothing(examples: Sequence[Example], weights: FloatArray) -> FloatArray:
    """Fit what says that nothing fits: every answered query counts again as if its entity were not there.

    The share of queries for nothing is that of the examples without a right candidate, or `NOTHING_SHARE`
    where they are fewer.
    """
    rows, labels, shares = [], [], []
    for example in examples:
        table, has_answer = example.table(), bool(example.right.any())
        cases = [(np.ones(len(table), np.bool_), not has_answer, example.weight)]
        if has_answer:
            cases.append((~example.right, True, example.weight * NOTHING_SHARE))
        for kept, is_nothing, share in cases:
            if kept.any():
                scores = table[kept] @ weights
                rows.append(nothing_features(table[kept], scores, example.logprobs is not None))
                labels.append(is_nothing)
                shares.append(share)
    table, nothing, counts = np.array(rows), np.array(labels), np.array(shares)
    answered = counts[~nothing].sum()
    unanswered = sum(example.weight for example in examples if len(example.right) and not example.right.any())
    share = max(NOTHING_SHARE, unanswered / (unanswered + answered))
    counts = np.where(nothing, share / counts[nothing].sum(), (1 - share) / answered) * counts
    middle, spread = table.mean(axis=0), table.std(axis=0)
    middle[0], spread[0] = 0.0, 1.0
    used = np.flatnonzero(spread > 1e-6)
    scaled = (table[:, used] - middle[used]) / spread[used]
    signs = np.where(nothing, 1.0, -1.0)

    def loss(weights: FloatArray) -> tuple[float, FloatArray]:
        odds = scaled @ weights
        value = float(counts @ np.logaddexp(0, -signs * odds)) + _NOTHING_RIDGE * float(
            weights[1:] @ weights[1:]
        )
        slope = scaled.T @ (counts * (expit(odds) - nothing)) + 2 * _NOTHING_RIDGE * np.append(0, weights[1:])
        return value, slope

    found = minimize(loss, np.zeros(len(used)), jac=True, method="L-BFGS-B", options={"maxiter": 500})
    fitted: FloatArray = np.zeros(len(NOTHING_FEATURES))
    fitted[used] = found.x / spread[used]
    fitted[0] -= float((middle * fitted)[1:].sum())
    return fitted
