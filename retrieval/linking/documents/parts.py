"""Where long documents are cut: a pure function of the text, so that every reading cuts at the same places.

A part is at most `size` code points long and ends, as long as possible,

1. behind the last blank line in its second half; else
2. behind the last line end in its second half; else
3. behind the last white space; else
4. at `size`.

No cut of 1 to 3 is inside of CRLF or in front of a combining mark, a joiner or what one joins; one of 4 moves
to the front to keep to that, where there is a place for it. As each cut depends on `size` + 1 code points
from the last one on, a text need not be in memory as a whole.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Iterator

MIN_PART_CHARS = 2  # CRLF

_BLANK_LINES = re.compile(r"\n(?:[^\S\n]*\n)+")
_JOINERS = "\u200c\u200d"
_EMOJI_MODIFIERS = range(0x1F3FB, 0x1F400)


def cut_text(text: str, size: int) -> Iterator[tuple[int, int]]:
    """Yield the parts [begin, end) of a text, in order; of an empty one, one that is empty.

    Args:
        text: The text.
        size: Most code points of a part, at least `MIN_PART_CHARS`.
    """
    begin = 0
    while len(text) - begin > size:
        end = begin + next_cut(text[begin : begin + size + 1], size)
        yield begin, end
        begin = end
    yield begin, len(text)


def cut_stream(pieces: Iterable[str], size: int) -> Iterator[str]:
    """Yield the parts of a text that comes in pieces: those of `cut_text`, as text.

    Args:
        pieces: The text; at most `size` code points and a piece are held.
        size: As for `cut_text`.
    """
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
    """Return where the part ends that begins with a window's first code point.

    Args:
        window: More than `size` code points; what is behind the first `size` + 1 changes nothing.
        size: Most code points of the part.

    Returns:
        In [1, size].
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
