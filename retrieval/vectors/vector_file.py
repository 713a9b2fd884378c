"""Opening the vectors of an index: no byte is trusted before its digest, no content before it is checked."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError
from safetensors.numpy import load_file

from retrieval.errors import EvidenceMissingError, IndexFormatError
from retrieval.index.layout import EMBEDDER_FILE, VECTORS_FILE
from retrieval.index.manifest_entries import VectorsEntry
from retrieval.index.reader import Index
from retrieval.vectors.kinds import inner_cells, inner_graph, load_faiss

Arrays = Mapping[str, npt.NDArray[np.generic]]

# Ids that are checked at a time.
_BLOCK = 1 << 20


@dataclass(frozen=True, slots=True, eq=False)
class OpenVectors:
    """The vectors of an index.

    Attributes:
        entry: What the manifest says about them.
        index: A faiss index: read it, and change nothing.
        arrays: What the embedder is made from; empty for models.
    """

    entry: VectorsEntry
    index: Any
    arrays: Arrays


def open_vectors(index: Index, mapped: bool = True) -> OpenVectors:
    """Open the vectors of an index.

    faiss trusts what it reads, so it never sees bytes that differ from the manifest, unless the index was
    opened without comparing digests.

    Args:
        index: An open index.
        mapped: Whether vectors stay in the file where faiss can do so; else all are read, and may be changed.

    Raises:
        EvidenceMissingError: the index has none.
        IndexChecksumError: a file differs from the manifest.
        IndexFormatError: it is no file of vectors, or one of others than the manifest says.
        MissingExtraError: faiss is not installed.
    """
    entry = index.vectors
    if entry is None:
        raise EvidenceMissingError(f"{index.path}: the index was built without vectors")
    faiss = load_faiss()
    file = index.evidence_path(VECTORS_FILE)
    try:
        vectors = faiss.read_index(str(file), faiss.IO_FLAG_MMAP_IFC if mapped else 0)
    except (RuntimeError, MemoryError) as error:
        reason = str(error).rpartition("Error: ")[2].strip() or str(error)
        raise IndexFormatError(f"{VECTORS_FILE}: expected an index of faiss, got: {reason}") from None
    _check(vectors, entry, index.num_entities)
    arrays = {} if entry.source else _read_arrays(index.evidence_path(EMBEDDER_FILE))
    return OpenVectors(entry, vectors, arrays)


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
    """Refuse vectors that are not those of the manifest."""
    faiss = load_faiss()
    _expect("vectors of length", entry.dimensions, vectors.d)
    _expect("number of vectors", entry.count, vectors.ntotal)
    _expect("metric", "inner product", _metric(vectors))
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


def _metric(vectors: Any) -> str:
    faiss = load_faiss()
    return "inner product" if vectors.metric_type == faiss.METRIC_INNER_PRODUCT else "another"


def _expect(what: str, expected: object, got: object) -> None:
    if expected != got:
        raise IndexFormatError(f"{VECTORS_FILE}: {what}: expected {expected}, got {got}")


def _read_arrays(file: Path) -> Arrays:
    try:
        arrays: Arrays = load_file(file)
    except SafetensorError as error:
        raise IndexFormatError(f"{EMBEDDER_FILE}: expected a safetensors file, got: {error}") from None
    return arrays
