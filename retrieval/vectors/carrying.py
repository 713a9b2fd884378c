"""Taking vectors over into the next version of an index: only texts that are new are embedded."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from retrieval.index.layout import VECTORS_FILE
from retrieval.index.manifest_entries import VectorsEntry
from retrieval.index.reader import Index
from retrieval.vectors.embedder import VectorMethod, open_embedder
from retrieval.vectors.faiss_index import (
    faiss_threads,
    inner_cells,
    inner_graph,
    kind_of,
    load_faiss,
    new_index,
    num_cells,
    open_vectors,
    stored_ids,
    vectors_entry,
    write_vectors,
)
from retrieval.vectors.making import (
    VectorOptions,
    VectorProgress,
    add_texts,
    block_size,
    choose_effort,
    make_vectors,
)
from retrieval.vectors.views import EntityTexts, IntArray, TextBatch

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
    progress: VectorProgress | None = None,
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
