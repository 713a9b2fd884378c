"""Rows that a Python program holds: an iterable of dicts, or a table that gives itself as an Arrow stream.

pandas, polars, pyarrow and `datasets` are known by their interfaces, and none of them is imported.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Set
from itertools import chain, count, islice
from typing import Any

import pyarrow as pa

from genret.retrieval.errors import InputError, SourceError
from genret.retrieval.sources.records import BadRow, Cell, RejectReason, RowChunk, json_kind
from genret.retrieval.sources.row_readers import (
    HEAD_LINES,
    TABLE_BATCH_ROWS,
    ObjectRows,
    RowReader,
    TableRows,
    one_line,
    plain_cells,
)

AS_DICTS = 'titles in memory are given as dicts: [{"title": title} for title in titles]'

# Methods of scanners, relations and frames of further libraries: pyarrow, DuckDB, Spark, ibis.
_TABLE_MAKERS = ("to_table", "fetch_arrow_table", "to_pyarrow", "to_arrow", "toArrow", "to_pandas")

# pandas gives an index without a name such a column.
_UNNAMED_INDEX = re.compile(r"__index_level_\d+__")
_OF_OBJECTS = re.compile("Conversion failed for column (.+) with type object")


class MemoryRows:
    """A source in memory, read once and streamed; str() names it in messages.

    Args:
        rows: Dicts, or a table: anything with `__arrow_c_stream__`, a polars LazyFrame, a `datasets` dataset.

    Raises:
        InputError: it is neither.
    """

    def __init__(self, rows: Any) -> None:
        self._rows = rows
        hint = "; pyarrow.table makes a table of columns" if isinstance(rows, Mapping) else ""
        if hint and (key := next((key for key, one in rows.items() if is_table(one)), None)) is not None:
            hint = f"; give one of its tables, such as [{key!r}]"
        if hasattr(rows, "to_frame") and is_table(rows):
            hint = '; .to_frame("title") makes a table of it'
        if hint or isinstance(rows, str | bytes) or not (is_table(rows) or isinstance(rows, Iterable)):
            maker = next((name for name in _TABLE_MAKERS if callable(getattr(rows, name, None))), None)
            hint = hint or (f"; .{maker}() makes a table of it" if maker else "")
            got = f"got a {type(rows).__name__}{hint}"
            raise InputError("source", f"expected paths, an iterable of dicts, or a table, {got}")

    def __str__(self) -> str:
        return f"the given {type(self._rows).__name__}"

    def open(self, source_format: str) -> RowReader:
        """Begin to read.

        Raises:
            InputError: a format is given, which is for files.
            SourceError: there is no row that says which columns there are, or the table is none of rows.
        """
        if source_format != "auto":
            raise InputError("format", f"rows in memory have none; expected auto, got {source_format!r}")
        if is_table(self._rows):
            return ArrowReader(_tables(self._rows), str(self))
        return DictReader(self._rows, str(self))


def is_table(rows: Any) -> bool:
    """Whether it is a table of one of the known libraries."""
    names = ("__arrow_c_stream__", "collect_batches", "with_format", "scanner")
    return any(hasattr(rows, name) for name in names)


def _tables(rows: Any) -> Iterator[Any]:
    """Yield the tables, with `__arrow_c_stream__`, that a table consists of."""
    if hasattr(rows, "collect_batches"):  # a polars LazyFrame
        yield from rows.collect_batches(chunk_size=TABLE_BATCH_ROWS, maintain_order=True)
    elif hasattr(rows, "scanner"):  # a dataset of PyArrow
        yield rows.scanner().to_reader()
    elif hasattr(rows, "with_format"):  # of `datasets`
        yield from rows.with_format("arrow").iter(TABLE_BATCH_ROWS)
    else:
        yield rows


class DictReader(ObjectRows):
    """Reads dicts as `JsonLinesReader` reads objects; see `RowReader`. A "line" is a row, counted from 1.

    Raises:
        SourceError: none of the first rows is a dict with keys.
    """

    unit = "rows"

    def __init__(self, rows: Iterable[object], name: str) -> None:
        self._iterator = _had(rows, name)
        self._head = list(islice(self._iterator, HEAD_LINES))
        keys = dict.fromkeys(key for row in self._head for key in (row if isinstance(row, Mapping) else ()))
        super().__init__([key for key in keys if isinstance(key, str)])
        if not self.names:
            got = f"the first is {json_kind(self._head[0])}; {AS_DICTS}" if self._head else "there is none"
            raise SourceError(f"{name}: none of the first rows is a dict with fields; {got}")

    def chunks(self, skip: int) -> Iterator[RowChunk]:
        """Yield the rows behind the first `skip`."""
        rows = islice(chain(self._head, self._iterator), skip, None)
        self._head = []
        for first in count(skip + 1, TABLE_BATCH_ROWS):
            some = [self._row(row) for row in islice(rows, TABLE_BATCH_ROWS)]
            if not some:
                return
            yield RowChunk(first, some, is_text=False)

    def _row(self, row: object) -> list[Cell] | BadRow:
        if not isinstance(row, Mapping):
            return BadRow(RejectReason.NOT_AN_OBJECT, f"got {json_kind(row)}", str(row))
        cells = self.placed(row, row)
        return cells if isinstance(cells, BadRow) else [_plain(cell) for cell in cells]


def _had(rows: Iterable[object], name: str) -> Iterator[object]:
    """Yield the rows. An `OSError` behind them would be taken for one of the disk that the index is on."""
    try:
        yield from rows
    except OSError as error:
        raise SourceError(f"{name}: no further row could be had: {error}") from error


def _plain(cell: Any) -> Cell:
    """Return a cell as JSON has it: Python's own value, and text for what is text in a table: a date, say."""
    if hasattr(cell, "tolist"):  # of nanoseconds NumPy would give the number
        kind = getattr(cell, "dtype", None)
        cell = (cell.astype(f"{kind.kind}8[us]") if kind in ("M8[ns]", "m8[ns]") else cell).tolist()
    if isinstance(cell, tuple | list):
        return list(map(_plain, cell))
    if cell is None or type(cell) in (str, int, float, bool) or isinstance(cell, Set):
        return cell
    try:
        return plain_cells(pa.array([cell], from_pandas=True))[0]
    except (pa.ArrowException, TypeError, ValueError):  # an object of another kind makes its row bad
        return cell


