"""Rows and records of a source, and the rows that are refused, each with its place and a stable reason.

`RecordMaker` makes records of rows: the text policy, the rules of a record, the kinds of metadata cells.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import repeat
from pathlib import Path
from typing import NamedTuple, TypeAlias, TypeVar

from genret.retrieval.errors import SourceError
from genret.retrieval.normalize import (
    NormalizationReport,
    find_control,
    find_html_entity,
    find_surrogate,
    normalize,
    resolve_html,
)
from genret.retrieval.sources.columns import (
    EXACT_DOUBLE,
    LEAVE_OUT,
    Columns,
    ColumnType,
    Kinds,
    Layout,
    classify,
    fit,
    fit_number,
    kind_of_int,
)
from genret.retrieval.sources.source_files import as_utf8, files_named

SHOWN = 5

# Beyond the limit the build fails anyway. Reading on for a while reports more bad rows at once; reading on
# to the end would keep a file of the wrong kind in memory.
_READ_ON = 10_000


class RejectReason(StrEnum):
    """Reason that a row was refused for."""

    NO_TITLE = "no title"
    NO_ENTITY_ID = "no entity_id"
    BAD_UTF8 = "not valid UTF-8"
    CONTROL_CHARACTER = "control character"
    TOO_MANY_FIELDS = "too many tabs"
    TOO_MANY_CELLS = "too many fields"  # of a CSV file
    TOO_FEW_FIELDS = "too few fields"
    BAD_CSV = "bad CSV"
    NO_TOKENS = "title with no tokens"
    OVER_LONG = "over-long title"
    UNSTABLE_BOUNDARY = "title merges with the prompt"
    END_TOKEN_INSIDE = "title holds the end token"
    UNKNOWN_TOKEN = "unknown token"
    DUPLICATE_ID = "entity_id used twice"
    BAD_VALUE = "bad value"
    BAD_JSON = "bad JSON"
    NOT_AN_OBJECT = "not a JSON object"
    UNKNOWN_FIELD = "unknown field"
    NO_ALIAS = "no alias"
    UNKNOWN_ENTITY = "alias of an unknown entity"
    UNKNOWN_ID = "unknown entity_id"
    NO_QUERY = "no query"
    UNKNOWN_ENTITY_ASKED_FOR = "query for an unknown entity"


@dataclass(frozen=True, slots=True)
class Reject:
    """One bad row."""

    line: int  # line number, the first one of a CSV record, or row number in a Parquet file, from 1
    reason: RejectReason  # reason of the refusal
    detail: str  # details, or ""
    text: str  # the row or the title, shortened
    file: int = 0  # number of the file, from 0

    def told(self, unit: str = "line") -> str:
        """Return it in words; its place is counted in `unit`."""
        detail = f" ({self.detail})" if self.detail else ""
        return f"{unit} {self.line}: {self.reason}{detail}: {self.text}"


@dataclass(slots=True)
class Rejects:
    """All bad rows of a source."""

    source: str  # name of the source, for messages
    limit: int  # most bad rows that are allowed
    rows: list[Reject] = field(default_factory=list)
    files: tuple[str, ...] = ()  # names of its files by number; bad rows name theirs if there are several
    unit: str = "line"  # unit in which rows of the first file are counted; "row" for rows in memory

    def add(
        self, line: int, reason: RejectReason, text: str | bytes, detail: str = "", file: int = 0
    ) -> None:
        """Note a bad row.

        Raises:
            SourceError: there are so many beyond the limit that reading on is pointless.
        """
        shown = ascii(text[:200]) if isinstance(text, bytes) else repr(text[:200])
        self.append(Reject(line, reason, detail, shown.removeprefix("b"), file))

    def append(self, row: Reject) -> None:
        """Note a bad row as `add` does."""
        self.rows.append(row)
        if len(self.rows) > self.limit + _READ_ON:
            asked = self._doubted() or "is this a file of titles?"
            raise SourceError(f"{self.report()}\nreading stopped here: {asked}")

    def _doubted(self) -> str:
        """Return a question about the one column that several bad rows blame; "" if there is none."""
        (column, blamed), *more = {row.detail.partition(": expected ")[:2] for row in self.rows}
        return f"is {column!r} the right column?" if blamed and not more and len(self.rows) > 3 else ""

    def counts(self) -> dict[str, int]:
        """Return the number of bad rows per reason, most frequent first."""
        return dict(Counter(str(row.reason) for row in self.rows).most_common())

    def check(self, outcome: str = "nothing was built") -> None:
        """Fail if there are too many; `outcome` says in the message what came of them.

        Raises:
            SourceError: the text says how many of what, where, and how to allow them.
        """
        if len(self.rows) > self.limit:
            missing = all(row.reason == RejectReason.UNKNOWN_ID for row in self.rows)
            allowing = "--ignore-missing" if missing else f"--max-bad-rows {len(self.rows)}"
            raise SourceError(
                self.report() + f"\n{outcome}; correct them, or allow them with {allowing} (they are then "
                "left out)"
                + f"\n{self._doubted()}".rstrip()
                + f"\n{as_utf8('WINDOWS-1252')}"
                * any(row.reason == RejectReason.BAD_UTF8 and self.unit == "line" for row in self.rows)
            )

    def report(self) -> str:
        """Return a few lines: counts per reason and the first bad rows."""
        ordered = self._ordered()
        counts = ", ".join(f"{count} × {reason}" for reason, count in self.counts().items())
        noun = "bad row" if len(ordered) == 1 else "bad rows"
        blamed = sorted({row.file for row in ordered})
        source = files_named([self.files[file] for file in blamed]) if self.files else self.source
        lines = [f"{source}: {len(ordered)} {noun} (allowed: {self.limit}): {counts}"]
        lines += [f"  {self._told(row)}" for row in ordered[:SHOWN]]
        if len(ordered) > SHOWN:
            lines.append(f"  … and {len(ordered) - SHOWN} more")
        return "\n".join(lines)

    @contextmanager
    def written_to(self, file: Path | None) -> Iterator[Rejects]:
        """Write the bad rows, if there is a file for them, at the end of the block, also after an error.

        A `SourceError` of the block then ends with the file's name.
        """
        try:
            yield self
        except SourceError as error:
            if file is not None and self.rows:
                error.args = (f"{error}\nall bad rows are in {file}",)
            raise
        finally:
            if file is not None:
                self.write(file)

    def write(self, file: Path) -> None:
        """Write all bad rows as TSV, or remove the file of an earlier build if there are none.

        Raises:
            SourceError: the file cannot be written.
        """
        try:
            if not self.rows:
                file.unlink(missing_ok=True)
                return
            several = len(self.files) > 1
            lines = [("file\t" if several else "") + "line\treason\tdetail\ttext"]
            for row in self._ordered():
                file_cell = f"{self.files[row.file]}\t" if several else ""
                detail = " ".join(row.detail.split())
                lines.append(f"{file_cell}{row.line}\t{row.reason}\t{detail}\t{row.text}")
            file.write_text("\n".join(lines) + "\n", encoding="utf-8")
        except OSError as error:
            raise SourceError(f"{file}: cannot write the rejects: {error.strerror}") from error

    def _ordered(self) -> list[Reject]:
        return sorted(self.rows, key=lambda row: (row.file, row.line))

    def _told(self, row: Reject) -> str:
        told = row.told("line" if row.file else self.unit)
        return f"{self.files[row.file]}, {told}" if len(self.files) > 1 else told


Cell: TypeAlias = object  # value of JSON or Parquet; text formats have str alone


@dataclass(frozen=True, slots=True)
class BadRow:
    """A row that could not be split into cells."""

    reason: RejectReason
    detail: str
    text: str | bytes


@dataclass(frozen=True, slots=True)
class RowChunk:
    """Neighbouring rows of one file."""

    first_line: int  # line number of the first, from 1
    rows: Sequence[Sequence[Cell] | BadRow] = ()  # cells of each line; empty if there are `lines`
    is_text: bool = True  # whether every cell is a str
    # Lines still to be split at tabs, which the text policy would not change; in place of rows
    lines: Sequence[str] | None = None
    # Line numbers of all rows, and of what follows the last; None if every row is one line
    starts: Sequence[int] | None = None
    is_clean: bool = False  # whether all rows are cells of text that the text policy would not change

    @property
    def num_rows(self) -> int:
        """Number of rows or lines."""
        return len(self.rows if self.lines is None else self.lines)

    def line(self, row: int) -> int:
        """Return the number of the line in which a row begins; behind the last row, of the next line."""
        return self.first_line + row if self.starts is None else self.starts[row]

    def cut(self, begin: int, end: int) -> Sequence[Sequence[Cell] | BadRow]:
        """Return the cells of rows begin … end - 1."""
        if self.lines is None:
            return self.rows[begin:end]
        return [line.split("\t") for line in self.lines[begin:end]]

    def numbers(self, begin: int, end: int) -> Sequence[int]:
        """Return the line numbers of rows begin … end - 1."""
        if self.starts is not None:
            return self.starts[begin:end]
        return range(self.first_line + begin, self.first_line + end)


_KINDS = {bool: "a bool", int: "a number", float: "a number", str: "a string", dict: "an object"}


def json_kind(value: object) -> str:
    """Return the kind of a JSON value, or the type of another one, for messages."""
    found = (name for kind, name in _KINDS.items() if isinstance(value, kind))
    other = "a list" if isinstance(value, list) else f"a {type(value).__name__}"
    return "null" if value is None else next(found, other)


class Record(NamedTuple):
    """One good row of a source."""

    file: int  # number of the file, from 0, in the order given
    line: int  # line number, or row number in a Parquet file, from 1
    entity_id: str | None  # id; None if the source has no such column
    title: str  # normalised title
    aliases: tuple[str, ...]  # normalised aliases, without empty and repeated ones and the title
    metadata: tuple[str | None, ...]  # canonical text of each metadata column's cell; None if empty


@dataclass(frozen=True, slots=True)
class Position:
    """A place between two rows of a source."""

    file: int = 0  # number of the file, from 0
    lines: int = 0  # lines of that file that have been consumed, header included; rows of a Parquet file
    records_read: int = 0  # rows consumed in all files, bad ones included, headers not


@dataclass(slots=True)
class SourceBatch:
    """Neighbouring rows of a source."""

    # Kinds of the cells of each metadata column, to be or-ed over all batches. Once STRING is among them
    # the others no longer matter and may be missing
    kinds: tuple[Kinds, ...]
    records: list[Record] = field(default_factory=list)  # good rows; may be empty at the end of a source
    normalization: NormalizationReport = field(default_factory=NormalizationReport)  # of their titles
    position: Position = Position()  # place behind this batch, bad rows included


def numbered_id(title: str, number: int, is_taken: Callable[[str], bool]) -> str:
    """Return the id of the `number`-th entity (from 2) of a title in a source without ids: `title#number`.

    If that is itself a title (`is_taken`), "#" is appended until it is none; ids of different titles or
    numbers differ. The first entity's id is the title.
    """
    candidate = f"{title}#{number}"
    while is_taken(candidate):
        candidate += "#"
    return candidate


class RecordMaker:
    """Makes records of the rows of one file, whose fields are at the positions of `layout`."""

    def __init__(
        self, file: int, layout: Layout, columns: Columns, alias_separator: str, unescape_html: bool
    ) -> None:
        self._file = file
        self._layout = layout
        self._columns = columns
        self._separator = alias_separator
        self._unescape = unescape_html
        self._is_declared = columns.weight is not None or any(d is not None for d in columns.declared)
        self._can_be_quick = not unescape_html and not self._is_declared
        self._typed_kinds = [Kinds.NONE] * len(columns.names)
        self._counts = NormalizationReport()

    def make(self, chunk: RowChunk, begin: int, end: int, rejects: Rejects) -> list[Record]:
        """Make records of rows begin … end - 1 of a chunk; bad rows go to `rejects`."""
        if (chunk.is_clean or chunk.lines is not None) and self._can_be_quick:
            records = self._quick_records(chunk, begin, end)
            if records is not None:
                return records
        parse = self._text_record if chunk.is_text else self._typed_record
        return list(parsed_rows(chunk, parse, rejects, self._file, begin, end))

    def take_report(self) -> NormalizationReport:
        """Return the report on all rows since the last call."""
        counts, self._counts = self._counts, NormalizationReport()
        return counts

    def take_kinds(self, records: Sequence[Record], is_text: bool) -> list[Kinds]:
        """Return the kinds of the metadata cells of these records, as the file's format knows them."""
        if not is_text:
            kinds, self._typed_kinds = self._typed_kinds, [Kinds.NONE] * len(self._columns.names)
            return kinds
        if not self._columns.names or not records:
            return [Kinds.NONE] * len(self._columns.names)
        return [
            Kinds.EMPTY if place is None else classify(cells)
            for place, cells in zip(
                self._layout.metadata, zip(*(record.metadata for record in records), strict=True), strict=True
            )
        ]

    def _quick_records(self, chunk: RowChunk, begin: int, end: int) -> list[Record] | None:
        """Make records of flawless rows, column by column; None if one is not flawless."""
        rows: Sequence[Sequence[str]] = chunk.cut(begin, end)  # type: ignore[assignment]
        layout = self._layout
        if set(map(len, rows)) != {layout.count}:
            return None
        columns = list(zip(*rows, strict=True))
        titles = columns[layout.title]
        ids = repeat(None) if layout.entity_id is None else columns[layout.entity_id]
        if "" in titles or (layout.entity_id is not None and "" in columns[layout.entity_id]):
            return None
        self._counts.html_entities += sum(map(find_html_entity, titles)) if "&" in "".join(titles) else 0
        aliases: Iterable[tuple[str, ...]] = repeat(())
        if layout.aliases is not None:
            cells = zip(columns[layout.aliases], titles, strict=True)
            aliases = [_split_aliases(cell, self._separator, title) if cell else () for cell, title in cells]
        metadata: Iterable[tuple[str | None, ...]] = repeat(())
        if layout.metadata:
            metadata = zip(*(_nullable(columns, place, len(rows)) for place in layout.metadata), strict=True)
        fields = zip(repeat(self._file), chunk.numbers(begin, end), ids, titles, aliases, metadata)
        # As Record(*fields) does, without a call from Python for each.
        return list(map(tuple.__new__, repeat(Record), fields))

    def _text_record(self, line: int, row: Sequence[Cell]) -> Record:
        layout = self._layout
        refuse_wrong_width(row, layout.count)
        cells: Sequence[str] = row  # type: ignore[assignment]
        title = self._title(cells[layout.title])
        entity_id = None if layout.entity_id is None else normalize(cells[layout.entity_id])
        if entity_id == "":
            raise Refusal(RejectReason.NO_ENTITY_ID)
        aliases: tuple[str, ...] = ()
        if layout.aliases is not None and cells[layout.aliases]:
            aliases = self._aliases(normalize(cells[layout.aliases]).split(self._separator), title)
        metadata = [None if i is None else normalize(cells[i]) or None for i in layout.metadata]
        if self._is_declared:
            metadata = [self._declared(number, cell) for number, cell in enumerate(metadata)]
        return Record(self._file, line, entity_id, title, aliases, tuple(metadata))

    def _typed_record(self, line: int, row: Sequence[Cell]) -> Record:
        layout = self._layout
        title = self._title(name_text(row[layout.title], "title"))
        given = layout.entity_id
        entity_id = None if given is None else normalize(name_text(row[given], "entity_id"))
        if entity_id == "":
            raise Refusal(RejectReason.NO_ENTITY_ID)
        aliases: tuple[str, ...] = ()
        if layout.aliases is not None and row[layout.aliases] is not None:
            aliases = self._aliases(alias_texts(row[layout.aliases], self._separator), title)
        kinds = self._typed_kinds.copy()
        metadata = []
        for number, place in enumerate(layout.metadata):
            cell = None if place is None else row[place]
            text, kind = typed_cell(cell, self._columns.names[number])
            if number == self._columns.weight and is_nan(cell):
                text = "nan"  # refused: a weight that is no number is a mistake, in other columns it is empty
            metadata.append(self._declared(number, text))
            kinds[number] |= kind
        self._typed_kinds = kinds  # only now is it certain that the row is a record
        return Record(self._file, line, entity_id, title, aliases, tuple(metadata))

    def _title(self, text: str) -> str:
        is_unescaped = False
        if "&" in text and self._unescape:
            resolved = resolved_text(text)
            is_unescaped, text = resolved != text, resolved
        title = normalize(text)
        if not title:
            raise Refusal(RejectReason.NO_TITLE)
        if title != text:
            self._counts.composed += _is_composed(text)
            self._counts.respaced += " ".join(text.split()) != text
        self._counts.unescaped += is_unescaped
        self._counts.html_entities += find_html_entity(title)
        return title

    def _aliases(self, texts: Sequence[str], title: str) -> tuple[str, ...]:
        if self._unescape:
            texts = [resolved_text(text) for text in texts]
        forms = map(normalize, texts)
        return tuple(dict.fromkeys(form for form in forms if form and form != title))

    def _declared(self, number: int, cell: str | None) -> str | None:
        declared, is_weight = self._columns.declared[number], number == self._columns.weight
        if cell is None or (declared is None and not is_weight):
            return cell
        text = fit_number(cell) if declared is None else fit(cell, declared)
        if text is None or (is_weight and float(text) < 0):
            name = self._columns.names[number]
            expected = "a finite number" if declared is None else _ARTICLE[declared]
            bound = ", at least 0" if is_weight else ""
            raise Refusal(RejectReason.BAD_VALUE, f"{name}: expected {expected}{bound}, got {cell[:80]!r}")
        return text


