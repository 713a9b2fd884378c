"""Rows to records: the text policy, the rules a record must keep, and what metadata cells look like."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import repeat

from retrieval.normalize import NormalizationReport, find_html_entity, normalize
from retrieval.rejects import Reason, Rejects
from retrieval.sources.column_types import ColumnType, Kinds, classify, fit, fit_number
from retrieval.sources.columns import Columns, Layout
from retrieval.sources.record import Record
from retrieval.sources.rows import BadRow, Cell, RowChunk
from retrieval.sources.values import (
    Refusal,
    alias_texts,
    is_nan,
    name_text,
    refuse_wrong_width,
    resolved_text,
    shown,
    typed_cell,
)


class _Counts:
    """A `NormalizationReport` in the making."""

    def __init__(self) -> None:
        self.composed = self.respaced = self.html_entities = self.unescaped = 0


class RecordMaker:
    """Makes records of the rows of one file.

    Args:
        file: Its number.
        layout: Where its fields are.
        columns: The metadata columns of the whole source.
        alias_separator: Between the aliases of one cell of text.
        unescape_html: Whether HTML entities in titles and aliases are resolved.
    """

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
        """Return what was changed and found since the last call."""
        counts, self._counts = self._counts, _Counts()
        return NormalizationReport(counts.composed, counts.respaced, counts.html_entities, counts.unescaped)

    def take_kinds(self, records: Sequence[Record], is_text: bool) -> list[Kinds]:
        """Return what the metadata cells of these records look like, as the file's format knows it."""
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
        """Make records of lines that are all as they should be, column by column; None when one is not."""
        rows = list(map(str.split, lines, repeat("\t")))
        layout = self._layout
        if set(map(len, rows)) != {layout.count}:
            return None
        columns = list(zip(*rows, strict=True))
        titles = columns[layout.title]
        ids: Iterable[str | None] = repeat(None)
        if layout.entity_id is not None:
            ids = columns[layout.entity_id]
            if "" in ids:
                return None
        if "" in titles:
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
            raise Refusal(Reason.NO_ENTITY_ID)
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
                raise Refusal(Reason.NO_ENTITY_ID)
        aliases: tuple[str, ...] = ()
        if layout.aliases is not None and row[layout.aliases] is not None:
            aliases = self._aliases(alias_texts(row[layout.aliases], self._separator), title)
        kinds = []
        metadata = []
        for number, place in enumerate(layout.metadata):
            cell = None if place is None else row[place]
            text, kind = typed_cell(cell, self._columns.names[number])
            if number == self._columns.weight and is_nan(cell):
                text = "nan"  # refused: a weight that is no number is a mistake, in other columns it is empty
            metadata.append(self._declared(number, text))
            kinds.append(kind)
        # Only now is it certain that the row is a record.
        for number, kind in enumerate(kinds):
            self._typed_kinds[number] |= kind
        return Record(self._file, line, entity_id, title, aliases, tuple(metadata))

    def _title(self, text: str) -> str:
        is_unescaped = False
        if "&" in text and self._unescape:
            resolved = resolved_text(text)
            is_unescaped, text = resolved != text, resolved
        title = normalize(text)
        if not title:
            raise Refusal(Reason.NO_TITLE)
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
            raise Refusal(Reason.BAD_VALUE, f"{name}: expected {expected}{bound}, got {cell[:80]!r}")
        return text


_ARTICLE = {
    ColumnType.INT: "an int of 64 bits",
    ColumnType.FLOAT: "a finite float",
    ColumnType.BOOL: "true or false",
    ColumnType.STRING: "a string",
}


def _split_aliases(cell: str, separator: str, title: str) -> tuple[str, ...]:
    """Return the aliases of a cell that is normalized; its parts are too, but for their ends."""
    forms = dict.fromkeys(map(str.strip, cell.split(separator)))
    forms.pop("", None)
    forms.pop(title, None)
    return tuple(forms)


def _nullable(columns: Sequence[Sequence[str]], place: int | None, count: int) -> Iterable[str | None]:
    """Return one column's cells with None for what is empty."""
    if place is None:
        return repeat(None, count)
    cells = columns[place]
    return [cell or None for cell in cells] if "" in cells else cells


def _is_composed(text: str) -> bool:
    """Whether NFC changes a text."""
    return not text.isascii() and normalize(text) != " ".join(text.split())
