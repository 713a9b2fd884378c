"""What words are made of: hashed n-grams and their projections, kept for words that come again."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from threading import Lock
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp
from sklearn.feature_extraction import FeatureHasher

from retrieval.vectors.embedder import FloatMatrix

NUM_FEATURES = 1 << 18

# Of this many words the n-grams and vectors are kept: some 30 MB. Titles share most of their words.
_CAPACITY = 1 << 15


def hash_words(words: Sequence[str]) -> Any:
    """Return how often each n-gram is in each word: the trigrams of " word ", and all of it.

    Returns:
        A sparse matrix; half of the features count downwards. Shape: (len(words), NUM_FEATURES), float32.
    """
    hasher = FeatureHasher(NUM_FEATURES, input_type="string", dtype=np.float32)
    return hasher.transform(map(_n_grams, words))


def _n_grams(word: str) -> list[str]:
    padded = f" {word} "
    return [padded, *(padded[i : i + 3] for i in range(len(word)))]


class WordTable:
    """Weighted n-grams and vectors of words. Safe to use from several threads.

    Args:
        weights: Of every feature. Shape: (NUM_FEATURES,), float32.
        projection: From features to dimensions, sparse. Shape: (NUM_FEATURES, d), float32.
    """

    def __init__(self, weights: npt.NDArray[np.float32], projection: Any) -> None:
        self._weights = weights
        self._projection = projection
        self._lock = Lock()
        self._known: dict[str, int] = {}
        self._vectors: FloatMatrix = np.empty((_CAPACITY, projection.shape[1]), dtype=np.float32)
        self._features: list[tuple[npt.NDArray[np.int32], npt.NDArray[np.float32]]] = []

    def vectors(self, words: Sequence[str]) -> FloatMatrix:
        """Return the projected n-grams of different words. Shape: (len(words), d), float32."""
        if len(words) > _CAPACITY:
            return self._project(self._weigh(words))
        with self._lock:
            slots = self._slots(words)
            return self._vectors[slots]

    def features(self, words: Sequence[str]) -> Any:
        """Return the weighted n-grams of different words. Shape: (len(words), NUM_FEATURES), sparse."""
        if len(words) > _CAPACITY:
            return self._weigh(words)
        with self._lock:
            kept = [self._features[slot] for slot in self._slots(words)]
        ends = np.fromiter(itertools.accumulate(len(places) for places, _ in kept), dtype=np.int32)
        return sp.csr_matrix(
            (
                np.concatenate([values for _, values in kept]),
                np.concatenate([places for places, _ in kept]),
                np.concatenate([np.zeros(1, dtype=np.int32), ends]),
            ),
            (len(words), NUM_FEATURES),
        )

    def _slots(self, words: Sequence[str]) -> list[int]:
        """Return where words are kept, after those that were not have been added."""
        known = self._known
        missing = [word for word in words if word not in known]
        if len(known) + len(missing) > _CAPACITY:
            known.clear()
            self._features.clear()
            missing = list(words)
        if missing:
            begin = len(known)
            found = self._weigh(missing)
            self._vectors[begin : begin + len(missing)] = self._project(found)
            cuts = found.indptr[1:-1]
            # Copies: a view would keep the n-grams of all words that were added with it.
            places = (part.copy() for part in np.split(found.indices, cuts))
            values = (part.copy() for part in np.split(found.data, cuts))
            self._features += zip(places, values, strict=True)
            known.update(zip(missing, range(begin, begin + len(missing)), strict=True))
        return [known[word] for word in words]

    def _weigh(self, words: Sequence[str]) -> Any:
        found = hash_words(words)
        found.data *= self._weights[found.indices]
        return found

    def _project(self, features: Any) -> FloatMatrix:
        vectors: FloatMatrix = (features @ self._projection).toarray()
        return vectors
