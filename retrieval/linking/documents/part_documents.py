"""A part of a document, with the text around it."""

from __future__ import annotations

from dataclasses import replace

from retrieval.linking.documents.document import Document

CONTEXT_CHARS = 1 << 13  # code points held on either side of a part


def part_document(document: Document, part: tuple[int, int]) -> Document:
    """Return one part of a whole document.

    Marked spans that begin in the part are kept, and text behind it as far as they reach.

    Args:
        document: The whole.
        part: Code points [begin, end).
    """
    begin, end = part
    spans = document.spans
    if spans is not None:
        spans = tuple(span for span in spans if begin <= span.start < end)
    reach = max((span.end for span in spans or ()), default=end)
    low = max(0, begin - CONTEXT_CHARS)
    text = document.text[low : max(end, reach) + CONTEXT_CHARS]
    moved = spans and tuple(replace(span, start=span.start - low, end=span.end - low) for span in spans)
    return Document(
        document.source,
        document.row,
        document.doc_id,
        text,
        moved,
        begin - low,
        end - low,
        low,
        len(document.text[:low].encode()),
    )
