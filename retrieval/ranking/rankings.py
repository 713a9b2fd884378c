"""Combines log P(e | q) of the model and the evidence log-linearly over one set of candidates (`Ranking`).

    s(e) = sum over features k of weight(k) * g_k(q, e)
    P(e | q, something fits) = exp s(e) / sum of exp s(e') over the candidates e'
    P(nothing fits) = 1 / (1 + exp -t),    t = a + sum of b_j * h_j(q, candidates)

`retrieval.ranking.fitting` fits the weights, so that the probabilities are calibrated on queries like those
it was given. log P(e | q) itself stays the model's own.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from genret.retrieval.errors import IndexFormatError
from genret.retrieval.evidence.evidence import FEATURE_NUMBER, FEATURES, KINDS, LEAST_LOGPROB
from genret.retrieval.index.layout import RANKING_FILE
from genret.retrieval.index.reader import Index
from genret.retrieval.index.small_files import parse_json

FloatArray = npt.NDArray[np.float64]

MODEL_LOGPROB = FEATURE_NUMBER["model.logprob"]
MODEL_PRIOR = FEATURE_NUMBER["model.prior"]
# Features whose best value among the candidates tells whether anything fits.
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
    """The origin of a fitted ranking; ValueError for a number of queries that is none."""

    queries: str  # origin of the queries: "made from the catalogue", or names of files
    num_queries: int
    kinds: tuple[str, ...]  # kinds of evidence at the time
    seed: int = 0  # seed of the fit
    metrics: Mapping[str, float] = field(default_factory=dict)  # metrics before and after, by name

    def __post_init__(self) -> None:
        if type(self.num_queries) is not int or not 0 <= self.num_queries < 1 << 63:
            raise ValueError(f"num_queries: expected 0 <= it < 2**63, got {self.num_queries!r}")


@dataclass(frozen=True, slots=True, eq=False)
class Ranked:
    """Scores of the candidates of one query."""

    scores: FloatArray  # s(e); shape (n,)
    probabilities: FloatArray  # P(e | q); with `nothing` they add up to 1. Shape: (n,)
    nothing: float  # probability that no entity of the index is meant
    # Contribution of each kind of evidence to each score; a row adds up to the score.
    # Shape: (n, number of kinds)
    shares: FloatArray

    def shares_of(self, place: int) -> dict[str, float]:
        """Return the contributions of the kinds of evidence to a candidate's score, the largest first."""
        pairs = zip(KINDS, self.shares[place].tolist(), strict=True)
        return dict(sorted(((kind, share) for kind, share in pairs if share), key=lambda pair: -abs(pair[1])))


@dataclass(frozen=True, slots=True, eq=False)
class Ranking:
    """Weights of features, and of the features for "nothing fits"."""

    weights: FloatArray  # one per feature, as in `FEATURES`; shape (number of features,)
    nothing: FloatArray  # one per `NOTHING_FEATURES`; shape (number of them,)
    provenance: Provenance | None = None  # origin of the weights; None for those that come with the library

    def rank(
        self, features: npt.NDArray[np.float32], logprobs: Sequence[float] | FloatArray | None = None
    ) -> Ranked:
        """Weigh candidates by the features of `Evidence.features` and a model's log P(e | q), if any."""
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
        """Return s(e) alone, as `rank` does. Shape: (n,)."""
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
        """Read a JSON value of `to_json`; `where` names its origin in messages.

        An IndexFormatError says that it is no ranking, or has features that this version does not know.
        """
        try:
            told = value["provenance"]
            provenance = None
            if told is not None:
                metrics = {str(name): float(value) for name, value in told["metrics"].items()}
                kinds = tuple(map(str, told["kinds"]))
                told = {**told, "queries": str(told["queries"]), "kinds": kinds, "metrics": metrics}
                provenance = Provenance(**told)
            weights = vector_of(value["weights"], [str(feature) for feature in FEATURES])
            return cls(weights, vector_of(value["nothing"], NOTHING_FEATURES), provenance)
        except (KeyError, TypeError, ValueError, OverflowError, AttributeError) as error:
            raise IndexFormatError(f"{where}: not a ranking: {error!r}") from error


_COLUMNS = {
    kind: [number for number, feature in enumerate(FEATURES) if feature.kind == kind] for kind in KINDS
}


def filled(features: npt.NDArray[np.float32], logprobs: Sequence[float] | FloatArray | None) -> FloatArray:
    """Return features with the model's filled in, if there is one; arguments as of `Ranking.rank`."""
    table = features.astype(np.float64)
    if logprobs is not None:
        table[:, MODEL_LOGPROB] = np.maximum(logprobs, LEAST_LOGPROB)
    return table


def softmax(scores: FloatArray) -> FloatArray:
    """Return exp(scores), scaled to a sum of 1."""
    parts: FloatArray = np.exp(scores - scores.max())
    parts /= parts.sum()
    return parts


