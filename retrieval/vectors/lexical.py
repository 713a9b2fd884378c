"""Vectors that need no model: hashed n-grams of words, weighted by rarity, projected at random."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp
from sklearn.feature_extraction.text import ENGLISH_STOP_WORDS, TfidfTransformer, strip_accents_unicode
from sklearn.random_projection import SparseRandomProjection
from sklearn.utils import check_random_state

from retrieval.errors import IndexFormatError
from retrieval.index.digests import digest_bytes
from retrieval.vectors.embedder import FloatMatrix
from retrieval.vectors.word_table import NUM_FEATURES, WordTable, hash_words

# Below so many texts vectors have so many dimensions by default. A projection confuses texts, the less the
# more dimensions it has, and few texts afford many. Of many texts, the nearest are compared by n-grams.
_DIMENSIONS = ((20_000, 768), (100_000, 384))
_DIMENSIONS_OF_MANY = 128

# Changes with anything that changes vectors of the same arrays.
_ALGORITHM = "lexical-1"

# Every feature stands in so many dimensions on average. More cost time and gain next to nothing.
_PLACES_PER_FEATURE = 12

# Dimensions drawn at once: scikit-learn holds two megabytes for each of them until it is done.
_DRAWN_AT_ONCE = 32

# What common words of a question count for; no word of a catalogue's text is common in this sense.
_STOP_WORD_WEIGHT = 0.3

# Runs of what is neither blank nor punctuation (ASCII, Latin-1, general, CJK). Scripts without blanks have
# long ones, which are cut.
_MAX_WORD = 64
_WORD = re.compile(
    r"[^\s\x00-/:-@\[-`{-\x7f\u0080-\u00bf\u2000-\u206f\u3000-\u303f]{1,%d}" % _MAX_WORD  # noqa: UP031
)

# Of longer queries this beginning counts, in characters: a megabyte of different words takes seconds.
_MAX_QUERY = 1 << 16

# Texts embedded at once: their words' vectors lie in memory.
_BLOCK = 4096

Array = npt.NDArray[np.generic]


class LexicalEmbedder:
    """Texts that share trigrams and words, above all rare ones, get vectors that are alike.

    A text's n-grams are those of its words, so its vector is the sum of its words' vectors, of length 1.
    Safe to use from several threads.

    Args:
        arrays: `idf`, the weight of every feature, float32; `counts`, in how many dimensions each stands,
            uint16; `places`, which, uint16; `signs`, with which sign, a bit each, uint8; `dimensions`, int32.

    Attributes:
        dimensions: Length of a vector.
        fingerprint: Digest of the arrays.

    Raises:
        IndexFormatError: they are no such arrays.
    """

    def __init__(self, arrays: Mapping[str, Array]) -> None:
        projection = _check(arrays)
        self._arrays = {name: np.ascontiguousarray(arrays[name]) for name in _DTYPES}
        self.dimensions = int(projection.shape[1])
        digests = [f"{name}:{digest_bytes(array.tobytes())}" for name, array in self._arrays.items()]
        self.fingerprint = f"{_ALGORITHM}:" + digest_bytes(" ".join(digests).encode())
        idf: Any = self._arrays["idf"]
        self._table = WordTable(idf, projection)

    @classmethod
    def fit(cls, sample: Sequence[str], dimensions: int = _DIMENSIONS_OF_MANY, seed: int = 0) -> Self:
        """Learn which n-grams are rare, and draw a projection.

        Args:
            sample: Texts of the catalogue; without any, all n-grams weigh the same.
            dimensions: Length of a vector, at least 2. See `default_dimensions`.
            seed: Of the projection.
        """
        idf = np.ones(NUM_FEATURES, dtype=np.float32)
        words, said = _count_words(sample, _no_weight)
        if words:
            idf = TfidfTransformer(norm=None).fit(abs(said @ hash_words(words))).idf_.astype(np.float32)
        projection = _draw_projection(dimensions, seed)
        return cls(
            {
                "idf": idf,
                "counts": np.diff(projection.indptr).astype(np.uint16),
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
        return self._embed(texts, _no_weight)

    def embed_queries(self, texts: Sequence[str]) -> FloatMatrix:
        """Return the vectors of queries: those of texts, but that common words count for less."""
        return self._embed([text[:_MAX_QUERY] for text in texts], _query_weight)

    def similarities(self, query: str, texts: Sequence[str]) -> npt.NDArray[np.float32]:
        """Return how alike a query and some texts are, by their n-grams themselves. See `TextEmbedder`."""
        asked = self._n_grams([query[:_MAX_QUERY]], _query_weight)
        dense = np.zeros(NUM_FEATURES, dtype=np.float32)
        dense[asked.indices] = asked.data / max(_lengths(asked)[0], np.float32(1e-9))
        given = self._n_grams(texts, _no_weight)
        lengths = _lengths(given)
        found: npt.NDArray[np.float32] = given @ dense
        found /= np.where(lengths > 0, lengths, 1)
        return found

    def arrays(self) -> Mapping[str, Array]:
        """Return what `from_arrays` takes: some six megabytes."""
        return self._arrays

    def _embed(self, texts: Sequence[str], weight: Callable[[str], float]) -> FloatMatrix:
        vectors: FloatMatrix = np.zeros((len(texts), self.dimensions), dtype=np.float32)
        for begin in range(0, len(texts), _BLOCK):
            words, said = _count_words(texts[begin : begin + _BLOCK], weight)
            if words:
                vectors[begin : begin + _BLOCK] = said @ self._table.vectors(words)
        lengths = np.sqrt(np.einsum("ij,ij->i", vectors, vectors))
        vectors /= np.where(lengths > 0, lengths, 1)[:, None]
        return vectors

    def _n_grams(self, texts: Sequence[str], weight: Callable[[str], float]) -> Any:
        """Return the weighted n-grams of texts. Shape: (len(texts), NUM_FEATURES), sparse."""
        words, said = _count_words(texts, weight)
        if not words:
            return sp.csr_matrix((len(texts), NUM_FEATURES), dtype=np.float32)
        return said @ self._table.features(words)


def default_dimensions(num_texts: int) -> int:
    """Return how long the vectors of so many texts are where no length is asked for."""
    return next((length for bound, length in _DIMENSIONS if num_texts < bound), _DIMENSIONS_OF_MANY)


def _draw_projection(dimensions: int, seed: int) -> Any:
    """Return a sparse random projection whose signs count. Shape: (NUM_FEATURES, dimensions), float32."""
    density = _density(dimensions)
    rng = check_random_state(seed)
    features = sp.csr_matrix((1, NUM_FEATURES), dtype=np.float32)
    drawn = [
        SparseRandomProjection(end - begin, density=density, random_state=rng).fit(features).components_
        for begin, end in itertools.pairwise([*range(0, dimensions, _DRAWN_AT_ONCE), dimensions])
    ]
    projection = sp.vstack(drawn).T.tocsr()
    projection.sort_indices()
    return projection


def expected_bytes(dimensions: int) -> int:
    """Return about how many bytes the arrays of an embedder take; its projection is drawn."""
    feature = sum(np.dtype(_DTYPES[name]).itemsize for name in ("idf", "counts"))
    place = np.dtype(_DTYPES["places"]).itemsize + 1 / 8  # and a sign
    return round(NUM_FEATURES * (feature + _density(dimensions) * dimensions * place))


def _density(dimensions: int) -> float:
    """Return the share of the dimensions in which a feature stands."""
    return min(0.5, _PLACES_PER_FEATURE / dimensions)


def _count_words(texts: Sequence[str], weight: Callable[[str], float]) -> tuple[list[str], Any]:
    """Return the different words of texts, and how often, weighted, each text says each of them.

    Returns:
        The words, and a sparse matrix. Shape: (len(texts), number of words), float32.
    """
    known: dict[str, int] = {}
    columns: list[int] = []
    ends = [0]
    for text in texts:
        columns += [known.setdefault(word, len(known)) for word in split_words(text)]
        ends.append(len(columns))
    weights = np.array([weight(word) for word in known], dtype=np.float32)
    places = np.array(columns, dtype=np.int32)
    said = sp.csr_matrix((weights[places], places, ends), (len(texts), len(known)))
    return list(known), said


def split_words(text: str) -> list[str]:
    """Return the words of a text without accents, in small letters; of punctuation alone, that."""
    plain = strip_accents_unicode(text).lower()
    return _WORD.findall(plain) or [part[:_MAX_WORD] for part in plain.split()]


def _no_weight(word: str) -> float:
    return 1.0


def _query_weight(word: str) -> float:
    return _STOP_WORD_WEIGHT if word in ENGLISH_STOP_WORDS else 1.0


def _lengths(rows: Any) -> npt.NDArray[np.float32]:
    """Return the lengths of sparse rows."""
    squares = sp.csr_matrix((rows.data**2, rows.indices, rows.indptr), rows.shape).sum(axis=1)
    return np.sqrt(np.asarray(squares, dtype=np.float32)).ravel()


_DTYPES = {
    "idf": np.float32,
    "counts": np.uint16,
    "places": np.uint16,
    "signs": np.uint8,
    "dimensions": np.int32,
}


def _check(arrays: Mapping[str, Array]) -> Any:
    """Return the projection that arrays describe. Shape: (NUM_FEATURES, d), sparse."""
    got = {name: (array.dtype, array.ndim) for name, array in arrays.items()}
    expected = {name: (np.dtype(dtype), 1) for name, dtype in _DTYPES.items()}
    if got != expected:
        raise IndexFormatError(f"lexical vectors: expected arrays of {expected}, got {got}")
    stored: list[Any] = [arrays[name] for name in _DTYPES]
    idf, counts, places, bits, dimensions = stored
    total = len(places)
    offsets = np.concatenate([[0], np.cumsum(counts, dtype=np.int64)])
    if (
        (len(idf), len(counts), len(dimensions)) != (NUM_FEATURES, NUM_FEATURES, 1)
        or offsets[-1] != total
        or len(bits) != (total + 7) // 8
        or not np.isfinite(idf).all()
        or int(places.max(initial=0)) >= int(dimensions[0])
    ):
        raise IndexFormatError("lexical vectors: the sizes or values of the arrays do not fit together")
    signs = np.unpackbits(bits, count=total).astype(np.float32) * 2 - 1
    return sp.csr_matrix(
        (signs, places.astype(np.int32), offsets.astype(np.int32)), (NUM_FEATURES, int(dimensions[0]))
    )
