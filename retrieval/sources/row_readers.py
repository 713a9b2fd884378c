"""Reads rows of CSV, TSV, JSON Lines, Parquet and lines of text, without interpreting their columns.

`open_rows` recognises the format by the first bytes, with the suffix as a hint, unless the user names it. TSV
has no quoting: quotes are part of a title.
"""

from __future__ import annotations

import csv
import json
import math
import os
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Literal, NamedTuple, NoReturn, get_args

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from genret.retrieval.errors import SourceError, did_you_mean
from genret.retrieval.index.layout import TITLE
from genret.retrieval.normalize import find_control, find_surrogate, is_normalized_block, normalize
from genret.retrieval.sources.columns import LEAVE_OUT, check_header
from genret.retrieval.sources.records import LINE_SPACE, BadRow, Cell, RejectReason, RowChunk, json_kind
from genret.retrieval.sources.source_files import (
    BOM,
    MAX_LINE_BYTES,
    PARQUET_MAGIC,
    ByteStream,
    first_line,
    line_blocks,
)

if TYPE_CHECKING:
    from _csv import Reader

SourceFormat = Literal["auto", "csv", "tsv", "jsonl", "parquet", "lines"]
SOURCE_FORMATS: tuple[str, ...] = get_args(SourceFormat)
_COMPRESSION_SUFFIXES = (".gz", ".zst", ".zstd")
_JSON_SUFFIXES = (".jsonl", ".ndjson")


def open_rows(
    path: str | Path,
    source_format: SourceFormat,
    header_names: tuple[str, ...] = (TITLE,),
    delimiter: str | None = None,
) -> RowReader:
    """Open a file and find out its format and columns.

    "-" is standard input. The format "auto" looks at the content: one of `header_names` (in any case) makes a
    first line a header, and with a `delimiter`, which is found out if it is None, text is CSV.

    Raises:
        SourceError: the file cannot be used.
    """
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
        return _delimited(stream, first, source_format, path, header_names, delimiter)
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
    delimiter: str | None,
) -> DelimitedReader | CsvReader:
    if source_format == "lines":
        return DelimitedReader(stream, (TITLE,), header_lines=0)
    cells = [normalize(cell) for cell in first.decode("utf-8", errors="replace").split("\t")]
    wanted = [normalize(name).casefold() for name in header_names]
    is_header = any(cell.casefold() in wanted for cell in cells)
    is_named = source_format == "auto" and inner_suffix(path) == ".csv"
    if source_format == "csv" or is_named or delimiter is not None:
        return CsvReader(stream, _csv_form(stream, wanted, delimiter))
    if source_format == "auto" and not is_header:
        form = _csv_form(stream, wanted, None)
        if form.is_likely:
            return CsvReader(stream, form)
        if len(cells) > 1:
            named = " or ".join(map(repr, dict.fromkeys(header_names)))
            hint = did_you_mean(header_names[0], cells, ";")
            raise SourceError(
                f"{stream.name}: line 1 has tabs, but none of its fields is {named}{hint} expected a header, "
                "the names of the columns, above the rows"
            )
        return DelimitedReader(stream, (TITLE,), header_lines=0)
    return DelimitedReader(stream, check_header(cells, f"{stream.name}, line 1"), header_lines=1)


def inner_suffix(path: str | Path) -> str:
    """Return the suffix of the content in lower case: ".tsv" of "a.TSV.gz"."""
    stem, suffix = os.path.splitext(path)
    if suffix.lower() in _COMPRESSION_SUFFIXES:
        suffix = os.path.splitext(stem)[1]
    return suffix.lower()


class RowReader:
    """Reads the rows of one file, once. Rows in memory have no bytes and no file: what is here is theirs."""

    names: tuple[str, ...]  # names of its columns
    header_lines = 0  # lines above the first row

    @property
    def bytes_read(self) -> int:
        """Bytes of the file on disk that have been consumed."""
        return 0

    @property
    def digest(self) -> str:
        """xxh3_128 of a stream that can be read only once, else ""."""
        return ""

    @property
    def num_rows(self) -> float:
        """Number of rows of a regular file, before any is read: an int where it is known."""
        return 0.0

    @property
    def kept_share(self) -> float:
        """Share of the file that `chunks` gave, known when it has ended."""
        return 1.0

    def keep_stretches(self, places: Sequence[float], rows: int) -> None:
        """Let `chunks` give only stretches of about so many rows each, at places > 0: shares of the file.

        Numbers of lines are then those of the stretches, but in a table. What is read once is read whole.
        """

    def restrict(self, used: Sequence[int], ignore_others: bool, lists: Sequence[int]) -> None:
        """Choose the columns to be read, by positions in `names`, before reading; text is split whole.

        Fields that are in no column make a row bad unless `ignore_others`; cells of `lists` may be lists.

        Raises:
            SourceError: a column is of a type no cell can have.
        """

    def chunks(self, skip: int) -> Iterator[RowChunk]:
        """Yield the rows behind the first `skip` lines, which are not parsed.

        Raises:
            SourceError: the file cannot be read to its end.
        """
        raise NotImplementedError

    def close(self) -> None:
        """Close the file; rows in memory belong to the caller."""


