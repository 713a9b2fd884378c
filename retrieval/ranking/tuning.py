"""From queries with their answers to a fitted ranking: candidates as `auto` finds them, then the fit."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from retrieval.evidence.evidence import FEATURE_NUMBER, Evidence
from retrieval.evidence.postings import IntArray
from retrieval.ranking.fitting import Example
from retrieval.ranking.made_queries import MadeQuery
from retrieval.ranking.model import FloatArray, Ranking
from retrieval.ranking.ranker import PROPOSALS

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


def example_of(query: Labelled, evidence: Evidence, scored: Scored | None = None) -> Example:
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
    return Example(features, right, logprobs, query.weight, is_nothing=not query.entities)


@dataclass(frozen=True, slots=True)
class Outcome:
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


def outcome_of(ranking: Ranking, example: Example) -> Outcome:
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
    return Outcome(place, loss, float(ranked.probabilities.max(initial=0)), ranked.nothing, without)


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


def quality_of(ranking: Ranking, examples: Sequence[Example]) -> Quality:
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
