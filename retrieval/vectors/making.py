"""Making the vectors of an index: a sample trains, then every text is embedded and added, block by block."""

from __future__ import annotations

import os
from bisect import bisect_left
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save

from retrieval.durable import appearing, writing
from retrieval.errors import InputError
from retrieval.index.layout import EMBEDDER_FILE, VECTORS_FILE
from retrieval.index.manifest_entries import VectorsEntry
from retrieval.index.reader import Index
from retrieval.vectors.blocks import BlockEmbedder
from retrieval.vectors.embedder import FloatMatrix, TextEmbedder
from retrieval.vectors.exact import ExactSimilarities
from retrieval.vectors.faiss_threads import faiss_threads
from retrieval.vectors.kinds import efforts, kind_of, load_faiss, new_index, sample_size, train
from retrieval.vectors.methods import LEXICAL, VectorMethod, fit_embedder
from retrieval.vectors.nearest import NearestTexts
from retrieval.vectors.options import VectorOptions, VectorProgress
from retrieval.vectors.pipeline import searcher_of
from retrieval.vectors.searching import VectorSearcher
from retrieval.vectors.typing_errors import damaged
from retrieval.vectors.views import EntityTexts

DEFAULT_COLUMN = "description"
# Texts that tell a lexical embedder what is rare.
_EMBEDDER_SAMPLE = 200_000
_RECALL_QUERIES = 100
# The least effort that finds so many of Flat's 100 nearest is stored.
TARGET_RECALL = 0.9
_MAX_BLOCK = 16_384
# Parts of the memory that a sample may take, and a block with what is made from it.
_SAMPLE_PART, _BLOCK_PART = 4, 16


def make_vectors(
    index: Index,
    method: VectorMethod,
    options: VectorOptions,
    folder: Path,
    *,
    memory_bytes: int,
    threads: int = 1,
    work: Path | None = None,
    progress: VectorProgress | None = None,
) -> tuple[VectorsEntry, tuple[str, ...]]:
    """Make the vectors of an index's entities.

    The same entities, options and number of threads give the same bytes with the same versions of faiss,
    NumPy and the embedder's library on the same kind of processor: what is random comes from the seed.

    Args:
        index: Its entities are read; it needs nothing else, and is not changed.
        method: What makes vectors from texts.
        options: Kind of index, dimensions, columns, sample, device, seed.
        folder: Where the files are written, which is synced.
        memory_bytes: What may be held beside the codes.
        threads: Of faiss.
        work: A folder in which an encoder's vectors are kept block by block, so that a run that was killed
            goes on where it stood; the caller removes it. None: nothing is kept.
        progress: Told about every step.

    Returns:
        What the manifest says about the vectors, and the names of the files written.

    Raises:
        MissingExtraError: faiss or the embedder's library is not installed.
        InputError: a column is unknown or not of strings, or faiss knows no such factory string, or none that
            can be trained on so few texts, takes ids and can be searched under a filter.
        ModelError: the encoder cannot be loaded.
        SourceError: a file cannot be written.
    """
    with faiss_threads(threads):
        texts = EntityTexts(index, index_columns(index, options))
        count = texts.count
        _tell(progress, "fitting the embedder")
        sample = texts.sample(min(count, _EMBEDDER_SAMPLE)).texts if method.name == LEXICAL else []
        embedder = fit_embedder(method, sample, options.dimensions, options.device, options.seed, count)
        blocks = BlockEmbedder(embedder, work if method.source else None)
        kind = kind_of(options.kind, count)
        vectors = new_index(kind, options.kind, embedder.dimensions, count, options.seed, method.name)
        wanted = options.sample or sample_size(count, method.name)
        trained = _train(vectors, texts, embedder, min(wanted, count), memory_bytes, progress)
        if kind == "factory":
            _check_searchable(vectors, options.kind, index.num_entities, ExactSimilarities(embedder, texts))
        entry = VectorsEntry(
            method=method.name,
            source=method.source,
            fingerprint=embedder.fingerprint,
            columns=texts.columns,
            dimensions=embedder.dimensions,
            count=count,
            kind=kind,
            factory=_factory_name(kind, options.kind, vectors),
            effort=0,
            sample=trained,
            recall=1.0,
            recall_queries=0,
            seed=options.seed,
        )
        nearest = None if kind == "flat" else _recall_queries(texts, embedder, options.seed)
        add_texts(vectors, texts, blocks, memory_bytes, count, progress, nearest)
        if nearest is not None:
            _tell(progress, "measuring the recall of the vectors")
            exact = ExactSimilarities(embedder, texts)
            entry = _tuned(entry, vectors, index.num_entities, exact, nearest)
        return entry, write_vectors(vectors, embedder, folder)


def index_columns(index: Index, options: VectorOptions) -> tuple[str, ...]:
    """Return the columns asked for, or `description` where the index has such a column of strings."""
    if options.columns is not None:
        return options.columns
    is_there = index.metadata_types.get(DEFAULT_COLUMN) == "string"
    return (DEFAULT_COLUMN,) if is_there else ()


