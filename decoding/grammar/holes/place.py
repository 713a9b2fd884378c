r"""Where one stands in a JSON string that must be one of some sorted texts.

All texts that begin with the bytes written so far are one run of the sorted order. The bytes of JSON differ
from those of the text where a character is escaped, so a place also says how much of an escape is written.
One text is spelled in one way: `"` and `\` behind a backslash, control characters as `\b`, `\t`, `\n`,
`\f`, `\r` or else as `\u00` and two lower-case digits, everything else as it is.
"""

from __future__ import annotations

from typing import NamedTuple

QUOTE = 0x22
BACKSLASH = 0x5C
# Bytes below this are control characters, and always escaped.
FIRST_PLAIN = 0x20

# What stands behind a backslash for what, where it is one byte.
SHORT_ESCAPES = {QUOTE: QUOTE, BACKSLASH: BACKSLASH, 0x62: 8, 0x66: 12, 0x6E: 10, 0x72: 13, 0x74: 9}

# How much of an escape is written; before the opening quote; behind the closing one.
PLAIN, ESCAPE, UNICODE, ZERO, ZEROS, LOW, HIGH, FINAL, START = range(9)
# The bytes of JSON that belong to the escape so far.
WRITTEN = (b"", b"\\", b"\\u", b"\\u0", b"\\u00", b"\\u000", b"\\u001")

_MODE_BITS, _MODE_MASK = 4, 15
_BITS = 31
_MASK = (1 << _BITS) - 1


class Place(NamedTuple):
    """A run of texts and how far they are written.

    Attributes:
        begin: First text of the run, by its position in the sorted order.
        end: The first one behind it.
        depth: Bytes of the texts that are written.
        mode: `PLAIN`, how much of an escape is written behind them, `FINAL` or `START`.
    """

    begin: int
    end: int
    depth: int
    mode: int


def pack(place: Place) -> int:
    """Return the place as an int, which needs no table that would have to be kept. The start is 0."""
    begin, end, depth, mode = place
    if mode == START:
        return 0
    return (((begin << _BITS | end) << _BITS) | depth) << _MODE_BITS | mode


def unpack(state: int, num_texts: int) -> Place:
    """Return the place of an int."""
    if state == 0:
        return Place(0, num_texts, 0, START)
    rest = state >> _MODE_BITS
    return Place(rest >> 2 * _BITS, (rest >> _BITS) & _MASK, rest & _MASK, state & _MODE_MASK)


def escaped(byte: int) -> bytes:
    """Return how a byte of a text is spelled in JSON; bytes of characters beyond ASCII stay as they are."""
    if byte >= FIRST_PLAIN and byte not in (QUOTE, BACKSLASH):
        return bytes([byte])
    return _SPELLED.get(byte) or b"\\u%04x" % byte


_SPELLED = {byte: bytes([BACKSLASH, short]) for short, byte in SHORT_ESCAPES.items()}
SPELLINGS = tuple(escaped(byte) for byte in range(256))
# The bytes of texts that are spelled by an escape, ascending.
ESCAPED_BYTES = tuple(byte for byte in range(256) if len(SPELLINGS[byte]) > 1)


def spelled(text: bytes) -> bytes:
    """Return how the bytes of a text are spelled in JSON, without quotes."""
    return b"".join(map(SPELLINGS.__getitem__, text))
