"""The entities nearest to a vector, under a filter, from a faiss index that holds a vector per text."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from retrieval.vectors.cell_search import num_parts, search_cells
from retrieval.vectors.kinds import inner_cells, inner_graph, load_faiss
from retrieval.vectors.shortlist import Shortlist

Mask = npt.NDArray[np.bool_]
IntArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float32]
# Similarities of a query and some entities, computed from their texts.
Exact = Callable[[str, IntArray], FloatArray]

# Beside n entities asked for, so many more are compared exactly: three times as many, at most 300.
_MORE_CANDIDATES, _MOST_MORE = 3, 300
# No more entities than this are compared one by one, without a search.
_FEW = 512
# A graph that would keep one of so many vectors as candidates is left for a look at all of them.
_GRAPH_SHARE = 16


@dataclass(frozen=True, slots=True, eq=False)
class _Found:
    """What a search gave: entities, the most alike first, and whether these are all that have texts."""

    entities: IntArray
    similarities: FloatArray
    is_all: bool


class VectorSearcher:
    """Searches a faiss index. Safe to use from several threads: nothing in the index is changed.

    Args:
        index: Holds a vector per text under its entity number; read only.
        num_entities: Entity numbers are below this.
        effort: Cells visited or candidates kept; 0 where everything is looked at.
        exact: Computes similarities from texts.
        compares_again: Whether candidates are put in order by `exact`, because it is cheap.
    """

    def __init__(
        self, index: Any, num_entities: int, effort: int, exact: Exact, compares_again: bool
    ) -> None:
        self._faiss = load_faiss()
        self._index = index
        self._num_entities = num_entities
        self._effort = effort
        self._exact = exact
        self._compares_again = compares_again
        self._cells = inner_cells(index)
        self._is_graph = inner_graph(index) is not None

    def search(
        self,
        text: str,
        query: FloatArray,
        size: int,
        allowed: Mask | None = None,
        effort: int | None = None,
    ) -> Shortlist:
        """Return the entities nearest to a query, equally near ones by number.

        Args:
            text: The query.
            query: Its vector, of length 1, or all 0: then every entity is equally far. Shape: (d,), float32.
            size: Most entities, at least 1.
            allowed: Which entities may be found, None for all. Shape: (num_entities,), bool.
            effort: In place of the index's own.

        Returns:
            Fewer entities only where fewer are allowed. One without texts has similarity 0.
        """
        num_allowed = self._num_entities if allowed is None else int(np.count_nonzero(allowed))
        wanted = min(size, num_allowed)
        if not wanted:
            return Shortlist(np.empty(0, np.int64), np.empty(0, np.float32))
        if not query.any():
            numbers = np.arange(wanted) if allowed is None else np.flatnonzero(allowed)[:wanted]
            return Shortlist(numbers.astype(np.int64), np.zeros(wanted, np.float32))
        candidates = min(num_candidates(wanted, self._compares_again), num_allowed)
        if self._compares_again and num_allowed <= max(candidates, _FEW):
            numbers = np.arange(self._num_entities) if allowed is None else np.flatnonzero(allowed)
            return _ordered(numbers, self._exact(text, numbers), wanted)
        effort = self._effort if effort is None else effort
        share = num_allowed / self._num_entities
        found = self._widen(query, candidates, allowed, share, effort)
        if wanted < num_allowed and not found.is_all and found.similarities[wanted - 1] < 0:
            # Entities without texts, should there be any, are nearer: those that no text stands for.
            found = self._widen(query, num_allowed, allowed, share, effort)
        entities, similarities = found.entities, found.similarities
        if self._compares_again:
            entities = entities[:candidates]
            similarities = self._exact(text, entities)
        if found.is_all and (len(entities) < wanted or similarities.min() < 0):
            textless = self._textless(found.entities, allowed)[:wanted]
            entities = np.concatenate([entities, textless])
            similarities = np.concatenate([similarities, np.zeros(len(textless), np.float32)])
        return _ordered(entities, similarities, wanted)

    def best(self, text: str, ids: IntArray, values: FloatArray, size: int) -> Shortlist:
        """Return the shortlist that a search gives which finds these texts.

        Args:
            text: The query.
            ids: Whose texts. Shape: (m,), int64.
            values: Their similarities by their vectors. Shape: (m,), float32.
            size: Most entities.
        """
        found = _distinct(ids, values)
        similarities = self._exact(text, found.entities) if self._compares_again else found.similarities
        return _ordered(found.entities, similarities, size)

    def refusal(self) -> str | None:
        """Return why faiss cannot search this index under a filter; None where it can.

        Some kinds of index take no filter, and say so only when they are asked; an empty one says so too.
        """
        if self._is_graph and not self._index.ntotal:
            return None
        query = np.ones(self._index.d, np.float32)
        try:
            self._ask(query, 1, np.ones(self._num_entities, np.bool_), 1)
        except RuntimeError as error:
            return str(error).rpartition("Error: ")[2].strip() or str(error)
        return None

    def _widen(
        self, query: FloatArray, wanted: int, allowed: Mask | None, share: float, effort: int
    ) -> _Found:
        """Search for ever more texts, with ever more effort, until enough entities are found."""
        total = int(self._index.ntotal)
        most = self._most_effort()
        # The fewer are allowed, the fewer of them lie in a cell. 0: everything is looked at.
        effort = min(math.ceil(effort / share), most) if effort else most
        k = min(wanted + wanted // 4 + 1, total)
        while True:
            effort = min(max(effort, k), most) if self._is_graph else effort
            ids, values = self._ask(query, k, allowed, effort)
            found = _distinct(ids, values)
            if len(ids) == total or (len(ids) < k and effort == most):
                return _Found(found.entities, found.similarities, True)
            if len(ids) < k:
                effort = min(effort * 4, most)
            elif len(found.entities) < wanted or self._runs_on(found, values, wanted):
                k = min(k * 2, total)
            else:
                return found

    def _runs_on(self, found: _Found, values: FloatArray, wanted: int) -> bool:
        """Say whether texts that were not fetched may be as alike as the last entity wanted."""
        return not self._compares_again and bool(values[-1] >= found.similarities[wanted - 1])

    def _most_effort(self) -> int:
        """Return the effort with which everything is looked at."""
        if self._is_graph:
            return max(int(self._index.ntotal), 1)
        return int(self._cells.nlist) if self._cells is not None else 1

    def _ask(
        self, query: FloatArray, k: int, allowed: Mask | None, effort: int
    ) -> tuple[IntArray, FloatArray]:
        """Ask faiss for k texts; fewer come where there are no more within the effort."""
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
            if self._index is self._cells and (parts := min(self._parts(effort), effort)) > 1:
                values, ids = search_cells(self._cells, query[None], k, effort, selector, parts)
                return ids[0][ids[0] >= 0], values[0][ids[0] >= 0]
            parameters = faiss.SearchParametersIVF(sel=selector, nprobe=effort)
            if isinstance(self._index, faiss.IndexPreTransform):
                parameters = faiss.SearchParametersPreTransform(index_params=parameters)
        values, ids = self._index.search(query[None], k, params=parameters)
        return ids[0][ids[0] >= 0], values[0][ids[0] >= 0]

    def _parts(self, effort: int) -> int:
        """Return among how many threads a search of so many cells is shared out."""
        return num_parts(int(self._index.ntotal) * effort // max(int(self._cells.nlist), 1))

    def _ask_storage(self, query: FloatArray, k: int, allowed: Mask | None) -> tuple[IntArray, FloatArray]:
        """Compare all vectors of a graph: not all can be reached through it, above all under a filter."""
        faiss = self._faiss
        numbers = faiss.rev_swig_ptr(self._index.id_map.data(), self._index.id_map.size())
        selector = None if allowed is None else _selector(allowed[numbers])
        storage = faiss.downcast_index(inner_graph(self._index).storage)
        values, places = storage.search(query[None], k, params=faiss.SearchParameters(sel=selector))
        kept = places[0] >= 0
        return numbers[places[0][kept]], values[0][kept]

    def _textless(self, with_texts: IntArray, allowed: Mask | None) -> IntArray:
        """Return the allowed entities that no text stands for, by number, given all those that one does."""
        free = np.ones(self._num_entities, np.bool_) if allowed is None else allowed.copy()
        free[with_texts] = False
        return np.flatnonzero(free)


def num_candidates(size: int, compares_again: bool) -> int:
    """Return how many entities a search for `size` of them takes from the vectors."""
    return size + min(_MORE_CANDIDATES * size, _MOST_MORE) if compares_again else size


def _selector(allowed: Mask) -> Any:
    return load_faiss().IDSelectorBitmap(np.packbits(allowed, bitorder="little"))


def _distinct(ids: IntArray, values: FloatArray) -> _Found:
    """Keep the most alike text of every entity."""
    order = np.lexsort((ids, -values))
    ids, values = ids[order], values[order]
    _, first = np.unique(ids, return_index=True)
    kept = np.sort(first)
    return _Found(ids[kept], values[kept], False)


def _ordered(entities: IntArray, similarities: FloatArray, size: int) -> Shortlist:
    order = np.lexsort((entities, -similarities))[:size]
    return Shortlist(entities[order], similarities[order])
