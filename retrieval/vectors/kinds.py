"""Which faiss index holds the vectors, and its sizes, by rule.

Measured with 6,000,000 lexical vectors of titles (queries with typing errors or without one of their words):
such vectors are nearly isotropic, and cells separate them badly. Of Flat's 100 nearest, 93 % lie in the
nearest half of 1,024 cells, 83 % in a quarter of them, 80 % in an eighth of 4,096. It is the codes that
make the search fast: 4 bits, compared 32 vectors at a time.

With 128 dimensions of 4 bits each (72 bytes with the id), 84 % of Flat's 100 nearest are among the 100
best codes and 99 % among the 400 best, which are put in order by exact similarities. In that order 90 % of
the 100 are those that Flat's best 400 give (88 % with three quarters of the cells visited, 82 % with half),
and the title sought is among the 100 as often as with Flat. With 4 bits for two dimensions (40 bytes) the
search takes half as long, the title sought is still found as often, and 72 % of the 100 are the same. Codes
of residuals were no better; RaBitQ of 3 bits found less (77 %) and took seven times as long.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from retrieval.errors import InputError, MissingExtraError
from retrieval.vectors.methods import LEXICAL
from retrieval.vectors.options import KIND_NAMES

if TYPE_CHECKING:
    from types import ModuleType

    from retrieval.vectors.embedder import FloatMatrix

# Below, every vector is compared: 100,000 of 256 dimensions take some 5 ms and 100 MB.
FLAT_BELOW = 100_000

# Vectors of models lie in clusters, which cells separate. Lexical ones do not: nearly all cells are
# visited, and 1,024 of them cost half as much again as 64 do.
MAX_CELLS, MAX_LEXICAL_CELLS = 1024, 64
# Four times as many texts ask for twice the cells: then those trained for fewer are given up.
_TEXTS_PER_SQUARED_CELL = 4
_SAMPLE_PER_CELL = 128
_MIN_SAMPLE = 32_768

MAX_SUBQUANTISERS = 128
_CODE_BITS = 4
_CENTROIDS = 256  # of a quantiser of 8 bits
_NEIGHBOURS = 32  # of a node of hnsw
_CONSTRUCTION_EFFORT = 80


def load_faiss() -> ModuleType:
    """Return faiss.

    Raises:
        MissingExtraError: it is not installed.
    """
    try:
        import faiss
    except ImportError:
        raise MissingExtraError("faiss", "vectors") from None
    module: ModuleType = faiss
    return module


def kind_of(wish: str, count: int) -> str:
    """Return "flat", "hnsw", "ivfpq" or "factory".

    Args:
        wish: As in `VectorOptions.kind`.
        count: Vectors.
    """
    if wish == "auto":
        return "flat" if count < FLAT_BELOW else "ivfpq"
    return wish if wish in KIND_NAMES else "factory"


def num_cells(count: int, method: str) -> int:
    """Return the cells of so many vectors: a power of two, about half the root of their number.

    Args:
        count: Vectors.
        method: What made them, as in `VectorsEntry.method`.
    """
    root = math.isqrt(max(count, 1) // _TEXTS_PER_SQUARED_CELL)
    most = MAX_LEXICAL_CELLS if method == LEXICAL else MAX_CELLS
    return min(1 << max(root, 1).bit_length() - 1, most)


def sample_size(count: int, method: str) -> int:
    """Return how many vectors the quantisers are trained on. Arguments are those of `num_cells`."""
    return min(count, max(num_cells(count, method) * _SAMPLE_PER_CELL, _MIN_SAMPLE))


def num_subquantisers(dimensions: int) -> int:
    """Return the parts of a vector that get 4 bits each: as many as there are dimensions, at most 128.

    Raises:
        InputError: the dimensions cannot be divided into parts of at most 16.
    """
    most = min(dimensions, MAX_SUBQUANTISERS)
    parts = max((m for m in range(1, most + 1) if dimensions % m == 0), default=0)
    if parts * 16 < dimensions:
        raise InputError("vector_dimensions", f"ivfpq needs a multiple of 8, got {dimensions}")
    return parts


def new_index(kind: str, wish: str, dimensions: int, count: int, seed: int, method: str = LEXICAL) -> Any:
    """Return an empty faiss index for inner products that takes entity numbers as ids.

    Args:
        kind: As returned by `kind_of`.
        wish: The factory string, for "factory".
        dimensions: Of the vectors.
        count: Vectors that will be added.
        seed: Of the training.
        method: What makes the vectors, as in `VectorsEntry.method`.

    Raises:
        InputError: faiss knows no such factory string, or the kind cannot hold such vectors.
    """
    faiss = load_faiss()
    if kind == "flat":
        return faiss.IndexIDMap(faiss.IndexFlatIP(dimensions))
    if kind == "hnsw":
        graph = faiss.IndexHNSWFlat(dimensions, _NEIGHBOURS, faiss.METRIC_INNER_PRODUCT)
        graph.hnsw.efConstruction = _CONSTRUCTION_EFFORT
        return faiss.IndexIDMap(graph)
    if kind == "ivfpq":
        parts = num_subquantisers(dimensions)
        index = faiss.IndexIVFPQFastScan(
            faiss.IndexFlatIP(dimensions),
            dimensions,
            num_cells(count, method),
            parts,
            _CODE_BITS,
            faiss.METRIC_INNER_PRODUCT,
        )
        index.by_residual = False
        index.cp.spherical = True
        index.cp.niter = 8
        for parameters in (index.cp, index.pq.cp):
            parameters.seed = seed + 1
            parameters.min_points_per_centroid = 1
            parameters.max_points_per_centroid = 1 << 20
        return index
    return _by_factory(wish, dimensions)


def _by_factory(text: str, dimensions: int) -> Any:
    faiss = load_faiss()
    try:
        index = faiss.index_factory(dimensions, text, faiss.METRIC_INNER_PRODUCT)
    except RuntimeError as error:
        reason = str(error).rpartition(": ")[2].strip() or "it was refused"
        raise InputError("vector_index", f"faiss makes no index of {text!r}: {reason}") from None
    if faiss.downcast_index(index).metric_type != faiss.METRIC_INNER_PRODUCT:
        raise InputError("vector_index", f"{text!r} does not compare by inner products, as vectors here are")
    cells = inner_cells(index)
    if not _takes_ids(index):
        raise InputError("vector_index", f"{text!r} keeps no ids beside its vectors; IDMap goes in front")
    if cells is not None:
        for part in (cells, getattr(cells, "pq", None)):
            if part is not None:
                part.cp.min_points_per_centroid = 1
    elif not isinstance(index, faiss.IndexIDMap):
        index = faiss.IndexIDMap(index)
    return index


def _takes_ids(index: Any) -> bool:
    """Say whether an index keeps ids, by itself or once an IDMap is put around it."""
    faiss = load_faiss()
    inner = index
    while isinstance(inner, faiss.IndexPreTransform):
        inner = faiss.downcast_index(inner.index)
    if inner_cells(index) is not None:
        return not isinstance(inner, faiss.IndexRefine)  # it adds without ids
    return inner is index or not isinstance(inner, faiss.IndexIDMap)


def inner_cells(index: Any) -> Any:
    """Return the part of an index that has inverted lists, or None."""
    faiss = load_faiss()
    inner = index
    while isinstance(inner, faiss.IndexPreTransform | faiss.IndexRefine):
        inner = faiss.downcast_index(inner.base_index if hasattr(inner, "base_index") else inner.index)
    return inner if isinstance(inner, faiss.IndexIVF | faiss.IndexIVFFastScan) else None


def inner_graph(index: Any) -> Any:
    """Return the graph of an hnsw index, or None."""
    faiss = load_faiss()
    inner = faiss.downcast_index(index.index) if isinstance(index, faiss.IndexIDMap) else index
    return inner if isinstance(inner, faiss.IndexHNSW) else None


def train(index: Any, sample: FloatMatrix) -> None:
    """Train an index on vectors, however few they are.

    faiss wants at least a vector per centroid; fewer are repeated, and where there are none zeros stand in.

    Raises:
        InputError: faiss cannot train it.
    """
    if index.is_trained:
        return
    cells = inner_cells(index)
    is_plain = isinstance(index, load_faiss().IndexIVFPQFastScan)
    # What stands in front of the cells may have quantisers of its own, of 8 bits.
    needed = max(1 << _CODE_BITS if is_plain else _CENTROIDS, 1 if cells is None else cells.nlist)
    if len(sample) == 0:
        sample = np.zeros((1, index.d), np.float32)
    if len(sample) < needed:
        sample = np.tile(sample, (-(-needed // len(sample)), 1))
    try:
        index.train(np.ascontiguousarray(sample))
    except RuntimeError as error:
        reason = str(error).rpartition("Error: ")[2].strip() or str(error)
        raise InputError(
            "vector_index", f"faiss cannot train it on {len(sample)} vectors: {reason}"
        ) from None


def efforts(index: Any) -> list[int]:
    """Return the search efforts worth measuring, rising; [0] where everything is looked at.

    For cells how many are visited: doubling up to a quarter of them, then by eighths. For hnsw how many
    candidates are kept.
    """
    if inner_graph(index) is not None:
        return [64, 128, 256, 512, 1024]
    cells = inner_cells(index)
    if cells is None:
        return [0]
    small = [1 << i for i in range(11) if 1 << i < cells.nlist / 4]
    return sorted({*small, *(math.ceil(cells.nlist * i / 8) for i in range(2, 9))})