_ARTICLE = {
    ColumnType.INT: "an int of 64 bits",
    ColumnType.FLOAT: "a finite float or nothing",
    ColumnType.BOOL: "true or false",
    ColumnType.STRING: "a string",
}


def _split_aliases(cell: str, separator: str, title: str) -> tuple[str, ...]:
    """Return the aliases of a normalised cell, whose parts only need to be stripped."""
    forms = dict.fromkeys(map(str.strip, cell.split(separator)))
    forms.pop("", None)
    forms.pop(title, None)
    return tuple(forms)


def _nullable(columns: Sequence[Sequence[str]], place: int | None, count: int) -> Iterable[str | None]:
    """Return one column's cells with None for empty ones."""
    if place is None:
        return repeat(None, count)
    cells = columns[place]
    return [cell or None for cell in cells] if "" in cells else cells


def _is_composed(text: str) -> bool:
    """Whether NFC changes a text."""
    return not text.isascii() and normalize(text) != " ".join(text.split())


LINE_SPACE = str.maketrans("\t\n\r", "   ")


class Refusal(Exception):  # noqa: N818 - it never leaves the package: it carries a bad row's reason to the row
    """A row is bad, for this reason. Functions that read cells raise it."""

    def __init__(self, reason: RejectReason, detail: str = "") -> None:
        super().__init__(reason, detail)
        self.reason = reason
        self.detail = detail


