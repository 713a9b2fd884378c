"""What linking reads: documents, the spans marked in them, and lines that are neither.

Offsets are in code points of `Document.text`, half open: [start, end). Other units are converted on reading.
"""

from __future__ import annotations

from dataclasses import dataclass


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

    def __post_init__(self) -> None:
        if self.end < 0:
            object.__setattr__(self, "end", len(self.text))


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
