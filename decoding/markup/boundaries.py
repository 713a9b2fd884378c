"""Where in a text a mention may begin and end."""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass
from functools import cache

_ZERO_WIDTH_JOINER = "\u200d"
# Line ends with nothing but blanks between them, or a paragraph separator.
_BREAK = re.compile(
    r"(?:\r\n|[\n\r\x0b\x0c\x85\u2028])[^\S\r\n\x0b\x0c\x85\u2028]*(?:\r\n|[\n\r\x0b\x0c\x85\u2028])|\u2029"
)
# Scripts that are written without blanks between words, by code points: Thai to Myanmar, Khmer, and the
# ideographs and syllables of East Asia (Hangul has blanks).
_UNSPACED = ((0x0E00, 0x109F), (0x1780, 0x17FF), (0x2E80, 0x312F), (0x31A0, 0x31FF), (0x3400, 0x9FFF),
             (0xF900, 0xFAFF), (0x20000, 0x3FFFF))  # fmt: skip
_NAMING_SYMBOLS = frozenset({"So", "Sc", "Sm"})


@dataclass(frozen=True, slots=True)
class MentionRules:
    """What a mention may be.

    Attributes:
        max_chars: Most code points of it.
        max_mentions: Most mentions of a text; None: any number.
        word_boundaries: Whether it must begin and end where words do.
    """

    max_chars: int = 80
    max_mentions: int | None = None
    word_boundaries: bool = True

    def __post_init__(self) -> None:
        if self.max_chars < 1:
            raise ValueError(f"max_chars must be >= 1, got {self.max_chars}")
        if self.max_mentions is not None and self.max_mentions < 0:
            raise ValueError(f"max_mentions must be >= 0, got {self.max_mentions}")


@dataclass(frozen=True, slots=True)
class Boundaries:
    """Places of one text, counted in code points: place i is before character i. n characters.

    A mention begins and ends with something that is no white space, has a letter, a digit or a symbol in it,
    cuts no character off its marks, and crosses no paragraph break.

    Attributes:
        opens: Whether a mention may begin there; some place then ends it. Length n + 1.
        closes: Whether a mention may end there, as far as the place alone tells. Length n + 1.
        first_close: The first place that may end a mention that begins there; -1 where none may begin.
        last_close: The last one; -1 where none may begin. Length n + 1.
    """

    opens: tuple[bool, ...]
    closes: tuple[bool, ...]
    first_close: tuple[int, ...]
    last_close: tuple[int, ...]


def find_boundaries(text: str, rules: MentionRules) -> Boundaries:
    """Find where mentions may begin and end."""
    length = len(text)
    cuts = [_is_cut(text, place, rules.word_boundaries) for place in range(length + 1)]
    closes = [place > 0 and cuts[place] and not text[place - 1].isspace() for place in range(length + 1)]
    naming = _following([_is_naming(character) for character in text])
    following_close = _following(closes)
    preceding_close = _preceding(closes)
    breaks = [found.start() for found in _BREAK.finditer(text)] + [length]
    opens, first, last = [], [], []
    number = 0
    for place in range(length + 1):
        while breaks[number] < place:
            number += 1
        begin = end = -1
        if place < length and cuts[place] and not text[place].isspace() and naming[place] < length:
            least = following_close[naming[place] + 1]
            most = preceding_close[min(place + rules.max_chars, breaks[number])]
            if least <= most:
                begin, end = least, most
        opens.append(begin >= 0)
        first.append(begin)
        last.append(end)
    return Boundaries(tuple(opens), tuple(closes), tuple(first), tuple(last))


def _is_cut(text: str, place: int, word_boundaries: bool) -> bool:
    """Whether a mention may have an edge between two characters."""
    if place in (0, len(text)):
        return True
    before, behind = text[place - 1], text[place]
    if _continues(behind) or before == _ZERO_WIDTH_JOINER:
        return False
    if not word_boundaries or not (_is_word(before) and _is_word(behind)):
        return True
    return _is_unspaced(before) or _is_unspaced(behind)


@cache
def _continues(character: str) -> bool:
    """Whether a character belongs to the one before it."""
    if character < "\u0300":
        return False
    point = ord(character)
    modifier = 0x1F3FB <= point <= 0x1F3FF  # skin tones
    return character == _ZERO_WIDTH_JOINER or modifier or unicodedata.category(character)[0] == "M"


@cache
def _is_word(character: str) -> bool:
    return character.isalnum() or character == "_" or unicodedata.category(character)[0] == "M"


@cache
def _is_naming(character: str) -> bool:
    return character.isalnum() or unicodedata.category(character) in _NAMING_SYMBOLS


def _is_unspaced(character: str) -> bool:
    return character > "\u0dff" and any(low <= ord(character) <= high for low, high in _UNSPACED)


def _following(flags: list[bool]) -> list[int]:
    """For every place the first one from it on that is flagged, the number of places where there is none."""
    found = [len(flags)] * (len(flags) + 1)
    for place in range(len(flags) - 1, -1, -1):
        found[place] = place if flags[place] else found[place + 1]
    return found


def _preceding(flags: list[bool]) -> list[int]:
    """For every place the last one up to it that is flagged, -1 where there is none."""
    found, last = [], -1
    for place, flag in enumerate(flags):
        last = place if flag else last
        found.append(last)
    return found
