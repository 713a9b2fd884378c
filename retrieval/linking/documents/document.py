"""What linking reads: documents, the spans marked in them, and lines that are neither.

Offsets are in code points of `Document.text`, half open: [start, end). Other units are converted on reading.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from retrieval.linking.documents.offsets import OffsetIndex


@dataclass(frozen=True, slots=True)
class Span:
    """A stretch of a document's text that names something.

    Attributes:
        start: First code point.
        end: Code point behind the last one; above `start`.
        mention_id: What the input calls the mention; None: nothing.
        num_names: Of a found mention, how many entities have this name; 0 where that is not known.
    """

    start: int
    end: int
    mention_id: str | None = None
    num_names: int = 0


class Place(NamedTuple):
    """Where a span is in the whole document, in code points and in bytes of its UTF-8 text; half open."""

    start: int
    end: int
    start_byte: int
    end_byte: int


@dataclass(frozen=True, slots=True)
class Document:
    """One document, or a part of one that is too long for a shard of its own.

    Attributes:
        source: The input file it is from, as named by the user (for a folder: the path inside it).
        row: Number of the line or row in that file, from 1; 1 for a file that is one document.
        doc_id: The document's own id; "source:row" where it has none.
        text: The text, or of a part, the part with the text around it.
        spans: Mentions that the input marks, in the order given; None: the input marks none.
        begin: First code point of `text` whose mentions belong to this part.
        end: Code point behind the last of these. Mentions that begin in [begin, end) are this part's.
        offset: Code points of the whole document before `text`.
        byte_offset: UTF-8 bytes of the whole document before `text`.
    """

    source: str
    row: int
    doc_id: str
    text: str
    spans: tuple[Span, ...] | None = None
    begin: int = 0
    end: int = -1
    offset: int = 0
    byte_offset: int = 0
    # Made by the first call of `place`, so that spans cost no walk over the text each.
    _index: OffsetIndex | None = field(default=None, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.end < 0:
            object.__setattr__(self, "end", len(self.text))

    def place(self, span: Span) -> Place:
        """Return where a span of `text` is in the whole document.

        The first call takes time in the length of `text`, each further one at most that of 1024 code points.
        """
        index = self._index
        if index is None:
            index = OffsetIndex(self.text, "byte")
            object.__setattr__(self, "_index", index)
        return Place(
            self.offset + span.start,
            self.offset + span.end,
            self.byte_offset + index.units_before(span.start),
            self.byte_offset + index.units_before(span.end),
        )


@dataclass(frozen=True, slots=True)
class BadDocument:
    """A line or file that is no document.

    Attributes:
        source: The input file.
        row: Number of the line or row, from 1.
        reason: What was expected and what was got.
    """

    source: str
    row: int
    reason: str

    def __str__(self) -> str:
        return f"{self.source}, line {self.row}: {self.reason}"
