"""Describes the absolute values of the numbers of one sign, and reads them in plain decimals, digit by digit.

Conditions of divisibility ("an integer", "a multiple of 0.5", and Boolean combinations of these) are kept as
lattices. The multiples of a step are a lattice; the indicator of the intersection of two lattices is the
product of their indicators. So every Boolean combination is an integer combination of indicators of lattices,
and a unique one, because indicators of different lattices are linearly independent. The operations are
arithmetic on coefficients; the sum at a number is 1 if the number meets the condition, else 0.

Magnitudes are in whole units of the last decimal place that matters. In front of the point it is not known
how many digits will follow. So a state of `PlainReader` keeps one entry for each number of further digits,
the last one for all larger numbers: the condition that holds for all numbers it can still become, or `OPEN`
if a cut lies among them. The digits themselves are kept only while an entry is open, which is for no more
states than cuts have digits; otherwise a residue is kept.
"""

from __future__ import annotations

from bisect import bisect_left
from fractions import Fraction
from functools import lru_cache
from math import gcd, lcm
from typing import Any

from genret.decoding.grammar.compile_options import AutomatonLimitError

Exact = int | Fraction
"""A number without rounding; an int wherever it is integral."""

MAX_TERMS = 64
"""Most lattices in one condition: `not` doubles them for each step that is independent of the others."""

Lattices = tuple[tuple[Exact, int], ...]
"""Coefficients, not zero, by step, ascending. Step 0 stands for all numbers, so its coefficient is 0 or 1."""

NO_NUMBER: Lattices = ()
ALL_NUMBERS: Lattices = ((0, 1),)
INTEGERS: Lattices = ((1, 1),)


def common_step(left: Exact, right: Exact) -> Exact:
    """The step of the numbers that are multiples of both; step 0 is no condition."""
    if not left or not right:
        return left or right
    numerator = left.numerator * right.numerator // gcd(left.numerator, right.numerator)
    denominator = gcd(left.denominator, right.denominator)
    return numerator if denominator == 1 else Fraction(numerator, denominator)


def _ordered(terms: dict[Exact, int]) -> Lattices:
    if len(terms) > MAX_TERMS:
        raise AutomatonLimitError("it combines too many different steps of multiples")
    return tuple(sorted((step, factor) for step, factor in terms.items() if factor))


@lru_cache(maxsize=4096)
def meet(left: Lattices, right: Lattices) -> Lattices:
    """Numbers that meet both conditions. Raises AutomatonLimitError for too many steps."""
    if left == ALL_NUMBERS:
        return right
    if right == ALL_NUMBERS or left == right:
        return left
    terms: dict[Exact, int] = {}
    for left_step, left_factor in left:
        for right_step, right_factor in right:
            step = common_step(left_step, right_step)
            terms[step] = terms.get(step, 0) + left_factor * right_factor
    return _ordered(terms)


@lru_cache(maxsize=4096)
def complement(lattices: Lattices) -> Lattices:
    """Numbers that do not meet the condition. Raises AutomatonLimitError for too many steps."""
    terms = {step: -factor for step, factor in lattices}
    terms[0] = terms.get(0, 0) + 1
    return _ordered(terms)


def holds(lattices: Lattices, number: Exact) -> bool:
    """Whether the number meets the condition."""
    return sum(factor for step, factor in lattices if not step or not number % step) == 1


