"""The faiss index of the vectors: its kind and sizes, its training, its file."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from genret.retrieval.durable import appearing, writing
from genret.retrieval.errors import EvidenceMissingError, IndexFormatError, InputError, MissingExtraError
from genret.retrieval.index.layout import VECTORS_FILE
from genret.retrieval.index.manifest import OLD_VECTOR_METHODS, VectorsEntry
from genret.retrieval.index.reader import Index

if TYPE_CHECKING:
    from types import ModuleType

    from genret.retrieval.vectors.embedder import FloatMatrix

# "auto" and the three kinds; anything else is a string for faiss' index factory.
KIND_NAMES = ("auto", "flat", "hnsw", "ivfpq")

# Below, every vector is compared: 100,000 of 256 dimensions take some 5 ms and 100 MB.
FLAT_BELOW = 100_000

MAX_CELLS = 1024
# Four times as many texts need twice the cells; then a trained index is replaced.
_TEXTS_PER_SQUARED_CELL = 4
_SAMPLE_PER_CELL = 128
_MIN_SAMPLE = 32_768

MAX_SUBQUANTISERS = 128
_CODE_BITS = 4
_CENTROIDS = 256  # of a quantiser of 8 bits
_NEIGHBOURS = 32  # of a node of hnsw
_CONSTRUCTION_EFFORT = 80

# Ids that are checked at once.
_BLOCK = 1 << 20
# Least limit, in bytes, on what faiss makes while it reads a file; tables that it derives are small.
_LEAST_LIMIT = 1 << 26
_LIMITS = Lock()


def load_faiss() -> ModuleType:
    """Return faiss. Raises `MissingExtraError` if it is not installed."""
    try:
        import faiss
    except ImportError:
        raise MissingExtraError("faiss", "vectors") from None
    module: ModuleType = faiss
    return module


def reason_of(error: Exception) -> str:
    """Return what an error of faiss says, without the place in its code."""
    return str(error).rpartition("Error: ")[2].strip() or str(error)


@contextmanager
def faiss_threads(threads: int) -> Iterator[None]:
    """Set the number of threads that faiss uses in the block, for the thread that enters it.

    If faiss and PyTorch share one OpenMP library, as often, this is PyTorch's number too.
    """
    faiss = load_faiss()
    before = faiss.omp_get_max_threads()
    faiss.omp_set_num_threads(max(threads, 1))
    try:
        yield
    finally:
        faiss.omp_set_num_threads(before)


def kind_of(wish: str, count: int) -> str:
    """Return "flat", "hnsw", "ivfpq" or "factory" for a `VectorOptions.kind` and a number of vectors."""
    if wish == "auto":
        return "flat" if count < FLAT_BELOW else "ivfpq"
    return wish if wish in KIND_NAMES else "factory"


def check_kind(wish: str) -> None:
    """Refuse a kind that faiss makes for no vectors; whether it fits some shows when it is made for them."""
    try:
        if kind_of(wish, 0) == "factory":
            _by_factory(wish, dimensions=768)
    except InputError as error:
        if "could not parse" in error.message or "makes no index" not in error.message:
            raise


def num_cells(count: int) -> int:
    """Return the number of cells for some vectors: a power of two, about half the root of their number."""
    root = math.isqrt(max(count, 1) // _TEXTS_PER_SQUARED_CELL)
    return min(1 << max(root, 1).bit_length() - 1, MAX_CELLS)


def sample_size(count: int) -> int:
    """Return how many vectors train the quantisers of an index of `count`."""
    return min(count, max(num_cells(count) * _SAMPLE_PER_CELL, _MIN_SAMPLE))


def num_subquantisers(dimensions: int) -> int:
    """Return how many parts of a vector get 4 bits each; InputError if none are of at most 16 dimensions."""
    most = min(dimensions, MAX_SUBQUANTISERS)
    parts = max((m for m in range(1, most + 1) if dimensions % m == 0), default=0)
    if parts * 16 < dimensions:
        raise InputError("vector_dimensions", f"ivfpq needs a multiple of 8, got {dimensions}")
    return parts


def new_index(kind: str, wish: str, dimensions: int, count: int, seed: int) -> Any:
    """Return an empty faiss index for inner products that takes entity numbers as ids.

    `kind` comes from `kind_of`; `wish` is the factory string for "factory"; `count` vectors will be added.

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
            num_cells(count),
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
    """Return whether an index keeps ids, by itself or inside an IDMap."""
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
    """Train an index on vectors, however few: faiss needs one per centroid, so they are repeated.

    Raises:
        InputError: faiss cannot train it.
    """
    if index.is_trained:
        return
    cells = inner_cells(index)
    is_plain = isinstance(index, load_faiss().IndexIVFPQFastScan)
    # A part in front of the cells may have quantisers of its own, of 8 bits.
    needed = max(1 << _CODE_BITS if is_plain else _CENTROIDS, 1 if cells is None else cells.nlist)
    if len(sample) == 0:
        sample = np.zeros((1, index.d), np.float32)
    if len(sample) < needed:
        sample = np.tile(sample, (-(-needed // len(sample)), 1))
    try:
        index.train(np.ascontiguousarray(sample))
    except RuntimeError as error:
        why = f"faiss cannot train it on {len(sample)} vectors: {reason_of(error)}"
        raise InputError("vector_index", why) from None


def efforts(index: Any) -> list[int]:
    """Return the search efforts worth measuring, ascending; [0] if every search is exhaustive.

    For cells it is the number visited: doubling up to a quarter of them, then by eighths. For hnsw it is the
    number of candidates kept.
    """
    if inner_graph(index) is not None:
        return [64, 128, 256, 512, 1024]
    cells = inner_cells(index)
    if cells is None:
        return [0]
    small = [1 << i for i in range(11) if 1 << i < cells.nlist / 4]
    return sorted({*small, *(math.ceil(cells.nlist * i / 8) for i in range(2, 9))})


def write_vectors(vectors: Any, folder: Path) -> None:
    """Write an index as the file of a version, synced. Raises `SourceError` if the file cannot be written."""
    faiss = load_faiss()
    with appearing(folder / VECTORS_FILE) as staging, writing(folder / VECTORS_FILE):
        try:
            faiss.write_index(vectors, os.fspath(staging))
        except RuntimeError as error:  # faiss gives the system's errors as text alone
            raise OSError(str(error).rpartition(": ")[2] or str(error)) from error


def vectors_entry(index: Index) -> VectorsEntry:
    """Return what the manifest says; EvidenceMissingError without vectors, IndexFormatError for old ones."""
    entry = index.vectors
    if entry is None:
        raise EvidenceMissingError(f"{index.path}: the index was built without vectors")
    if entry.method in OLD_VECTOR_METHODS:
        raise IndexFormatError(
            f"{VECTORS_FILE}: made by the method {entry.method}, which this version no longer has; "
            "make vectors anew with genret update INDEX --vectors encoder:MODEL"
        )
    return entry


def open_vectors(index: Index, mapped: bool = True) -> Any:
    """Return the faiss index of the vectors of an open index.

    Bytes that differ from the manifest are refused, unless the index was opened without comparing digests;
    faiss itself refuses sizes, offsets and neighbours that do not fit together. With `mapped`, vectors stay
    in the file where faiss can do so; otherwise all are read, and may be changed.

    Raises:
        EvidenceMissingError: the index has no vectors.
        IndexChecksumError: the file differs from the manifest.
        IndexFormatError: the file is malformed, holds other vectors than the manifest says, or was made by a
            method that this version no longer has.
        MissingExtraError: faiss is not installed.
    """
    entry = vectors_entry(index)
    faiss = load_faiss()
    file = index.evidence_path(VECTORS_FILE)
    limit = max(index.manifest.num_bytes, _LEAST_LIMIT)
    try:
        with _LIMITS:
            # faiss makes room for as much as a file says it holds; the limits hold for the whole process.
            faiss.set_deserialization_vector_byte_limit(limit)
            faiss.set_deserialization_loop_limit(limit)
            vectors = faiss.read_index(str(file), faiss.IO_FLAG_MMAP_IFC if mapped else 0)
    except (RuntimeError, MemoryError) as error:
        got = reason_of(error)
        raise IndexFormatError(f"{VECTORS_FILE}: expected an index of faiss, got: {got}") from None
    _check(vectors, entry, index.num_entities)
    return vectors


def stored_kind(index: Any) -> str:
    """Return the kind of a faiss index: "flat", "hnsw", "ivfpq", else "factory"."""
    faiss = load_faiss()
    if type(index) is faiss.IndexIDMap:
        inner = type(faiss.downcast_index(index.index))
        if inner is faiss.IndexFlatIP or inner is faiss.IndexFlat:
            return "flat"
        if inner is faiss.IndexHNSWFlat:
            return "hnsw"
    return "ivfpq" if type(index) is faiss.IndexIVFPQFastScan else "factory"


def stored_ids(index: Any) -> Iterator[npt.NDArray[np.int64]]:
    """Yield the ids of all vectors, in blocks that are read only."""
    faiss = load_faiss()
    cells = inner_cells(index)
    if cells is None:
        size = index.id_map.size()
        if size:
            yield faiss.rev_swig_ptr(index.id_map.data(), size)
        return
    lists = faiss.downcast_InvertedLists(cells.invlists)
    for cell in range(cells.nlist):
        size = lists.list_size(cell)
        if size:
            yield faiss.rev_swig_ptr(lists.get_ids(cell), size)


def _check(vectors: Any, entry: VectorsEntry, num_entities: int) -> None:
    """Refuse vectors that differ from the manifest."""
    faiss = load_faiss()
    _expect("vectors of length", entry.dimensions, vectors.d)
    _expect("number of vectors", entry.count, vectors.ntotal)
    is_inner = vectors.metric_type == faiss.METRIC_INNER_PRODUCT
    _expect("metric", "inner product", "inner product" if is_inner else "another")
    if entry.kind != "factory":
        _expect("kind", entry.kind, stored_kind(vectors))
    if not vectors.is_trained:
        raise IndexFormatError(f"{VECTORS_FILE}: expected a trained index, got an untrained one")
    if inner_cells(vectors) is None and not isinstance(vectors, faiss.IndexIDMap):
        raise IndexFormatError(f"{VECTORS_FILE}: expected entity numbers as ids, got none")
    if entry.kind == "hnsw":
        _expect("vectors of the graph", entry.count, inner_graph(vectors).storage.ntotal)
    found = 0
    for ids in stored_ids(vectors):
        found += len(ids)
        for begin in range(0, len(ids), _BLOCK):
            part = ids[begin : begin + _BLOCK]
            low, high = int(part.min()), int(part.max())
            if low < 0 or high >= num_entities:
                got = low if low < 0 else high
                raise IndexFormatError(f"{VECTORS_FILE}: expected ids in [0, {num_entities}), got {got}")
    _expect("number of ids", entry.count, found)


def _expect(what: str, expected: object, got: object) -> None:
    if expected != got:
        raise IndexFormatError(f"{VECTORS_FILE}: {what}: expected {expected}, got {got}")