_LARGE_BLOCK = 1024  # lines; more of them at once, taken apart, leave the processor's cache
_SMALL_BLOCK = 256  # lines; one odd line costs its neighbours the fast path


class _TextReader(RowReader):
    """The part that readers of an unread stream of text share."""

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

    @property
    def num_rows(self) -> float:
        head = self._stream.peek(_HEAD_BYTES)
        read = self._stream.raw.bytes_read if self._stream.is_compressed else len(head)
        return (head.count(b"\n") or 1) * self._stream.num_bytes / max(read, 1)

    @property
    def kept_share(self) -> float:
        return self._stream.kept_share

    def keep_stretches(self, places: Sequence[float], rows: int) -> None:
        head = self._stream.peek(_HEAD_BYTES)
        size = len(head) * rows // (head.count(b"\n") or 1)
        self._stream.keep_stretches(places, max(size, 1), self._begun)
        self.header_lines = 0  # which no stretch holds

    def _begun(self, content: bytes, size: int) -> bytes:
        """Return the records that begin in the first `size` bytes of a piece of the file, if whole."""
        return content[content.find(b"\n") + 1 : content.find(b"\n", size - 1) + 1]

    def close(self) -> None:
        self._stream.close()


class DelimitedReader(_TextReader):
    """Reads tab-separated rows; see `RowReader`. `header_lines` is 1 if the first line holds the names."""

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


_DELIMITERS = (",", ";", "|", "\t")
_CSV_HEAD_BYTES = 1 << 16
_CSV_HEAD_RECORDS = 100
_TRIED_RECORDS = 8  # that must have all fields, before a place in the midst of a file is one where they begin


class _CsvForm(NamedTuple):
    """How a CSV file seems to be written, by its first records."""

    delimiter: str
    quote: str
    header: tuple[str, ...] = ()  # normalised names of the columns; empty if there is no first record
    header_lines: int = 0
    is_titled: bool = False  # whether a column has one of the names that are looked for
    agreement: float = 0.0  # share of the first records with as many fields as the header

    @property
    def is_likely(self) -> bool:
        """Whether this is a table in which titles are found."""
        return self.is_titled and len(self.header) > 1 and self.agreement > 0.5

    @property
    def rank(self) -> tuple[bool, bool, bool, float, int]:
        """Key of the likeliest form among several; an unreadable header goes before one without titles."""
        is_table = len(self.header) > 1 and self.agreement > 0.5
        return self.is_titled, not self.header, is_table, self.agreement, len(self.header)


def _csv_form(stream: ByteStream, wanted: Sequence[str], delimiter: str | None) -> _CsvForm:
    """Return the likeliest form of a CSV file; nothing is consumed. `wanted`: folded names of the titles."""
    head = stream.peek(_CSV_HEAD_BYTES)
    lines = [line + "\n" for line in head.removeprefix(BOM).decode("utf-8", errors="replace").split("\n")]
    if lines[-1] == "\n" or (len(head) >= _CSV_HEAD_BYTES and len(lines) > 1):
        lines.pop()  # nothing, or a line that is cut off
    quote = "'" if lines[0].startswith("'") else '"'
    candidates = _DELIMITERS if delimiter is None else (delimiter,)
    forms = [_csv_form_by(lines, candidate, quote, wanted) for candidate in candidates]
    return max(forms, key=lambda form: form.rank)


