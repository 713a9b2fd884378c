"""From the fields of one record to a document, or to what is wrong with it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from retrieval.arguments import check_text
from retrieval.errors import InputError
from retrieval.linking.documents.corpus import CorpusOptions
from retrieval.linking.documents.document import BadDocument, Document, Span
from retrieval.linking.documents.marked_spans import SpanReader
from retrieval.linking.mentions import mention_row
from retrieval.sources.json_lines import json_kind

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

    Args:
        record: What a JSON object or a row of a table holds.
        source: The input file.
        row: Line or row, from 1.
        options: Names of fields and the unit of spans.
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
    """Return an id as text; None where there is none.

    Raises:
        InputError: it is neither text nor an integer.
    """
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise InputError(field, f"expected text or an integer, got {json_kind(value)}")
    text = str(value)
    check_text(field, text)
    return text