class ArrowReader(TableRows):
    """Reads tables of one schema; see `RowReader`. A "line" is a row, counted from 1.

    Raises:
        SourceError: they cannot be given as Arrow streams of rows.
    """

    def __init__(self, tables: Iterable[Any], name: str) -> None:
        self.name = name
        streams = (self._checked(pa.RecordBatchReader.from_stream, table) for table in tables)
        first = self._checked(next, streams, None)
        if first is None:
            raise SourceError(f"{name}: there is no row")
        fields = [field for field in first.schema if not _UNNAMED_INDEX.fullmatch(field.name)]
        self._streams = chain([first], streams)
        super().__init__(name, pa.schema(fields))

    def chunks(self, skip: int) -> Iterator[RowChunk]:
        """Yield the rows behind the first `skip`."""
        row = 0
        batches = (batch for stream in self._streams for batch in stream)
        while (batch := self._checked(next, batches, None)) is not None:
            for begin in range(max(0, skip - row), batch.num_rows, TABLE_BATCH_ROWS):
                some = batch.slice(begin, TABLE_BATCH_ROWS)
                yield RowChunk(row + begin + 1, self.rows(some), is_text=False)
            row += batch.num_rows

    def _checked(self, call: Any, *arguments: Any) -> Any:
        try:
            return call(*arguments)
        except (pa.ArrowException, OSError, TypeError, ValueError) as error:  # of pandas the last two
            told = one_line(error)
            if (mixed := _OF_OBJECTS.search(told)) is not None:
                place = f'df["{mixed[1]}"]'
                told += f'; mixed types: {place} = {place}.astype("string"); numbers alone: '
                told += f'{place} = pandas.to_numeric({place}, errors="coerce")'
            raise SourceError(f"{self.name}: it does not become Arrow columns: {told}") from error
