"""Fits a ranking to queries whose answers are known: two convex problems.

Candidates of a query are found as by `auto`. An index that was never tuned gets a ranking fitted to queries
made from the catalogue itself.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from genret.retrieval.errors import InputError
from genret.retrieval.evidence.evidence import FEATURE_NUMBER, FEATURES, Evidence
from genret.retrieval.evidence.postings import IntArray
from genret.retrieval.index.reader import Index
from genret.retrieval.ranking.made_queries import Labelled, make_queries
from genret.retrieval.ranking.ranker import PROPOSALS
from genret.retrieval.ranking.rankings import (
    DEFAULT_RANKING,
    NOTHING_FEATURES,
    FloatArray,
    Provenance,
    Ranking,
    filled,
    nothing_features,
)

# Fewer queries tell too little about two dozen weights.
MIN_QUERIES = 20
# Ridge penalties on the weights, of features with a spread of 1.
_RIDGE, _NOTHING_RIDGE = 1e-3, 3e-3
# Fits leave out past queries equal to the one asked, so they cannot weigh such queries. This weight makes an
# entity that was meant each time before some fifty times as likely as others.
SAME_WEIGHT = 4.0
_SAME = FEATURE_NUMBER["queries.same"]
# Least share of queries that are assumed to be for nothing in the index.
NOTHING_SHARE = 0.05
# Features whose weights may be negative; the weights of all others are not.
_FREE = frozenset(
    number
    for number, feature in enumerate(FEATURES)
    if feature.name == "length" or feature.name.endswith("_long")
)


@dataclass(frozen=True, slots=True, eq=False)
class RankedExample:
    """A query whose answer is known."""

    features: npt.NDArray[np.float32]  # features of the candidates; shape (n, number of features)
    # Mask of the right candidates; empty if nothing is meant, or it was not found. Shape: (n,)
    right: npt.NDArray[np.bool_]
    logprobs: FloatArray | None = None  # log P(e | q) of the candidates, or None without a model; shape (n,)
    weight: float = 1.0  # weight of the query
    is_nothing: bool = False  # whether nothing of the index is meant, rather than something not found

    def table(self) -> FloatArray:
        """Return the features with the model's filled in."""
        return filled(self.features, self.logprobs)


def fit(examples: Sequence[RankedExample], provenance: Provenance) -> Ranking:
    """Return the weights under which the right candidates are likeliest.

    The examples are all with a model or all without.

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


def _fit_weights(examples: Sequence[RankedExample]) -> FloatArray:
    table = np.concatenate([example.table() for example in examples])
    right = np.concatenate([example.right for example in examples])
    ends = np.cumsum([len(example.right) for example in examples])
    begins = np.concatenate([[0], ends[:-1]])
    query = np.repeat(np.arange(len(examples)), np.diff(ends, prepend=0))
    shares = np.array([example.weight for example in examples])
    shares = shares / shares.sum()
    # Features that do not tell the candidates of a query apart get no weight.
    means = np.add.reduceat(table, begins) / np.bincount(query)[:, None]
    spread = np.sqrt(np.add.reduceat((table - means[query]) ** 2, begins).sum(0) / len(table))
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

    floor = np.array([-np.inf if number in _FREE else 0.0 for number in used])
    weights[used] = minimize(loss, np.zeros(len(used)), floor=floor) / spread[used]
    return weights


# A smooth function: its value and its slope at a point.
Smooth = Callable[[FloatArray], tuple[float, FloatArray]]


def minimize(loss: Smooth, start: FloatArray, *, floor: FloatArray | None = None) -> FloatArray:
    """Return where a smooth function is least, by BFGS projected onto lower bounds (Bertsekas 1982).

    Args:
        loss: The function; if it is convex, the point found is its minimum.
        start: Point at which the search begins. Shape: (n,)
        floor: Lower bounds, -inf for none; None bounds nothing. Shape: (n,)
    """
    floor = np.full(len(start), -np.inf) if floor is None else floor
    at, fresh = np.maximum(start, floor), True
    value, slope = loss(at)
    curve = np.eye(len(at))  # estimate of the second derivatives
    for _ in range(500):
        free = (at > floor) | (slope < 0)
        if np.abs(slope[free]).max(initial=0.0) < 1e-7:
            break
        step = np.zeros(len(at))
        step[free] = -np.linalg.solve(curve[np.ix_(free, free)], slope[free])
        step[(at <= floor) & (step < 0)] = 0.0
        length = 1.0
        while length > 1e-10:
            there = np.maximum(at + length * step, floor)
            value_there, slope_there = loss(there)
            if value_there < value + 1e-4 * min(float(slope @ (there - at)), 0.0):
                break
            length /= 2
        else:
            if fresh:  # not even straight down: floats tell no lower value
                break
            curve, fresh = np.eye(len(at)), True
            continue
        moved, change = there - at, slope_there - slope
        if (bend := float(moved @ change)) > 1e-12 * float(moved @ moved):
            if fresh:
                curve *= float(change @ change) / bend
            pulled = curve @ moved
            curve += np.outer(change, change) / bend - np.outer(pulled, pulled) / float(moved @ pulled)
            fresh = False
        at, value, slope = there, value_there, slope_there
    return at


def _log_sums(
    scores: FloatArray, begins: npt.NDArray[np.int64], query: npt.NDArray[np.int64]
) -> tuple[FloatArray, FloatArray]:
    """Return the log of the sum of exp over each query, and every candidate's share of its sum."""
    most = np.maximum.reduceat(scores, begins)
    parts = np.exp(scores - most[query])
    sums = np.add.reduceat(parts, begins)
    return most + np.log(sums), parts / sums[query]


