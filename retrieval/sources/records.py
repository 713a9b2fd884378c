"""Makes records of rows: the text policy, the rules of a record, and the kinds of metadata cells."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, astuple, dataclass, field
from itertools import repeat
from typing import Any, NamedTuple

from genret.retrieval.normalize import (
    NormalizationReport,
    find_control,
    find_html_entity,
    find_surrogate,
    normalize,
    resolve_html,
)
from genret.retrieval.sources.columns import (
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
from genret.retrieval.sources.rejects import RejectReason, Rejects
from genret.retrieval.sources.row_readers import BadRow, Cell, RowChunk, json_kind


class Record(NamedTuple):
    """One good row of a source."""

    file: int  # number of the file, from 0, in the order given
    line: int  # line number, or row number in a Parquet file, from 1
    entity_id: str | None  # id; None if the source has no such column
    title: str  # normalised title
    aliases: tuple[str, ...]  # normalised aliases, without empty and repeated ones and the title
    metadata: tuple[str | None, ...]  # canonical text of each metadata column's cell; None if empty


@dataclass(frozen=True, slots=True)
class SourceBatch:
    """Neighbouring rows of a source."""

    records: list[Record]  # good rows; may be empty at the end of a source
    # Kinds of the cells of each metadata column, to be or-ed over all batches. Once STRING is among them
    # the others no longer matter and may be missing
    kinds: tuple[Kinds, ...]
    position: Position  # place behind this batch, bad rows included
    # Report of the text policy on the titles of these records
    normalization: NormalizationReport = field(default_factory=NormalizationReport)


def numbered_id(title: str, number: int, is_taken: Callable[[str], bool]) -> str:
    """Return the id of the `number`-th entity (from 2) of a title in a source without ids: `title#number`.

    If that is itself a title (`is_taken`), "#" is appended until it is none; ids of different titles or
    numbers differ. The first entity's id is the title.
    """
    candidate = f"{title}#{number}"
    while is_taken(candidate):
        candidate += "#"
    return candidate


@dataclass(slots=True)
class _Counts:
    """A `NormalizationReport` in the making."""

    composed: int = 0
    respaced: int = 0
    html_entities: int = 0
    unescaped: int = 0


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
        self._counts = _Counts()

    def make(self, chunk: RowChunk, begin: int, end: int, rejects: Rejects) -> list[Record]:
        """Make records of rows begin … end - 1 of a chunk; bad rows go to `rejects`."""
        if chunk.lines is not None and self._can_be_quick:
            records = self._quick_records(chunk.lines[begin:end], chunk.first_line + begin)
            if records is not None:
                return records
        records = []
        for line, row in enumerate(chunk.cut(begin, end), chunk.first_line + begin):
            if isinstance(row, BadRow):
                rejects.add(line, row.reason, row.text, row.detail, self._file)
                continue
            try:
                records.append(
                    self._text_record(line, row) if chunk.is_text else self._typed_record(line, row)
                )
            except Refusal as refusal:
                rejects.add(line, refusal.reason, shown(row), refusal.detail, self._file)
        return records

    def take_report(self) -> NormalizationReport:
        """Return the report on all rows since the last call."""
        counts, self._counts = self._counts, _Counts()
        return NormalizationReport(*astuple(counts))

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

    def _quick_records(self, lines: Sequence[str], first: int) -> list[Record] | None:
        """Make records of flawless lines, column by column; None if one is not flawless."""
        rows = list(map(str.split, lines, repeat("\t")))
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
        fields = zip(repeat(self._file), range(first, first + len(rows)), ids, titles, aliases, metadata)
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
        entity_id = None
        if layout.entity_id is not None:
            entity_id = normalize(name_text(row[layout.entity_id], "entity_id"))
            if not entity_id:
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
    ColumnType.FLOAT: "a finite float",
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


_LINE_SPACE = str.maketrans("\t\n\r", "   ")


class Refusal(Exception):  # noqa: N818 - it never leaves the package: it carries a bad row's reason to the row
    """A row is bad, for this reason. Functions that read cells raise it."""

    def __init__(self, reason: RejectReason, detail: str = "") -> None:
        super().__init__(reason, detail)
        self.reason = reason
        self.detail = detail


class TypedCell(NamedTuple):
    """Canonical text of a cell, None if it is empty, and its kind."""

    text: str | None
    kind: Kinds


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
    value = value.translate(_LINE_SPACE)
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
    """Return the text of a cell that names something; ids may be integers."""
    if value is None or is_nan(value):
        return ""
    if isinstance(value, str | bytes):
        return value_text(value)
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    raise Refusal(RejectReason.BAD_VALUE, f"{field}: expected a string, got {json_kind(value)}")


def alias_texts(value: Cell, separator: str) -> list[str]:
    """Return the aliases of a cell: a list, or text with separators."""
    if isinstance(value, str | bytes):
        return normalize(value_text(value)).split(separator)
    if is_nan(value):
        return []
    if isinstance(value, list):
        return [name_text(item, "aliases") for item in value]
    raise Refusal(RejectReason.BAD_VALUE, f"aliases: expected a list of strings, got {json_kind(value)}")


def typed_cell(value: Cell, name: str) -> TypedCell:
    """Return the canonical text of a JSON or Parquet cell, and its kind."""
    if value is None or is_nan(value):
        return TypedCell(None, Kinds.EMPTY)
    if isinstance(value, str | bytes):
        text = normalize(value_text(value))
        return TypedCell(text, Kinds.STRING) if text else TypedCell(None, Kinds.EMPTY)
    if isinstance(value, bool):
        return TypedCell("true" if value else "false", Kinds.BOOL)
    if isinstance(value, int):
        return TypedCell(str(value), kind_of_int(value))
    if isinstance(value, float):
        return TypedCell(repr(value), Kinds.FLOAT)
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


def shown(row: Sequence[Cell]) -> str:
    """Return a row as a message shows it."""
    return "\t".join("" if cell is None else str(cell) for cell in row)


@dataclass(frozen=True, slots=True)
class Position:
    """A place between two rows of a source."""

    file: int = 0  # number of the file, from 0
    lines: int = 0  # lines of that file that have been consumed, header included; rows of a Parquet file
    records_read: int = 0  # rows consumed in all files, bad ones included, headers not

    def to_json(self) -> dict[str, int]:
        """Return a JSON object."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Position:
        """Read the object of `to_json`.

        Raises:
            KeyError: a field is missing.
        """
        return cls(int(value["file"]), int(value["lines"]), int(value["records_read"]))
