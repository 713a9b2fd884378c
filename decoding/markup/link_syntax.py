"""Spells links in a text and reads them back, and finds where in a text a mention may begin and end.

Annotated texts are unambiguous. In the text, inside of mentions and outside, a backslash stands before every
backslash and every square bracket. A title with balanced parentheses and without backslash is spelled as it
is, `Mercury (planet)` in `[Mercury](Mercury (planet))`: the first parenthesis that closes more than was
opened ends it. In every other title a backslash stands before each backslash and each parenthesis. Both rules
are CommonMark's for links.
"""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass
from functools import cache

BACKSLASH = 0x5C
OPEN, CLOSE = 0x5B, 0x5D
TITLE_OPEN, TITLE_CLOSE = 0x28, 0x29

# Bytes behind a backslash, in a text and in a title that is not plain.
ESCAPED_IN_TEXT = bytes([BACKSLASH, OPEN, CLOSE])
ESCAPED_IN_TITLE = bytes([BACKSLASH, TITLE_OPEN, TITLE_CLOSE])


def spelled_text(text: bytes) -> bytes:
    """Return the spelling of a text outside of titles."""
    return _escaped(text, ESCAPED_IN_TEXT)


def spelled_title(title: bytes) -> bytes:
    """Return the spelling of a title, without the parenthesis that ends it."""
    return title if is_plain(title) else _escaped(title, ESCAPED_IN_TITLE)


def is_plain(title: bytes) -> bool:
    """Whether a title is spelled as it is."""
    depth = 0
    for byte in title:
        depth += (byte == TITLE_OPEN) - (byte == TITLE_CLOSE)
        if depth < 0 or byte == BACKSLASH:
            return False
    return depth == 0


def _escaped(text: bytes, special: bytes) -> bytes:
    for byte in special:  # the backslash comes first
        text = text.replace(bytes([byte]), bytes([BACKSLASH, byte]))
    return text


@dataclass(frozen=True, slots=True)
class Link:
    """One link; places are in bytes."""

    begin: int  # begin of the mention in the text
    end: int  # end of the mention in the text
    title: bytes  # title, not as it is spelled
    opened: int  # begin of the link in the annotated text, its bracket
    titled: int  # begin of the title there
    closed: int  # end of the link there, behind the parenthesis


@dataclass(frozen=True, slots=True)
class Annotated:
    """A text that was read, without links and backslashes, and its links in order."""

    text: bytes
    links: tuple[Link, ...]


def read_annotated(written: bytes) -> Annotated:
    """Read a text that an `AnnotationGrammar` has allowed.

    Raises ValueError for a text that is not one; the message names the place.
    """
    text = bytearray()
    links: list[Link] = []
    opened = begin = -1
    at = 0
    while at < len(written):
        byte = written[at]
        if byte == BACKSLASH:
            at += 1
            if at == len(written):
                raise ValueError(f"byte {at}: expected a character behind the backslash, got the end")
            text.append(written[at])
        elif byte == OPEN:
            if opened >= 0:
                raise ValueError(f"byte {at}: a mention begins inside of another")
            opened, begin = at, len(text)
        elif byte == CLOSE:
            if opened < 0 or written[at + 1 : at + 2] != bytes([TITLE_OPEN]):
                raise ValueError(f"byte {at}: expected the end of a mention and a title")
            title, closed = _read_title(written, at + 2)
            links.append(Link(begin, len(text), title, opened, at + 2, closed))
            opened, at = -1, closed - 1
        else:
            text.append(byte)
        at += 1
    if opened >= 0:
        raise ValueError(f"byte {opened}: the mention that begins here does not end")
    return Annotated(bytes(text), tuple(links))


def _read_title(written: bytes, at: int) -> tuple[bytes, int]:
    """The title that begins at a place, and the place behind its parenthesis."""
    title = bytearray()
    begin, depth = at, 0
    while at < len(written):
        byte = written[at]
        if byte == TITLE_CLOSE and not depth:
            return bytes(title), at + 1
        if byte == BACKSLASH and at + 1 < len(written):
            at += 1
        else:
            depth += (byte == TITLE_OPEN) - (byte == TITLE_CLOSE)
        title.append(written[at])
        at += 1
    raise ValueError(f"byte {begin}: the title that begins here does not end")


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
    """Rules for mentions."""

    max_chars: int = 80  # most code points of a mention
    max_mentions: int | None = None  # most mentions of a text; None: any number
    word_boundaries: bool = True  # whether a mention must begin and end where words do

    def __post_init__(self) -> None:
        if self.max_chars < 1:
            raise ValueError(f"max_chars must be >= 1, got {self.max_chars}")
        if self.max_mentions is not None and self.max_mentions < 0:
            raise ValueError(f"max_mentions must be >= 0, got {self.max_mentions}")


@dataclass(frozen=True, slots=True)
class Boundaries:
    """The places of a text of n characters where mentions may begin and end; place i is before character i.

    A mention begins and ends with something that is not white space, contains a letter, a digit or a symbol,
    separates no character from its marks, and crosses no paragraph break.
    """

    closes: tuple[bool, ...]  # whether a mention may end there, by the place alone. Length n + 1.
    # First possible end of a mention that begins there, -1 where none may begin. Length n + 1.
    first_close: tuple[int, ...]
    last_close: tuple[int, ...]  # last possible end, -1 where none may begin. Length n + 1.


def find_boundaries(text: str, rules: MentionRules) -> Boundaries:
    """Find where mentions may begin and end."""
    length = len(text)
    cuts = [_is_cut(text, place, rules.word_boundaries) for place in range(length + 1)]
    closes = [place > 0 and cuts[place] and not text[place - 1].isspace() for place in range(length + 1)]
    naming = _following([_is_naming(character) for character in text])
    following_close = _following(closes)
    preceding_close = _preceding(closes)
    breaks = [found.start() for found in _BREAK.finditer(text)] + [length]
    first, last = [], []
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
        first.append(begin)
        last.append(end)
    return Boundaries(tuple(closes), tuple(first), tuple(last))


def _is_cut(text: str, place: int, word_boundaries: bool) -> bool:
    """Whether a mention may begin or end between two characters."""
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
    """By place, the first flagged place from it on; the number of places for none."""
    found = [len(flags)] * (len(flags) + 1)
    for place in range(len(flags) - 1, -1, -1):
        found[place] = place if flags[place] else found[place + 1]
    return found


def _preceding(flags: list[bool]) -> list[int]:
    """By place, the last flagged place up to it, -1 for none."""
    found, last = [], -1
    for place, flag in enumerate(flags):
        last = place if flag else last
        found.append(last)
    return found
