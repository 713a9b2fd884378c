"""Makes the fields of an index block by block: names, texts, past queries."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import zip_longest
from pathlib import Path

import numpy as np
import pyarrow as pa

from genret.retrieval.evidence.evidence import FIELD_FILES, NAMES, QUERIES, TEXTS, open_field
from genret.retrieval.evidence.field import (
    DEFAULT_BLOCK_BYTES,
    Counted,
    query_blocks,
    stored_blocks,
    text_blocks,
    write_blocks,
)
from genret.retrieval.evidence.postings import TERMS_VERSION, IntArray
from genret.retrieval.index.entity_texts import EntityTexts
from genret.retrieval.index.manifest import EvidenceEntry
from genret.retrieval.index.reader import Index
from genret.retrieval.progress import StepProgress

# Past queries kept per entity, the most frequent ones.
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
    """Make the fields of an index; return the manifest's entry and the names of the files written.

    The same entities and queries give the same bytes. Memory: the texts of two blocks, of 65,536 texts each,
    and `memory_bytes` for making the lists of one; less takes longer. `columns` are metadata columns of
    strings whose values are texts of the entity; `queries` are entities, ascending, with their past queries.

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
    """Return the number of a field's first block that differs from the entities or past queries, if any.

    The field ("names", "texts" or "queries") was made by the rules of this version of the library.

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
    """Return the queries to keep for one entity: the most frequent first, ties by text."""
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
    """Join the texts of every entity, which are neighbours."""
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
