"""The rankings of an index: one without a model, and one for every model that was weighed on it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Self

from retrieval.errors import IndexFormatError
from retrieval.evidence.evidence import FEATURES
from retrieval.index.layout import RANKING_FILE
from retrieval.index.reader import Index
from retrieval.index.small_files import parse_json
from retrieval.ranking.model import MODEL_LOGPROB, NOTHING_FEATURES, Ranking, vector_of

_FORMAT_VERSION = 1
NO_MODEL = ""


@dataclass(frozen=True, slots=True)
class Rankings:
    """The rankings of an index.

    Attributes:
        fitted: By the fingerprint of the model that they are for; `NO_MODEL` for answers without one.
    """

    fitted: Mapping[str, Ranking] = field(default_factory=dict)

    @classmethod
    def read(cls, index: Index) -> Self:
        """Read the rankings of an index; of one that was never tuned there are none.

        Raises:
            IndexChecksumError: the file is damaged.
            IndexFormatError: it is none of rankings.
        """
        if index.manifest.file(RANKING_FILE) is None:
            return cls()
        return cls.from_bytes(index.evidence_path(RANKING_FILE).read_bytes())

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Parse what `to_bytes` wrote.

        Raises:
            IndexFormatError: it is none of rankings.
        """
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
        """Return the rankings with one more, or with another one for the same model."""
        return replace(self, fitted={**self.fitted, fingerprint: ranking})

    def of(self, fingerprint: str) -> tuple[Ranking, bool]:
        """Return the ranking for a model, and whether the model was weighed on this index.

        A model that was not is given a small weight beside evidence that was, or the weights that come with
        the library.

        Args:
            fingerprint: Of the model; `NO_MODEL` for answers without one.
        """
        if fingerprint in self.fitted:
            return self.fitted[fingerprint], True
        ranking = self.fitted.get(NO_MODEL, DEFAULT_RANKING)
        if fingerprint == NO_MODEL:
            return ranking, NO_MODEL in self.fitted
        return self.unweighed(), False

    def unweighed(self) -> Ranking:
        """Return the ranking for a model that was not weighed on this index."""
        ranking, _ = self.of(NO_MODEL)
        weights = ranking.weights.copy()
        weights[MODEL_LOGPROB] = UNWEIGHED_MODEL
        return replace(ranking, weights=weights)


# What log P(e | q) of a model counts that nobody has weighed on this catalogue: enough to choose among
# candidates that evidence holds for equal, too little to overrule it.
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
