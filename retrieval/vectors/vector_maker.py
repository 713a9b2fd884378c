"""Makes the vectors of an index: a sample trains, then every text is embedded and added, block by block.

The vectors of an earlier version are taken over: only texts that are new are embedded
(`carry_over_vectors`).

The search effort is chosen by known items. `_NUM_QUERIES` texts of the catalogue, every other one with a
typing error and the others without one of their words, are searched for with full effort; those whose
entity comes first are known items. The effort in force is the least that loses at most one known item in a
hundred from the first place (`TARGET_RECALL`). Of 500 known items, an effort that in truth loses 2.5 %
passes by chance in 15 cases of 1,000. With fewer than `_MIN_KNOWN` known items the largest effort is taken.
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

from retrieval.durable import appearing, writing
from retrieval.errors import InputError
from retrieval.index.entity_texts import EntityTexts, IntArray, TextBatch
from retrieval.index.layout import VECTORS_FILE
from retrieval.index.manifest import VectorsEntry
from retrieval.index.reader import Index
from retrieval.noise import typo
from retrieval.progress import StepProgress
from retrieval.vectors.embedder import FloatMatrix, TextEmbedder, VectorMethod, open_embedder, open_model
from retrieval.vectors.faiss_index import (
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
from retrieval.vectors.vector_search import VectorSearcher

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
    progress: StepProgress | None,
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
    progress: StepProgress | None = None,
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
    progress: StepProgress | None,
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


def _tell(progress: StepProgress | None, phase: str) -> None:
    if progress is not None:
        progress.phase(phase)


# Since this format the search effort is chosen by known items.
_KNOWN_ITEMS_SINCE = 6

# Entities whose texts are compared at once.
_BLOCK = 16_384


def carry_over_vectors(
    old: Index,
    new: Index,
    number_of_old: npt.NDArray[np.int64],
    folder: Path,
    options: VectorOptions,
    *,
    memory_bytes: int,
    encoder: str | Path | None = None,
    threads: int = 1,
    work: Path | None = None,
    progress: StepProgress | None = None,
) -> tuple[VectorsEntry, tuple[str, ...]]:
    """Make the vectors of the next version from those of the last.

    Quantisers and the codes of entities whose texts are the same are taken over. Everything is made anew
    where the rule now asks for another kind or for more cells, or the texts have more than doubled.

    Args:
        old: The last version, which has vectors.
        new: The next version; its entities are read.
        number_of_old: For every entity of `new` the number it had in `old`, -1 where it is new. An entity
            whose texts changed may have its old number: texts are compared. Shape: (num_new,), int64.
        folder: Where the files are written, which is synced.
        options: `device` counts; the others make vectors anew where they differ from what `old` has, with
            "auto", None and 0 standing for what it has.
        memory_bytes: What may be held beside the codes.
        encoder: Where the encoder lies now; None: where it lay then.
        threads: Of faiss.
        work: As for `make_vectors`.
        progress: Told about every step.

    Returns:
        What the manifest says about the vectors, and the names of the files written.

    Raises:
        EvidenceMissingError: `old` has no vectors.
        IndexChecksumError: their file is damaged.
        IndexFormatError: it is no file of vectors, one of other vectors than the manifest says, or one made
            by a method that this version no longer has.
        IndexMismatchError: the encoder is not the one that made them.
        MissingExtraError, InputError, ModelError, SourceError: as for `make_vectors`.
    """
    entry = vectors_entry(old)
    source = entry.source if encoder is None else str(encoder)
    texts = EntityTexts(new, entry.columns)
    wish = _wish(entry, options)
    if _is_outgrown(entry, wish, texts.count):
        return make_vectors(
            new,
            VectorMethod(entry.method, source),
            wish,
            folder,
            memory_bytes=memory_bytes,
            threads=threads,
            work=work,
            progress=progress,
        )
    with faiss_threads(threads):
        stored = open_vectors(old, mapped=False)
        embedder = open_embedder(entry, encoder, options.device)
        is_same = _same_texts(EntityTexts(old, entry.columns), texts, number_of_old)
        renumbered = np.full(old.num_entities, -1, np.int64)
        kept = np.flatnonzero(is_same)
        renumbered[number_of_old[kept]] = kept
        vectors = _taken_over(stored, entry, renumbered, texts.count)
        added = np.flatnonzero(~is_same)
        batches = _texts_of(texts, added, block_size(entry.dimensions, memory_bytes))
        add_texts(vectors, embedder, batches, len(added), work, progress)
        made = replace(entry, source=source, count=int(vectors.ntotal))
        if old.manifest.format_version < _KNOWN_ITEMS_SINCE:
            made = choose_effort(made, vectors, texts, embedder, new.num_entities, progress)
        write_vectors(vectors, folder)
        return made, (VECTORS_FILE,)


def _wish(entry: VectorsEntry, options: VectorOptions) -> VectorOptions:
    """Return the options with which vectors like these would be made."""
    kind = options.kind
    if kind == "auto" and entry.kind != kind_of("auto", entry.count):
        kind = entry.factory if entry.kind == "factory" else entry.kind  # it was asked for
    columns = entry.columns if options.columns is None else options.columns
    return replace(options, kind=kind, columns=columns, seed=options.seed or entry.seed)


def _is_outgrown(entry: VectorsEntry, wish: VectorOptions, count: int) -> bool:
    """Say whether vectors have to be made anew."""
    if (wish.columns, wish.seed) != (entry.columns, entry.seed):
        return True
    kind = kind_of(wish.kind, count)
    if kind != entry.kind or (kind == "factory" and wish.kind != entry.factory):
        return True
    if kind == "factory":
        return not _inner_cells_named(entry.factory, entry.dimensions)
    if kind != "ivfpq":
        return False
    # Many small updates grow as well as a large one: how many texts were trained for, the cells tell.
    return count > 2 * entry.count or num_cells(count) > _cells_named(entry.factory)


def _cells_named(factory: str) -> int:
    """Return how many cells "IVF256,PQ96x4fs" has."""
    named = re.match(r"IVF(\d+)", factory)
    return int(named[1]) if named else 0


def _inner_cells_named(factory: str, dimensions: int) -> bool:
    """Say whether an index of this factory string has inverted lists, whose codes can be moved."""
    return inner_cells(new_index("factory", factory, dimensions, 0, 0)) is not None


def _same_texts(old: EntityTexts, new: EntityTexts, number_of_old: IntArray) -> npt.NDArray[np.bool_]:
    """Say for every new entity whether it was there with the same texts. Shape: (num_new,)."""
    is_same = number_of_old >= 0
    for begin in range(0, len(number_of_old), _BLOCK):
        numbers = begin + np.flatnonzero(is_same[begin : begin + _BLOCK])
        now, then = new.of(numbers), old.of(number_of_old[numbers])
        for number, mine, its in zip(
            numbers, _grouped(now, numbers), _grouped(then, number_of_old[numbers]), strict=True
        ):
            is_same[number] = mine == its
    return is_same


def _grouped(batch: TextBatch, numbers: IntArray) -> Iterator[list[str]]:
    """Yield the texts of each of these entities, in their order."""
    at = 0
    for number in numbers:
        end = at
        while end < len(batch.numbers) and batch.numbers[end] == number:
            end += 1
        yield batch.texts[at:end]
        at = end


def _texts_of(texts: EntityTexts, entities: IntArray, size: int) -> Iterator[TextBatch]:
    for begin in range(0, len(entities), size):
        batch = texts.of(entities[begin : begin + size])
        for start in range(0, len(batch.texts), size):
            part = slice(start, start + size)
            yield TextBatch(batch.numbers[part], batch.texts[part])


def _taken_over(vectors: Any, entry: VectorsEntry, renumbered: IntArray, count: int) -> Any:
    """Return an index of the vectors that stay, under their new numbers.

    Args:
        vectors: The index that is there; it is used up.
        entry: What the manifest says about it.
        renumbered: New number of every old entity, -1 for those that go. Shape: (num_old,), int64.
        count: Vectors there will be.
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
    """Put zeros where a removal has left places free in blocks of packed codes.

    faiss 1.15 leaves the old codes there, and adds new ones by "or": the union of both would be compared.
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
