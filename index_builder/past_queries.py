"""Past queries: read from files or taken over from the previous version, and grouped by entity."""

from __future__ import annotations

import os
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from genret.retrieval.durable import naming
from genret.retrieval.errors import InputError, SourceError
from genret.retrieval.evaluation.datasets.index_entities import IndexResolver
from genret.retrieval.index.layout import ENTITY_ID, TITLE
from genret.retrieval.index.reader import Index
from genret.retrieval.normalize import normalize
from genret.retrieval.sources.columns import find_column, find_entity_columns
from genret.retrieval.sources.records import (
    Cell,
    Refusal,
    RejectReason,
    Rejects,
    is_nan,
    name_text,
    parsed_rows,
    refuse_wrong_width,
)
from genret.retrieval.sources.remote_files import source_path
from genret.retrieval.sources.row_readers import RowReader, open_rows
from genret.retrieval.sources.source_files import display_name

QUERY, COUNT, SPLIT = "query", "count", "split"

# Lines whose entities are looked up at once.
_BATCH = 1 << 17
# Ranges of entities whose queries are grouped one after the other.
_PARTS = 64
_MAX_COUNT = 2**31 - 1
_SCHEMA = pa.schema([("entity", pa.int32()), ("query", pa.large_string()), ("count", pa.int64())])


