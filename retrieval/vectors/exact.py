"""Exact similarities of a query and entities, computed from their texts."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from retrieval.vectors.embedder import TextEmbedder
from retrieval.vectors.views import EntityTexts

FloatArray = npt.NDArray[np.float32]
IntArray = npt.NDArray[np.int64]

# Entities whose texts are held at once.
_BLOCK = 4096


class ExactSimilarities:
    """Compares a query with the texts of entities.

    Args:
        embedder: Made the vectors.
        texts: Of the same entities.
    """

    def __init__(self, embedder: TextEmbedder, texts: EntityTexts) -> None:
        self._embedder = embedder
        self._texts = texts

    def __call__(self, query: str, entities: IntArray) -> FloatArray:
        """Return the similarity of a query and each entity's most similar text; 0 for one without texts.

        Args:
            query: A text.
            entities: Their numbers, repetitions allowed. Shape: (m,), int64.

        Returns:
            Shape: (m,), float32.

        Raises:
            ValueError: no such entity.
        """
        parts = [
            self._block(query, entities[begin : begin + _BLOCK]) for begin in range(0, len(entities), _BLOCK)
        ]
        return np.concatenate([np.empty(0, np.float32), *parts])

    def _block(self, query: str, entities: IntArray) -> FloatArray:
        numbers, back = np.unique(entities, return_inverse=True)
        batch = self._texts.of(numbers)
        best = np.full(len(numbers), -np.inf, np.float32)
        if batch.texts:
            places = np.searchsorted(numbers, batch.numbers)
            np.maximum.at(best, places, self._embedder.similarities(query, batch.texts))
        best[np.isneginf(best)] = 0.0
        return best[back]
