"""Proposes the entities nearest to a query, under a filter.

`VectorProposer` embeds queries; `VectorSearcher` searches a faiss index that holds a vector per text.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from genret.retrieval.errors import IndexFormatError
from genret.retrieval.index.layout import VECTORS_FILE
from genret.retrieval.index.reader import Index, IntArray
from genret.retrieval.vectors.embedder import FloatMatrix, TextEmbedder, open_embedder
from genret.retrieval.vectors.faiss_index import (
    faiss_threads,
    inner_cells,
    inner_graph,
    load_faiss,
    open_vectors,
    reason_of,
    vectors_entry,
)


@dataclass(frozen=True, slots=True, eq=False)
class VectorProposer:
    """Proposes entities of one index. Safe to use from several threads.

    A search of many vectors is divided among a few threads of this module; faiss starts no others.
    """

    embedder: TextEmbedder
    searcher: VectorSearcher

    @classmethod
    def open(cls, index: Index, encoder: str | Path | None = None, device: str = "cpu") -> Self:
        """Open the vectors of an index; `encoder` is the present place of their encoder, None: unchanged.

        Raises:
            EvidenceMissingError, IndexChecksumError, IndexFormatError: as for `open_vectors`.
            IndexMismatchError: another encoder made them.
            ModelError: the encoder cannot be loaded.
            MissingExtraError: a library is not installed.
        """
        entry = vectors_entry(index)
        searcher = VectorSearcher(open_vectors(index), index.num_entities, entry.effort)
        if entry.kind == "factory" and (refusal := searcher.refusal()) is not None:
            raise IndexFormatError(f"{VECTORS_FILE}: {entry.factory} cannot be searched: {refusal}")
        return cls(open_embedder(entry, encoder, device), searcher)

    def embed(self, texts: Sequence[str]) -> FloatMatrix:
        """Return the vectors of queries. Shape: (len(texts), dimensions)."""
        return self.embedder.embed_queries(texts)

    def search(self, vector: FloatArray, size: int, allowed: Mask | None) -> SimilarEntities:
        """Return at most `size` entities nearest to a query, best first; see `VectorSearcher.search`."""
        with faiss_threads(1):
            return self.searcher.search(vector, size, allowed)

    def similarities(self, vector: FloatArray, entities: IntArray) -> FloatArray:
        """Return the similarity of a query and each entity's most similar text; see `VectorSearcher`."""
        with faiss_threads(1):
            return self.searcher.similarities(vector, entities)


Mask = npt.NDArray[np.bool_]
FloatArray = npt.NDArray[np.float32]

# A graph search that would keep one of so many vectors as candidates is replaced by an exhaustive one.
_GRAPH_SHARE = 16
# More threads would take cores from other work, for a few milliseconds of one query.
_MOST_THREADS = 4
# Fewer vectors are not worth waking a thread for: they take about a millisecond.
VECTORS_PER_THREAD = 100_000


@dataclass(frozen=True, slots=True, eq=False)
class SimilarEntities:
    """Distinct entities, the most similar first."""

    entities: IntArray  # entity numbers. Shape: (m,), int64.
    # Cosine of the query and the entity's most similar text, in [-1, 1] up to rounding and compression,
    # descending. Shape: (m,), float32.
    similarities: FloatArray


NO_ENTITIES = SimilarEntities(np.zeros(0, np.int64), np.zeros(0, np.float32))


