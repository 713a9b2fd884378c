"""Fits a ranking to queries whose answers are known: two convex problems.

Candidates of a query are found as `auto` finds them. For an index that nobody has tuned, a ranking is
fitted to queries made from the catalogue itself.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.optimize import minimize
from scipy.special import expit

from retrieval.errors import InputError
from retrieval.evidence.evidence import FEATURE_NUMBER, FEATURES, Evidence
from retrieval.evidence.postings import IntArray
from retrieval.index.reader import Index
from retrieval.ranking.made_queries import MadeQuery, make_queries
from retrieval.ranking.ranker import PROPOSALS
from retrieval.ranking.rankings import (
    DEFAULT_RANKING,
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
class RankedExample:
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


def fit(examples: Sequence[RankedExample], provenance: Provenance) -> Ranking:
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


def _fit_weights(examples: Sequence[RankedExample]) -> FloatArray:
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


def _fit_nothing(examples: Sequence[RankedExample], weights: FloatArray) -> FloatArray:
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


# Candidates of a query that a model was asked, and log P(e | q) of each.
Scored = tuple[IntArray, FloatArray]
# From queries to what a model says to each.
Decode = Callable[[Sequence[str]], Sequence[Scored]]


@dataclass(frozen=True, slots=True)
class Labelled:
    """A query and the entities that answer it.

    Attributes:
        text: The query.
        entities: Their numbers; empty where nothing of the index is meant.
        weight: How much the query counts in a fit.
        name: Whoever has this name is right, too; "" for nobody.
    """

    text: str
    entities: tuple[int, ...]
    weight: float = 1.0
    name: str = ""


def labelled(made: Iterable[MadeQuery]) -> list[Labelled]:
    """Return queries made from the catalogue with their answers."""
    return [Labelled(query.text, (query.entity,), 1.0, query.name) for query in made]


def example_of(query: Labelled, evidence: Evidence, scored: Scored | None = None) -> RankedExample:
    """Return the candidates of a query, as `auto` would find them, had it never been asked before.

    Args:
        query: The query.
        evidence: Proposes and describes candidates.
        scored: The candidates of `auto` by a model; None: there is none, and evidence proposes them.
    """
    (asked,) = evidence.ask([query.text])
    entities, logprobs = scored or (evidence.propose(asked, PROPOSALS), None)
    right = np.isin(entities, query.entities)
    if query.name:
        (called,) = evidence.ask([query.name])
        right |= evidence.features(called, entities)[:, FEATURE_NUMBER["names.whole"]] == 1
    features = evidence.features(asked, entities, without_same=True)
    return RankedExample(features, right, logprobs, query.weight, is_nothing=not query.entities)


@dataclass(frozen=True, slots=True)
class QueryOutcome:
    """What a ranking makes of one query.

    Attributes:
        place: How many wrong candidates are in front of the best right one, equal ones counted; infinite
            where no candidate is right.
        loss: -log P of the right entities, or that nothing fits where nothing is right; at most 20.
        sure: The probability of the first candidate.
        nothing: P(nothing fits).
        without: P(nothing fits) had the right candidates not been there; NaN where none is right.
    """

    place: float
    loss: float
    sure: float
    nothing: float
    without: float


def outcome_of(ranking: Ranking, example: RankedExample) -> QueryOutcome:
    """Return what a ranking makes of a query."""
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


@dataclass(frozen=True, slots=True)
class Quality:
    """How well a ranking does on queries whose answers are known.

    Attributes:
        hits: Share of the queries with a right entity first, and among ten; ties count against it.
        loss: Mean of -log P of the right entities, at most 20 each.
        calibration_error: Mean distance of the first candidate's probability and how often it is right, over
            ten bins of equal width.
        firsts: Per query whether a right entity is first.
    """

    hits: tuple[float, float]
    loss: float
    calibration_error: float
    firsts: npt.NDArray[np.bool_]


def quality_of(ranking: Ranking, examples: Sequence[RankedExample]) -> Quality:
    """Return how well a ranking does."""
    outcomes = [outcome_of(ranking, example) for example in examples]
    places = np.array([outcome.place for outcome in outcomes])
    count = max(len(places), 1)
    return Quality(
        (float((places < 1).sum()) / count, float((places < 10).sum()) / count),
        float(np.mean([outcome.loss for outcome in outcomes])) if outcomes else 0.0,
        calibration_error(np.array([outcome.sure for outcome in outcomes]), places < 1),
        places < 1,
    )


def calibration_error(sure: npt.NDArray[np.float64], is_right: npt.NDArray[np.bool_]) -> float:
    """Return the expected calibration error over ten bins of equal width (Guo et al. 2017, equation 3)."""
    bins = np.minimum((sure * 10).astype(np.int64), 9)
    counts = np.bincount(bins, minlength=10)
    gaps = np.abs(np.bincount(bins, sure, minlength=10) - np.bincount(bins, is_right, minlength=10))
    return float(gaps.sum() / max(counts.sum(), 1))


# With fewer entities nearly every candidate is a namesake or nothing, and two dozen weights mean little.
MIN_ENTITIES = 48
MADE_QUERIES = "made from the catalogue"


def fit_made_queries(
    index: Index,
    evidence: Evidence,
    columns: Sequence[str],
    count: int | None = None,
    seed: int = 0,
) -> Ranking | None:
    """Return the ranking without a model that fits queries made from an index; None for a tiny catalogue.

    The same index and evidence give the same ranking. Its provenance tells how the library's own weights do,
    and how weights fitted to half of the queries do on the other half.

    Args:
        index: The index.
        evidence: Its evidence.
        columns: The columns of texts.
        count: Most queries; None: as `make_queries` has it.
        seed: Of everything random.

    Raises:
        ModelError: the encoder of the vectors fails.
    """
    if index.num_entities < MIN_ENTITIES:
        return None
    made = labelled(make_queries(index, evidence, columns, count, seed))
    examples = [example_of(query, evidence) for query in made]
    told = Provenance(MADE_QUERIES, len(examples), evidence.kinds, seed)
    try:
        metrics = _metrics(examples, told)
        return fit(examples, Provenance(MADE_QUERIES, len(examples), evidence.kinds, seed, metrics))
    except InputError:  # too few queries find their entity
        return None


def _metrics(examples: Sequence[RankedExample], told: Provenance) -> dict[str, float]:
    """Return hits at 1 before and after: of the library's weights, and of weights fitted to other queries."""
    halves = (examples[::2], examples[1::2])
    before = quality_of(DEFAULT_RANKING, examples).hits[0]
    after = [
        quality_of(fit(seen, told), unseen).hits[0] * len(unseen) for seen, unseen in (halves, halves[::-1])
    ]
    return {"hits@1 before": round(before, 4), "hits@1 after": round(sum(after) / len(examples), 4)}
