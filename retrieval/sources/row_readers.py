"""Reads rows of TSV, JSON Lines, Parquet and lines of text, without interpreting their columns.

`open_rows` recognises the format by the first bytes, with the suffix as a hint, unless the user names it. TSV
has no quoting: quotes are part of a title.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO, Literal, NoReturn, Protocol, get_args

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from genret.retrieval.errors import InputError, SourceError
from genret.retrieval.index.layout import TITLE
from genret.retrieval.normalize import find_control, is_normalized_block, normalize
from genret.retrieval.sources.columns import LEAVE_OUT, check_header
from genret.retrieval.sources.records import BadRow, Cell, RejectReason, RowChunk, json_kind
from genret.retrieval.sources.source_files import BOM, PARQUET_MAGIC, ByteStream, first_line, line_blocks

SourceFormat = Literal["auto", "tsv", "jsonl", "parquet", "lines"]
SOURCE_FORMATS: tuple[str, ...] = get_args(SourceFormat)
_COMPRESSION_SUFFIXES = (".gz", ".zst", ".zstd")
_JSON_SUFFIXES = (".jsonl", ".ndjson")


def open_rows(
    path: str | Path, source_format: SourceFormat, header_names: tuple[str, ...] = (TITLE,)
) -> RowReader:
    """Open a file and find out its format and columns.

    Args:
        path: File; "-" for standard input.
        source_format: Format; "auto" looks at the content.
        header_names: Names, one of which (in any case) makes a first line a header for "auto".

    Raises:
        InputError: there is no such format.
        SourceError: the file cannot be used.
    """
    if source_format not in SOURCE_FORMATS:
        raise InputError("format", f"expected one of {', '.join(SOURCE_FORMATS)}, got {source_format!r}")
    stream = ByteStream(path)
    try:
        if is_parquet(stream):
            if source_format not in ("auto", "parquet"):
                raise SourceError(f"{stream.name}: this is a Parquet file; expected {source_format}")
            return ParquetReader(path, stream)
        if source_format == "parquet" or (source_format == "auto" and inner_suffix(path) == ".parquet"):
            raise SourceError(f"{stream.name}: this is no Parquet file: it does not begin with PAR1")
        first = first_line(stream)
        if source_format == "jsonl" or (source_format == "auto" and _is_json(first, path, stream.name)):
            return JsonLinesReader(stream)
        return _delimited(stream, first, source_format, path, header_names)
    except BaseException:
        stream.close()
        raise


def _is_json(first: bytes, path: str | Path, name: str) -> bool:
    text = first.strip()
    if text.startswith(b"["):
        if inner_suffix(path) in (".json", *_JSON_SUFFIXES):
            raise SourceError(f"{name}: this begins with a JSON list; expected one JSON object per line")
        return False
    if inner_suffix(path) in _JSON_SUFFIXES:
        return True
    if not text.startswith(b"{"):
        return False
    is_object = not isinstance(parse_object(text), BadRow)
    if not is_object and inner_suffix(path) == ".json":
        raise SourceError(f"{name}: line 1 is not one whole JSON object; expected one per line")
    return is_object


def _delimited(
    stream: ByteStream,
    first: bytes,
    source_format: SourceFormat,
    path: str | Path,
    header_names: tuple[str, ...],
) -> DelimitedReader:
    if source_format == "lines":
        return DelimitedReader(stream, (TITLE,), header_lines=0)
    cells = [normalize(cell) for cell in first.decode("utf-8", errors="replace").split("\t")]
    wanted = [normalize(name).casefold() for name in header_names]
    is_header = any(cell.casefold() in wanted for cell in cells)
    if source_format == "auto" and not is_header:
        if len(cells) > 1:
            named = " or ".join(map(repr, header_names))
            raise SourceError(
                f"{stream.name}: line 1 has tabs, but none of its fields is {named}; expected a header, the "
                "names of the columns, above the rows"
            )
        if inner_suffix(path) == ".csv":
            raise SourceError(
                f"{stream.name}: comma-separated files are not read; expected tabs, or --format lines if "
                "every line is one title"
            )
        return DelimitedReader(stream, (TITLE,), header_lines=0)
    return DelimitedReader(stream, check_header(cells, f"{stream.name}, line 1"), header_lines=1)


def inner_suffix(path: str | Path) -> str:
    """Return the suffix of the content in lower case: ".tsv" of "a.TSV.gz"."""
    stem, suffix = os.path.splitext(path)
    if suffix.lower() in _COMPRESSION_SUFFIXES:
        suffix = os.path.splitext(stem)[1]
    return suffix.lower()


class RowReader(Protocol):
    """Reads the rows of one file, once."""

    names: tuple[str, ...]  # names of its columns
    header_lines: int  # lines above the first row

    @property
    def bytes_read(self) -> int:
        """Bytes of the file on disk that have been consumed."""

    @property
    def digest(self) -> str:
        """xxh3_128 of a stream that can be read only once, else ""."""

    def restrict(self, used: Sequence[int], ignore_others: bool, lists: Sequence[int]) -> None:
        """Choose the columns to be read, by positions in `names`, before reading.

        Fields that are in no column make a row bad unless `ignore_others`; cells of `lists` may be lists.

        Raises:
            SourceError: a column is of a type no cell can have.
        """

    def chunks(self, skip: int) -> Iterator[RowChunk]:
        """Yield the rows behind the first `skip` lines, which are not parsed.

        Raises:
            SourceError: the file cannot be read to its end.
        """

    def close(self) -> None:
        """Close the file."""


_LARGE_BLOCK = 1024  # lines; more of them at once, taken apart, leave the processor's cache
_SMALL_BLOCK = 256  # lines; one odd line costs its neighbours the fast path


class _TextReader:
    """The part of a `RowReader` that readers of an unread stream of text share."""

    def __init__(self, stream: ByteStream, names: tuple[str, ...], header_lines: int) -> None:
        self.names = names
        self.header_lines = header_lines
        self._stream = stream

    @property
    def bytes_read(self) -> int:
        return self._stream.raw.bytes_read

    @property
    def digest(self) -> str:
        return self._stream.raw.hexdigest

    def close(self) -> None:
        self._stream.close()


class DelimitedReader(_TextReader):
    """Reads tab-separated rows; see `RowReader`. `header_lines` is 1 if the first line holds the names."""

    def restrict(self, used: Sequence[int], ignore_others: bool, lists: Sequence[int]) -> None:
        """Do nothing: rows are split whole."""

    def chunks(self, skip: int) -> Iterator[RowChunk]:
        """Yield the rows behind the first `skip` lines."""
        for first, block in line_blocks(self._stream, max(skip, self.header_lines)):
            try:
                text = block.decode()
            except UnicodeDecodeError:
                yield RowChunk(first, [_odd_row(raw) for raw in block.split(b"\n")])
                continue
            if "\r" in text:
                text = text.replace("\r\n", "\n").removesuffix("\r")
            yield from _chunks(first, text)


def _chunks(first: int, text: str) -> Iterator[RowChunk]:
    lines = text.split("\n")
    if is_normalized_block(text):
        for begin in range(0, len(lines), _LARGE_BLOCK):
            yield RowChunk(first + begin, lines=lines[begin : begin + _LARGE_BLOCK])
        return
    for begin in range(0, len(lines), _SMALL_BLOCK):
        some = lines[begin : begin + _SMALL_BLOCK]
        if is_normalized_block("\n".join(some)):
            yield RowChunk(first + begin, lines=some)
        else:
            yield RowChunk(first + begin, [_row(line) for line in some])


def _row(line: str) -> list[str] | BadRow:
    if (control := find_control(line)) is not None:
        return BadRow(RejectReason.CONTROL_CHARACTER, control, line)
    return line.split("\t")


def _odd_row(raw: bytes) -> list[str] | BadRow:
    """Split one line of a block with invalid UTF-8."""
    try:
        return _row(raw.removesuffix(b"\r").decode())
    except UnicodeDecodeError as error:
        return BadRow(RejectReason.BAD_UTF8, f"byte {error.start + 1}", raw)


_HEAD_BYTES = 4 << 20
HEAD_LINES = 10_000


class _BadJsonError(ValueError):
    """JSON that Python's parser accepts and this one does not."""


