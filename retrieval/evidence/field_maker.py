"""Making the fields of an index: names, texts, past queries; block by block, from what the index holds."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import zip_longest
from pathlib import Path

import numpy as np
import pyarrow as pa

from retrieval.evidence.evidence import FIELD_FILES, NAMES, QUERIES, TEXTS, open_field
from retrieval.evidence.field import (
    DEFAULT_BLOCK_BYTES,
    Counted,
    query_blocks,
    stored_blocks,
    text_blocks,
    write_blocks,
)
from retrieval.evidence.postings import TERMS_VERSION, IntArray
from retrieval.index.entity_texts import EntityTexts
from retrieval.index.manifest import EvidenceEntry
from retrieval.index.reader import Index
from retrieval.progress import StepProgress

# Of the queries for one entity so many are kept, the most frequent.
MAX_QUERIES_PER_ENTITY = 64
_BATCH = 16_384


def make_fields(
    index: Index,
    columns: Sequence[str],
    queries: Iterable[tuple[int, Sequence[Counted]]] | None,
    folder: Path,
    progress: StepProgress,
    memory_bytes: int = DEFAULT_BLOCK_BYTES,
) -> tuple[EvidenceEntry, tuple[str, ...]]:
    """Make the fields of an index's entities. The same entities and queries give the same bytes.

    Beside the texts of at most two blocks, of 65,536 texts each, and the lists of one are held.

    Args:
        index: Its entities are read; it needs nothing else, and is not changed.
        columns: Metadata columns of strings whose values are texts of the entity.
        queries: Entities that queries were for, rising, and these; None: none.
        folder: Where the files are written.
        progress: Told about every step.
        memory_bytes: What making the lists of a block may take; less of it takes longer.

    Returns:
        What the manifest says about the evidence, and the names of the files written.

    Raises:
        InputError: a column is unknown or not of strings.
        SourceError: a file cannot be written.
    """
    counter = _Counter()
    fields = {NAMES: _name_blocks(index, memory_bytes)}
    if columns:
        fields[TEXTS] = _column_blocks(index, columns, memory_bytes)
    if queries is not None:
        fields[QUERIES] = query_blocks(_batches(counter.watch(queries)), memory_bytes)
    made = dict.fromkeys(FIELD_FILES, 0)
    for kind, blocks in fields.items():
        progress.phase(f"words and letters of {kind}")
        for done in write_blocks(folder / FIELD_FILES[kind], blocks, kind == QUERIES):
            progress.advance(done, f"{kind} of {done:,} entities" if kind == QUERIES else f"{done:,} {kind}")
            made[kind] = done
    entry = EvidenceEntry(TERMS_VERSION, made[NAMES], tuple(columns), made[TEXTS], counter.count)
    return entry, tuple(FIELD_FILES[kind] for kind in fields)


def wrong_block(index: Index, kind: str) -> int | None:
    """Return the number of the first block of a field that the entities, or the queries in it, do not give.

    Args:
        index: It has the field, made by the rules of this version of the library.
        kind: "names", "texts" or "queries".

    Raises:
        IndexChecksumError, IndexFormatError: the file cannot be read.
    """
    stored = stored_blocks(index.evidence_file(FIELD_FILES[kind]), FIELD_FILES[kind], kind == QUERIES)
    if kind == QUERIES:
        queries = open_field(index, kind).all_queries()
        blocks = query_blocks(_batches(_Counter().watch(queries)))
    else:
        columns = () if index.evidence is None else index.evidence.columns
        blocks = _name_blocks(index) if kind == NAMES else _column_blocks(index, columns)
    for number, (one, other) in enumerate(zip_longest(stored, blocks)):
        if one is None or other is None or not one.equals(other):
            return number
    return None


def _name_blocks(index: Index, memory_bytes: int = DEFAULT_BLOCK_BYTES) -> Iterator[pa.RecordBatch]:
    return text_blocks(_pairs(EntityTexts(index)), memory_bytes)


def _column_blocks(
    index: Index, columns: Sequence[str], memory_bytes: int = DEFAULT_BLOCK_BYTES
) -> Iterator[pa.RecordBatch]:
    return text_blocks(_one_per_entity(_pairs(EntityTexts(index, columns, has_names=False))), memory_bytes)


def _pairs(texts: EntityTexts) -> Iterator[tuple[IntArray, list[str]]]:
    return ((batch.numbers, batch.texts) for batch in texts.batches(_BATCH))


def most_frequent(queries: Sequence[Counted]) -> list[Counted]:
    """Return the queries of one entity that are kept, the most frequent first, equal ones by their text."""
    return sorted(queries, key=lambda one: (-one[1], one[0]))[:MAX_QUERIES_PER_ENTITY]


class _Counter:
    def __init__(self) -> None:
        self.count = 0

    def watch(self, queries: Iterable[tuple[int, Sequence[Counted]]]) -> Iterator[tuple[int, list[Counted]]]:
        for entity, mine in queries:
            kept = most_frequent(mine)
            self.count += len(kept)
            yield entity, kept


def _batches(
    queries: Iterable[tuple[int, list[Counted]]],
) -> Iterator[tuple[IntArray, list[list[Counted]]]]:
    owner: list[int] = []
    asked: list[list[Counted]] = []
    for entity, mine in queries:
        owner.append(entity)
        asked.append(mine)
        if len(owner) == _BATCH:
            yield np.array(owner), asked
            owner, asked = [], []
    if owner:
        yield np.array(owner), asked


def _one_per_entity(
    batches: Iterable[tuple[IntArray, Sequence[str]]],
) -> Iterator[tuple[IntArray, list[str]]]:
    """Put the texts of every entity together; they follow each other."""
    last, parts = -1, list[str]()
    for owner, texts in batches:
        numbers: list[int] = []
        joined: list[str] = []
        for number, text in zip(owner.tolist(), texts, strict=True):
            if number != last and parts:
                numbers.append(last)
                joined.append("\n".join(parts))
                parts = []
            last = number
            parts.append(text)
        yield np.array(numbers, np.int64), joined
    if parts:
        yield np.array([last]), ["\n".join(parts)]
