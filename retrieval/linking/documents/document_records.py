"""Reads records into documents with their marked spans, and into mentions with their context.

Spans may count code points, bytes or UTF-16 units; they are checked against the text and converted to code
points.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from genret.retrieval.arguments import check_filled, check_text
from genret.retrieval.errors import InputError
from genret.retrieval.linking.documents.corpus import CorpusOptions
from genret.retrieval.linking.documents.text_document import BadDocument, Document, OffsetIndex, Span
from genret.retrieval.sources.records import json_kind
from genret.retrieval.types import Mention

# Of records that are one mention with the text around it.
MENTION_FIELD = "mention"
MENTION_TEXT_FIELDS = ("left", MENTION_FIELD, "right")
MENTION_DOCUMENT_FIELD = "doc"


def record_document(
    record: Mapping[str, Any], source: str, row: int, options: CorpusOptions
) -> Document | BadDocument:
    """Read one record; null stands for a field that is not there.

    A record without text but with `mention` is a document whose text is `left`, `mention` and `right`, with
    one marked span.
    """
    try:
        if record.get(options.text_field) is None and record.get(MENTION_FIELD) is not None:
            return _mention_document(record, source, row, options)
        return _text_document(record, source, row, options)
    except InputError as error:
        return BadDocument(source, row, f"field {error.field!r}: {error.message}")


def default_id(source: str, row: int) -> str:
    """Return the id of a document that has none of its own."""
    return f"{source}:{row}"


def _text_document(record: Mapping[str, Any], source: str, row: int, options: CorpusOptions) -> Document:
    field = options.text_field
    if field not in record:
        raise InputError(field, "is missing")
    text = record[field]
    if not isinstance(text, str):
        raise InputError(field, f"expected a string, got {json_kind(text)}")
    check_text(field, text)
    doc_id = _id(options.id_field, record.get(options.id_field)) or default_id(source, row)
    marked = record.get(options.mentions_field)
    spans = None if marked is None else _spans(doc_id, text, marked, options)
    return Document(source, row, doc_id, text, spans)


def _mention_document(record: Mapping[str, Any], source: str, row: int, options: CorpusOptions) -> Document:
    given_id = record.get(options.id_field)
    read = mention_row({**record, "id": given_id}, row)
    mention_id = None if given_id is None else read.mention_id
    mention = read.mention
    doc_id = _id(MENTION_DOCUMENT_FIELD, record.get(MENTION_DOCUMENT_FIELD))
    start = len(mention.left)
    span = Span(start, start + len(mention.mention), mention_id)
    text = mention.left + mention.mention + mention.right
    return Document(source, row, doc_id or mention_id or default_id(source, row), text, (span,))


def _spans(doc_id: str, text: str, marked: object, options: CorpusOptions) -> tuple[Span, ...]:
    field = options.mentions_field
    if not isinstance(marked, Sequence) or isinstance(marked, str):
        raise InputError(field, f"document {doc_id!r}: expected a list of objects, got {json_kind(marked)}")
    reader = SpanReader(text, options.span_unit)
    spans = []
    for number, item in enumerate(marked, 1):
        try:
            if not isinstance(item, Mapping):
                raise InputError("", f"expected an object with start and end, got {json_kind(item)}")
            spans.append(reader.read(item))
        except InputError as error:
            where = f"{error.field}: " if error.field else ""
            raise InputError(
                field, f"document {doc_id!r}, mention {number} of {len(marked)}: {where}{error.message}"
            ) from None
    return tuple(spans)


def _id(field: str, value: object) -> str | None:
    """Return an id, text or an integer, as text; None where there is none."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise InputError(field, f"expected text or an integer, got {json_kind(value)}")
    text = str(value)
    check_text(field, text)
    return text


UNIT_NAMES: dict[str, str] = {"codepoint": "code points", "byte": "bytes", "utf16": "UTF-16 units"}
_SURFACE_FIELDS = ("mention", "text")
_SHOWN_CHARS = 60