class JsonLinesReader(_TextReader):
    """Reads objects; see `RowReader`. Its columns are the keys of the first lines.

    Raises:
        SourceError: none of the first lines holds an object.
    """

    def __init__(self, stream: ByteStream) -> None:
        self._keys = _keys(stream)
        super().__init__(stream, tuple(map(normalize, self._keys)), header_lines=0)
        self._used: tuple[int, ...] = tuple(range(len(self.names)))
        self._ignore_others = False

    def restrict(self, used: Sequence[int], ignore_others: bool, lists: Sequence[int]) -> None:
        """Choose the columns to be read."""
        self._used = tuple(used)
        self._ignore_others = ignore_others

    def chunks(self, skip: int) -> Iterator[RowChunk]:
        """Yield the rows behind the first `skip` lines."""
        for first, block in line_blocks(self._stream, skip):
            yield RowChunk(first, [self._row(raw) for raw in block.split(b"\n")], is_text=False)

    def _row(self, raw: bytes) -> list[object] | BadRow:
        value = parse_object(raw)
        if isinstance(value, BadRow):
            return value
        if not self._ignore_others:
            late = next((key for key in value if key not in self._keys), None)
            if late is not None:
                detail = (
                    f"{late!r} is in none of the first {HEAD_LINES:,} lines, by which the columns are known; "
                    f"give it in the first line, if only as null, or {LEAVE_OUT}"
                )
                return BadRow(RejectReason.UNKNOWN_FIELD, detail, raw)
        row: list[object] = [None] * len(self._keys)
        for place in self._used:
            row[place] = value.get(self._keys[place])
        return row


