"""A shortlister over vectors made up from a seed, searched one by one."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Self, cast

import numpy as np
import numpy.typing as npt

from decoding.cancellation import CancelToken
from retrieval.index.reader import Index
from retrieval.index_vectors import IndexVectors
from retrieval.vectors.searching import Shortlist
from retrieval.vectors.shortlister import Shortlister


class MadeUpVectors:
    """Proposes entities of an index as `Shortlister` does.

    Args:
        num_entities: Of the index.
        seed: Of the vectors.

    Attributes:
        asked: The texts of every call of `propose`.
    """

    def __init__(self, num_entities: int, seed: int = 0) -> None:
        self._vectors = _unit(np.random.default_rng(seed).normal(size=(num_entities, 8)))
        self.asked: list[list[str]] = []

    @classmethod
    def of(cls, index: Index, seed: int = 0) -> Self:
        return cls(index.num_entities, seed)

    def opened(self) -> IndexVectors:
        """Return them as a retriever takes them."""
        return IndexVectors(cast(Shortlister, self))

    def propose(
        self,
        texts: Sequence[str],
        sizes: Sequence[int],
        allowed: Sequence[npt.NDArray[np.bool_] | None] | None = None,
        cancel: Sequence[CancelToken | None] | None = None,
    ) -> list[Shortlist]:
        self.asked.append(list(texts))
        lists = []
        for text, size, mask in zip(texts, sizes, allowed or [None] * len(texts), strict=True):
            alike = self.all_similarities(text)
            order = np.argsort(-alike, kind="stable")
            if mask is not None:
                order = order[mask[order]]
            lists.append(Shortlist(order[:size], alike[order[:size]]))
        return lists

    def embed(self, texts: Sequence[str]) -> npt.NDArray[np.float32]:
        return np.stack([self.query(text) for text in texts])

    def similarities(
        self, vector: npt.NDArray[np.float32], entities: npt.NDArray[np.int64]
    ) -> npt.NDArray[np.float32]:
        return (self._vectors @ vector).astype(np.float32)[entities]

    def all_similarities(self, text: str) -> npt.NDArray[np.float32]:
        """Return how alike a query and every entity are. Shape: (num_entities,)."""
        return (self._vectors @ self.query(text)).astype(np.float32)

    def query(self, text: str) -> npt.NDArray[np.float32]:
        """Return the vector of a query. Shape: (8,)."""
        query = np.random.default_rng(zlib.crc32(text.encode())).normal(size=8)
        return _unit(query[None])[0].astype(np.float32)


def _unit(vectors: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
