"""Reading numbers in plain decimals, digit by digit, against a set of magnitudes.

A state knows what the digits so far leave open, no more. In front of the point it is not known how many digits
will follow, so a state keeps one entry for each such number of digits, the last one standing for all larger
ones: the condition that holds for all numbers that can still come of it, or that a cut lies among them
(`OPEN`). Only while an entry is open the digits themselves are kept; there are no more such states than digits
of cuts. Otherwise a residue is kept.
"""

from __future__ import annotations

from math import lcm

from decoding.grammar.regular.number_magnitudes import Magnitudes

OPEN = -1
NONE, ALL = 0, 1

Plain = tuple[int, ...] | tuple[int, tuple[int, ...], int, int]
"""(0, entries, digits or residue, number of digits or -1) in front of the point, (1, digits, read, blocked)
behind it where a cut is near, (2, condition, read, residue, blocked) where none is; blocked ones are not final."""

INTEGER, NEAR, FAR = 0, 1, 2


class PlainReader:
    """Reads the magnitudes' plain decimals.

    Args:
        numbers: The set.
        canonical: No zeros at the end of a fraction.
    """

    __slots__ = ("_canonical", "_length", "_moduli", "_numbers", "_scale")

    def __init__(self, numbers: Magnitudes, canonical: bool) -> None:
        self._numbers = numbers
        self._canonical = canonical
        self._scale = 10**numbers.places
        self._length = len(str(numbers.cuts[-1] // self._scale))
        self._moduli: dict[tuple[int, ...], int] = {}

    def first(self, digit: int) -> tuple[object, ...] | None:
        """The state behind the first digit; None where no number begins with it."""
        if digit:
            return self._integer(digit, 1)
        entry = self._numbers.inside(0, self._scale)
        return self._settled((entry, NONE), 0, 1)

    def step(self, state: tuple, digit: int) -> tuple[object, ...] | None:  # type: ignore[type-arg]
        """The state behind one more digit."""
        if state[0] == INTEGER:
            _, entries, digits, count = state
            if count < 0:
                entries = entries[1:] or entries
                return self._settled(entries, digits * 10 + digit, -1)
            if not digits:
                return None
            return self._integer(digits * 10 + digit, count + 1)
        if state[0] == NEAR:
            return self._near_step(state[1], state[2], digit)
        return self._far_step(state[1], state[2], state[3], digit)

    def point(self, state: tuple) -> tuple[object, ...] | None:  # type: ignore[type-arg]
        """The state behind the point."""
        if state[0] != INTEGER:
            return None
        entry = state[1][0]
        if entry == OPEN:
            return (NEAR, state[2], 0, True)
        return self._far(entry, 0, state[2], True)

    def is_final(self, state: tuple) -> bool:  # type: ignore[type-arg]
        """Whether the number may end here."""
        if state[-1] is True:
            return False
        if state[0] == NEAR:
            return self._numbers.has(state[1], state[2])
        if state[0] == FAR:
            return self._numbers.conditions[state[1]].meets(state[2], state[3])
        if state[1][0] == OPEN:
            return self._numbers.has(state[2], 0)
        return self._numbers.conditions[state[1][0]].meets(0, state[2])

    def _integer(self, digits: int, count: int) -> tuple[object, ...] | None:
        """The state behind `count` digits, the first one not 0."""
        entries = []
        unit = self._scale
        inside = self._numbers.inside
        for _ in range(count, self._length + 1):
            entries.append(inside(digits * unit, (digits + 1) * unit))
            unit *= 10
        entries.append(self._numbers.between[-1])
        while len(entries) > 1 and entries[-2] == entries[-1]:
            entries.pop()
        return self._settled(tuple(entries), digits, count)

    def _settled(self, entries: tuple[int, ...], digits: int, count: int) -> tuple[object, ...] | None:
        if OPEN in entries:
            return (INTEGER, entries, digits, count)
        if entries == (NONE,) or not any(entries):
            return None
        modulus = self._moduli.get(entries)
        if modulus is None:
            conditions = self._numbers.conditions
            modulus = self._moduli[entries] = lcm(*(conditions[entry].moduli[0] for entry in set(entries)))
        return (INTEGER, entries, digits % modulus, -1)

    def _near_step(self, digits: int, read: int, digit: int) -> tuple[object, ...] | None:
        blocked = self._canonical and not digit
        places = self._numbers.places
        if read < places:
            digits, read = digits * 10 + digit, read + 1
            unit = 10 ** (places - read)
            entry = self._numbers.inside(digits * unit, (digits + 1) * unit)
            return (NEAR, digits, read, blocked) if entry == OPEN else self._far(entry, read, digits, blocked)
        if not digit:
            return (NEAR, digits, read, blocked)
        # Behind the last place that matters: right above the cut, and on no lattice.
        condition = self._numbers.between[self._numbers.cuts.index(digits)]
        return (FAR, ALL, 0, 0, False) if self._numbers.conditions[condition].otherwise else None

    def _far(self, condition: int, read: int, digits: int, blocked: bool) -> tuple[object, ...] | None:
        """Where one condition is left, behind `read` digits of the fraction."""
        if condition == NONE:
            return None
        divisibility = self._numbers.conditions[condition]
        excess = read - divisibility.places
        if excess > 0:
            digits, rest = divmod(digits, 10**excess)
            if rest:
                return (FAR, ALL, 0, 0, blocked) if divisibility.otherwise else None
            read = divisibility.places
        return (FAR, condition, read, digits % divisibility.moduli[read], blocked)

    def _far_step(self, condition: int, read: int, residue: int, digit: int) -> tuple[object, ...] | None:
        blocked = self._canonical and not digit
        divisibility = self._numbers.conditions[condition]
        if read < divisibility.places:
            return (FAR, condition, read + 1, (residue * 10 + digit) % divisibility.moduli[read + 1], blocked)
        if not digit or condition == ALL:
            return (FAR, condition, read, residue, blocked)
        return (FAR, ALL, 0, 0, False) if divisibility.otherwise else None