@dataclass(frozen=True, slots=True)
class QueryFile:
    """A file of past queries, on the command line FILE or FILE#SPLIT.

    The file is CSV or TSV, JSON Lines or Parquet, plain or compressed, with the columns `query` and
    `entity_id` or `title`, and possibly `count` and `split`, in any case. With a split, only lines whose
    `split` has this value count.
    """

    path: Path
    split: str | None = None

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read FILE or FILE#SPLIT; a file with this very name takes precedence over a split of another one.

        Raises:
            InputError: no file or no split is named.
        """
        file, hash_, split = text.rpartition("#")
        if not hash_ or os.path.exists(text):
            file, split = text, ""
        if not file or (hash_ and file != text and not split):
            raise InputError("queries", f"expected FILE or FILE#SPLIT, got {text!r}")
        return cls(source_path(file), split or None)

    def __str__(self) -> str:
        return self.path.name + (f"#{self.split}" if self.split else "")


class PastQueries:
    """Queries on disk, by ranges of entities; equal queries for the same entity are added up.

    They lie in a folder that the caller made and removes. Memory: 131,072 lines while files are read; later
    the queries of a 64th of the entities, twice.
    """

    def __init__(self, folder: Path, num_entities: int) -> None:
        self._folder = folder
        self._step = max(-(-num_entities // _PARTS), 1)
        self._begun: set[int] = set()

    def add(self, entities: npt.NDArray[np.int64], queries: Sequence[str], counts: Sequence[int]) -> None:
        """Add queries: for each the number of its entity, its text, and how often it was asked. Shapes: (n,).

        Raises:
            OSError: a file cannot be written; `filename` is set.
        """
        order = np.argsort(entities, kind="stable")
        table = pa.record_batch(
            [pa.array(entities.astype(np.int32)), pa.array(queries, pa.large_string()), pa.array(counts)],
            schema=_SCHEMA,
        ).take(pa.array(order))
        parts, begins = np.unique(entities[order] // self._step, return_index=True)
        ends = [*begins[1:].tolist(), len(order)]
        for part, begin, end in zip(parts.tolist(), begins.tolist(), ends, strict=True):
            self._begun.add(part)
            path = self._folder / f"{part}.queries"
            # Each append is a stream of its own: the schema is small beside a batch.
            with naming(path), path.open("ab") as file, pa.ipc.new_stream(file, _SCHEMA) as writer:
                writer.write_batch(table.slice(begin, end - begin))

    def __bool__(self) -> bool:
        return bool(self._begun)

    def by_entity(self) -> Iterator[tuple[int, list[tuple[str, int]]]]:
        """Yield the entities that have queries, in order, with their queries, the most frequent first."""
        keys = [("entity", "ascending"), ("count_sum", "descending"), ("query", "ascending")]
        for part in sorted(self._begun):
            every = self._read(self._folder / f"{part}.queries").group_by(["entity", "query"])
            table = every.aggregate([("count", "sum")]).sort_by(keys)
            entity = table.column("entity").to_numpy()
            begins = np.flatnonzero(np.diff(entity, prepend=-1))
            for begin, end in zip(begins.tolist(), [*begins[1:].tolist(), len(entity)], strict=True):
                mine = table.slice(begin, end - begin)
                counts = (min(count, _MAX_COUNT) for count in mine.column("count_sum").to_pylist())
                yield int(entity[begin]), list(zip(mine.column("query").to_pylist(), counts, strict=True))

    def _read(self, path: Path) -> pa.Table:
        batches = []
        with naming(path), path.open("rb") as file:
            size = path.stat().st_size
            while file.tell() < size:
                with pa.ipc.open_stream(file) as reader:
                    batches += list(reader)
        return pa.Table.from_batches(batches, _SCHEMA)


def check_query_files(files: Sequence[QueryFile]) -> None:
    """Refuse unusable files before anything is read.

    Raises:
        SourceError: a file is missing, or lacks a column or the split.
    """
    for file in files:
        _opened(file)[0].close()
        if file.split is not None:
            with closing(_batches(file, 0, Rejects("", 1 << 40))) as batches:
                next(batches, None)


def read_queries(files: Sequence[QueryFile], index: Index, rejects: Rejects, into: PastQueries) -> None:
    """Read the queries of files into `into`; the files are appended to those of `rejects`.

    Bad lines, and queries for entities that the index lacks, are rejects.

    Raises:
        SourceError: a file cannot be used, has no line of its split, or far more bad lines than allowed.
    """
    resolver = IndexResolver(index)
    for number, file in _numbered(files, rejects):
        for by_id, lines in _batches(file, number, rejects):
            names = [line.name for line in lines]
            if by_id:
                owners = [[n] if n >= 0 else [] for n in index.entities.find(names).tolist()]
            else:
                titled = resolver.numbers_by_titles(names)
                owners = [titled.get(name, []) for name in names]
            asked: list[tuple[int, _Line]] = []
            for line, mine in zip(lines, owners, strict=True):
                if not mine:
                    detail = f"{ENTITY_ID if by_id else TITLE} {line.name!r}"
                    reason = RejectReason.UNKNOWN_ENTITY_ASKED_FOR
                    rejects.add(line.number, reason, line.query, detail, number)
                asked += [(entity, line) for entity in mine]
            if asked:
                entities = np.array([entity for entity, _ in asked], np.int64)
                into.add(entities, [line.query for _, line in asked], [line.times for _, line in asked])


def count_queries(files: Sequence[QueryFile], rejects: Rejects) -> tuple[int, int]:
    """Read files of queries without an index; return the number of good lines, and the bytes of the queries.

    Raises:
        SourceError: as `read_queries`.
    """
    count = size = 0
    for number, file in _numbered(files, rejects):
        for _, lines in _batches(file, number, rejects):
            count += len(lines)
            size += sum(len(line.query.encode()) for line in lines)
    return count, size


def _numbered(files: Sequence[QueryFile], rejects: Rejects) -> Iterator[tuple[int, QueryFile]]:
    """Append files to those of the rejects; return them with their numbers there."""
    first = len(rejects.files)
    rejects.files = (*rejects.files, *(display_name(file.path) for file in files))
    return enumerate(files, first)


class _Line(NamedTuple):
    """A good line; `name` is an id or a title, `times` how often the query was asked."""

    number: int
    name: str
    query: str
    times: int


@dataclass(frozen=True, slots=True)
class _Columns:
    """Places of the columns of a file."""

    query: int
    name: int
    by_id: bool
    count: int | None
    split: int | None


def _opened(file: QueryFile) -> tuple[RowReader, _Columns]:
    if not file.path.is_file():
        raise SourceError(f"{file.path}: no such file; past queries are read from files")
    reader = open_rows(file.path, "auto", (QUERY, ENTITY_ID, TITLE))
    try:
        where = display_name(file.path)
        query, name, by_id = find_entity_columns(reader.names, QUERY, "queries", where)
        count = find_column(reader.names, COUNT, where)
        split = None if file.split is None else find_column(reader.names, SPLIT, where)
        if file.split is not None and split is None:
            raise SourceError(
                f"{where}: the split {file.split!r} is asked for, but there is no column 'split'"
            )
        used = [place for place in (query, name, count, split) if place is not None]
        reader.restrict(sorted(used), ignore_others=True, lists=())
        return reader, _Columns(query, name, by_id, count, split)
    except BaseException:
        reader.close()
        raise


def _batches(file: QueryFile, number: int, rejects: Rejects) -> Generator[tuple[bool, list[_Line]]]:
    """Yield whether entities are named by id, and good lines of the split; bad lines go to the rejects."""
    reader, columns = _opened(file)
    splits: set[str] = set()

    def parse(line: int, row: Sequence[Cell]) -> _Line | None:
        if not any(cell is not None and cell != "" for cell in row):
            return None
        refuse_wrong_width(row, len(reader.names))
        if columns.split is not None:
            splits.add(split := normalize(name_text(row[columns.split], SPLIT)))
            if split != file.split:
                return None
        return _line(line, row, columns)

    lines: list[_Line] = []
    try:
        for chunk in reader.chunks(0):
            lines += filter(None, parsed_rows(chunk, parse, rejects, number))
            if len(lines) >= _BATCH:
                yield columns.by_id, lines
                lines = []
    finally:
        reader.close()
    if file.split is not None and file.split not in splits:
        there = ", ".join(sorted(splits)) or "none"
        raise SourceError(
            f"{display_name(file.path)}: no line of the split {file.split!r}; splits there: {there}"
        )
    if lines:
        yield columns.by_id, lines


def _line(number: int, row: Sequence[Cell], columns: _Columns) -> _Line:
    """Return a line. Raises `Refusal` if it is a bad one."""
    named = normalize(name_text(row[columns.name], ENTITY_ID if columns.by_id else TITLE))
    if not named:
        raise Refusal(RejectReason.NO_ENTITY_ID if columns.by_id else RejectReason.NO_TITLE)
    query = normalize(name_text(row[columns.query], QUERY))
    if not query:
        raise Refusal(RejectReason.NO_QUERY)
    return _Line(number, named, query, 1 if columns.count is None else _count(row[columns.count]))


def _count(cell: Cell) -> int:
    """Return a count; 1 for an empty cell."""
    if cell is None or cell == "" or is_nan(cell):
        return 1
    try:
        number = float(cell) if isinstance(cell, str | int | float) and not isinstance(cell, bool) else 0.0
    except (ValueError, OverflowError):
        number = 0.0
    if not 1 <= number <= _MAX_COUNT or number != int(number):
        raise Refusal(
            RejectReason.BAD_VALUE, f"{COUNT}: expected a whole number from 1 to {_MAX_COUNT}, got {cell!r}"
        )
    return int(number)