def nothing_features(table: FloatArray, scores: FloatArray, has_model: bool) -> FloatArray:
    """Return the features for "nothing fits", as in `NOTHING_FEATURES`. Shape: (number of them,).

    `table` holds the features of n > 0 candidates, the model's filled in, shape (n, number of features);
    `scores` are their s(e).
    """
    certainty = math.log(max(1 - softmax(scores).max(), 1e-6))
    top = float(scores.max())
    best = [float(table[:, FEATURE_NUMBER[name]].max()) for name in _FIT_FEATURES]
    if not has_model:
        best[-1] = 0.0
    return np.array([1.0, certainty, top, *best])


def vector_of(named: Mapping[str, Any], names: Sequence[str]) -> FloatArray:
    """Return weights by name as a vector, 0 where a name is missing.

    A ValueError names unknown features, or says that a weight is not finite.
    """
    unknown = sorted(set(named) - set(names))
    if unknown:
        raise ValueError(f"unknown features {unknown}")
    vector = np.array([float(named.get(name, 0.0)) for name in names])
    if not np.isfinite(vector).all():
        raise ValueError("a weight is not finite")
    return vector


_FORMAT_VERSION = 1
NO_MODEL = ""


@dataclass(frozen=True, slots=True)
class Rankings:
    """The rankings of an index by the fingerprint of their model, `NO_MODEL` for answers without one."""

    fitted: Mapping[str, Ranking] = field(default_factory=dict)

    @classmethod
    def read(cls, index: Index) -> Self:
        """Read the rankings of an index; there are none if it was never tuned.

        IndexChecksumError: the file is damaged. IndexFormatError: it holds no rankings.
        """
        if index.manifest.file(RANKING_FILE) is None:
            return cls()
        return cls.from_bytes(index.evidence_path(RANKING_FILE).read_bytes())

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Parse the bytes of `to_bytes`. Raises `IndexFormatError` if they hold no rankings."""
        value = parse_json(data, RANKING_FILE)
        if not isinstance(value, dict) or value.get("format_version") != _FORMAT_VERSION:
            raise IndexFormatError(f"{RANKING_FILE}: expected rankings of format version {_FORMAT_VERSION}")
        told = value.get("rankings")
        if not isinstance(told, dict):
            raise IndexFormatError(f"{RANKING_FILE}: rankings: expected an object")
        return cls(
            {name: Ranking.from_json(item, f"{RANKING_FILE}: {name!r}") for name, item in told.items()}
        )

    def to_bytes(self) -> bytes:
        """Serialise; equal rankings give equal bytes."""
        rankings = {name: ranking.to_json() for name, ranking in sorted(self.fitted.items())}
        document: Any = {"format_version": _FORMAT_VERSION, "rankings": rankings}
        return (json.dumps(document, indent=1) + "\n").encode("ascii")

    def with_one(self, fingerprint: str, ranking: Ranking) -> Self:
        """Return the rankings with one added, or replaced for the same model."""
        return replace(self, fitted={**self.fitted, fingerprint: ranking})

    def of(self, fingerprint: str) -> tuple[Ranking, bool]:
        """Return the ranking for a model or `NO_MODEL`, and whether it was fitted on this index.

        An unweighed model gets a small weight beside the weights of the evidence.
        """
        if fingerprint in self.fitted:
            return self.fitted[fingerprint], True
        return DEFAULT_RANKING if fingerprint == NO_MODEL else self.unweighed(), False

    def unweighed(self) -> Ranking:
        """Return the ranking for a model that was not weighed on this index."""
        ranking, _ = self.of(NO_MODEL)
        weights = ranking.weights.copy()
        weights[MODEL_LOGPROB] = UNWEIGHED_MODEL
        return replace(ranking, weights=weights)


# Weight of log P(e | q) for a model that was not weighed on this catalogue: enough to choose among candidates
# that are equal by the evidence, too little to overrule it.
UNWEIGHED_MODEL = 0.2
# Fitted on queries made from 0.9 million titles and from the sample catalogue; see docs/ranking.md.
DEFAULT_RANKING = Ranking(
    vector_of(
        {
            "names.words": 0.1,
            "names.letters": 11.0,
            "names.likeness": 17.0,
            "names.beginning": 2.8,
            "names.whole": 1.7,
            "names.words_long": 0.2,
            "names.letters_long": -13.0,
            "names.likeness_long": -20.0,
            "names.mentioned_long": 5.5,
            "texts.words": 0.2,
            "texts.letters": 0.1,
            "queries.words": 0.2,
            "queries.letters": 0.05,
            "queries.nearest": 4.0,
            "queries.same": 4.0,
            "vectors.similarity": 10.0,
            "weight.weight": 0.7,
        },
        [str(feature) for feature in FEATURES],
    ),
    vector_of({"bias": 2.0, "names.likeness": -3.0, "queries.nearest": -1.5}, NOTHING_FEATURES),
)
