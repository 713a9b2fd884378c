"""A shortlister over vectors made up from a seed, searched one by one."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from genret.retrieval.evidence.evidence import Evidence
from genret.retrieval.index.reader import Index
from genret.retrieval.ranking.ranker import Ranker
from genret.retrieval.ranking.rankings import NO_MODEL, Rankings
from genret.retrieval.vectors.vector_search import SimilarEntities, VectorProposer


class MadeUpVectors:
    """Proposes entities of an index as `VectorProposer` does.

    Args:
        index: An open index.
        seed: Of the vectors.

    Attributes:
        asked: The texts of every call of `embed`.
    """

    def __init__(self, index: Index, seed: int = 0) -> None:
        self._index = index
        self._vectors = _unit(np.random.default_rng(seed).normal(size=(index.num_entities, 8)))
        self.asked: list[list[str]] = []

    def opened(self) -> Ranker:
        """Return them as a retriever takes them: as the only evidence, beside a model never weighed."""
        ranking, _ = Rankings().of("unweighed")
        alone, _ = Rankings().of(NO_MODEL)
        return Ranker(Evidence(self._index, vectors=cast("VectorProposer", self)), ranking, alone)

    def embed(self, texts: Sequence[str]) -> npt.NDArray[np.float32]:
        self.asked.append(list(texts))
        return np.stack([_of_text(text) for text in texts])

    def search(
        self, vector: npt.NDArray[np.float32], size: int, allowed: npt.NDArray[np.bool_] | None
    ) -> SimilarEntities:
        alike = self._alike(vector)
        order = np.argsort(-alike, kind="stable")
        if allowed is not None:
            order = order[allowed[order]]
        return SimilarEntities(order[:size], alike[order[:size]])

    def similarities(
        self, vector: npt.NDArray[np.float32], entities: npt.NDArray[np.int64]
    ) -> npt.NDArray[np.float32]:
        return self._alike(vector)[entities]

    def all_similarities(self, text: str) -> npt.NDArray[np.float32]:
        """Return how alike a query and every entity are. Shape: (num_entities,)."""
        return self._alike(_of_text(text))

    def _alike(self, vector: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        return (self._vectors @ vector).astype(np.float32)


def _of_text(text: str) -> npt.NDArray[np.float32]:
    vectors = _unit(np.random.default_rng(zlib.crc32(text.encode())).normal(size=(1, 8)))
    return vectors[0].astype(np.float32)


def _unit(vectors: npt.NDArray[Any]) -> npt.NDArray[Any]:
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
