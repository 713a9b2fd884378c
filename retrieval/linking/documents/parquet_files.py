"""Cuts and reads Parquet files whose rows are documents, holding a few megabytes of rows at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import xxhash

from genret.retrieval.errors import SourceError
from genret.retrieval.linking.documents.corpus import CorpusOptions, ShardCutter, ShardFile
from genret.retrieval.linking.documents.document_records import (
    MENTION_DOCUMENT_FIELD,
    MENTION_FIELD,
    MENTION_TEXT_FIELDS,
    record_document,
)
from genret.retrieval.linking.documents.input_files import changed
from genret.retrieval.linking.documents.text_document import BadDocument, Document
from genret.retrieval.sources.row_readers import one_line
from genret.retrieval.sources.source_files import PARQUET_MAGIC

_BATCH_BYTES = 1 << 22
_BATCH_ROWS = 1 << 12
_BUFFER_BYTES = 1 << 20
_TAIL_BYTES = 8  # length of the footer, and PAR1
RowFields = dict[str, Any] | None  # None: text that is not UTF-8


class ParquetRows:
    """Rows of one file, forward; only the columns that documents are made of.

    `footer_digest` is the xxh3_64 of the footer, where sizes, places and statistics of all columns are;
    `next_row` is the first row that can still be taken. A file that is no intact Parquet file, or lacks a
    column, or has one of a wrong type is a `SourceError`.
    """

    def __init__(self, path: str, options: CorpusOptions) -> None:
        self._path = path
        self.footer_digest = _footer_digest(path)
        try:
            # Read buffered and page by page: without this, whole columns of a row group would be held.
            self._file = pq.ParquetFile(
                path, buffer_size=_BUFFER_BYTES, pre_buffer=False, page_checksum_verification=True
            )
        except (OSError, pa.ArrowException) as error:
            raise SourceError(f"{path}: damaged or cut off Parquet file: {one_line(error)}") from error
        self.num_rows: int = self._file.metadata.num_rows
        self.next_row = 1
        self._wanted = 0
        self._batches = self.batches()
        self._first = 1  # row of the first of the fields
        self._fields: list[RowFields] = []
        try:
            self._columns = document_columns(path, self._file.schema_arrow, options)
        except BaseException:
            self._file.close()
            raise

    def batches(self) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Yield all rows in batches, each with the number of its first row, from 1."""
        begin = 0
        for group in range(self._file.num_row_groups):
            metadata = self._file.metadata.row_group(group)
            if begin + metadata.num_rows >= self._wanted:
                row = begin + 1
                for batch in self._group(group, metadata, row):
                    yield row, batch
                    row += batch.num_rows
            begin += metadata.num_rows

    def take(self, row: int) -> RowFields:
        """Return the fields of a row, which is in [1, `num_rows`] and above that of the call before.

        Row groups before the one it is in are not read, nor is what was read already.
        """
        self._wanted = row
        while row >= self._first + len(self._fields):
            first, batch = next(self._batches)
            if row < first + batch.num_rows:
                self._first, self._fields = row, batch_rows(batch.slice(row - first))
        self.next_row = row + 1
        return self._fields[row - self._first]

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _group(self, group: int, metadata: Any, begin: int) -> Iterator[pa.RecordBatch]:
        row_bytes = metadata.total_byte_size // max(1, metadata.num_rows)
        size = max(1, min(_BATCH_ROWS, _BATCH_BYTES // max(1, row_bytes)))
        row = begin
        try:
            for batch in self._file.iter_batches(
                size, row_groups=[group], columns=self._columns, use_threads=False
            ):
                yield batch
                row += batch.num_rows
        except (OSError, pa.ArrowException) as error:
            raise SourceError(
                f"{self._path}: damaged or cut off in row group {group}, near row {row}: {one_line(error)}"
            ) from error


def plan_parquet(
    rows: ParquetRows,
    num_bytes: int,
    source: str,
    options: CorpusOptions,
    cutter: ShardCutter,
    report: Callable[[int], None],
) -> None:
    """Read the columns of a file of `num_bytes` and cut its rows.

    `report` is told, now and then, the bytes of the file that stand for the rows read so far.
    """
    for first, batch in rows.batches():
        for row, length in enumerate(_lengths(batch), first):
            if length > options.shard_chars:
                fields = batch_rows(batch.slice(row - first, 1))[0]
                if cutter.add_parts(row, 0, row_document(fields, source, row, options), b""):
                    continue
            cutter.add_row(row, 0, length, b"")
        report(num_bytes * (first + batch.num_rows - 1) // rows.num_rows)


def read_parquet(
    rows: ParquetRows, file: ShardFile, options: CorpusOptions
) -> Iterator[Document | BadDocument]:
    """Yield the documents of a stretch of rows, none of which has been taken.

    A file that is damaged, or not what it was, is a SourceError.
    """
    end = file.first_row + file.num_rows
    if rows.num_rows < end - 1 or file.digest not in ("", rows.footer_digest):
        raise changed(file, "its footer is another")
    for row in range(file.first_row, end):
        yield row_document(rows.take(row), file.source, row, options)


def row_document(fields: RowFields, source: str, row: int, options: CorpusOptions) -> Document | BadDocument:
    """Return the document of a row."""
    if fields is None:
        return BadDocument(source, row, "text that is not valid UTF-8")
    return record_document(fields, source, row, options)


def batch_rows(batch: pa.RecordBatch) -> list[RowFields]:
    """Return the fields of every row."""
    try:
        return list(batch.to_pylist())
    except UnicodeDecodeError:  # Arrow does not look into strings when it reads them
        if batch.num_rows == 1:
            return [None]
        return [row for at in range(batch.num_rows) for row in batch_rows(batch.slice(at, 1))]


def _lengths(batch: pa.RecordBatch) -> list[int]:
    """Return about how long the text of every row is: bytes of all its strings but those in lists."""
    total = pa.scalar(0, pa.int64())
    lengths = pa.repeat(total, batch.num_rows)
    for column in batch.columns:
        if pa.types.is_dictionary(column.type):
            column = column.dictionary_decode()
        if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
            lengths = pc.add(lengths, pc.fill_null(pc.binary_length(column).cast(pa.int64()), 0))
    return list(lengths.to_pylist())


def _footer_digest(path: str) -> str:
    """Return the digest of the footer, which holds the places of all data."""
    try:
        with open(path, "rb") as file:
            end = file.seek(0, 2)
            file.seek(max(0, end - _TAIL_BYTES))
            tail = file.read(_TAIL_BYTES)
            begin = end - _TAIL_BYTES - int.from_bytes(tail[:4], "little")
            if not tail.endswith(PARQUET_MAGIC) or begin < 0:
                raise SourceError(
                    f"{path}: this is no Parquet file, or a cut off one: it does not end in PAR1"
                )
            file.seek(begin)
            return str(xxhash.xxh3_64_hexdigest(file.read()))
    except OSError as error:
        raise SourceError(f"{path}: cannot be read: {error.strerror}") from error


def document_columns(path: str, schema: pa.Schema, options: CorpusOptions) -> list[str]:
    """Return the names of the columns to be read.

    One that is needed and not there, comes twice, or has a wrong type is a SourceError.
    """
    names = list(schema.names)
    mention = {**dict.fromkeys(MENTION_TEXT_FIELDS, _STRING), MENTION_DOCUMENT_FIELD: _ID}
    wanted: dict[str, _Kind] = {}
    if options.text_field in names:
        wanted[options.text_field] = _STRING
        fits = all(kind.fits(schema.field(name).type) for name, kind in mention.items() if name in names)
        if fits and MENTION_FIELD in names:
            wanted = {**mention, **wanted}
    elif MENTION_FIELD in names:
        wanted = {**mention}
    else:
        raise _missing(path, names, options.text_field)
    for field, default, kind in (
        (options.id_field, _DEFAULTS.id_field, _ID),
        (options.mentions_field, _DEFAULTS.mentions_field, _MENTIONS),
    ):
        if field not in names and field != default:
            raise _missing(path, names, field)
        wanted[field] = kind
    for name, kind in wanted.items():
        places = schema.get_all_field_indices(name)
        if len(places) > 1:
            raise SourceError(f"{path}: there are {len(places)} columns {name!r}; expected one")
        if places and not kind.fits(found := schema.field(places[0]).type):
            raise SourceError(f"{path}: column {name!r} is of type {found}; expected {kind.expected}")
    return [name for name in names if name in wanted]


def _missing(path: str, names: list[str], name: str) -> SourceError:
    shown = ", ".join(map(repr, names))
    return SourceError(f"{path}: there is no column {name!r}; the columns are {shown}")


class _Kind(NamedTuple):
    fits: Callable[[pa.DataType], bool]
    expected: str  # in words


def _is_string(kind: pa.DataType) -> bool:
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _is_id(kind: pa.DataType) -> bool:
    return _is_string(kind) or bool(pa.types.is_integer(kind) or pa.types.is_null(kind))


def _is_mentions(kind: pa.DataType) -> bool:
    if pa.types.is_null(kind):
        return True
    if not (pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)):
        return False
    item = kind.value_type
    if pa.types.is_null(item):  # no list of the file holds anything
        return True
    if not pa.types.is_struct(item):
        return False
    types = {item.field(place).name: item.field(place).type for place in range(item.num_fields)}
    return all(
        name in types and (pa.types.is_integer(types[name]) or pa.types.is_null(types[name]))
        for name in ("start", "end")
    )


_STRING = _Kind(_is_string, "string")
_ID = _Kind(_is_id, "string or an integer type")
_MENTIONS = _Kind(_is_mentions, "a list of structs with the integers start and end")
_DEFAULTS = CorpusOptions(())
