"""Making the vectors of an index: a sample trains, then every text is embedded and added, block by block.

The search effort is chosen by known items. `_NUM_QUERIES` texts of the catalogue, every other one with a
typing error and the others without one of their words, are searched for with full effort; those whose entity
comes first are known items. The effort in force is the least that loses at most one known item in a hundred
from the first place (`TARGET_RECALL`). Of 500 known items, an effort that in truth loses 2.5 % passes by
chance in 15 cases of 1,000. With fewer than `_MIN_KNOWN` known items the largest effort is taken.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Any, Protocol

import numpy as np
import xxhash

from retrieval.durable import appearing, writing
from retrieval.errors import InputError
from retrieval.index.layout import VECTORS_FILE
from retrieval.index.manifest_entries import VectorsEntry
from retrieval.index.reader import Index
from retrieval.noise import typo
from retrieval.vectors.embedder import FloatMatrix, TextEmbedder, VectorMethod, open_model
from retrieval.vectors.faiss_index import (
    KIND_NAMES,
    efforts,
    faiss_threads,
    kind_of,
    new_index,
    sample_size,
    train,
    write_vectors,
)
from retrieval.vectors.searching import VectorSearcher
from retrieval.vectors.views import EntityTexts, IntArray, TextBatch

DEFAULT_COLUMN = "description"
TARGET_RECALL = 0.99
_NUM_QUERIES, _MIN_KNOWN = 500, 100
_MAX_BLOCK = 16_384
# Parts of the memory that a sample may take, and a block with what is made from it.
_SAMPLE_PART, _BLOCK_PART = 4, 16


@dataclass(frozen=True, slots=True)
class VectorOptions:
    """How vectors are made.

    Attributes:
        kind: "auto" (see `kind_of`), "flat", "hnsw", "ivfpq", or a string for faiss' index factory.
        columns: Metadata columns whose texts get vectors beside titles and aliases. None: `description` where
            the index has such a column of strings.
        sample: Most vectors that the quantisers are trained on; None: by rule.
        device: Where the encoder runs.
        seed: Of everything random.

    Raises:
        ValueError: a number is out of its bounds, or the kind is empty.
    """

    kind: str = "auto"
    columns: tuple[str, ...] | None = None
    sample: int | None = None
    device: str = "cpu"
    seed: int = 0

    def __post_init__(self) -> None:
        if not self.kind:
            raise ValueError(f"kind: expected one of {list(KIND_NAMES)} or a faiss factory string, got ''")
        if self.sample is not None and self.sample < 1:
            raise ValueError(f"sample: expected at least 1, got {self.sample}")
        if not 0 <= self.seed < 1 << 31:
            raise ValueError(f"seed: expected 0 <= it < 2**31, got {self.seed}")


class VectorProgress(Protocol):
    """Told about every step; the progress of a build is one."""

    def phase(self, name: str, total: int | None = None) -> None:
        """A phase begins; `total` units of work are expected, None when unknown."""

    def advance(self, done: int, note: str) -> None:
        """`done` units of the phase are finished in all; `note` says so in words."""

    def note(self, text: str) -> None:
        """Something worth a line of its own has been found out."""


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
        method: The embedder.
        options: Kind of index, columns, sample, device, seed.
        folder: Where the file is written, which is synced.
        memory_bytes: What may be held beside the codes.
        threads: Of faiss.
        work: A folder in which the vectors are kept block by block, so that a run that was killed goes on
            where it stood; the caller removes it. None: nothing is kept.
        progress: Told about every step.

    Returns:
        The manifest's account of the vectors, and the names of the files written.

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
        _tell(progress, "opening the encoder")
        embedder = open_model(method, options.device)
        kind = kind_of(options.kind, count)
        vectors = new_index(kind, options.kind, embedder.dimensions, count, options.seed)
        wanted = min(options.sample or sample_size(count), count)
        trained = _train(vectors, texts, embedder, wanted, memory_bytes, progress)
        if kind == "factory":
            _check_searchable(vectors, options.kind, index.num_entities)
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
        batches = texts.batches(block_size(vectors.d, memory_bytes))
        add_texts(vectors, embedder, batches, count, work, progress)
        entry = choose_effort(entry, vectors, texts, embedder, index.num_entities, progress)
        write_vectors(vectors, folder)
        return entry, (VECTORS_FILE,)


def index_columns(index: Index, options: VectorOptions) -> tuple[str, ...]:
    """Return the columns asked for, or `description` where the index has such a column of strings."""
    if options.columns is not None:
        return options.columns
    is_there = index.metadata_types.get(DEFAULT_COLUMN) == "string"
    return (DEFAULT_COLUMN,) if is_there else ()


def add_texts(
    vectors: Any,
    embedder: TextEmbedder,
    batches: Iterable[TextBatch],
    count: int,
    work: Path | None,
    progress: VectorProgress | None,
) -> None:
    """Embed texts and add them to an index, block by block.

    Args:
        vectors: The faiss index.
        embedder: Makes the vectors.
        batches: The texts.
        count: How many there are in all, or entities that have them.
        work: Where the vectors of every block are kept; None: nowhere.
        progress: Told about every block.
    """
    if progress is not None:
        progress.phase("vectors", count)
    done = 0
    for batch in batches:
        vectors.add_with_ids(_embedded(embedder, batch.texts, work), batch.numbers)
        done += len(batch.numbers)
        if progress is not None:
            progress.advance(done, f"{done:,} texts")


def block_size(dimensions: int, memory_bytes: int) -> int:
    """Return how many texts are embedded and added at once."""
    return max(min(memory_bytes // _BLOCK_PART // (4 * dimensions), _MAX_BLOCK), 1)


def choose_effort(
    entry: VectorsEntry,
    vectors: Any,
    texts: EntityTexts,
    embedder: TextEmbedder,
    num_entities: int,
    progress: VectorProgress | None = None,
) -> VectorsEntry:
    """Return the entry with the search effort chosen by known items.

    Args:
        entry: The account of the vectors.
        vectors: The faiss index, filled.
        texts: Of the entities.
        embedder: Made the vectors.
        num_entities: Entities of the index.
        progress: Told that known items are searched for.
    """
    choices = efforts(vectors)
    if choices == [0]:
        return replace(entry, effort=0, recall=1.0, recall_queries=0)
    _tell(progress, "choosing the search effort of the vectors")
    sample, random = texts.sample(_NUM_QUERIES), Random(entry.seed)
    damaged = [
        _without_a_word(text, random) if i % 2 else typo(text, random) for i, text in enumerate(sample.texts)
    ]
    queries, searcher = embedder.embed_queries(damaged), VectorSearcher(vectors, num_entities)

    def is_first(effort: int, queries: FloatMatrix, entities: IntArray) -> Any:
        found = [searcher.search(query, 1, effort=effort).entities[0] for query in queries]
        return np.array(found, np.int64) == entities

    known = queries.any(axis=1) & is_first(0, queries, sample.numbers)
    queries, entities = queries[known], sample.numbers[known]
    shares: dict[int, float] = {}

    def share(effort: int) -> float:
        shares[effort] = float(is_first(effort, queries, entities).mean()) if len(entities) else 1.0
        return shares[effort]

    if len(entities) < _MIN_KNOWN:
        best = choices[-1]
        share(best)
    else:  # more effort loses no known item
        best = choices[min(bisect_left(choices, TARGET_RECALL, key=share), len(choices) - 1)]
    return replace(entry, effort=best, recall=shares[best], recall_queries=len(entities))


def _without_a_word(text: str, random: Random) -> str:
    words = text.split()
    if len(words) < 2:
        return typo(text, random)
    del words[random.randrange(len(words))]
    return " ".join(words)


def _embedded(embedder: TextEmbedder, texts: list[str], work: Path | None) -> FloatMatrix:
    """Return the vectors of texts; those that a killed run has left in the work folder are read.

    Raises:
        SourceError: the work folder cannot be written to.
    """
    if work is None:
        return embedder.embed_texts(texts)
    digest = xxhash.xxh3_128(embedder.fingerprint.encode())
    for text in texts:
        data = text.encode(errors="surrogatepass")
        digest.update(len(data).to_bytes(8, "little") + data)
    file = work / f"{digest.hexdigest()}.npy"
    if file.exists():
        kept: FloatMatrix = np.load(file, allow_pickle=False)
        return kept
    vectors = embedder.embed_texts(texts)
    with appearing(file) as staging, writing(file), staging.open("wb") as stream:
        np.save(stream, vectors)
    return vectors


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


def _check_searchable(vectors: Any, wish: str, num_entities: int) -> None:
    refusal = VectorSearcher(vectors, num_entities).refusal()
    if refusal is not None:
        raise InputError("vector_index", f"faiss cannot search {wish!r} under a filter: {refusal}")


def _factory_name(kind: str, wish: str, vectors: Any) -> str:
    if kind == "flat":
        return "IDMap,Flat"
    if kind == "hnsw":
        return "IDMap,HNSW32,Flat"
    return f"IVF{vectors.nlist},PQ{vectors.pq.M}x{vectors.pq.nbits}fs" if kind == "ivfpq" else wish


def _tell(progress: VectorProgress | None, phase: str) -> None:
    if progress is not None:
        progress.phase(phase)