def add_texts(
    vectors: Any,
    texts: EntityTexts,
    blocks: BlockEmbedder,
    memory_bytes: int,
    count: int,
    progress: VectorProgress | None,
    nearest: NearestTexts | None = None,
) -> None:
    """Embed all texts and add them to an index, block by block."""
    if progress is not None:
        progress.phase("vectors", count)
    done = 0
    for block in blocks.blocks(texts.batches(block_size(vectors.d, memory_bytes))):
        vectors.add_with_ids(block.vectors, block.numbers)
        if nearest is not None:
            nearest.see(block.numbers, block.vectors)
        done += len(block.numbers)
        if progress is not None:
            progress.advance(done, f"{done:,} texts")


def block_size(dimensions: int, memory_bytes: int) -> int:
    """Return how many texts are embedded and added at once."""
    return max(min(memory_bytes // _BLOCK_PART // (4 * dimensions), _MAX_BLOCK), 1)


def write_vectors(vectors: Any, embedder: TextEmbedder, folder: Path) -> tuple[str, ...]:
    """Write an index and what its embedder is made from, synced; return the names of the files.

    Raises:
        SourceError: a file cannot be written.
    """
    faiss = load_faiss()
    with appearing(folder / VECTORS_FILE) as staging, writing(folder / VECTORS_FILE):
        try:
            faiss.write_index(vectors, os.fspath(staging))
        except RuntimeError as error:  # faiss knows the system's errors by their text alone
            raise OSError(str(error).rpartition(": ")[2] or str(error)) from error
    arrays = embedder.arrays()
    if not arrays:
        return (VECTORS_FILE,)
    with appearing(folder / EMBEDDER_FILE) as staging, writing(folder / EMBEDDER_FILE):
        # Written here, for save_file has errors of its own and a file that nobody else may read.
        staging.write_bytes(save({name: np.ascontiguousarray(array) for name, array in arrays.items()}))
    return VECTORS_FILE, EMBEDDER_FILE


def _train(
    vectors: Any,
    texts: EntityTexts,
    embedder: TextEmbedder,
    wanted: int,
    memory_bytes: int,
    progress: VectorProgress | None,
) -> int:
    """Train an index on so many vectors, or as many as fit; return how many, 0 where nothing is trained."""
    if vectors.is_trained:
        return 0
    _tell(progress, "training the vectors")
    wanted = min(wanted, max(memory_bytes // _SAMPLE_PART // (4 * vectors.d), 1))
    sample = texts.sample(wanted).texts
    step = block_size(vectors.d, memory_bytes)
    parts: list[FloatMatrix] = [
        embedder.embed_texts(sample[begin : begin + step]) for begin in range(0, len(sample), step)
    ]
    # Its steps are short: threads that share cores with other processes wait for each other most of the time.
    with faiss_threads(1):
        train(vectors, np.concatenate([np.empty((0, vectors.d), np.float32), *parts]))
    return len(sample)


def _check_searchable(vectors: Any, wish: str, num_entities: int, exact: ExactSimilarities) -> None:
    refusal = VectorSearcher(vectors, num_entities, 1, exact, False).refusal()
    if refusal is not None:
        raise InputError("vector_index", f"faiss cannot search {wish!r} under a filter: {refusal}")


def _recall_queries(texts: EntityTexts, embedder: TextEmbedder, seed: int) -> NearestTexts:
    queries = damaged(texts.sample(_RECALL_QUERIES).texts, seed)
    vectors = embedder.embed_queries(queries)
    kept = np.flatnonzero(vectors.any(axis=1))
    return NearestTexts([queries[i] for i in kept], vectors[kept])


def _tuned(
    entry: VectorsEntry, vectors: Any, num_entities: int, exact: ExactSimilarities, nearest: NearestTexts
) -> VectorsEntry:
    """Return the entry with the least effort that finds enough, else the one that finds most."""
    searcher = searcher_of(vectors, entry, num_entities, exact)
    choices = efforts(vectors)
    shares: dict[int, float] = {}

    def share(effort: int) -> float:
        shares[effort] = nearest.recall(searcher, effort)
        return shares[effort]

    # More effort finds no less, up to chance.
    at = min(bisect_left(choices, TARGET_RECALL, key=share), len(choices) - 1)
    best = choices[at]
    recall = shares[best]
    return replace(entry, effort=best, recall=recall, recall_queries=len(nearest.texts))


def _factory_name(kind: str, wish: str, vectors: Any) -> str:
    if kind == "flat":
        return "IDMap,Flat"
    if kind == "hnsw":
        return "IDMap,HNSW32,Flat"
    return f"IVF{vectors.nlist},PQ{vectors.pq.M}x{vectors.pq.nbits}fs" if kind == "ivfpq" else wish


def _tell(progress: VectorProgress | None, phase: str) -> None:
    if progress is not None:
        progress.phase(phase)
