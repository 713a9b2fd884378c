"""A search of many cells, shared out among threads: faiss itself would search them one after the other."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from retrieval.vectors.kinds import load_faiss

IntArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float32]

# More would take cores from whatever else the machine does, for a few milliseconds of one query.
_MOST_THREADS = 4
# A thread that would look at fewer vectors is not worth waking: it takes a millisecond or so for these.
VECTORS_PER_THREAD = 100_000


def num_parts(num_vectors: int) -> int:
    """Return among how many threads a search of so many vectors is shared out."""
    return max(min(num_vectors // VECTORS_PER_THREAD, _num_threads()), 1)


def search_cells(
    index: Any, query: FloatArray, k: int, effort: int, selector: Any, parts: int
) -> tuple[FloatArray, IntArray]:
    """Search the cells nearest to a query, the same as `index.search` would, but for the order of equal ones.

    Args:
        index: An index of inverted lists.
        query: Shape: (1, d), float32.
        k: Vectors wanted.
        effort: Cells visited.
        selector: Says which ids may be found; None: all.
        parts: Threads among which the cells are shared out, at most `effort`.

    Returns:
        Similarities, never rising, and ids; -1 where there are fewer. Shape of both: (1, k).
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
    """Search the given cells. The method for arrays takes no selector, so faiss is given their places."""
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
    """The threads of this process that search; each lets faiss use no further ones."""
    start = load_faiss().omp_set_num_threads
    return ThreadPoolExecutor(_num_threads(), "genret-vectors", initializer=start, initargs=(1,))


def _num_threads() -> int:
    return min(len(os.sched_getaffinity(0)), _MOST_THREADS)