class SpanReader:
    """Reads the marked spans of one text, which count `unit`."""

    def __init__(self, text: str, unit: str) -> None:
        self._text = text
        self._unit = unit
        self._index = OffsetIndex(text, unit)

    def read(self, item: Mapping[str, Any]) -> Span:
        """Return a span in code points; one that is wrong or does not fit the text is an `InputError`.

        It is an object with `start` and `end`, half open; optionally with `id`, and with `mention` or `text`,
        the text that must be found there.
        """
        start, end = (_offset(name, item.get(name)) for name in ("start", "end"))
        found = self._position(start, end, start), self._position(start, end, end)
        self._compare(item, start, end, found)
        return Span(*found, _id("id", item.get("id")))

    def _position(self, start: int, end: int, offset: int) -> int:
        name = UNIT_NAMES[self._unit]
        if not 0 <= start < end:
            raise InputError("", f"[{start}, {end}) is empty or begins below 0")
        if end > self._index.length:
            raise InputError(
                "", f"[{start}, {end}) in {name} lies outside of the text, which has {self._index.length}"
            )
        position = self._index.position_of(offset)
        if position is None:
            raise InputError(
                "", f"[{start}, {end}) in {name} cuts a code point at {offset}; is {self._unit} the unit?"
            )
        return position

    def _compare(self, item: Mapping[str, Any], start: int, end: int, found: tuple[int, int]) -> None:
        """Refuse a span with another text than the input says: this reveals a wrong unit."""
        there = self._text[slice(*found)]
        for name in _SURFACE_FIELDS:
            surface = item.get(name)
            if surface is None or surface == there:
                continue
            if not isinstance(surface, str):
                raise InputError(name, f"expected a string, got {json_kind(surface)}")
            raise InputError(
                name,
                f"[{start}, {end}) in {UNIT_NAMES[self._unit]} is {_shown(there)}, not {_shown(surface)}"
                f"{self._fitting(start, end, surface)}",
            )

    def _fitting(self, start: int, end: int, surface: str) -> str:
        """Name another unit in which the span would have the expected text."""
        for unit, name in UNIT_NAMES.items():
            index = OffsetIndex(self._text, unit)
            if unit == self._unit or end > index.length:
                continue
            begin, behind = index.position_of(start), index.position_of(end)
            if begin is not None and behind is not None and self._text[begin:behind] == surface:
                return f"; it would be in {name}: is {unit} the unit of the spans?"
        return ""


def _offset(name: str, value: object) -> int:
    if value is None:
        raise InputError(name, "is missing")
    if isinstance(value, bool) or not isinstance(value, int):
        raise InputError(name, f"expected an integer, got {json_kind(value)} ({value!r:.40})")
    return value


def _shown(text: str) -> str:
    return repr(text) if len(text) <= _SHOWN_CHARS else f"{text[:_SHOWN_CHARS]!r}..."


class MentionRow(NamedTuple):
    """A record of a mention."""

    mention_id: str  # its `id` as text; the number of its line when it has none
    mention: Mention  # the mention and its context
    title: str | None = None  # title of the entity it stands for, where the line has a label
    entity_id: str | None = None  # its id, as the title


def mention_row(value: Mapping[str, Any], number: int) -> MentionRow:
    """Read the record of line `number`; null is a field that is not there, a wrong one an `InputError`."""
    given = {name: value[name] for name in (*MENTION_TEXT_FIELDS, "id") if value.get(name) is not None}
    mention_id = given.pop("id", number)
    if isinstance(mention_id, bool) or not isinstance(mention_id, str | int):
        raise InputError("id", f"must be text or an integer, got {mention_id!r}")
    check_text("id", str(mention_id))
    if "mention" not in given:
        raise InputError("mention", "is missing")
    mention = Mention(**given)
    check_filled("mention", mention.mention)
    labels = {name: value.get(name) for name in ("title", "entity_id")}
    for name, label in labels.items():
        if label is not None:
            check_text(name, label)
    return MentionRow(str(mention_id), mention, **labels)
