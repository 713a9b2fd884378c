"""Documents, the spans marked in them, their parts, and lines that are no document.

Offsets are in code points of `Document.text`, half open: [start, end). Other units are converted on reading.

A document that is too long is cut into parts. The cuts are a pure function of the text, so that every reading
cuts at the same places. A part is at most `size` code points long and ends, as long as possible,

1. behind the last blank line in its second half; else
2. behind the last line end in its second half; else
3. behind the last white space; else
4. at `size`.

No cut is inside of CRLF or in front of a combining mark, a joiner or what one joins; one of 4 moves to the
front for that, where it can. As each cut depends on `size` + 1 code points from the last one on, a text need
not be in memory as a whole.
"""

from __future__ import annotations

import re
import unicodedata
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import NamedTuple


@dataclass(frozen=True, slots=True)
class Span:
    """A stretch of a document's text that names something."""

    start: int  # first code point
    end: int  # code point behind the last one; above `start`
    mention_id: str | None = None  # id of the mention in the input; None: it has none
    num_names: int = 0  # number of entities with the name of a found mention; 0 where that is not known


class DocumentPlace(NamedTuple):
    """A span in the whole document, in code points and in bytes of its UTF-8 text; half open."""

    start: int
    end: int
    start_byte: int
    end_byte: int