def _csv_form_by(lines: Sequence[str], delimiter: str, quote: str, wanted: Sequence[str]) -> _CsvForm:
    reader = _csv_reader(iter(lines), delimiter, quote)
    try:
        header = tuple(map(normalize, next(reader)))
    except csv.Error:
        return _CsvForm(delimiter, quote)
    header_lines, same, count = reader.line_num, 0, 0
    while count < _CSV_HEAD_RECORDS:
        try:
            same += len(next(reader)) == len(header)
        except StopIteration:
            break
        except csv.Error:  # a record of another form, or one that goes on behind the head
            if reader.line_num == len(lines):
                break
        count += 1
    is_titled = any(name.casefold() in wanted for name in header)
    return _CsvForm(delimiter, quote, header, header_lines, is_titled, same / count if count else 1.0)


def _csv_reader(lines: Iterator[str], delimiter: str, quote: str) -> Reader:
    # The limit is the process's and only ever raised. `_QuotedLines` keeps records to what a line may be.
    csv.field_size_limit(max(csv.field_size_limit(), MAX_LINE_BYTES))
    return csv.reader(lines, delimiter=delimiter, quotechar=quote, skipinitialspace=True, strict=True)


class _QuotedLines:
    """Feeds lines of blocks to Python's `csv.reader`, which takes as many as a record has."""

    def __init__(self, blocks: Iterator[tuple[int, bytes]], name: str) -> None:
        self._blocks = blocks
        self._name = name
        self._lines: deque[str] = deque()
        self.record: list[str] = []  # lines of the record that is being read
        self.next_line = 0  # number of the next line
        self.is_cut_off = False  # whether the file ends within a record

    def put(self, first: int, text: str) -> None:
        """Add the lines of a block."""
        self.next_line = first
        self._lines.extend([line + "\n" for line in text.split("\n")])

    def begin(self) -> int:
        """Begin another record; return the number of its line."""
        self.record, self._held = [], 0
        return self.next_line

    def __bool__(self) -> bool:
        return bool(self._lines)

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        if not self._lines:
            block = next(self._blocks, None)
            if block is None:
                self.is_cut_off = True
                raise StopIteration
            self.put(block[0], _csv_text(block[1]))
        line = self._lines.popleft()
        self.record.append(line)
        self._held += len(line)
        if self._held > MAX_LINE_BYTES:
            begin = self.next_line - len(self.record) + 1
            raise SourceError(
                f"{self._name}: line {begin}: the record that begins here is longer than {MAX_LINE_BYTES} "
                "characters; is a quote not closed?"
            )
        self.next_line += 1
        return line


def _csv_text(block: bytes) -> str:
    """Return lines as text; bytes that are not UTF-8 become surrogates, which make their rows bad."""
    return block.decode("utf-8", errors="surrogateescape")


