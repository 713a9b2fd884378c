"""Ways to order candidates by a log-probability and a similarity, each with the settings that are tried."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from shortlist_figures.candidates import Candidates, Floats

WEIGHTS = (
    0.0,
    0.5,
    1.0,
    2.0,
    3.0,
    4.0,
    5.0,
    6.0,
    8.0,
    10.0,
    12.0,
    15.0,
    20.0,
    25.0,
    30.0,
    40.0,
    60.0,
    100.0,
    1000.0,
)
_TEMPERATURES = (0.02, 0.05, 0.1, 0.2)
_SHARES = (0.05, 0.1, 0.2, 0.35, 0.5, 0.65, 0.8, 0.9)
_RANK_CONSTANTS = (1.0, 10.0, 60.0)
_RANK_WEIGHTS = (0.25, 0.5, 1.0, 2.0, 4.0)
_DEVIATIONS = (0.1, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 5.0)

Scores = Callable[[Candidates], Floats]


@dataclass(frozen=True, slots=True)
class Fusion:
    """One way with its settings.

    Attributes:
        name: Of both.
        scores: Of the candidates of a query, higher is better. Shape: (n,).
    """

    name: str
    scores: Scores

    def ranked(self, candidates: Candidates) -> list[int]:
        """Return the places of the candidates, best first; of equal ones the more probable first."""
        return np.lexsort((-candidates.logprobs, -self.scores(candidates))).tolist()


def weighted(weight: float) -> Fusion:
    """The library's: log-probability plus `weight` times similarity."""
    return Fusion(f"{weight:g}", lambda c: c.logprobs + weight * c.similarities)


def mixture(share: float, temperature: float) -> Fusion:
    """A mixture of two distributions over the list: the model's, and a softmax of similarities."""

    def scores(c: Candidates) -> Floats:
        return (1 - share) * _softmax(c.logprobs) + share * _softmax(c.similarities / temperature)

    return Fusion(f"share {share:g}, temperature {temperature:g}", scores)


def reciprocal_ranks(constant: float, weight: float) -> Fusion:
    """Reciprocal rank fusion, with a weight for the list of the vectors."""

    def scores(c: Candidates) -> Floats:
        return 1 / (constant + _ranks(c.logprobs)) + weight / (constant + _ranks(c.similarities))

    return Fusion(f"constant {constant:g}, weight {weight:g}", scores)


def standardised(weight: float) -> Fusion:
    """Both scores divided by their standard deviation over the list, the similarity times `weight`."""

    def scores(c: Candidates) -> Floats:
        return c.logprobs / _deviation(c.logprobs) + weight * c.similarities / _deviation(c.similarities)

    return Fusion(f"{weight:g}", scores)


def families(weights: Sequence[float] = WEIGHTS) -> Mapping[str, Sequence[Fusion]]:
    """Return every way with the settings that are tried; the first is the library's."""
    return {
        "logprob + weight * similarity": [weighted(w) for w in weights],
        "mixture of distributions": [mixture(s, t) for s in _SHARES for t in _TEMPERATURES],
        "reciprocal ranks": [reciprocal_ranks(c, w) for c in _RANK_CONSTANTS for w in _RANK_WEIGHTS],
        "by standard deviations": [standardised(w) for w in _DEVIATIONS],
    }


def _softmax(values: Floats) -> Floats:
    if not len(values):
        return values
    weights = np.exp(values - values.max())
    return weights / weights.sum()


def _ranks(values: Floats) -> Floats:
    ranks = np.empty(len(values))
    ranks[np.argsort(-values, kind="stable")] = np.arange(1, len(values) + 1)
    return ranks


def _deviation(values: Floats) -> float:
    return max(float(values.std()), 1e-9) if len(values) else 1.0