_T = TypeVar("_T")


def parsed_rows(
    chunk: RowChunk,
    parse: Callable[[int, Sequence[Cell]], _T],
    rejects: Rejects,
    file: int = 0,
    begin: int = 0,
    end: int | None = None,
) -> Iterator[_T]:
    """Yield what `parse` makes of line number and cells of rows begin … end - 1; bad rows are rejects.

    `parse` raises a `Refusal` for a bad row.
    """
    # A row with tabs is told as it stands there.
    separator = "\t" if chunk.is_text and chunk.starts is None else " | "
    end = chunk.num_rows if end is None else end
    for line, row in zip(chunk.numbers(begin, end), chunk.cut(begin, end), strict=True):
        if isinstance(row, BadRow):
            rejects.add(line, row.reason, row.text, row.detail, file)
            continue
        try:
            parsed = parse(line, row)
        except Refusal as refusal:
            shown = separator.join("" if cell is None else str(cell) for cell in row)
            rejects.add(line, refusal.reason, shown, refusal.detail, file)
            continue
        yield parsed


def is_nan(value: Cell) -> bool:
    """Return whether a cell is NaN, which stands for a missing value in Parquet tables without nulls."""
    return isinstance(value, float) and math.isnan(value)


def value_text(value: str | bytes) -> str:
    """Return the text of a JSON or Parquet string, with spaces for tabs and line ends."""
    if isinstance(value, bytes):
        try:
            value = value.decode()
        except UnicodeDecodeError as error:
            raise Refusal(RejectReason.BAD_UTF8, f"byte {error.start + 1} of a value") from None
    if value.isprintable():
        return value
    value = value.translate(LINE_SPACE)
    if (control := find_control(value)) is not None:
        raise Refusal(RejectReason.CONTROL_CHARACTER, control)
    if (surrogate := find_surrogate(value)) is not None:
        raise Refusal(RejectReason.BAD_VALUE, f"half of a surrogate pair, {surrogate}")
    return value