class CsvReader(_TextReader):
    """Reads records of RFC 4180, which may span lines; see `RowReader`. The line of a record is its first.

    Spaces before a quote that opens a field are skipped; no file that keeps to the RFC has them.

    Raises:
        SourceError: the file has no header.
    """

    def __init__(self, stream: ByteStream, form: _CsvForm) -> None:
        if not form.header:
            raise SourceError(
                f"{stream.name}: line 1 begins no header of a CSV file; expected the names of the columns, "
                f"with every quote closed within {_CSV_HEAD_BYTES} bytes"
            )
        names = check_header(form.header, f"{stream.name}, line 1")
        super().__init__(stream, names, form.header_lines)
        self._delimiter = form.delimiter
        self._quote = form.quote

    def chunks(self, skip: int) -> Iterator[RowChunk]:
        """Yield the rows behind the first `skip` lines, which end with a record."""
        blocks = line_blocks(self._stream, max(skip, self.header_lines))
        lines = _QuotedLines(blocks, self._stream.name)
        reader = _csv_reader(lines, self._delimiter, self._quote)
        for first, block in blocks:
            text = _csv_text(block)
            if self._quote not in text:
                yield from self._unquoted(first, text)
                continue
            lines.put(first, text)
            while lines:
                rows: list[list[str] | BadRow] = []
                starts: list[int] = []
                while lines and len(rows) < _SMALL_BLOCK:
                    starts.append(lines.begin())
                    rows.append(self._record(reader, lines))
                yield self._chunk(rows, [*starts, lines.next_line])

    def _begun(self, content: bytes, size: int) -> bytes:
        """Return the records that begin there; the first one is where some follow that have all fields."""
        text = _csv_text(content[content.find(b"\n") + 1 :])
        lines = [line + "\n" for line in text.split("\n")[:-1]]
        count = content.count(b"\n", 0, size)  # of the lines that begin there
        begin = next(filter(partial(self._fits, lines), range(min(count, _SMALL_BLOCK))), count)
        reader = _csv_reader(iter(lines[begin:]), self._delimiter, self._quote)
        while begin + reader.line_num < count:
            try:
                next(reader)
            except StopIteration:
                return b""
            except csv.Error:  # a record of another form, or one that goes on behind the piece
                if begin + reader.line_num == len(lines):
                    return b""
        end = begin + reader.line_num
        return "".join(lines[begin:end]).encode("utf-8", errors="surrogateescape")

    def _fits(self, lines: Sequence[str], begin: int) -> bool:
        """Whether records seem to begin at a line."""
        reader = _csv_reader(iter(lines[begin : begin + _SMALL_BLOCK]), self._delimiter, self._quote)
        try:
            fitting = [len(row) == len(self.names) for row in islice(reader, _TRIED_RECORDS)]
            return len(fitting) == _TRIED_RECORDS and all(fitting)
        except csv.Error:
            return False

    def _unquoted(self, first: int, text: str) -> Iterator[RowChunk]:
        """Split lines without quotes, each of which is a record."""
        lines = iter(text.replace("\r\n", "\n").split("\n"))
        while some := list(islice(lines, _SMALL_BLOCK)):
            rows = list(map(self._unquoted_row, some))
            yield self._chunk(rows, range(first, first + len(rows) + 1))
            first += len(rows)

    def _unquoted_row(self, line: str) -> list[str] | BadRow:
        line = line.rstrip("\r")  # as csv does: some writers end lines in \r\r\n
        if "\r" in line:
            return BadRow(RejectReason.CONTROL_CHARACTER, "U+000D", line)
        row = line.split(self._delimiter)
        if line.startswith(" ") or f"{self._delimiter} " in line:  # csv skips spaces that begin a field
            row = [cell.lstrip(" ") for cell in row]
        return self._fitting(row, line)

    def _record(self, reader: Reader, lines: _QuotedLines) -> list[str] | BadRow:
        try:
            row = next(reader)
        except csv.Error as error:
            if lines.is_cut_off:
                begin = lines.next_line - len(lines.record)
                raise SourceError(
                    f"{self._stream.name}: line {begin}: the record that begins here has a quote that is not "
                    "closed by the end of the file"
                ) from None
            text = "".join(lines.record).rstrip("\r\n")
            if str(error).startswith("new-line character"):  # as in lines without quotes
                return BadRow(RejectReason.CONTROL_CHARACTER, "U+000D", text)
            return BadRow(RejectReason.BAD_CSV, f"text behind a closing quote: {error}", text)
        return self._fitting(row or [""], "".join(lines.record))

    def _fitting(self, row: list[str], text: str) -> list[str] | BadRow:
        if len(row) <= len(self.names):
            return row
        count = f"expected {len(self.names)} fields, got {len(row)}"
        detail = f"{count}; a field with {self._delimiter!r} needs quotes"
        return BadRow(RejectReason.TOO_MANY_CELLS, detail, text.rstrip("\r\n"))

    def _chunk(self, rows: Sequence[list[str] | BadRow], starts: Sequence[int]) -> RowChunk:
        cells = "\n".join(chain.from_iterable(row for row in rows if not isinstance(row, BadRow)))
        # A tab or a line end within a cell would be taken for the end of one.
        is_whole = starts[-1] - starts[0] == len(rows) and "\t" not in cells
        if is_whole and is_normalized_block(cells) and not any(isinstance(row, BadRow) for row in rows):
            return RowChunk(starts[0], rows, starts=starts, is_clean=True)
        checked = [row if isinstance(row, BadRow) else self._checked(row) for row in rows]
        return RowChunk(starts[0], checked, starts=starts)

    def _checked(self, row: list[str]) -> list[str] | BadRow:
        text = self._delimiter.join(row)
        if text.isprintable():
            return row
        if find_surrogate(text) is not None:
            place = next(i for i, cell in enumerate(row) if find_surrogate(cell) is not None)
            detail = f"column {self.names[place]!r}"
            return BadRow(RejectReason.BAD_UTF8, detail, text.encode("utf-8", errors="surrogateescape"))
        if (control := find_control(text.translate(LINE_SPACE))) is not None:
            return BadRow(RejectReason.CONTROL_CHARACTER, control, text)
        return row


_HEAD_BYTES = 4 << 20
HEAD_LINES = 10_000


class _BadJsonError(ValueError):
    """JSON that Python's parser accepts and this one does not."""


