"""What Flat search would find for some queries, kept while all vectors pass by: recall is measured by it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from retrieval.vectors.embedder import FloatMatrix
from retrieval.vectors.kinds import load_faiss
from retrieval.vectors.searching import VectorSearcher, num_candidates
from retrieval.vectors.views import IntArray

NEAREST = 100


class NearestTexts:
    """Keeps the nearest of all vectors seen: what a Flat index would give to be put in order.

    Args:
        texts: The queries.
        vectors: Of the queries. Shape: (Q, d), float32.
    """

    def __init__(self, texts: Sequence[str], vectors: FloatMatrix) -> None:
        self.texts = texts
        self._vectors = vectors
        self._ids = np.empty((len(vectors), 0), np.int64)
        self._values = np.empty((len(vectors), 0), np.float32)
        self._wanted: list[IntArray] | None = None

    def see(self, numbers: IntArray, vectors: FloatMatrix) -> None:
        """Look at more vectors.

        Args:
            numbers: Whose they are. Shape: (m,), int64.
            vectors: Shape: (m, d), float32.
        """
        if not self.texts or not len(numbers):
            return
        faiss = load_faiss()
        kept = num_candidates(NEAREST, True)
        inner = faiss.METRIC_INNER_PRODUCT
        values, places = faiss.knn(self._vectors, vectors, min(kept, len(vectors)), metric=inner)
        values = np.concatenate([self._values, values], axis=1)
        ids = np.concatenate([self._ids, numbers[places]], axis=1)
        order = np.argsort(-values, axis=1, kind="stable")[:, :kept]
        self._values = np.take_along_axis(values, order, axis=1)
        self._ids = np.take_along_axis(ids, order, axis=1)

    def recall(self, searcher: VectorSearcher, effort: int) -> float:
        """Return the share of the 100 entities nearest by Flat search that a search finds, once all are seen.

        Args:
            searcher: Searches the index that holds the vectors seen.
            effort: Cells visited, or candidates kept.
        """
        if self._wanted is None:
            every = zip(self.texts, self._ids, self._values, strict=True)
            self._wanted = [searcher.best(text, ids, values, NEAREST).entities for text, ids, values in every]
        shares = []
        for at, (text, wanted) in enumerate(zip(self.texts, self._wanted, strict=True)):
            if len(wanted):
                found = searcher.search(text, self._vectors[at], NEAREST, effort=effort).entities
                shares.append(len(np.intersect1d(wanted, found)) / len(wanted))
        return float(np.mean(shares)) if shares else 1.0