def resolved_text(text: str) -> str:
    """Resolve HTML entities; the result is checked as `value_text` does."""
    resolved = resolve_html(text) if "&" in text else text
    return resolved if resolved == text else value_text(resolved)


def name_text(value: Cell, field: str) -> str:
    """Return the text of a cell that names something; ids may be integers, also as floats, such as 7.0."""
    if value is None or is_nan(value):
        return ""
    if isinstance(value, str | bytes):
        return value_text(value)
    if isinstance(value, float) and value.is_integer() and abs(value) < EXACT_DOUBLE:
        value = int(value)  # a column of integers holds floats where pandas finds an empty cell
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    is_float = isinstance(value, float)
    got = f" or a whole number below 2**53, got {value}" if is_float else f", got {json_kind(value)}"
    raise Refusal(RejectReason.BAD_VALUE, f"{field}: expected a string{got}")


def alias_texts(value: Cell, separator: str) -> list[str]:
    """Return the aliases of a cell: a list, or text with separators."""
    if isinstance(value, str | bytes):
        return normalize(value_text(value)).split(separator)
    if is_nan(value):
        return []
    if isinstance(value, list):
        return [name_text(item, "aliases") for item in value]
    raise Refusal(RejectReason.BAD_VALUE, f"aliases: expected a list of strings, got {json_kind(value)}")


