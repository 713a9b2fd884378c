"""Making the fields of an index: names, texts, past queries; block by block, from what the index holds."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Protocol

import numpy as np

from retrieval.evidence.field import Counted, write_field, write_queries
from retrieval.evidence.postings import IntArray
from retrieval.evidence.terms import TERMS_VERSION
from retrieval.index.layout import NAMES_FILE, QUERIES_FILE, TEXTS_FILE
from retrieval.index.manifest_entries import EvidenceEntry
from retrieval.index.reader import Index
from retrieval.vectors.views import EntityTexts

# Of the queries for one entity so many are kept, the most frequent.
MAX_QUERIES_PER_ENTITY = 64
_BATCH = 16_384


class EvidenceProgress(Protocol):
    """Told about every step; the progress of a build is one."""

    def phase(self, name: str, total: int | None = None) -> None:
        """A phase begins; `total` units of work are expected, None when unknown."""

    def advance(self, done: int, note: str) -> None:
        """`done` units of the phase are finished in all; `note` says so in words."""


def make_fields(
    index: Index,
    columns: Sequence[str],
    queries: Iterable[tuple[int, Sequence[Counted]]] | None,
    folder: Path,
    progress: EvidenceProgress,
) -> tuple[EvidenceEntry, tuple[str, ...]]:
    """Make the fields of an index's entities. The same entities and queries give the same bytes.

    At most two blocks of 65,536 texts are held at a time.

    Args:
        index: Its entities are read; it needs nothing else, and is not changed.
        columns: Metadata columns of strings whose values are texts of the entity.
        queries: Entities that queries were for, rising, and these; None: none.
        folder: Where the files are written.
        progress: Told about every step.

    Returns:
        What the manifest says about the evidence, and the names of the files written.

    Raises:
        InputError: a column is unknown or not of strings.
        OSError: a file cannot be written.
    """
    made = {}
    fields = [("names", NAMES_FILE, EntityTexts(index))]
    if columns:
        fields.append(("texts", TEXTS_FILE, EntityTexts(index, columns, has_names=False)))
    for kind, file, texts in fields:
        progress.phase(f"words and letters of {kind}")
        pairs = ((batch.numbers, batch.texts) for batch in texts.batches(_BATCH))
        written = write_field(folder / file, _one_per_entity(pairs) if kind == "texts" else pairs)
        for done in written:
            progress.advance(done, f"{done:,} {kind}")
            made[file] = done
        made.setdefault(file, 0)
    num_queries = 0
    if queries is not None:
        progress.phase("words and letters of past queries")
        counter = _Counter()
        for done in write_queries(folder / QUERIES_FILE, _batches(counter.watch(queries))):
            progress.advance(done, f"queries of {done:,} entities")
        made[QUERIES_FILE] = num_queries = counter.count
    entry = EvidenceEntry(
        TERMS_VERSION, made[NAMES_FILE], tuple(columns), made.get(TEXTS_FILE, 0), num_queries
    )
    return entry, tuple(made)


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