def parse_object(raw: bytes) -> dict[str, Any] | BadRow:
    """Return the JSON object of one line, or the reason that it is none."""
    try:
        value = _DECODER.decode(raw.decode())
    except UnicodeDecodeError as error:
        return BadRow(RejectReason.BAD_UTF8, f"byte {error.start + 1}", raw)
    except json.JSONDecodeError as error:
        if not raw.strip():
            return BadRow(RejectReason.BAD_JSON, "an empty line", raw)
        return BadRow(RejectReason.BAD_JSON, f"{error.msg} at character {error.pos + 1}", raw)
    except _BadJsonError as error:
        return BadRow(RejectReason.BAD_JSON, str(error), raw)
    except RecursionError:
        return BadRow(RejectReason.BAD_JSON, "nested too deeply", raw)
    except ValueError:  # Python refuses to read integers of thousands of digits
        return BadRow(RejectReason.BAD_JSON, "a number of too many digits", raw)
    if not isinstance(value, dict):
        return BadRow(RejectReason.NOT_AN_OBJECT, f"got {json_kind(value)}", raw)
    return value


def _keys(stream: ByteStream) -> tuple[str, ...]:
    head = stream.peek(_HEAD_BYTES)
    lines = head.removeprefix(BOM).split(b"\n", HEAD_LINES)
    if len(lines) > HEAD_LINES or (len(head) >= _HEAD_BYTES and len(lines) > 1):
        lines.pop()  # what lies behind the head, or a line that is cut off
    keys: dict[str, None] = {}
    bad: BadRow | None = None
    for raw in lines:
        value = parse_object(raw) if raw.strip() else None
        if isinstance(value, BadRow):
            bad = bad or value
        elif value is not None:
            keys.update(dict.fromkeys(value))
    if not keys:
        why = f"; the first that is none: {bad.reason} ({bad.detail})" if bad is not None else ""
        raise SourceError(f"{stream.name}: none of the first lines is a JSON object with fields{why}")
    return tuple(keys)


def _refuse_constant(name: str) -> NoReturn:
    raise _BadJsonError(f"{name} is not a JSON number")