def typed_cell(value: Cell, name: str) -> tuple[str | None, Kinds]:
    """Return the canonical text of a JSON or Parquet cell, None if it is empty, and its kind."""
    if value is None or is_nan(value):
        return None, Kinds.EMPTY
    if isinstance(value, str | bytes):
        text = normalize(value_text(value))
        return (text, Kinds.STRING) if text else (None, Kinds.EMPTY)
    if isinstance(value, bool):
        return "true" if value else "false", Kinds.BOOL
    if isinstance(value, int):
        return str(value), kind_of_int(value)
    if isinstance(value, float):
        return repr(value), Kinds.FLOAT
    raise Refusal(
        RejectReason.BAD_VALUE,
        f"{name}: expected a string, number, bool or null, got {json_kind(value)}; {LEAVE_OUT}",
    )


def refuse_wrong_width(row: Sequence[Cell], count: int) -> None:
    """Raise a `Refusal` if there are too few or too many cells."""
    if len(row) == count:
        return
    if not any(isinstance(cell, str) and cell.strip() for cell in row):
        raise Refusal(RejectReason.NO_TITLE)
    reason = RejectReason.TOO_MANY_FIELDS if len(row) > count else RejectReason.TOO_FEW_FIELDS
    raise Refusal(reason, f"expected {count} fields, got {len(row)}")
