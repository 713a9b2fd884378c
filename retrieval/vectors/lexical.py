"""Vectors that need no model: hashed character and word n-grams, weighted by rarity, projected at random."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp
from sklearn.feature_extraction.text import HashingVectorizer, TfidfTransformer
from sklearn.random_projection import SparseRandomProjection

from retrieval.errors import IndexFormatError
from retrieval.index.digests import digest_bytes
from retrieval.vectors.embedder import FloatMatrix

DEFAULT_DIMENSIONS = 256

_FEATURES = 1 << 17
_WORD_WEIGHT = 0.5
_DENSITY = 1 / 16

Array = npt.NDArray[np.generic]


class LexicalEmbedder:
    """Texts that share character trigrams and words, above all rare ones, get vectors that are alike.

    Args:
        arrays: What `arrays` returned.

    Raises:
        IndexFormatError: they are no such arrays.
    """

    def __init__(self, arrays: Mapping[str, Array]) -> None:
        missing = sorted({"idf", "offsets", "places", "signs", "dimensions"} - set(arrays))
        if missing:
            raise IndexFormatError(f"lexical vectors: arrays missing: {missing}")
        self._arrays = {name: np.ascontiguousarray(arrays[name]) for name in sorted(arrays)}
        self.dimensions = int(self._arrays["dimensions"][0])
        self.fingerprint = "lexical:" + digest_bytes(
            b"".join(name.encode() + array.tobytes() for name, array in self._arrays.items())
        )
        self._characters = _vectorizer("char_wb", 3)
        self._words = _vectorizer("word", 1)
        idf: Any = self._arrays["idf"]
        bits: Any = self._arrays["signs"]
        offsets: Any = self._arrays["offsets"]
        signs = 2.0 * np.unpackbits(bits)[: len(self._arrays["places"])] - 1.0
        weights = np.concatenate([idf[:_FEATURES], _WORD_WEIGHT * idf[_FEATURES:]])
        values = (signs * np.repeat(weights, np.diff(offsets))).astype(np.float32)
        self._projection = sp.csr_matrix(
            (values, self._arrays["places"].astype(np.int32), offsets), (2 * _FEATURES, self.dimensions)
        )

    @classmethod
    def fit(cls, sample: Sequence[str], dimensions: int = DEFAULT_DIMENSIONS, seed: int = 0) -> Self:
        """Learn which n-grams are rare, and draw a projection.

        Args:
            sample: Texts of the catalogue.
            dimensions: Length of a vector.
            seed: Of the projection.
        """
        idf = [
            TfidfTransformer(norm=None).fit(abs(_vectorizer(kind, n).transform(sample))).idf_
            for kind, n in (("char_wb", 3), ("word", 1))
        ]
        drawn = SparseRandomProjection(dimensions, density=_DENSITY, random_state=seed).fit(
            sp.csr_matrix((1, 2 * _FEATURES), dtype=np.float32)
        )
        projection = drawn.components_.T.tocsr()
        return cls(
            {
                "idf": np.concatenate(idf).astype(np.float32),
                "offsets": projection.indptr.astype(np.int32),
                "places": projection.indices.astype(np.uint16),
                "signs": np.packbits(projection.data > 0),
                "dimensions": np.array([dimensions], dtype=np.int32),
            }
        )

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, Array]) -> Self:
        """Make the embedder again from what `arrays` returned.

        Raises:
            IndexFormatError: they are no such arrays.
        """
        return cls(arrays)

    def embed_texts(self, texts: Sequence[str]) -> FloatMatrix:
        """Return the vectors of catalogue texts. See `TextEmbedder`."""
        if not len(texts):
            return np.zeros((0, self.dimensions), dtype=np.float32)
        counts = sp.hstack([self._characters.transform(texts), self._words.transform(texts)], format="csr")
        vectors: FloatMatrix = (counts @ self._projection).toarray().astype(np.float32, copy=False)
        lengths = np.sqrt(np.einsum("ij,ij->i", vectors, vectors))
        lengths[lengths == 0] = 1
        vectors /= lengths[:, None]
        return vectors

    def embed_queries(self, texts: Sequence[str]) -> FloatMatrix:
        """Return the vectors of queries, which are made like those of texts."""
        return self.embed_texts(texts)

    def arrays(self) -> Mapping[str, Array]:
        """Return what `from_arrays` takes: a few megabytes."""
        return self._arrays


def _vectorizer(kind: str, n: int) -> HashingVectorizer:
    return HashingVectorizer(
        analyzer=kind,
        ngram_range=(n, n),
        n_features=_FEATURES,
        norm=None,
        dtype=np.float32,
        token_pattern=r"(?u)\b\w+\b",
    )