def count_between(lattices: Lattices, low: Exact | None, high: Exact | None) -> int | None:
    """Count the numbers above `low` and below `high` that meet the condition; None: infinitely many.

    A bound of None is no bound.
    """
    if not lattices:
        return 0
    if low is None or high is None or not lattices[0][0]:
        return None
    return sum(factor * int(-(-high // step) - 1 - low // step) for step, factor in lattices)


def decimal_places(number: Exact) -> int:
    """Digits behind the point of a decimal number."""
    denominator, places = number.denominator, 0
    while 10**places % denominator:
        places += 1
    return places


class Divisibility:
    """A condition of divisibility, for reading numbers digit by digit."""

    __slots__ = ("_steps", "moduli", "otherwise", "places")

    def __init__(self, lattices: Lattices) -> None:
        steps = [(step, factor) for step, factor in lattices if step]
        # Whether numbers on no lattice meet the condition.
        self.otherwise = bool(lattices) and not lattices[0][0]
        # Digits behind the point that matter; with any further digit but 0 a number is on no lattice.
        self.places = max((decimal_places(step) for step, _ in steps), default=0)
        scale = 10**self.places
        self._steps = [(int(step * scale), factor) for step, factor in steps]
        modulus = lcm(*(step for step, _ in self._steps))
        # Of the number read so far, in units of its last place, by the digits read behind the point.
        self.moduli = [modulus // gcd(modulus, 10 ** (self.places - read)) for read in range(self.places + 1)]

    def meets(self, read: int, digits: int) -> bool:
        """Whether the number with `read` digits behind the point, at most `places`, meets the condition.

        `digits` are all its digits as one number, which may be reduced modulo `moduli[read]`.
        """
        number = digits * 10 ** (self.places - read)
        return self.otherwise + sum(factor for step, factor in self._steps if not number % step) == 1

    def future(self, residue: int) -> tuple[int, ...]:
        """A key that is equal for residues that the same further digits in front of the point make meet it.

        Behind k more digits a number is a multiple if they, read as a number, are in one residue class, the
        complement of the digits in front of them; while 10^k is less than the step, that is at most one
        number.
        """
        key = []
        for step, _ in self._steps:
            power = 10**self.places
            while power < step:
                missing = -residue * power % step
                key.append(missing if missing < power else -1)
                power *= 10
            key.append(residue % (step // gcd(step, power)))
        return tuple(key)


class Magnitudes:
    """A set of numbers from 0 up."""

    __slots__ = ("between", "conditions", "cuts", "is_everything", "places", "points")

    def __init__(self, cuts: list[Exact], points: list[bool], between: list[Lattices]) -> None:
        kinds = list(dict.fromkeys((NO_NUMBER, ALL_NUMBERS, *between)))
        self.conditions = [Divisibility(kind) for kind in kinds]  # The first two are none and all
        # Digits behind the point in one unit: enough for all cuts and steps.
        self.places = max(
            max(map(decimal_places, cuts)), max(condition.places for condition in self.conditions)
        )
        scale = 10**self.places
        self.cuts = [int(cut * scale) for cut in cuts]  # In units, ascending, the first one 0
        self.points = points  # Whether each cut belongs to the set
        self.between = [kinds.index(kind) for kind in between]  # Index of the condition above each cut
        self.is_everything = points == [True] and self.between == [1]

    def inside(self, low: int, high: int) -> int:
        """The condition that holds for all of low <= x < high, in units; -1 if a cut lies among them."""
        index = bisect_left(self.cuts, low)
        if index < len(self.cuts) and self.cuts[index] < high:
            return -1
        return self.between[index - 1]

    def above(self, cut: int) -> int:
        """The condition right above a cut."""
        return self.between[bisect_left(self.cuts, cut)]

    def has(self, digits: int, read: int) -> bool:
        """Whether the set has the number with `read` digits behind the point, at most `places`."""
        number = digits * 10 ** (self.places - read)
        index = bisect_left(self.cuts, number)
        if index < len(self.cuts) and self.cuts[index] == number:
            return self.points[index]
        condition = self.conditions[self.between[index - 1]]
        excess = self.places - condition.places
        whole, rest = divmod(number, 10**excess)
        return condition.otherwise if rest else condition.meets(condition.places, whole)


def magnitudes(
    cuts: tuple[Exact, ...], points: tuple[bool, ...], between: tuple[Lattices, ...], zero: bool
) -> tuple[Magnitudes, Magnitudes]:
    """The numbers from 0 up, and those from 0 down without their sign; `zero` says whether 0 is one."""
    first = bisect_left(cuts, 0)
    above = first + (first < len(cuts) and cuts[first] == 0)
    positive = Magnitudes([0, *cuts[above:]], [zero, *points[above:]], list(between[above:]))
    negative = Magnitudes(
        [0, *(-cut for cut in reversed(cuts[:first]))],
        [zero, *reversed(points[:first])],
        list(reversed(between[: first + 1])),
    )
    return positive, negative


OPEN = -1
NONE = 0

Plain = Any
"""A state. In front of the point: (INTEGER, entries, digits or residue, number of digits or -1).

Behind it: (NEAR, digits, read, blocked) near a cut, (FAR, condition, read, residue, blocked) elsewhere, or
(TAIL, whether the number is in the set, whether longer ones are, blocked) if nothing else matters. A blocked
number may not end."""

INTEGER, NEAR, FAR, TAIL = range(4)
NOWHERE: list[Plain] = [None] * 10
ANYTHING: Plain = (TAIL, True, True, False)


class PlainReader:
    """Reads plain decimals; with `canonical` a fraction may not end with zeros."""

    __slots__ = ("_by_length", "_canonical", "_lengths_of_cuts", "_moduli", "_numbers", "_residues", "_scale")

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
        """States behind the first digit, by digit; None if no number begins with it."""
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
            _, condition, read, residue, _ = state
            return [
                self._far(condition, read + 1, residue * 10 + digit, self._canonical and not digit)
                for digit in range(10)
            ]
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
        """States behind one more digit, while a cut may be near, after `count` digits."""
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
        """The state with these entries, without digits if they do not matter; None if nothing is left."""
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
        """The state near a cut, behind `read` digits of the fraction."""
        if read < self._numbers.places:
            return (NEAR, digits, read, blocked)
        # No more places matter: the number is a cut, and longer ones are right above it, on no lattice.
        above = self._numbers.conditions[self._numbers.above(digits)]
        return _tail(self._numbers.has(digits, read), above.otherwise, blocked)

    def _far(self, condition: int, read: int, digits: int, blocked: bool) -> Plain:
        """The state with one condition left, behind `read` digits of the fraction."""
        divisibility = self._numbers.conditions[condition]
        excess = read - divisibility.places
        if excess < 0:
            return (FAR, condition, read, digits % divisibility.moduli[read], blocked)
        digits, rest = divmod(digits, 10**excess)
        belongs = divisibility.otherwise if rest else divisibility.meets(divisibility.places, digits)
        return _tail(belongs, divisibility.otherwise, blocked)


def _tail(belongs: bool, longer: bool, blocked: bool) -> Plain:
    return (TAIL, belongs, longer, blocked) if belongs or longer else None