def _float(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise _BadJsonError(f"{text} is beyond the range of a float")
    return value


def _object(pairs: list[tuple[str, object]]) -> dict[str, object]:
    value = dict(pairs)
    if len(value) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise _BadJsonError(f"the field {twice!r} is given more than once")
    return value


_DECODER = json.JSONDecoder(object_pairs_hook=_object, parse_constant=_refuse_constant, parse_float=_float)


_BATCH_ROWS = 1 << 12


class ParquetReader:
    """Reads rows by row group; see `RowReader`. A "line" is a row, counted from 1.

    A file that is compressed as a whole or comes through a pipe goes to a temporary file first.

    Raises:
        SourceError: it is no intact Parquet file.
    """

    header_lines = 0

    def __init__(self, path: str | Path, stream: ByteStream) -> None:
        self._stream = stream
        self.name = stream.name
        self._spooled: BinaryIO | None = None
        if stream.is_read_once or stream.is_compressed:
            self._spooled = stream.spool()
        try:
            self._file = pq.ParquetFile(self._spooled or str(path), page_checksum_verification=True)
        except (OSError, pa.ArrowException) as error:
            self._close_spooled()
            raise SourceError(f"{self.name}: damaged or cut off Parquet file: {_one_line(error)}") from error
        self._num_bytes = stream.raw.bytes_read if self._spooled is not None else Path(path).stat().st_size
        self._schema = self._file.schema_arrow
        self.names = tuple(map(normalize, self._schema.names))
        self._used: tuple[int, ...] = tuple(range(len(self.names)))
        self._rows_read = 0

    @property
    def bytes_read(self) -> int:
        """Bytes of the file that have been consumed, in proportion to the rows."""
        num_rows = self._file.metadata.num_rows
        return self._num_bytes if not num_rows else self._num_bytes * self._rows_read // num_rows

    @property
    def digest(self) -> str:
        """xxh3_128 of a stream that can be read only once, else ""."""
        return self._stream.raw.hexdigest

    def restrict(self, used: Sequence[int], ignore_others: bool, lists: Sequence[int]) -> None:
        """Choose the columns to be read; none may be nested in a way no cell can be."""
        self._used = tuple(used)
        for place in self._used:
            kind = self._schema.field(place).type
            if pa.types.is_nested(kind) and not (place in lists and _is_list(kind)):
                hint = "name it as the aliases with --aliases-column, or " if _is_list(kind) else ""
                raise SourceError(
                    f"{self.name}: column {self.names[place]!r} is of type {kind}; expected text, numbers, "
                    f"bools or times; {hint}{LEAVE_OUT}"
                )

    def chunks(self, skip: int) -> Iterator[RowChunk]:
        """Yield the rows behind the first `skip`; row groups before them are not read."""
        begin = 0
        self._rows_read = skip
        for group in range(self._file.num_row_groups):
            num_rows = self._file.metadata.row_group(group).num_rows
            if begin + num_rows > skip:
                yield from self._group(group, begin, max(0, skip - begin))
            begin += num_rows

    def close(self) -> None:
        """Close the files."""
        self._file.close()
        self._close_spooled()
        self._stream.close()

    def _group(self, group: int, begin: int, skip: int) -> Iterator[RowChunk]:
        names = [self._schema.field(place).name for place in self._used]
        row = begin
        try:
            for batch in self._file.iter_batches(_BATCH_ROWS, row_groups=[group], columns=names):
                end = row + batch.num_rows
                behind = max(0, begin + skip - row)
                if behind < batch.num_rows:
                    rows = self._rows(batch.slice(behind))
                    self._rows_read = end
                    yield RowChunk(row + behind + 1, rows, is_text=False)
                row = end
        except (OSError, pa.ArrowException) as error:
            raise SourceError(
                f"{self.name}: damaged or cut off in row group {group}, near row {row + 1}: "
                f"{_one_line(error)}"
            ) from error

    def _rows(self, batch: pa.RecordBatch) -> list[Sequence[Cell]]:
        columns: list[list[Cell]] = [[None] * batch.num_rows for _ in self.names]
        for place in self._used:
            columns[place] = _cells(batch.column(self._schema.field(place).name))
        return list(zip(*columns, strict=True))

    def _close_spooled(self) -> None:
        if self._spooled is not None:
            self._spooled.close()


def is_parquet(stream: ByteStream) -> bool:
    """Whether a stream begins as a Parquet file does."""
    return stream.peek(len(PARQUET_MAGIC)).startswith(PARQUET_MAGIC)


def _cells(column: pa.Array) -> list[Cell]:
    """Return Python values: str, bytes, int, float, bool, list or None; times and decimals as text."""
    kind = column.type
    if pa.types.is_dictionary(kind):
        column = column.dictionary_decode()
        kind = column.type
    if isinstance(kind, pa.UuidType):
        return [None if cell is None else str(cell) for cell in column.to_pylist()]
    if pa.types.is_temporal(kind) or pa.types.is_decimal(kind):
        column = pc.replace_substring(column.cast(pa.string()), " ", "T", max_replacements=1)
    try:
        return list(column.to_pylist())
    except UnicodeDecodeError:
        # Arrow does not look into strings when it reads them; as bytes they make their own rows bad.
        text = pa.large_list(pa.large_binary()) if _is_list(kind) else pa.large_binary()
        return list(column.cast(text).to_pylist())


def _is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())
