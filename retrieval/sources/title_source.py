"""Reads one or several catalogue files, of any format, as one sequence of records."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, Self

import numpy as np

from genret.retrieval.errors import InputError, SourceError
from genret.retrieval.index.layout import TITLE
from genret.retrieval.index.manifest import FileEntry
from genret.retrieval.normalize import find_surrogate
from genret.retrieval.sources.alias_file import AliasFile
from genret.retrieval.sources.columns import ColumnMapping, Kinds, Layout, plan_columns
from genret.retrieval.sources.memory_rows import MemoryRows
from genret.retrieval.sources.records import Position, RecordMaker, Rejects, RowChunk, SourceBatch
from genret.retrieval.sources.row_readers import RowReader, SourceFormat, open_rows
from genret.retrieval.sources.source_files import (
    FileState,
    digest_file,
    display_name,
    files_named,
    is_read_once,
    recorded_name,
)

_STRETCHES = 40


class RowSample(NamedTuple):
    """A wish to read only stretches, spread over all files, of about so many rows in all.

    Sources of at most `least` rows, pipes and rows in memory are read whole.
    """

    rows: int
    least: int


class TitleSource:
    """A catalogue, read once from front to back: files in their order, or rows in memory.

    "-", once, is standard input. The format "auto" is found out for each file. Of a large source no more is
    read than the `sample`.

    Attributes:
        names: Names of the files in messages; the file of aliases, if any, comes last.
        columns: Metadata columns.
        layouts: Positions of the fields in each file.
        has_ids: Whether records have ids of their own.
        num_bytes: Size of all files together; None if one is standard input.
        in_memory: Whether the rows are in memory.
        unit: The unit in which messages count its rows.
        records_read: Rows consumed, bad ones included, headers not.

    Raises:
        InputError: no file, standard input or one file twice, an unknown format.
        SourceError: a file is missing, empty, of an unsupported format, or lacks a column.
    """

    def __init__(
        self,
        paths: str | Path | Sequence[str | Path | MemoryRows],
        mapping: ColumnMapping | None = None,
        source_format: SourceFormat = "auto",
        aliases: AliasFile | None = None,
        unescape_html: bool = False,
        sample: RowSample | None = None,
    ) -> None:
        self._paths = paths = _listed(paths)
        self.in_memory = any(isinstance(path, MemoryRows) for path in paths)
        self.unit = "row" if self.in_memory else "line"
        self._mapping = mapping = mapping or ColumnMapping()
        self._format = source_format
        self._alias_file = aliases
        self._unescape_html = unescape_html
        self._states = [FileState.of(path) for path in paths]
        self._kept: dict[str, RowReader] = {}  # of what can be read only once
        self._reader: RowReader | None = None
        self._start = Position()
        self._bytes_before = 0
        self._num_rows: list[float] = []  # of each file, before it is read, where a sample is wanted
        self._estimated: dict[int, float] = {}  # by the stretches of a file
        self._wants_sample = sample is not None and not any(map(is_read_once, paths))
        try:
            readers = [self._first_look(path) for path in paths]
            names = [display_name(path) for path in paths]
            headers = [(name, reader.names) for name, reader in zip(names, readers, strict=True)]
            self.columns, self.layouts = plan_columns(headers, mapping)
            for reader, layout in zip(readers, self.layouts, strict=True):
                self._restrict(reader, layout)
        except BaseException:
            self.close()
            raise
        self.names = tuple(names if aliases is None else [*names, aliases.name])
        self._places = None if sample is None else self._stretches(sample)
        self._stretch_rows = 0 if sample is None else -(-sample.rows // _STRETCHES)
        self.has_ids = self.layouts[0].entity_id is not None
        sizes = [state.bytes for state in self._states if state is not None]
        self.num_bytes = sum(sizes) if len(sizes) == len(paths) else None
        self.records_read = 0
        if aliases is not None:
            aliases.check_join(self.has_ids)

    @property
    def name(self) -> str:
        """Name of the source as a whole."""
        return files_named([display_name(path) for path in self._paths])

    @property
    def bytes_read(self) -> int:
        """Bytes of the files on disk that have been consumed."""
        return self._bytes_before + (0 if self._reader is None else self._reader.bytes_read)

    @property
    def estimated_records(self) -> float | None:
        """Number of rows, after stretches of them were read; an int if exact. None where all are read."""
        if self._places is None:
            return None
        if all(isinstance(rows, int) for rows in self._num_rows):
            return sum(self._num_rows)
        before = sum(self._num_rows[file] for file in self._estimated)
        growth = sum(self._estimated.values()) / before if before else 1.0
        return sum(self._estimated.get(file, rows * growth) for file, rows in enumerate(self._num_rows))

    def _stretches(self, sample: RowSample) -> list[list[float]] | None:
        """Return where in each file stretches begin, as shares of it; None if all is to be read."""
        total = sum(self._num_rows)
        if total <= sample.least:
            return None
        ends = np.cumsum(self._num_rows)
        places: list[list[float]] = [[] for _ in self._paths]
        count = min(_STRETCHES, sample.rows)
        for at in (total * (np.arange(count) + 0.5) / count).tolist():
            file = int(np.searchsorted(ends, at))
            places[file].append((at - (ends[file] - self._num_rows[file])) / self._num_rows[file])
        return places

    def skip_to(self, position: Position) -> None:
        """Let `batches` begin behind a position that an earlier run reached; nothing before it is parsed.

        Raises:
            InputError: the source has no such file.
        """
        if not 0 <= position.file < len(self._paths):
            raise InputError("position", f"file {position.file} of a source of {len(self._paths)} files")
        self._start = position
        self.records_read = position.records_read

    def batches(self, size: int, rejects: Rejects) -> Iterator[SourceBatch]:
        """Yield the records in batches of `size`, the last one smaller; bad rows go to `rejects`.

        Before a batch is yielded, exactly the bad rows up to its position have been noted.

        Raises:
            SourceError: the source holds no record at all, or cannot be read to its end.
        """
        nothing = (Kinds.NONE,) * len(self.columns.names)
        batch = SourceBatch(nothing)
        for file in range(self._start.file, len(self._paths)):
            for maker, chunk in self._chunks(file):
                begin = 0
                while begin < chunk.num_rows:
                    end = min(chunk.num_rows, begin + size - len(batch.records))
                    records = maker.make(chunk, begin, end, rejects)
                    if self._alias_file is not None:
                        records = self._alias_file.join(records)
                    self.records_read += end - begin
                    batch.records += records
                    kinds = zip(batch.kinds, maker.take_kinds(records, chunk.is_text), strict=True)
                    batch.kinds = tuple(old | new for old, new in kinds)
                    batch.normalization += maker.take_report()
                    batch.position = Position(file, chunk.line(end) - 1, self.records_read)
                    begin = end
                    if len(batch.records) == size:
                        yield batch
                        batch = SourceBatch(nothing)
        if not self.records_read and self._places is not None:
            raise SourceError(f"{self.name}: no whole rows were found for a sample; --sample 0 reads all")
        if not self.records_read:
            raise SourceError(f"{self.name}: there is a header but no title below it")
        if batch.position.records_read:
            yield batch

    def entries(self) -> tuple[FileEntry, ...]:
        """Return size and digest of every file, the file of aliases last; rows in memory are none.

        Raises:
            SourceError: a file has changed since it was opened.
        """
        entries = []
        for path, state in zip(self._paths, self._states, strict=True):
            if isinstance(path, MemoryRows):
                continue
            if state is None:
                reader = self._kept[str(path)]
                entries.append(FileEntry(recorded_name(path), reader.bytes_read, reader.digest))
            else:
                state.check(path)
                entries.append(digest_file(path))
        if self._alias_file is not None:
            entries.append(self._alias_file.entry)
        return tuple(entries)

    def close(self) -> None:
        """Close the files; standard input stays open."""
        for reader in (self._reader, *self._kept.values()):
            if reader is not None:
                reader.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _first_look(self, path: str | Path | MemoryRows) -> RowReader:
        """Find out the columns of a file. It is opened again for reading: there may be many files."""
        reader = self._open(path)
        if self._wants_sample:
            self._num_rows.append(reader.num_rows)
        if is_read_once(path):
            self._kept[str(path)] = reader
        else:
            reader.close()
        return reader

    def _open(self, path: str | Path | MemoryRows) -> RowReader:
        if isinstance(path, MemoryRows):
            return path.open(self._format)
        return open_rows(path, self._format, (self._mapping.title, TITLE), self._mapping.delimiter)

    def _restrict(self, reader: RowReader, layout: Layout) -> None:
        lists = () if layout.aliases is None else (layout.aliases,)
        reader.restrict(layout.used, ignore_others=self._mapping.kept is not None, lists=lists)

    def _chunks(self, file: int) -> Iterator[tuple[RecordMaker, RowChunk]]:
        path, layout = self._paths[file], self.layouts[file]
        if self._places is not None and not self._places[file]:
            return
        kept = self._kept.get(str(path))
        reader = kept or self._open(path)
        self._bytes_before = sum(state.bytes for state in self._states[:file] if state is not None)
        self._reader = reader
        try:
            if len(reader.names) != layout.count:
                raise SourceError(f"{display_name(path)}: the file changed while it was read")
            self._restrict(reader, layout)
            maker = RecordMaker(
                file, layout, self.columns, self._mapping.alias_separator, self._unescape_html
            )
            skip = self._start.lines if file == self._start.file else 0
            if self._places is not None:
                reader.keep_stretches(self._places[file], self._stretch_rows)
            before = self.records_read
            for chunk in reader.chunks(skip):
                yield maker, chunk
            if self._places is not None and reader.kept_share:
                self._estimated[file] = (self.records_read - before) / reader.kept_share
        finally:
            if kept is None:
                reader.close()


def _listed(
    paths: str | Path | Sequence[str | Path | MemoryRows],
) -> tuple[str | Path | MemoryRows, ...]:
    """Return the files of a catalogue, none of them named twice."""
    files = (paths,) if isinstance(paths, str | Path) else tuple(paths)
    if not files:
        raise InputError("sources", "expected at least one file")
    names = [str(path) for path in files]
    odd = next((name for name in names if find_surrogate(name) is not None), None)
    if odd is not None:
        raise InputError("sources", f"{odd!r}: the name of the file is not valid UTF-8; rename it")
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise InputError("sources", f"{display_name(twice)} is named more than once")
    return files
