"""Makes the vectors of an index: a sample trains, then all texts are embedded and added, block by block.

An update takes over the vectors of the previous version and embeds only new texts (`carry_over_vectors`).

The search effort is chosen by known items. `_NUM_QUERIES` texts of the catalogue, every other one with a
typing error and the others without one of their words, are searched for with full effort; those whose
entity comes first are known items. The chosen effort is the least that loses at most one known item in a
hundred from the first place (`TARGET_RECALL`). With 500 known items, an effort that really loses 2.5 % passes
by chance in 15 cases of 1,000. With fewer than `_MIN_KNOWN` known items the largest effort is taken.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import numpy.typing as npt
import xxhash

from genret.retrieval.durable import appearing, writing
from genret.retrieval.errors import InputError
from genret.retrieval.index.layout import VECTORS_FILE
from genret.retrieval.index.manifest import VectorsEntry
from genret.retrieval.index.reader import EntityTexts, Index, IntArray, TextBatch, text_columns
from genret.retrieval.noise import drop_a_word, typo
from genret.retrieval.progress import StepProgress
from genret.retrieval.vectors.embedder import (
    FloatMatrix,
    TextEmbedder,
    VectorMethod,
    open_embedder,
    open_model,
)
from genret.retrieval.vectors.faiss_index import (
    KIND_NAMES,
    efforts,
    faiss_threads,
    inner_cells,
    inner_graph,
    kind_of,
    load_faiss,
    new_index,
    num_cells,
    open_vectors,
    sample_size,
    stored_ids,
    train,
    vectors_entry,
    write_vectors,
)
from genret.retrieval.vectors.vector_search import VectorSearcher

TARGET_RECALL = 0.99
_NUM_QUERIES, _MIN_KNOWN = 500, 100
_MAX_BLOCK = 16_384
# Divisors of the memory for a sample, and for a block with what is made from it.
_SAMPLE_PART, _BLOCK_PART = 4, 16


@dataclass(frozen=True, slots=True)
class VectorOptions:
    """Options for making vectors.

    Raises:
        ValueError: a number is out of its bounds, or (`InputError`) the kind is empty.
    """

    # "auto" (see `kind_of`), "flat", "hnsw", "ivfpq", or a string for faiss' index factory
    kind: str = "auto"
    # Metadata columns whose texts get vectors beside titles and aliases; None: see `text_columns`
    columns: tuple[str, ...] | None = None
    sample: int | None = None  # limit on the vectors that train the quantisers; None: the default of the kind
    device: str = "cpu"  # device of the encoder
    seed: int = 0  # seed of everything random

    def __post_init__(self) -> None:
        if not self.kind.strip():
            raise InputError("vector_index", f"expected {', '.join(KIND_NAMES)} or a factory string, got ''")
        if self.sample is not None and self.sample < 1:
            raise ValueError(f"sample: expected at least 1, got {self.sample}")
        if not 0 <= self.seed < 1 << 31:
            raise ValueError(f"seed: expected 0 <= it < 2**31, got {self.seed}")


def make_vectors(
    index: Index,
    method: VectorMethod,
    options: VectorOptions,
    folder: Path,
    *,
    memory_bytes: int,
    threads: int = 1,
    work: Path | None = None,
    progress: StepProgress | None = None,
) -> tuple[VectorsEntry, tuple[str, ...]]:
    """Make the vectors of an index's entities; return the manifest's entry and the names of the files.

    The same entities, options and number of threads give the same bytes with the same versions of faiss,
    NumPy and the embedder's library on the same kind of processor. Memory is bounded beside the codes. `work`
    keeps the vectors block by block, so that a killed run can continue; the caller removes it.

    Raises:
        MissingExtraError: faiss or the embedder's library is not installed.
        InputError: a column is unknown or not of strings, or faiss knows no such factory string, or none that
            can be trained on so few texts, takes ids and can be searched under a filter.
        ModelError: the encoder cannot be loaded.
        SourceError: a file cannot be written.
    """
    progress = progress or StepProgress()
    with faiss_threads(threads):
        texts = EntityTexts(index, text_columns(options.columns, index.metadata_types))
        count = texts.count
        progress.phase("opening the encoder")
        embedder = open_model(method, options.device)
        kind = kind_of(options.kind, count)
        vectors = new_index(kind, options.kind, embedder.dimensions, count, options.seed)
        wanted = min(options.sample or sample_size(count), count)
        trained = _train(vectors, texts, embedder, wanted, memory_bytes, progress)
        if kind == "factory":
            refusal = VectorSearcher(vectors, index.num_entities).refusal()
            if refusal is not None:
                why = f"faiss cannot search {options.kind!r} under a filter: {refusal}"
                raise InputError("vector_index", why)
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
        batches = texts.batches(_block_size(vectors.d, memory_bytes))
        _add_texts(vectors, embedder, batches, count, work, progress)
        entry = choose_effort(entry, vectors, texts, embedder, index.num_entities, progress)
        write_vectors(vectors, folder)
        return entry, (VECTORS_FILE,)


def _add_texts(
    vectors: Any,
    embedder: TextEmbedder,
    batches: Iterable[TextBatch],
    count: int,
    work: Path | None,
    progress: StepProgress,
) -> None:
    """Embed texts and add them to a faiss index; `count` is the number of texts, or of their entities."""
    progress.phase("vectors", count)
    done = 0
    for batch in batches:
        vectors.add_with_ids(_embedded(embedder, batch.texts, work), batch.numbers)
        done += len(batch.numbers)
        progress.advance(done, f"{done:,} texts")


def _block_size(dimensions: int, memory_bytes: int) -> int:
    """Return how many texts are embedded and added at once."""
    return max(min(memory_bytes // _BLOCK_PART // (4 * dimensions), _MAX_BLOCK), 1)


def choose_effort(
    entry: VectorsEntry,
    vectors: Any,
    texts: EntityTexts,
    embedder: TextEmbedder,
    num_entities: int,
    progress: StepProgress,
) -> VectorsEntry:
    """Return the entry with the search effort chosen by known items.

    `vectors` is the filled faiss index of `texts`, whose vectors `embedder` made.
    """
    choices = efforts(vectors)
    if choices == [0]:
        return replace(entry, effort=0, recall=1.0, recall_queries=0)
    progress.phase("choosing the search effort of the vectors")
    sample, random = texts.sample(_NUM_QUERIES), Random(entry.seed)
    damaged = [
        drop_a_word(text, random) if i % 2 and len(text.split()) > 1 else typo(text, random)
        for i, text in enumerate(sample.texts)
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
    else:  # more effort loses no known items
        best = choices[min(bisect_left(choices, TARGET_RECALL, key=share), len(choices) - 1)]
    return replace(entry, effort=best, recall=shares[best], recall_queries=len(entities))


def _embedded(embedder: TextEmbedder, texts: list[str], work: Path | None) -> FloatMatrix:
    """Return the vectors of texts; those that a killed run left in the work folder are read."""
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
    progress: StepProgress,
) -> int:
    """Train an index on `wanted` vectors, or as many as fit; return their number, 0 without training."""
    if vectors.is_trained:
        return 0
    progress.phase("training the vectors")
    wanted = min(wanted, max(memory_bytes // _SAMPLE_PART // (4 * vectors.d), 1))
    sample = texts.sample(wanted).texts
    step = _block_size(vectors.d, memory_bytes)
    parts: list[FloatMatrix] = [
        embedder.embed_texts(sample[begin : begin + step]) for begin in range(0, len(sample), step)
    ]
    # Its steps are short: threads that share cores with other processes would mostly wait for each other.
    with faiss_threads(1):
        train(vectors, np.concatenate([np.empty((0, vectors.d), np.float32), *parts]))
    return len(sample)


def _factory_name(kind: str, wish: str, vectors: Any) -> str:
    if kind == "flat":
        return "IDMap,Flat"
    if kind == "hnsw":
        return "IDMap,HNSW32,Flat"
    return f"IVF{vectors.nlist},PQ{vectors.pq.M}x{vectors.pq.nbits}fs" if kind == "ivfpq" else wish


# Index format since which the search effort is chosen by known items.
_KNOWN_ITEMS_SINCE = 6

# Entities whose texts are compared at once.
_BLOCK = 16_384


def carry_over_vectors(
    old: Index,
    new: Index,
    number_of_old: npt.NDArray[np.int64],
    folder: Path,
    device: str,
    *,
    memory_bytes: int,
    encoder: str | Path | None = None,
    threads: int = 1,
    work: Path | None = None,
    progress: StepProgress | None = None,
) -> tuple[VectorsEntry, tuple[str, ...]]:
    """Make the vectors of a new version from those of the previous one; return what `make_vectors` returns.

    Quantisers, and the codes of entities with unchanged texts, are taken over. Everything is made anew if
    another kind or more cells are due, or the texts have more than doubled.

    Args:
        old: The previous version, which has vectors.
        new: The new version; only its entities are needed.
        number_of_old: Previous number of every new entity, or -1. Entities may have changed texts: these are
            compared. Shape: (num_new,), int64.
        folder: Folder for the file.
        device: Device of the encoder.
        memory_bytes: As for `make_vectors`, like `threads`, `work` and `progress`.
        encoder: Present place of the encoder; None: unchanged.
        threads: Number of threads of faiss.
        work: Folder for blocks of vectors.
        progress: Notified of every step.

    Raises:
        IndexMismatchError: another encoder made the vectors of `old`.
        EvidenceMissingError, IndexChecksumError, IndexFormatError: as for `open_vectors`.
        MissingExtraError, InputError, ModelError, SourceError: as for `make_vectors`.
    """
    progress = progress or StepProgress()
    entry = vectors_entry(old)
    source = entry.source if encoder is None else str(encoder)
    texts = EntityTexts(new, entry.columns)
    kind = _asked_kind(entry)
    if _is_outgrown(entry, kind, texts.count):
        return make_vectors(
            new,
            VectorMethod(entry.method, source),
            VectorOptions(kind, entry.columns, device=device, seed=entry.seed),
            folder,
            memory_bytes=memory_bytes,
            threads=threads,
            work=work,
            progress=progress,
        )
    with faiss_threads(threads):
        stored = open_vectors(old, mapped=False)
        embedder = open_embedder(entry, encoder, device)
        is_same = _same_texts(EntityTexts(old, entry.columns), texts, number_of_old)
        renumbered = np.full(old.num_entities, -1, np.int64)
        kept = np.flatnonzero(is_same)
        renumbered[number_of_old[kept]] = kept
        vectors = _taken_over(stored, entry, renumbered, texts.count)
        added = np.flatnonzero(~is_same)
        batches = _texts_of(texts, added, _block_size(entry.dimensions, memory_bytes))
        _add_texts(vectors, embedder, batches, len(added), work, progress)
        made = replace(entry, source=source, count=int(vectors.ntotal))
        if old.manifest.format_version < _KNOWN_ITEMS_SINCE:
            made = choose_effort(made, vectors, texts, embedder, new.num_entities, progress)
        write_vectors(vectors, folder)
        return made, (VECTORS_FILE,)


def _asked_kind(entry: VectorsEntry) -> str:
    """Return the kind that was asked for; what "auto" gives counts as asked for by "auto"."""
    if entry.kind == kind_of("auto", entry.count):
        return "auto"
    return entry.factory if entry.kind == "factory" else entry.kind


def _is_outgrown(entry: VectorsEntry, asked: str, count: int) -> bool:
    """Return whether vectors have to be made anew."""
    kind = kind_of(asked, count)
    if kind != entry.kind:
        return True
    if kind == "factory":
        # Codes can be moved only between inverted lists.
        return inner_cells(new_index("factory", entry.factory, entry.dimensions, 0, 0)) is None
    if kind != "ivfpq":
        return False
    # After many small updates, the cells still tell for how many texts the index was trained.
    named = re.match(r"IVF(\d+)", entry.factory)  # "IVF256,PQ96x4fs"
    return count > 2 * entry.count or num_cells(count) > (int(named[1]) if named else 0)


def _same_texts(old: EntityTexts, new: EntityTexts, number_of_old: IntArray) -> npt.NDArray[np.bool_]:
    """Return which new entities existed with the same texts. Shape: (num_new,)."""
    is_same = number_of_old >= 0
    for begin in range(0, len(number_of_old), _BLOCK):
        numbers = begin + np.flatnonzero(is_same[begin : begin + _BLOCK])
        before = number_of_old[numbers]
        now, then = new.of(numbers).by_entity(), old.of(before).by_entity()
        is_same[numbers] = [
            now.get(number) == then.get(old_number)
            for number, old_number in zip(numbers.tolist(), before.tolist(), strict=True)
        ]
    return is_same


def _texts_of(texts: EntityTexts, entities: IntArray, size: int) -> Iterator[TextBatch]:
    for begin in range(0, len(entities), size):
        batch = texts.of(entities[begin : begin + size])
        for start in range(0, len(batch.texts), size):
            part = slice(start, start + size)
            yield TextBatch(batch.numbers[part], batch.texts[part])


def _taken_over(vectors: Any, entry: VectorsEntry, renumbered: IntArray, count: int) -> Any:
    """Return an index of the kept vectors under their new numbers; `vectors` is used up.

    `renumbered` holds the new number of every old entity, or -1; `count` is the coming number of vectors.
    """
    faiss = load_faiss()
    if inner_cells(vectors) is not None:
        goes = np.packbits(renumbered < 0, bitorder="little")
        # The list's own removal moves codes as they are.
        inner_cells(vectors).remove_ids(faiss.IDSelectorBitmap(goes))
        _clear_free_places(inner_cells(vectors))
        for ids in stored_ids(vectors):
            ids[:] = renumbered[ids]
        vectors.ntotal = inner_cells(vectors).ntotal
        return vectors
    fresh = new_index(entry.kind, entry.factory, entry.dimensions, count, entry.seed)
    ids = faiss.vector_to_array(vectors.id_map)
    kept = np.flatnonzero(renumbered[ids] >= 0)
    graph = inner_graph(vectors)
    storage = faiss.downcast_index(vectors.index if graph is None else graph.storage)
    if len(kept):
        rows = faiss.rev_swig_ptr(storage.get_xb(), len(ids) * entry.dimensions).reshape(len(ids), -1)
        for begin in range(0, len(kept), _BLOCK):
            part = kept[begin : begin + _BLOCK]
            fresh.add_with_ids(np.ascontiguousarray(rows[part]), renumbered[ids[part]])
    return fresh


def _clear_free_places(cells: Any) -> None:
    """Zero the free places that a removal leaves in blocks of packed codes.

    faiss 1.15 leaves the old codes there, and adds new ones by "or", so that it would compare their union.
    """
    faiss = load_faiss()
    lists = faiss.downcast_InvertedLists(cells.invlists)
    if not isinstance(lists, faiss.BlockInvertedLists):
        return
    zero = np.zeros(lists.packer.code_size, np.uint8)
    for cell in range(cells.nlist):
        num_blocks, used = divmod(lists.list_size(cell), lists.n_per_block)
        if used:
            codes = faiss.rev_swig_ptr(lists.get_codes(cell), (num_blocks + 1) * lists.block_size)
            for place in range(used, lists.n_per_block):
                lists.packer.pack_1(zero, place, codes[None, num_blocks * lists.block_size :])