class ObjectRows(RowReader):
    """The part that makes rows of objects; the `keys` of the first ones are the columns."""

    unit = "lines"  # what its rows are counted in

    def __init__(self, keys: Sequence[str]) -> None:
        self._keys = tuple(keys)
        self.names = tuple(map(normalize, keys))
        self._used: tuple[int, ...] = tuple(range(len(keys)))
        self._ignore_others = False

    def restrict(self, used: Sequence[int], ignore_others: bool, lists: Sequence[int]) -> None:
        """Choose the columns to be read."""
        self._used = tuple(used)
        self._ignore_others = ignore_others

    def placed(self, value: Mapping[Any, Any], shown: object) -> list[Cell] | BadRow:
        """Return the cells of an object, in the order of the columns; `shown` stands for it in messages."""
        if not self._ignore_others:
            late = next((key for key in value if key not in self._keys), None)
            if late is not None:
                detail = (
                    f"{late!r} is in none of the first {HEAD_LINES:,} {self.unit}, by which the columns are "
                    f"known; give it in the first of them, if only as null, or {LEAVE_OUT}"
                )
                text = shown if isinstance(shown, bytes) else str(shown)
                return BadRow(RejectReason.UNKNOWN_FIELD, detail, text)
        row: list[Cell] = [None] * len(self._keys)
        for place in self._used:
            row[place] = value.get(self._keys[place])
        return row


class JsonLinesReader(ObjectRows, _TextReader):
    """Reads objects; see `RowReader`. Its columns are the keys of the first lines.

    Raises:
        SourceError: none of the first lines holds an object.
    """

    def __init__(self, stream: ByteStream) -> None:
        ObjectRows.__init__(self, _keys(stream))
        _TextReader.__init__(self, stream, self.names, header_lines=0)

    def chunks(self, skip: int) -> Iterator[RowChunk]:
        """Yield the rows behind the first `skip` lines."""
        for first, block in line_blocks(self._stream, skip):
            yield RowChunk(first, [self._row(raw) for raw in block.split(b"\n")], is_text=False)

    def _row(self, raw: bytes) -> list[Cell] | BadRow:
        value = parse_object(raw)
        return value if isinstance(value, BadRow) else self.placed(value, raw)


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


TABLE_BATCH_ROWS = 1 << 12
_ADVICE = {
    "duration": "make numbers of it, such as seconds, or ",
    "fixed_size_binary": "make text of it (Object in polars is of this type), or ",
}
_ODD = ("extension<pandas.", "month", *_ADVICE)  # beginnings of the types that no cell has


class TableRows(RowReader):
    """The part that makes rows of Arrow columns; `name` is the table's in messages."""

    def __init__(self, name: str, schema: pa.Schema) -> None:
        self.name = name
        self._schema = schema
        self.names = tuple(map(normalize, schema.names))
        self._used: tuple[int, ...] = tuple(range(len(self.names)))

    def restrict(self, used: Sequence[int], ignore_others: bool, lists: Sequence[int]) -> None:
        """Choose the columns to be read; none may be nested in a way no cell can be."""
        self._used = tuple(used)
        for place in self._used:
            kind = self._schema.field(place).type
            is_odd = str(kind).startswith(_ODD)
            if (is_odd or pa.types.is_nested(kind)) and not (place in lists and _is_list(kind)):
                hint = "name it as the aliases with --aliases-column, or " if _is_list(kind) else ""
                hint = next((told for begin, told in _ADVICE.items() if str(kind).startswith(begin)), hint)
                raise SourceError(
                    f"{self.name}: column {self.names[place]!r} is of type {kind}; expected text, numbers, "
                    f"bools or times; {hint}{LEAVE_OUT}"
                )

    def rows(self, batch: pa.RecordBatch) -> list[Sequence[Cell]]:
        """Return the cells of a batch, row by row."""
        columns: list[list[Cell]] = [[None] * batch.num_rows for _ in self.names]
        for place in self._used:
            columns[place] = plain_cells(batch.column(self._schema.field(place).name))
        return list(zip(*columns, strict=True))


