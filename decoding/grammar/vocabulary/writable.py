"""Which texts a vocabulary can write at all, so that no prefix that its tokens can write is a dead end.

A vocabulary of bytes writes every text whose every byte is a token by itself; what a token leaves unfinished,
others can finish byte by byte. A vocabulary of characters writes every text whose every character is a token
by itself. Tokens with any other byte or character, and in a vocabulary of characters those with parts of
one, are of no use, because nothing might be able to go on behind them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from decoding.grammar.regular.byte_dfa import ByteDfa
from decoding.grammar.regular.minimise import Row
from decoding.grammar.regular.ranges import union
from decoding.grammar.regular.utf8 import byte_edges

# The bytes of UTF-8.
_ALL_BYTES = frozenset({*range(0xC0), *range(0xC2, 0xF5)})
# JSON writes control characters with escapes.
_NEEDED_BYTES = _ALL_BYTES - set(range(0x20))


@dataclass(frozen=True, slots=True)
class Writable:
    """What can be written.

    Attributes:
        units: The single bytes, or the single characters, that are tokens.
        is_of_bytes: Which of them.
        is_everything: Whether every JSON text can be written.
    """

    units: frozenset[bytes]
    is_of_bytes: bool
    is_everything: bool = False

    @property
    def has_all_bytes(self) -> bool:
        """Whether every text of UTF-8 can be written as it is, control characters included."""
        return self.is_of_bytes and {unit[0] for unit in self.units} >= _ALL_BYTES

    def missing(self, text: bytes) -> bytes:
        """The first byte or character of a text that cannot be written, b"" if all of it can.

        A byte of a text that is not UTF-8 is a character of its own.
        """
        return next((unit for unit in self._units_of(text) if unit not in self.units), b"")

    def texts(self) -> ByteDfa:
        """All texts that can be written, the empty one included, with label 0."""
        if self.is_of_bytes:
            bytes_ = sorted(unit[0] for unit in self.units)
            return ByteDfa.from_rows([[(byte, byte, 0) for byte in bytes_]], [0])
        ranges = union((ord(unit.decode()), ord(unit.decode())) for unit in self.units)
        rows: list[Row] = [()]
        inside: dict[Row, int] = {}

        def state(row: Row) -> int:
            if row not in inside:
                inside[row] = len(rows)
                rows.append(row)
            return inside[row]

        rows[0] = tuple(byte_edges([(first, last, 0) for first, last in ranges], state))
        return ByteDfa.from_rows(rows, [0] + [-1] * (len(rows) - 1))

    def _units_of(self, text: bytes) -> Sequence[bytes]:
        if self.is_of_bytes:
            return [text[place : place + 1] for place in range(len(text))]
        return [unit.encode("utf-8", "surrogateescape") for unit in text.decode("utf-8", "surrogateescape")]


def find_writable(texts: Sequence[bytes | None]) -> Writable:
    """Tell a vocabulary of bytes from one of characters by which of the two writes more characters.

    Args:
        texts: Bytes of the tokens.
    """
    single = frozenset(text for text in texts if text and len(text) == 1)
    of_bytes = Writable(single, True, {byte[0] for byte in single} >= _NEEDED_BYTES)
    if of_bytes.is_everything:
        return of_bytes
    characters = frozenset(text for text in texts if text and len(text) <= 4 and _is_character(text))
    if _count_characters({byte[0] for byte in single}) >= len(characters):
        return of_bytes
    return Writable(characters, is_of_bytes=False)


def _is_character(text: bytes) -> bool:
    """Whether a token is one whole character."""
    try:
        return len(text.decode()) == 1
    except UnicodeDecodeError:
        return False


def _count_characters(single: set[int]) -> int:
    """How many characters some bytes make, nearly: overlong forms and surrogates are counted as well."""
    tails = len(single & set(range(0x80, 0xC0)))
    lengths = ((0x00, 0x80), (0xC2, 0xE0), (0xE0, 0xF0), (0xF0, 0xF5))
    return sum(len(single & set(range(*leads))) * tails**more for more, leads in enumerate(lengths))