class VectorSearcher:
    """Searches a faiss index with a vector per text, under its entity number. Safe from several threads.

    The effort is the number of cells visited or candidates kept; 0: exhaustive search.
    """

    def __init__(self, index: Any, num_entities: int, effort: int = 0) -> None:
        self._faiss = load_faiss()
        self._index = index
        self._num_entities = num_entities
        self._effort = effort
        self._cells = inner_cells(index)
        self._is_graph = inner_graph(index) is not None

    def search(
        self, query: FloatArray, size: int, allowed: Mask | None = None, effort: int | None = None
    ) -> SimilarEntities:
        """Return the entities nearest to a query, ties by number; entities without texts have similarity 0.

        The query has length 1, or is all 0: then all entities are equally far. At most `size` entities come,
        fewer only if fewer are `allowed`, shape (num_entities,). An `effort` of 0 is an exhaustive search;
        None: the index's.
        """
        num_allowed = self._num_entities if allowed is None else int(np.count_nonzero(allowed))
        wanted = min(size, num_allowed)
        if not wanted:
            return NO_ENTITIES
        if not query.any():
            numbers = np.arange(wanted) if allowed is None else np.flatnonzero(allowed)[:wanted]
            return SimilarEntities(numbers.astype(np.int64), np.zeros(wanted, np.float32))
        effort = self._effort if effort is None else effort
        share = num_allowed / self._num_entities
        entities, similarities, is_all = self._widen(query, wanted, allowed, share, effort)
        if wanted < num_allowed and not is_all and similarities[wanted - 1] < 0:
            # Entities without texts, if there are any, are nearer.
            entities, similarities, is_all = self._widen(query, num_allowed, allowed, share, effort)
        if is_all and (len(entities) < wanted or similarities.min() < 0):
            textless = self._textless(entities, allowed)[:wanted]
            entities = np.concatenate([entities, textless])
            similarities = np.concatenate([similarities, np.zeros(len(textless), np.float32)])
        order = np.lexsort((entities, -similarities))[:wanted]
        return SimilarEntities(entities[order], similarities[order])

    def similarities(self, query: FloatArray, entities: IntArray) -> FloatArray:
        """Return the similarity of a query and each entity's most similar text; 0 for one without texts.

        The values are those of a search; only vectors of these entities are compared. Entities may repeat.
        Shapes: query (d,), float32; entities and result (m,).

        Raises:
            ValueError: there is no such entity.
        """
        numbers, back = np.unique(entities, return_inverse=True)
        values = np.zeros(len(numbers), np.float32)
        if not len(numbers):
            return values
        for number in (int(numbers[0]), int(numbers[-1])):
            if not 0 <= number < self._num_entities:
                raise ValueError(f"entity number: expected 0 <= number < {self._num_entities}, got {number}")
        if query.any():
            allowed = np.zeros(self._num_entities, np.bool_)
            allowed[numbers] = True
            texts = 1 + 2 * self._index.ntotal / self._num_entities
            found, similarities, _ = self._widen(query, len(numbers), allowed, 1, 0, texts)
            values[np.searchsorted(numbers, found)] = similarities
        return values[back]

    def refusal(self) -> str | None:
        """Return why faiss cannot search this index under a filter; None if it can.

        Some kinds of index take no filter, and say so only in a search; even an empty one does.
        """
        if self._is_graph and not self._index.ntotal:
            return None
        query = np.ones(self._index.d, np.float32)
        try:
            self._ask(query, 1, np.ones(self._num_entities, np.bool_), 1)
        except RuntimeError as error:
            return reason_of(error)
        return None

    def _widen(
        self,
        query: FloatArray,
        wanted: int,
        allowed: Mask | None,
        share: float,
        effort: int,
        texts: float = 1.25,
    ) -> tuple[IntArray, FloatArray, bool]:
        """Search for more and more texts, first `texts` per entity, until enough entities are found.

        Returns entities, their similarities, the greatest first, and whether no others have texts.
        """
        total = int(self._index.ntotal)
        most = self._most_effort()
        # The fewer are allowed, the fewer of them lie in a cell. 0: exhaustive.
        effort = min(math.ceil(effort / share), most) if effort else most
        k = min(int(wanted * texts) + 1, total)
        while True:
            effort = min(max(effort, k), most) if self._is_graph else effort
            ids, values = self._ask(query, k, allowed, effort)
            entities, similarities = _distinct(ids, values)
            if len(ids) == total or (len(ids) < k and effort == most):
                return entities, similarities, True
            if len(ids) < k:
                effort = min(effort * 4, most)
            elif len(entities) < wanted or values[-1] >= similarities[wanted - 1]:
                k = min(k * 2, total)  # texts not fetched may be as similar as the last wanted one
            else:
                return entities, similarities, False

    def _most_effort(self) -> int:
        """Return the effort of an exhaustive search."""
        if self._is_graph:
            return max(int(self._index.ntotal), 1)
        return int(self._cells.nlist) if self._cells is not None else 1

    def _ask(
        self, query: FloatArray, k: int, allowed: Mask | None, effort: int
    ) -> tuple[IntArray, FloatArray]:
        """Ask faiss for k texts; fewer come if there are no more within the effort."""
        if not k:
            return np.empty(0, np.int64), np.empty(0, np.float32)
        faiss = self._faiss
        if self._is_graph and effort * _GRAPH_SHARE >= self._index.ntotal:
            return self._ask_storage(query, k, allowed)
        selector = None if allowed is None else _selector(allowed)
        if self._is_graph:
            parameters = faiss.SearchParametersHNSW(sel=selector, efSearch=effort)
        elif self._cells is None:
            parameters = faiss.SearchParameters(sel=selector)
        else:
            parts = num_parts(int(self._index.ntotal) * effort // max(int(self._cells.nlist), 1))
            if self._index is self._cells and (parts := min(parts, effort)) > 1:
                values, ids = search_cells(self._cells, query[None], k, effort, selector, parts)
                return ids[0][ids[0] >= 0], values[0][ids[0] >= 0]
            parameters = faiss.SearchParametersIVF(sel=selector, nprobe=effort)
            if isinstance(self._index, faiss.IndexPreTransform):
                parameters = faiss.SearchParametersPreTransform(index_params=parameters)
        values, ids = self._index.search(query[None], k, params=parameters)
        return ids[0][ids[0] >= 0], values[0][ids[0] >= 0]

    def _ask_storage(self, query: FloatArray, k: int, allowed: Mask | None) -> tuple[IntArray, FloatArray]:
        """Compare all vectors of a graph: not all can be reached through it, especially under a filter."""
        faiss = self._faiss
        numbers = faiss.rev_swig_ptr(self._index.id_map.data(), self._index.id_map.size())
        selector = None if allowed is None else _selector(allowed[numbers])
        storage = faiss.downcast_index(inner_graph(self._index).storage)
        values, places = storage.search(query[None], k, params=faiss.SearchParameters(sel=selector))
        kept = places[0] >= 0
        return numbers[places[0][kept]], values[0][kept]

    def _textless(self, with_texts: IntArray, allowed: Mask | None) -> IntArray:
        """Return the allowed entities without texts, ascending; `with_texts` are all others."""
        free = np.ones(self._num_entities, np.bool_) if allowed is None else allowed.copy()
        free[with_texts] = False
        return np.flatnonzero(free)


def _selector(allowed: Mask) -> Any:
    return load_faiss().IDSelectorBitmap(np.packbits(allowed, bitorder="little"))


def _distinct(ids: IntArray, values: FloatArray) -> tuple[IntArray, FloatArray]:
    """Keep the most similar text of every entity; return entities and similarities, best first."""
    order = np.lexsort((ids, -values))
    ids, values = ids[order], values[order]
    _, first = np.unique(ids, return_index=True)
    kept = np.sort(first)
    return ids[kept], values[kept]


def num_parts(num_vectors: int) -> int:
    """Return the number of threads for a search of so many vectors."""
    return max(min(num_vectors // VECTORS_PER_THREAD, _num_threads()), 1)


def search_cells(
    index: Any, query: FloatArray, k: int, effort: int, selector: Any, parts: int
) -> tuple[FloatArray, IntArray]:
    """Search the cells nearest to a query in a faiss index; equals `index.search` but for the order of ties.

    The query has the shape (1, d). `effort` cells are visited by `parts` threads, at most one per cell;
    `selector` is faiss' selector of the allowed ids, or None. Returns descending similarities, and ids, -1
    where there are fewer. Shape of both: (1, k).
    """
    nearest, cells = index.quantizer.search(query, effort)

    def search(part: int) -> tuple[FloatArray, IntArray]:
        mine = np.ascontiguousarray(cells[:, part::parts])
        return _search_given(index, query, k, mine, np.ascontiguousarray(nearest[:, part::parts]), selector)

    found = list(_threads().map(search, range(parts)))
    values = np.concatenate([part[0] for part in found], axis=1)
    ids = np.concatenate([part[1] for part in found], axis=1)
    order = np.argsort(-values, axis=1, kind="stable")[:, :k]
    return np.take_along_axis(values, order, axis=1), np.take_along_axis(ids, order, axis=1)


def _search_given(
    index: Any, query: FloatArray, k: int, cells: IntArray, nearest: FloatArray, selector: Any
) -> tuple[FloatArray, IntArray]:
    """Search the given cells. The method for arrays takes no selector, so faiss gets their addresses."""
    faiss = load_faiss()
    parameters = faiss.SearchParametersIVF(sel=selector, nprobe=cells.shape[1])
    values, ids = np.empty((1, k), np.float32), np.empty((1, k), np.int64)
    index.search_preassigned_c(
        1,
        faiss.swig_ptr(query),
        k,
        *(faiss.swig_ptr(array) for array in (cells, nearest, values, ids)),
        False,
        parameters,
    )
    return values, ids


@cache
def _threads() -> ThreadPoolExecutor:
    """The search threads of this process; faiss uses no further ones in them."""
    start = load_faiss().omp_set_num_threads
    return ThreadPoolExecutor(_num_threads(), "genret-vectors", initializer=start, initargs=(1,))


def _num_threads() -> int:
    return min(len(os.sched_getaffinity(0)), _MOST_THREADS)
