"""Reading numbers in plain decimals, digit by digit, against a set of magnitudes.

A state knows what the digits so far leave open, no more. In front of the point it is not known how many
digits will follow, so a state keeps one entry for each such number of digits, the last one standing for all
larger ones: the condition that holds for all numbers that can still come of it, or that a cut lies among them
(`OPEN`). Only while an entry is open the digits themselves are kept; there are no more such states than
digits of cuts. Otherwise a residue is kept.
"""

from __future__ import annotations

from math import lcm
from typing import Any

from decoding.grammar.regular.number_magnitudes import Magnitudes

OPEN = -1
NONE = 0

Plain = Any
"""(INTEGER, entries, digits or residue, number of digits or -1) in front of the point; behind it

(NEAR, digits, read, blocked) where a cut is near, (FAR, condition, read, residue, blocked) where none is,
(TAIL, whether the number belongs to the set, whether longer ones do, blocked) where nothing else matters.
Where it is blocked the number may not end."""

INTEGER, NEAR, FAR, TAIL = range(4)
NOWHERE: list[Plain] = [None] * 10
ANYTHING: Plain = (TAIL, True, True, False)


class PlainReader:
    """Reads the magnitudes' plain decimals.

    Args:
        numbers: The set.
        canonical: No zeros at the end of a fraction.
    """

    __slots__ = (
        "_by_length",
        "_canonical",
        "_lengths_of_cuts",
        "_moduli",
        "_numbers",
        "_residues",
        "_scale",
    )

    def __init__(self, numbers: Magnitudes, canonical: bool) -> None:
        self._numbers = numbers
        self._canonical = canonical
        self._scale = 10**numbers.places
        wholes = [cut // self._scale for cut in numbers.cuts]
        self._lengths_of_cuts = sorted({len(str(whole)) for whole in wholes[1:]})
        longest = max(self._lengths_of_cuts, default=0)
        # Entries for all numbers of so many digits in front of the point, the first one not 0.
        self._by_length = [
            OPEN
            if length in self._lengths_of_cuts
            else numbers.inside(low * self._scale, low * self._scale + 1)
            for length, low in ((length, 10 ** (length - 1)) for length in range(1, longest + 1))
        ]
        self._by_length.append(numbers.between[-1])
        self._moduli: dict[tuple[int, ...], int] = {}
        self._residues: dict[tuple[object, ...], int] = {}

    def first(self) -> list[Plain]:
        """States behind the first digit, by digit; None where no number begins with it."""
        zero = self._settled((self._numbers.inside(0, self._scale), NONE), 0, 1)
        return [zero, *self._open_steps(0, 0)[1:]]

    def steps(self, state: Plain) -> list[Plain]:
        """States behind one more digit, by digit."""
        if state[0] == INTEGER:
            _, entries, digits, count = state
            if count >= 0:
                return self._open_steps(digits, count) if digits else NOWHERE
            entries = entries[1:] or entries
            if self._modulus(entries) == 1:
                return [self._settled(entries, 0, -1)] * 10
            return [self._settled(entries, digits * 10 + digit, -1) for digit in range(10)]
        if state[0] == NEAR:
            return [self._near_step(state[1], state[2], digit) for digit in range(10)]
        if state[0] == FAR:
            return [self._far_step(state[1], state[2], state[3], digit) for digit in range(10)]
        if state == ANYTHING and not self._canonical:
            return [ANYTHING] * 10
        _, belongs, longer, _ = state
        zero = (TAIL, belongs, longer, self._canonical)
        return [zero] + [ANYTHING if longer else None] * 9

    def point(self, state: Plain) -> Plain:
        """The state behind the point."""
        if state[0] != INTEGER:
            return None
        entry = state[1][0]
        return self._near(state[2], 0, True) if entry == OPEN else self._far(entry, 0, state[2], True)

    def is_final(self, state: Plain) -> bool:
        """Whether the number may end here."""
        kind = state[0]
        if kind == INTEGER:
            if state[1][0] == OPEN:
                return self._numbers.has(state[2], 0)
            return bool(self._numbers.conditions[state[1][0]].meets(0, state[2]))
        if state[-1]:
            return False
        if kind == TAIL:
            return bool(state[1])
        if kind == NEAR:
            return bool(self._numbers.has(state[1], state[2]))
        return bool(self._numbers.conditions[state[1]].meets(state[2], state[3]))

    def _open_steps(self, digits: int, count: int) -> list[Plain]:
        """States behind one more digit, where `count` digits are read and a cut may be near."""
        template = self._by_length[count:] or self._by_length[-1:]
        near = []
        for length in self._lengths_of_cuts:
            rest = length - count - 1
            if rest >= 0:
                unit = self._scale * 10**rest
                template[rest] = self._numbers.inside(digits * 10 * unit, (digits + 1) * 10 * unit)
                if template[rest] == OPEN:
                    near.append((rest, unit))
        states = []
        for longer in range(digits * 10, digits * 10 + 10):
            entries = template.copy()
            for rest, unit in near:
                entries[rest] = self._numbers.inside(longer * unit, (longer + 1) * unit)
            while len(entries) > 1 and entries[-2] == entries[-1]:
                entries.pop()
            states.append(self._settled(tuple(entries), longer, count + 1))
        return states

    def _settled(self, entries: tuple[int, ...], digits: int, count: int) -> Plain:
        """The state with those entries, without digits where they do not matter; None if nothing is left."""
        if OPEN in entries:
            return (INTEGER, entries, digits, count)
        if not any(entries):
            return None
        modulus = self._modulus(entries)
        residue = digits % modulus
        if modulus > 16:
            futures = tuple(self._numbers.conditions[entry].future(residue) for entry in set(entries))
            residue = self._residues.setdefault((entries, futures), residue)
        return (INTEGER, entries, residue, -1)

    def _modulus(self, entries: tuple[int, ...]) -> int:
        modulus = self._moduli.get(entries)
        if modulus is None:
            conditions = self._numbers.conditions
            modulus = lcm(*(conditions[entry].moduli[0] for entry in set(entries)))
            self._moduli[entries] = modulus
        return modulus

    def _near_step(self, digits: int, read: int, digit: int) -> Plain:
        blocked = self._canonical and not digit
        digits, read = digits * 10 + digit, read + 1
        unit = 10 ** (self._numbers.places - read)
        entry = self._numbers.inside(digits * unit, (digits + 1) * unit)
        return self._near(digits, read, blocked) if entry == OPEN else self._far(entry, read, digits, blocked)

    def _near(self, digits: int, read: int, blocked: bool) -> Plain:
        """Where a cut is near, behind `read` digits of the fraction."""
        if read < self._numbers.places:
            return (NEAR, digits, read, blocked)
        # No more places matter: the number is a cut, and longer ones are right above it, on no lattice.
        above = self._numbers.conditions[self._numbers.above(digits)]
        return _tail(self._numbers.has(digits, read), above.otherwise, blocked)

    def _far(self, condition: int, read: int, digits: int, blocked: bool) -> Plain:
        """Where one condition is left, behind `read` digits of the fraction."""
        divisibility = self._numbers.conditions[condition]
        excess = read - divisibility.places
        if excess < 0:
            return (FAR, condition, read, digits % divisibility.moduli[read], blocked)
        digits, rest = divmod(digits, 10**excess)
        belongs = divisibility.otherwise if rest else divisibility.meets(divisibility.places, digits)
        return _tail(belongs, divisibility.otherwise, blocked)

    def _far_step(self, condition: int, read: int, residue: int, digit: int) -> Plain:
        return self._far(condition, read + 1, residue * 10 + digit, self._canonical and not digit)


def _tail(belongs: bool, longer: bool, blocked: bool) -> Plain:
    return (TAIL, belongs, longer, blocked) if belongs or longer else None
