"""Flat search in the space of an index's vectors: all texts are embedded again and pass by in blocks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import faiss
import numpy as np
import numpy.typing as npt

from retrieval.vectors.embedder import FloatMatrix, TextEmbedder
from retrieval.vectors.searching import VectorSearcher, num_candidates
from retrieval.vectors.views import EntityTexts

Mask = npt.NDArray[np.bool_]
IntArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float32]

_BLOCK = 16_384


@dataclass(frozen=True, slots=True, eq=False)
class FlatAnswer:
    """What Flat search gives for one query.

    Attributes:
        raw: Entities by the similarity of their vectors, the most alike first.
        ordered: Of as many candidates as a search takes, the most alike by exact similarities, likewise.
    """

    raw: IntArray
    ordered: IntArray


class _Nearest:
    """The nearest texts of those seen, of every query."""

    def __init__(self, vectors: FloatMatrix, kept: int) -> None:
        self._vectors, self._kept = vectors, kept
        self.ids = np.empty((len(vectors), 0), np.int64)
        self.values = np.empty((len(vectors), 0), np.float32)

    def see(self, numbers: IntArray, vectors: FloatMatrix) -> None:
        if not len(numbers):
            return
        k = min(self._kept, len(vectors))
        values, places = faiss.knn(self._vectors, vectors, k, metric=faiss.METRIC_INNER_PRODUCT)
        values = np.concatenate([self.values, values], axis=1)
        ids = np.concatenate([self.ids, numbers[places]], axis=1)
        order = np.argsort(-values, axis=1, kind="stable")[:, : self._kept]
        self.values = np.take_along_axis(values, order, axis=1)
        self.ids = np.take_along_axis(ids, order, axis=1)


def search_flat(
    texts: EntityTexts,
    embedder: TextEmbedder,
    searcher: VectorSearcher,
    queries: Sequence[str],
    size: int,
    masks: Mapping[str, Mask | None],
    progress: Callable[[int], None],
) -> dict[str, list[FlatAnswer]]:
    """Search all vectors as they are, before any compression, under some filters at once.

    A block of vectors is held, and the candidates of every query.

    Args:
        texts: All texts of the index.
        embedder: Made the vectors.
        searcher: Puts candidates in order as a search of the index does.
        queries: What is asked.
        size: Most entities of an answer.
        masks: By name which entities may be found, None for all. Shape of each: (num_entities,), bool.
        progress: Gets the number of texts of every block once it is seen.

    Returns:
        By the name of the filter, an answer per query.
    """
    vectors = embedder.embed_queries(queries)
    found = {name: _Nearest(vectors, num_candidates(size, True)) for name in masks}
    for batch in texts.batches(_BLOCK):
        block = embedder.embed_texts(batch.texts)
        for name, allowed in masks.items():
            if allowed is None:
                found[name].see(batch.numbers, block)
            else:
                kept = allowed[batch.numbers]
                found[name].see(batch.numbers[kept], block[kept])
        progress(len(batch.numbers))
    return {
        name: [
            FlatAnswer(_raw(ids, size), searcher.best(text, ids, values, size).entities)
            for text, ids, values in zip(queries, nearest.ids, nearest.values, strict=True)
        ]
        for name, nearest in found.items()
    }


def _raw(ids: IntArray, size: int) -> IntArray:
    """Return the first entities of a list, each once."""
    _, first = np.unique(ids, return_index=True)
    return ids[np.sort(first)[:size]]
