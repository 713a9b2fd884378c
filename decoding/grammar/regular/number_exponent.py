"""Reads numbers written as one digit, possibly a fraction, and an exponent, against a set of magnitudes.

The larger exponent is the larger number; for equal exponents, the larger mantissa. So of a mantissa only its
place among the mantissas of cuts is kept, and possibly the length of its fraction. These give a set of
exponents, which is read as a number of its own.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from functools import lru_cache
from typing import Any

from genret.decoding.grammar.regular.number_magnitudes import (
    ALL_NUMBERS,
    NO_NUMBER,
    NOWHERE,
    Exact,
    Magnitudes,
    Plain,
    PlainReader,
)

MANTISSA_DIGITS = 16
"""Most digits behind the point of a mantissa whose exponent alone may decide about divisibility."""

Side = tuple[bool, tuple[int, ...]]
"""A set of numbers from 0 up: whether 0 is in it, and the numbers, ascending, at which membership changes."""
Exponents = tuple[Side, Side]
"""Exponents from 0 up, and from 0 down without their sign."""
Mantissa = Any
"""State of a `MantissaReader`, None once it has failed."""

MANTISSA, POINT, FRACTION = range(10, 13)


class MantissaReader:
    """Reads normalised mantissas from 1 to 9.99... until the exponent is to come.

    A state is (phase, whether it still may be a cut's mantissa, digits or rank, number of digits, digits of
    the fraction as far as they matter). Ranks are odd for the mantissas of cuts, even between them.
    """

    __slots__ = ("_cap", "_exponents", "_keys", "_length", "_mantissas", "_numbers", "_points")

    def __init__(self, numbers: Magnitudes) -> None:
        self._numbers = numbers
        texts = [str(cut) for cut in numbers.cuts[1:]]
        self._length = max((len(text.rstrip("0")) for text in texts), default=1)
        mantissas = [int(text.rstrip("0").ljust(self._length, "0")) for text in texts]
        self._mantissas = sorted(set(mantissas))
        self._keys = [
            (len(text) - 1 - numbers.places, 2 * bisect_left(self._mantissas, mantissa) + 1)
            for text, mantissa in zip(texts, mantissas, strict=True)
        ]
        self._cap = self._fraction_cap()
        self._points = self._points_of_change()
        self._exponents: dict[tuple[int, int], Exponents | None] = {}

    def first(self) -> list[Mantissa]:
        """States behind the first digit, by digit; None behind 0."""
        return [None, *self._read(MANTISSA, 0, 1, 0)[1:]]

    def point(self, state: Mantissa) -> tuple[object, ...] | None:
        """The state behind the point."""
        return (POINT, *state[1:]) if state[0] == MANTISSA else None

    def steps(self, state: Mantissa) -> list[Mantissa]:
        """States behind one more digit of the fraction, by digit."""
        phase, near, digits, count, fraction = state
        if phase == MANTISSA:
            return NOWHERE
        fraction = min(fraction + 1, self._cap)
        if not near:
            return [self._far(FRACTION, digits, fraction)] * 10
        if count < self._length:
            return self._read(FRACTION, digits * 10, count + 1, fraction)
        above = self._far(FRACTION, 2 * bisect_right(self._mantissas, digits), fraction)
        return [(FRACTION, True, digits, count, fraction)] + [above] * 9

    def exponents(self, state: Mantissa) -> Exponents | None:
        """The exponents that may follow the mantissa; None if there are none."""
        phase, near, rank, count, fraction = state
        if phase == POINT:
            return None
        if near:
            mantissa = rank * 10 ** (self._length - count)
            index = bisect_left(self._mantissas, mantissa)
            equal = index < len(self._mantissas) and self._mantissas[index] == mantissa
            rank = 2 * index + equal
        return self._exponents_of(rank, fraction)

    def _exponents_of(self, rank: int, fraction: int) -> Exponents | None:
        key = (rank, fraction)
        if key not in self._exponents:
            self._exponents[key] = self._allowed(rank, fraction)
        return self._exponents[key]

    def _read(self, phase: int, digits: int, count: int, fraction: int) -> list[Mantissa]:
        """States behind `count` digits: those of `digits`, the last of which may be any."""
        unit = 10 ** (self._length - count)
        mantissas = self._mantissas
        states: list[Mantissa] = []
        index = bisect_left(mantissas, digits * unit)
        for longer in range(digits, digits + 10):
            if index < len(mantissas) and mantissas[index] < (longer + 1) * unit:
                states.append((phase, True, longer, count, fraction))
                index = bisect_left(mantissas, (longer + 1) * unit, index)
            else:
                states.append(self._far(phase, 2 * index, fraction))
        return states

    def _far(self, phase: int, rank: int, fraction: int) -> Mantissa:
        """The state away from all cuts' mantissas; None if no exponent may follow, whatever digits come."""
        state = (phase, False, rank, 0, fraction)
        return None if fraction == self._cap and not self._exponents_of(rank, fraction) else state

    def _fraction_cap(self) -> int:
        """The number of digits of the fraction beyond which more make no difference."""
        deciding = [
            condition.exponents + MANTISSA_DIGITS
            for condition in self._numbers.conditions
            if condition.exponents is not None
        ]
        if not deciding:
            return 0
        ends_early = not self._numbers.between[-1] and self._keys[-1][0] < min(deciding)
        return 1 if ends_early else MANTISSA_DIGITS + 1

    def _points_of_change(self) -> list[int]:
        """Exponents, 0 among them, between and beyond which membership does not change with the exponent."""
        changes = {0}
        changes.update(exponent for exponent, _ in self._keys)
        for condition in self._numbers.conditions:
            if condition.smallest is not None:
                changes.add(_small_below(condition.smallest))
                if condition.exponents is not None:
                    changes.add(condition.exponents)
                    changes.add(condition.exponents + MANTISSA_DIGITS)
        return sorted(changes | {change + 1 for change in changes})

    def _allowed(self, rank: int, fraction: int) -> Exponents | None:
        points = self._points
        below, *inside = [self._holds(point, rank, fraction) for point in (points[0] - 1, *points)]
        # All exponents from a point up to the next one are alike.
        cuts = [
            point
            for point, before, now in zip(points, (below, *inside), inside, strict=False)
            if before != now
        ]
        at_zero = inside[points.index(0)]
        up = (at_zero, tuple(cut for cut in cuts if cut > 0))
        down = (at_zero, tuple(1 - cut for cut in reversed(cuts) if cut <= 0))
        return None if up == down == (False, ()) else (up, down)

    def _holds(self, exponent: int, rank: int, fraction: int) -> bool:
        """Whether numbers with that exponent, mantissa and length of fraction are known to be in the set."""
        numbers = self._numbers
        index = bisect_left(self._keys, (exponent, rank))
        if index < len(self._keys) and self._keys[index] == (exponent, rank):
            return numbers.points[index + 1]
        condition = numbers.conditions[numbers.between[index]]
        if condition.smallest is None or exponent < _small_below(condition.smallest):
            return condition.otherwise
        if condition.exponents is None or fraction > MANTISSA_DIGITS or (fraction and self._cap == 1):
            return False
        decided = condition.exponents + (MANTISSA_DIGITS if fraction else 0)
        return exponent >= decided and condition.meets(0, 0)  # as numbers on all lattices do


@lru_cache(maxsize=1024)
def _small_below(step: Exact) -> int:
    """An exponent below which numbers are smaller than the step."""
    return len(str(step.numerator)) - len(str(step.denominator)) - 1


class ExponentReader:
    """Reads an exponent without its sign as a number of its own, which may have zeros in front.

    States are those of a `PlainReader`.
    """

    def __init__(self, side: Side) -> None:
        at_zero, changes = side
        belongs = [at_zero ^ bool(number & 1) for number in range(len(changes) + 1)]
        between = [ALL_NUMBERS if member else NO_NUMBER for member in belongs]
        self._reader = PlainReader(Magnitudes([0, *changes], belongs, between), canonical=True)
        self.first = self._reader.first()
        self.is_final = self._reader.is_final

    def steps(self, state: Plain) -> list[Plain]:
        """States behind one more digit, by digit; None if there is no such exponent."""
        return self.first if state == self.first[0] else self._reader.steps(state)
