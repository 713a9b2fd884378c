"""Sorted runs in memory, and a build in plain Python that the merge of runs is compared with."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pyarrow as pa

from genret.index_builder.merge import VersionSpec, write_version
from genret.index_builder.runs import FormSlice, Run
from genret.retrieval.index.layout import METADATA_TYPES, token_type
from genret.retrieval.index.manifest import HistoryEntry, Manifest, MetadataColumn, TokenizerEntry
from genret.retrieval.index.small_files import digest_bytes
from genret.retrieval.progress import StepProgress
from genret.retrieval.text import Rendering

Row = tuple[int, ...]
END = 0  # token that closes every row


@dataclass(frozen=True)
class Item:
    """One entity with the rows of its forms."""

    entity_id: str
    title: str
    rows: tuple[Row, ...]  # the title's, then the aliases'
    aliases: tuple[str, ...] = ()
    metadata: dict[str, object] = field(default_factory=dict)


class ListRun:
    """A run over a list of entities; entities that are not kept have `False` in `kept`."""

    def __init__(
        self, items: Sequence[Item], kept: Sequence[bool], columns: Sequence[MetadataColumn], vocab_size: int
    ) -> None:
        order = sorted(range(len(items)), key=lambda i: (items[i].rows[0], items[i].entity_id))
        self._items = [items[i] for i in order]
        self.keep = np.array([kept[i] for i in order], dtype=bool)
        self._forms = sorted(
            (row, number, form) for number, it in enumerate(self._items) for form, row in enumerate(it.rows)
        )
        self._columns = columns
        self._dtype = token_type(vocab_size).to_pandas_dtype()
        self.num_entities = len(items)
        self.num_forms = len(self._forms)
        self.has_ids = any(item.entity_id != item.title for item in items)

    def find(self, row: Sequence[int]) -> int:
        return bisect_left(self._forms, (tuple(row), -1, -1))

    def row(self, number: int) -> Row:
        return self._forms[number][0]

    def forms(self, begin: int, end: int) -> FormSlice:
        part = self._forms[begin:end]
        return FormSlice(
            tokens=np.array([token for row, _, _ in part for token in row], dtype=self._dtype),
            offsets=np.cumsum([0, *(len(row) for row, _, _ in part)], dtype=np.int64),
            entity=np.array([number for _, number, _ in part], dtype=np.int64),
            form=np.array([form for _, _, form in part], dtype=np.int32),
        )

    def entities(self, begin: int, end: int) -> pa.Table:
        part = self._items[begin:end]
        columns = {
            "entity_id": pa.array([it.entity_id for it in part], pa.string()),
            "title": pa.array([it.title for it in part], pa.string()),
            "aliases": pa.array([list(it.aliases) for it in part], pa.list_(pa.string())),
        }
        for column in self._columns:
            values = [it.metadata.get(column.name) for it in part]
            columns[column.name] = pa.array(values, METADATA_TYPES[column.type])
        return pa.table(columns)

    def close(self) -> None:
        pass


def write(
    tmp: Path,
    runs: Sequence[Run],
    columns: Sequence[MetadataColumn],
    vocab_size: int,
    block_bytes: int | None = None,
) -> tuple[Path, Manifest]:
    """Merge runs into a version directory below `tmp`, with its manifest, and return both."""
    folder, work = tmp / "staged", tmp / "work"
    folder.mkdir(parents=True)
    work.mkdir()
    entry = TokenizerEntry("tests", "none", vocab_size, END, 0)
    spec = VersionSpec(entry, Rendering(), tuple(columns))
    written = write_version(runs, spec, folder, work, 1 << 30, StepProgress(), block_bytes)
    assert not list(work.iterdir())
    manifest = replace(written, history=(HistoryEntry("build", "", (), {}, 0, 0, 0, 0, 0, 0),), built_with={})
    data = manifest.to_bytes()
    (folder / "manifest.json").write_bytes(data)
    target = folder.rename(tmp / digest_bytes(data))
    return target, manifest


def expected_entities(items: Sequence[Item]) -> list[Item]:
    """Entities in the order in which a version numbers them."""
    return sorted(items, key=lambda item: (item.rows[0], item.entity_id))


def expected_postings(items: Sequence[Item]) -> dict[Row, list[tuple[int, int]]]:
    """(entity number, form) of every row; rows in order of rank."""
    postings: dict[Row, dict[int, int]] = {}
    for number, item in enumerate(expected_entities(items)):
        for form, row in enumerate(item.rows):
            postings.setdefault(row, {}).setdefault(number, form)
    return {row: sorted(postings[row].items()) for row in sorted(postings)}