@dataclass(frozen=True, slots=True)
class Document:
    """One document, or a part of one that is too long for a shard of its own.

    Mentions that begin in [begin, end) of `text` are this part's.
    """

    source: str  # the input file it is from, as named by the user (for a folder: the path inside it)
    row: int  # number of the line or row in that file, from 1; 1 for a file that is one document
    doc_id: str  # the document's own id; "source:row" where it has none
    text: str  # the text, or of a part, the part with the text around it
    spans: tuple[Span, ...] | None = None  # mentions that the input marks, as given; None: it marks none
    begin: int = 0  # first code point of the part
    end: int = -1  # code point behind its last one; -1: the text's end
    offset: int = 0  # code points of the whole document before `text`
    byte_offset: int = 0  # UTF-8 bytes of the whole document before `text`
    # Made by the first call of `place`, so that spans cost no walk over the text each.
    _index: OffsetIndex | None = field(default=None, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.end < 0:
            object.__setattr__(self, "end", len(self.text))

    def place(self, span: Span) -> DocumentPlace:
        """Return the place of a span of `text` in the whole document.

        The first call takes time in the length of `text`, each further one at most that of 1024 code points.
        """
        index = self._index
        if index is None:
            index = OffsetIndex(self.text, "byte")
            object.__setattr__(self, "_index", index)
        return DocumentPlace(
            self.offset + span.start,
            self.offset + span.end,
            self.byte_offset + index.units_before(span.start),
            self.byte_offset + index.units_before(span.end),
        )


@dataclass(frozen=True, slots=True)
class BadDocument:
    """A line, row (from 1) or file that is no document, with the reason."""

    source: str
    row: int
    reason: str

    def __str__(self) -> str:
        return f"{self.source}, line {self.row}: {self.reason}"


CONTEXT_CHARS = 1 << 13  # code points held on either side of a part


def part_document(document: Document, part: tuple[int, int]) -> Document:
    """Return the part [begin, end) of a whole document, in code points.

    Marked spans that begin in the part are kept, and text behind it as far as they reach.
    """
    begin, end = part
    spans = document.spans
    if spans is not None:
        spans = tuple(span for span in spans if begin <= span.start < end)
    reach = max((span.end for span in spans or ()), default=end)
    low = max(0, begin - CONTEXT_CHARS)
    text = document.text[low : max(end, reach) + CONTEXT_CHARS]
    moved = spans and tuple(replace(span, start=span.start - low, end=span.end - low) for span in spans)
    low_byte = len(document.text[:low].encode())
    name = document.source, document.row, document.doc_id
    return Document(*name, text, moved, begin - low, end - low, low, low_byte)


MIN_PART_CHARS = 2  # CRLF

_BLANK_LINES = re.compile(r"\n(?:[^\S\n]*\n)+")
_JOINERS = "\u200c\u200d"
_EMOJI_MODIFIERS = range(0x1F3FB, 0x1F400)


def cut_text(text: str, size: int) -> Iterator[tuple[int, int]]:
    """Yield the parts [begin, end) of a text, in order; an empty text yields one empty part.

    `size`, the most code points of a part, is at least `MIN_PART_CHARS`.
    """
    begin = 0
    for part in cut_stream((text,), size):
        yield begin, begin + len(part)
        begin += len(part)


def cut_stream(pieces: Iterable[str], size: int) -> Iterator[str]:
    """Yield the parts of a text that comes in pieces: those of `cut_text`, as text."""
    held = ""
    for piece in pieces:
        held += piece
        begin = 0
        while len(held) - begin > size:
            end = begin + next_cut(held[begin : begin + size + 1], size)
            yield held[begin:end]
            begin = end
        held = held[begin:]
    yield held


def next_cut(window: str, size: int) -> int:
    """Return the end, in [1, size], of the part that begins with a window's first code point.

    The window has more than `size` code points; those behind the first `size` + 1 change nothing.
    """
    half = size // 2
    first = max(0, window.rfind("\n", 0, half))  # a blank line may begin in front of the second half
    ends = [match.end() for match in _BLANK_LINES.finditer(window, first, size)]
    for end in reversed(ends):
        if end > half and not _is_inside(window, end):
            return end
    end = window.rfind("\n", half, size) + 1
    while end > 0:
        if not _is_inside(window, end):
            return end
        end = window.rfind("\n", half, end - 1) + 1
    for end in range(size, 0, -1):
        if window[end - 1].isspace() and not _is_inside(window, end):
            return end
    return next((end for end in range(size, 0, -1) if not _is_inside(window, end)), size)


def _is_inside(window: str, end: int) -> bool:
    """Whether a cut would be inside of CRLF or of what is seen as one character."""
    before, behind = window[end - 1], window[end]
    if behind < "\u0300":  # there are no marks below
        return before == "\r" and behind == "\n"
    return (
        behind in _JOINERS
        or before == "\u200d"
        or ord(behind) in _EMOJI_MODIFIERS
        or unicodedata.category(behind).startswith("M")
    )


_STEP = 1 << 10  # code points between checkpoints: what one look-up encodes at most


class OffsetIndex:
    """Maps code points to another unit: O(n) once, then at most 1024 code points a look-up.

    The text holds no surrogates; `unit` is "codepoint", "byte" or "utf16"; `length` is the text's in it.
    """

    def __init__(self, text: str, unit: str = "byte") -> None:
        self._text = text
        self._is_bytes = unit == "byte"
        self._encoding, self._unit_bytes = ("utf-8", 1) if self._is_bytes else ("utf-16-le", 2)
        # Units before the code points 0, 1024, ...; none are kept where both counts are the same.
        self._before: list[int] = []
        self.length = len(text)
        if unit == "codepoint" or text.isascii():
            return
        self.length = 0
        for begin in range(0, len(text), _STEP):
            self._before.append(self.length)
            self.length += self._count(text[begin : begin + _STEP])

    def units_before(self, position: int) -> int:
        """Return how many units stand before a code point in [0, len(text)]."""
        if not self._before:
            return position
        number = min(position // _STEP, len(self._before) - 1)
        return self._before[number] + self._count(self._text[number * _STEP : position])

    def position_of(self, units: int) -> int | None:
        """Return the code point behind so many units, in [0, `length`]; None where that is inside of one."""
        if not self._before:
            return units
        number = bisect_right(self._before, units) - 1
        encoded = self._text[number * _STEP : (number + 1) * _STEP].encode(self._encoding)
        cut = (units - self._before[number]) * self._unit_bytes
        if self._is_inside(encoded, cut):
            return None
        return number * _STEP + len(encoded[:cut].decode(self._encoding))

    def _count(self, text: str) -> int:
        return len(text.encode(self._encoding)) // self._unit_bytes

    def _is_inside(self, encoded: bytes, cut: int) -> bool:
        if cut >= len(encoded):
            return False
        if self._is_bytes:
            return encoded[cut] & 0xC0 == 0x80  # a continuation byte
        return encoded[cut + 1] & 0xFC == 0xDC  # the second half of a surrogate pair