class ParquetReader(TableRows):
    """Reads rows by row group; see `RowReader`. A "line" is a row, counted from 1.

    A file that is compressed as a whole or comes through a pipe goes to a temporary file first.

    Raises:
        SourceError: it is no intact Parquet file.
    """

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
            raise SourceError(f"{self.name}: damaged or cut off Parquet file: {one_line(error)}") from error
        self._num_bytes = stream.raw.bytes_read if self._spooled is not None else Path(path).stat().st_size
        super().__init__(stream.name, self._file.schema_arrow)
        self._rows_read = 0
        self._spans = [(0, self._file.metadata.num_rows)]

    @property
    def bytes_read(self) -> int:
        """Bytes of the file that have been consumed, in proportion to the rows."""
        num_rows = self._file.metadata.num_rows
        return self._num_bytes if not num_rows else self._num_bytes * self._rows_read // num_rows

    @property
    def digest(self) -> str:
        """xxh3_128 of a stream that can be read only once, else ""."""
        return self._stream.raw.hexdigest

    @property
    def num_rows(self) -> float:
        """Number of rows."""
        return int(self._file.metadata.num_rows)

    @property
    def kept_share(self) -> float:
        """Share of the rows that were given."""
        return float(sum(end - begin for begin, end in self._spans) / max(self.num_rows, 1))

    def keep_stretches(self, places: Sequence[float], rows: int) -> None:
        """Let `chunks` give only stretches of rows, at places that are shares of them."""
        begins = [min(round(place * self.num_rows), int(self.num_rows) - 1) for place in places]
        ends = [*begins[1:], self._file.metadata.num_rows]
        self._spans = [
            (begin, min(begin + rows, end)) for begin, end in zip(begins, ends, strict=True) if begin < end
        ]

    def chunks(self, skip: int) -> Iterator[RowChunk]:
        """Yield the rows behind the first `skip`; row groups without such rows are not read."""
        first = 0
        self._rows_read = skip
        for group in range(self._file.num_row_groups):
            behind = first + self._file.metadata.row_group(group).num_rows
            spans = [(max(begin, first, skip), min(end, behind)) for begin, end in self._spans]
            spans = [(begin, end) for begin, end in spans if begin < end]
            if spans:
                yield from self._group(group, first, spans)
            first = behind

    def close(self) -> None:
        """Close the files."""
        self._file.close()
        self._close_spooled()
        self._stream.close()

    def _group(self, group: int, row: int, spans: Sequence[tuple[int, int]]) -> Iterator[RowChunk]:
        names = [self._schema.field(place).name for place in self._used]
        try:
            for batch in self._file.iter_batches(TABLE_BATCH_ROWS, row_groups=[group], columns=names):
                behind = row + batch.num_rows
                for begin, end in spans:
                    low, high = max(begin, row), min(end, behind)
                    if low < high:
                        rows = self.rows(batch.slice(low - row, high - low))
                        self._rows_read = high
                        yield RowChunk(low + 1, rows, is_text=False)
                row = behind
        except (OSError, pa.ArrowException) as error:
            raise SourceError(
                f"{self.name}: damaged or cut off in row group {group}, near row {row + 1}: {one_line(error)}"
            ) from error

    def _close_spooled(self) -> None:
        if self._spooled is not None:
            self._spooled.close()


def is_parquet(stream: ByteStream) -> bool:
    """Whether a stream begins as a Parquet file does."""
    return stream.peek(len(PARQUET_MAGIC)).startswith(PARQUET_MAGIC)


def plain_cells(column: pa.Array) -> list[Cell]:
    """Return Python values: str, bytes, int, float, bool, list or None; times and decimals as text."""
    kind = column.type
    if pa.types.is_dictionary(kind) and pa.types.is_string_view(kind.value_type):  # Arrow decodes none
        return list(column.to_pylist())
    if pa.types.is_dictionary(kind):
        column = column.dictionary_decode()
        kind = column.type
    if isinstance(kind, pa.UuidType):
        return [None if cell is None else str(cell) for cell in column.to_pylist()]
    is_time = pa.types.is_temporal(kind) and not pa.types.is_duration(kind)
    if is_time or pa.types.is_decimal(kind):
        column = pc.replace_substring(column.cast(pa.string()), " ", "T", max_replacements=1)
    try:
        return list(column.to_pylist())
    except UnicodeDecodeError:
        # Arrow does not look into strings when it reads them; as bytes they make their own rows bad.
        text = pa.large_list(pa.large_binary()) if _is_list(kind) else pa.large_binary()
        return list(column.cast(text).to_pylist())


def _is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


def one_line(error: BaseException) -> str:
    """Return the text of an error of another library in one line."""
    texts = error.args if all(isinstance(text, str) for text in error.args) else (str(error),)
    return " ".join("; ".join(texts).split())
