"""`Ranking`: log P(e | q) of the model and the evidence, combined log-linearly over one set of candidates.

    s(e) = sum over features k of weight(k) * g_k(q, e)
    P(e | q, something fits) = exp s(e) / sum of exp s(e') over the candidates e'
    P(nothing fits) = 1 / (1 + exp -t),    t = a + sum of b_j * h_j(q, candidates)

The weights are fitted by `retrieval.ranking.fitting`, so that the probabilities are calibrated on queries
like those it was given. Nothing of this touches log P(e | q) itself, which stays the model's own.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from retrieval.errors import IndexFormatError
from retrieval.evidence.evidence import FEATURE_NUMBER, FEATURES, KINDS, LEAST_LOGPROB

FloatArray = npt.NDArray[np.float64]

MODEL_LOGPROB = FEATURE_NUMBER["model.logprob"]
MODEL_PRIOR = FEATURE_NUMBER["model.prior"]
# Features whose best value among the candidates says whether anything fits.
_FIT_FEATURES = (
    "names.letters",
    "names.likeness",
    "names.whole",
    "names.mentioned",
    "texts.words",
    "texts.letters",
    "queries.letters",
    "queries.nearest",
    "queries.same",
    "vectors.similarity",
    "model.logprob",
)
NOTHING_FEATURES = ("bias", "certainty", "score", *_FIT_FEATURES)


@dataclass(frozen=True, slots=True)
class Provenance:
    """What a ranking was fitted on.

    Attributes:
        queries: Where they come from: "made from the catalogue", or names of files.
        num_queries: How many.
        kinds: Kinds of evidence that there were.
        seed: Of everything random.
        metrics: What came out, before and after; name to value.
    """

    queries: str
    num_queries: int
    kinds: tuple[str, ...]
    seed: int = 0
    metrics: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, eq=False)
class Ranked:
    """What a ranking says of the candidates of one query.

    Attributes:
        scores: s(e). Shape: (n,).
        probabilities: P(e | q), which with `nothing` add up to 1. Shape: (n,).
        nothing: The probability that no entity of the index is meant.
        shares: What each kind of evidence adds to the score of each candidate: a row adds up to its score.
            Shape: (n, number of kinds).
    """

    scores: FloatArray
    probabilities: FloatArray
    nothing: float
    shares: FloatArray

    def shares_of(self, place: int) -> dict[str, float]:
        """Return what each kind of evidence adds to the score of a candidate, the largest first."""
        pairs = zip(KINDS, self.shares[place].tolist(), strict=True)
        return dict(sorted(((kind, share) for kind, share in pairs if share), key=lambda pair: -abs(pair[1])))


@dataclass(frozen=True, slots=True, eq=False)
class Ranking:
    """Weights of features, and of what says that nothing fits.

    Attributes:
        weights: One per feature, as in `FEATURES`. Shape: (number of features,).
        nothing: One per `NOTHING_FEATURES`. Shape: (number of them,).
        provenance: What they were fitted on; None for the weights that come with the library.
    """

    weights: FloatArray
    nothing: FloatArray
    provenance: Provenance | None = None

    def rank(
        self, features: npt.NDArray[np.float32], logprobs: Sequence[float] | FloatArray | None = None
    ) -> Ranked:
        """Weigh candidates.

        Args:
            features: As `Evidence.features` returns them. Shape: (n, number of features).
            logprobs: log P(e | q) of each; None where no model was asked.
        """
        table = filled(features, logprobs)
        parts = table * self.weights
        scores = parts.sum(axis=1)
        nothing = 1.0
        probabilities = np.zeros(len(scores))
        if len(scores):
            odds = float(nothing_features(table, scores, logprobs is not None) @ self.nothing)
            nothing = 1 / (1 + math.exp(-min(max(odds, -700), 700)))
            probabilities = (1 - nothing) * softmax(scores)
        shares = np.stack([parts[:, columns].sum(axis=1) for columns in _COLUMNS.values()], axis=1)
        return Ranked(scores, probabilities, nothing, shares)

    def scores(
        self, features: npt.NDArray[np.float32], logprobs: Sequence[float] | None = None
    ) -> FloatArray:
        """Return s(e) alone, as `rank` does, for whoever needs no more than an order. Shape: (n,)."""
        scores: FloatArray = (filled(features, logprobs) * self.weights).sum(axis=1)
        return scores

    def to_json(self) -> dict[str, Any]:
        """Return the ranking as JSON: weights by name, 0 left out."""
        names = [str(feature) for feature in FEATURES]
        return {
            "weights": {n: float(w) for n, w in zip(names, self.weights, strict=True) if w},
            "nothing": {n: float(w) for n, w in zip(NOTHING_FEATURES, self.nothing, strict=True) if w},
            "provenance": None if self.provenance is None else asdict(self.provenance),
        }

    @classmethod
    def from_json(cls, value: Any, where: str) -> Self:
        """Read what `to_json` gave.

        Args:
            value: A JSON value.
            where: Whence it comes, for messages.

        Raises:
            IndexFormatError: it is no ranking, or one of features that this version does not know.
        """
        try:
            told = value["provenance"]
            provenance = None
            if told is not None:
                told = {**told, "kinds": tuple(map(str, told["kinds"])), "metrics": dict(told["metrics"])}
                provenance = Provenance(**told)
            weights = vector_of(value["weights"], [str(feature) for feature in FEATURES])
            return cls(weights, vector_of(value["nothing"], NOTHING_FEATURES), provenance)
        except (KeyError, TypeError, ValueError, OverflowError, AttributeError) as error:
            raise IndexFormatError(f"{where}: not a ranking: {error!r}") from error


_COLUMNS = {
    kind: [number for number, feature in enumerate(FEATURES) if feature.kind == kind] for kind in KINDS
}


def filled(features: npt.NDArray[np.float32], logprobs: Sequence[float] | FloatArray | None) -> FloatArray:
    """Return features with that of the model filled in, where one was asked; takes what `rank` takes."""
    table = features.astype(np.float64)
    if logprobs is not None:
        table[:, MODEL_LOGPROB] = np.maximum(logprobs, LEAST_LOGPROB)
    return table


def softmax(scores: FloatArray) -> FloatArray:
    """Return exp(scores), adding up to 1."""
    parts: FloatArray = np.exp(scores - scores.max())
    parts /= parts.sum()
    return parts


def nothing_features(table: FloatArray, scores: FloatArray, has_model: bool) -> FloatArray:
    """Return what says whether anything fits, as in `NOTHING_FEATURES`. Shape: (number of them,).

    Args:
        table: Features of the candidates, the model's filled in. Shape: (n, number of features), n > 0.
        scores: s(e) of each. Shape: (n,).
        has_model: Whether a model was asked.
    """
    certainty = math.log(max(1 - softmax(scores).max(), 1e-6))
    top = float(scores.max())
    best = [float(table[:, FEATURE_NUMBER[name]].max()) for name in _FIT_FEATURES]
    if not has_model:
        best[-1] = 0.0
    return np.array([1.0, certainty, top, *best])


def vector_of(named: Mapping[str, Any], names: Sequence[str]) -> FloatArray:
    """Return weights by name as a vector, 0 where a name is missing.

    Raises:
        ValueError: an unknown name, or a weight that is not finite.
    """
    unknown = sorted(set(named) - set(names))
    if unknown:
        raise ValueError(f"unknown features {unknown}")
    vector = np.array([float(named.get(name, 0.0)) for name in names])
    if not np.isfinite(vector).all():
        raise ValueError("a weight is not finite")
    return vector