def _fit_nothing(examples: Sequence[RankedExample], weights: FloatArray) -> FloatArray:
    """Fit P(nothing fits): every answered query counts again as if its entity were not there.

    The share of queries for nothing is that of the examples without a right candidate, at least
    `NOTHING_SHARE`.
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
        expected = np.exp(-np.logaddexp(0, -odds))
        slope = scaled.T @ (counts * (expected - nothing)) + 2 * _NOTHING_RIDGE * np.append(0, weights[1:])
        return value, slope

    fitted: FloatArray = np.zeros(len(NOTHING_FEATURES))
    fitted[used] = minimize(loss, np.zeros(len(used))) / spread[used]
    fitted[0] -= float((middle * fitted)[1:].sum())
    return fitted


# Candidates of a query by a model, and log P(e | q) of each.
Scored = tuple[IntArray, FloatArray]
# A function from queries to what a model answers to each.
Decode = Callable[[Sequence[str]], Sequence[Scored]]


def example_of(query: Labelled, evidence: Evidence, scored: Scored | None = None) -> RankedExample:
    """Return a query with its candidates as found by `auto`, as if it had never been asked before.

    With `scored`, the candidates are those of a model; without, evidence proposes them.
    """
    (asked,) = evidence.ask([query.text])
    entities, logprobs = scored or (evidence.propose(asked, PROPOSALS), None)
    right = np.isin(entities, query.entities)
    if query.name:
        (called,) = evidence.ask([query.name])
        right |= evidence.features(called, entities)[:, FEATURE_NUMBER["names.whole"]] == 1
    features = evidence.features(asked, entities, without_same=True)
    return RankedExample(features, right, logprobs, query.weight, is_nothing=not query.entities)


class QueryOutcome(NamedTuple):
    """The outcome of one query under a ranking."""

    # Number of wrong candidates in front of the best right one, ties included; infinite if none is right
    place: float
    loss: float  # -log P of the right entities, or of nothing if nothing is meant; at most 20
    sure: float  # probability of the first candidate
    nothing: float  # P(nothing fits)
    without: float  # P(nothing fits) without the right candidates; NaN if none is right


def outcome_of(ranking: Ranking, example: RankedExample) -> QueryOutcome:
    """Return the outcome of a query under a ranking."""
    right, logprobs = example.right, example.logprobs
    ranked = ranking.rank(example.features, logprobs)
    probability = ranked.nothing if example.is_nothing else float(ranked.probabilities[right].sum())
    place, without = math.inf, math.nan
    if right.any():
        place = float((ranked.scores[~right] >= ranked.scores[right].max()).sum())
        others = None if logprobs is None else logprobs[~right]
        without = ranking.rank(example.features[~right], others).nothing
    loss = min(-math.log(max(probability, 1e-12)), 20.0)
    return QueryOutcome(place, loss, float(ranked.probabilities.max(initial=0)), ranked.nothing, without)


def calibration_error(sure: npt.NDArray[np.float64], is_right: npt.NDArray[np.bool_]) -> float:
    """Return the expected calibration error over ten bins of equal width (Guo et al. 2017, equation 3)."""
    bins = np.minimum((sure * 10).astype(np.int64), 9)
    counts = np.bincount(bins, minlength=10)
    gaps = np.abs(np.bincount(bins, sure, minlength=10) - np.bincount(bins, is_right, minlength=10))
    return float(gaps.sum() / max(counts.sum(), 1))


# With fewer entities nearly every candidate is a namesake or nothing, and two dozen weights mean little.
MIN_ENTITIES = 48
MADE_QUERIES = "made from the catalogue"


def fit_made_queries(index: Index, evidence: Evidence, columns: Sequence[str]) -> Ranking | None:
    """Fit a ranking without a model to queries made from an index; None for a tiny catalogue.

    The same index and evidence give the same ranking. Its provenance tells how the library's own weights do,
    and how weights fitted to half of the queries do on the other half.

    Raises:
        ModelError: the encoder of the vectors fails.
    """
    if index.num_entities < MIN_ENTITIES:
        return None
    examples = [example_of(query, evidence) for query in make_queries(index, evidence, columns)]
    told = Provenance(MADE_QUERIES, len(examples), evidence.kinds)
    try:
        return fit(examples, replace(told, metrics=_metrics(examples, told)))
    except InputError:  # too few queries find their entity
        return None


def _metrics(examples: Sequence[RankedExample], told: Provenance) -> dict[str, float]:
    """Return hits at 1 before, by the library's weights, and after, by weights fitted to other queries."""
    halves = (examples[::2], examples[1::2])
    after = sum(_num_hits(fit(seen, told), unseen) for seen, unseen in (halves, halves[::-1]))
    before, count = _num_hits(DEFAULT_RANKING, examples), len(examples)
    return {"hits@1 before": round(before / count, 4), "hits@1 after": round(after / count, 4)}


def _num_hits(ranking: Ranking, examples: Sequence[RankedExample]) -> int:
    """Return of how many queries a right entity comes first; ties count against it."""
    return sum(outcome_of(ranking, example).place < 1 for example in examples)
