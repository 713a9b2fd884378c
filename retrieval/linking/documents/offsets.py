"""Offsets of one text in code points, UTF-8 bytes and UTF-16 units, each found from the other quickly."""

from __future__ import annotations

from bisect import bisect_right

_STEP = 1 << 10  # code points between checkpoints: what one look-up encodes at most


class OffsetIndex:
    """Where code points begin in another unit: O(n) once, then at most 1024 code points a look-up.

    Args:
        text: Holds no surrogates.
        unit: What offsets are counted in: "codepoint", "byte" or "utf16".
    """

    __slots__ = ("_before", "_length", "_text", "_unit")

    def __init__(self, text: str, unit: str = "byte") -> None:
        self._text = text
        self._unit = unit
        # Units before the code points 0, 1024, ...; none are kept where both counts are the same.
        self._before: list[int] = []
        self._length = len(text)
        if unit == "codepoint" or text.isascii():
            return
        self._length = 0
        for begin in range(0, len(text), _STEP):
            self._before.append(self._length)
            self._length += self._count(text[begin : begin + _STEP])

    @property
    def length(self) -> int:
        """Length of the text in units."""
        return self._length

    def units_before(self, position: int) -> int:
        """Return how many units stand before a code point.

        Args:
            position: In [0, len(text)].
        """
        if not self._before:
            return position
        number = min(position // _STEP, len(self._before) - 1)
        return self._before[number] + self._count(self._text[number * _STEP : position])

    def position_of(self, units: int) -> int | None:
        """Return the code point that begins behind so many units; None where that is inside of one.

        Args:
            units: In [0, `length`].
        """
        if not self._before:
            return units
        number = bisect_right(self._before, units) - 1
        encoded = self._text[number * _STEP : (number + 1) * _STEP].encode(self._encoding)
        cut = (units - self._before[number]) * self._unit_bytes
        if self._is_inside(encoded, cut):
            return None
        return number * _STEP + len(encoded[:cut].decode(self._encoding))

    @property
    def _encoding(self) -> str:
        return "utf-8" if self._unit == "byte" else "utf-16-le"

    @property
    def _unit_bytes(self) -> int:
        return 1 if self._unit == "byte" else 2

    def _count(self, text: str) -> int:
        return len(text.encode(self._encoding)) // self._unit_bytes

    def _is_inside(self, encoded: bytes, cut: int) -> bool:
        if cut >= len(encoded):
            return False
        if self._unit == "byte":
            return encoded[cut] & 0xC0 == 0x80  # a continuation byte
        return encoded[cut + 1] & 0xFC == 0xDC  # the second half of a surrogate pair
