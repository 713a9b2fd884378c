"""Defines the sets of numbers that schemas describe (integers, bounds, multiples), and builds their automata.

An automaton reads a sign, then a plain decimal (`number_magnitudes`); its states are made on demand.
`written` narrows a set to the numbers that a model may write.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Hashable, Iterable
from decimal import Decimal
from fractions import Fraction
from functools import lru_cache
from typing import Any

from genret.decoding.bounded_cache import Remembered
from genret.decoding.grammar.compile_options import AutomatonLimitError, current_budget
from genret.decoding.grammar.regular.byte_dfa import ByteDfa
from genret.decoding.grammar.regular.minimise import explored, joined
from genret.decoding.grammar.regular.number_magnitudes import (
    ALL_NUMBERS,
    INTEGERS,
    NO_NUMBER,
    Exact,
    Lattices,
    Magnitudes,
    PlainReader,
    complement,
    count_between,
    holds,
    magnitudes,
    meet,
)

MAX_DIGITS = 400
"""Most decimal places before or behind the point of a number in a schema; floats have up to 324."""


def exact(number: Decimal | int | float) -> Exact:
    """The number without rounding; a float counts as the decimal it prints as.

    Raises:
        ValueError: Not a finite number.
        AutomatonLimitError: More than `MAX_DIGITS` decimal places on one side of the point.
    """
    if isinstance(number, int):
        return int(number)
    decimal = Decimal(repr(number)) if isinstance(number, float) else number
    if not decimal.is_finite():
        raise ValueError(f"{decimal} is not a JSON number")
    exponent = decimal.as_tuple().exponent
    if decimal.adjusted() > MAX_DIGITS or (isinstance(exponent, int) and exponent < -MAX_DIGITS):
        if not decimal:
            return 0
        raise AutomatonLimitError(f"it has a number of more than {MAX_DIGITS} digits")
    fraction = Fraction(decimal)
    return fraction.numerator if fraction.denominator == 1 else fraction


LARGE_STEP, FEW_MULTIPLES = 1_000, 256
"""Up to 256 multiples of a step of at least 1,000 between two bounds are spelled one by one."""


class NumberSet:
    """A set of JSON numbers by value. Closed under `&`, `|`, `-`, `~`; immutable and hashable.

    The line is cut at finitely many points. Each point is in the set or not; between two of them a condition
    of divisibility decides. Sets made alike are equal. Different descriptions of one set, such as integers
    above 0 and integers from 1, may be unequal; `(a - b).is_empty and (b - a).is_empty` decides exactly.
    """

    __slots__ = ("_between", "_cuts", "_hash", "_points")

    def __init__(
        self, cuts: tuple[Exact, ...], points: tuple[bool, ...], between: tuple[Lattices, ...]
    ) -> None:
        """Use `of` and `of_values`.

        Args:
            cuts: Points at which the line is cut, ascending.
            points: Whether each cut itself belongs to the set.
            between: Condition below the first cut, between each two, and above the last.
        """
        self._cuts, self._points, self._between = _simplified(cuts, points, between)
        self._hash = hash((self._cuts, self._points, self._between))

    @staticmethod
    def of(
        *,
        integers: bool = False,
        least: Decimal | None = None,
        above: Decimal | None = None,
        most: Decimal | None = None,
        below: Decimal | None = None,
        multiple_of: Decimal | None = None,
    ) -> NumberSet:
        """Numbers that satisfy all given bounds, and are integers and multiples where asked.

        Raises:
            ValueError: `multiple_of` is not positive, or a number is not finite.
            AutomatonLimitError: A number has too many digits.
        """
        lattices = INTEGERS if integers else ALL_NUMBERS
        if multiple_of is not None:
            if not multiple_of > 0:
                raise ValueError(f"multiple_of is {multiple_of}, but must be positive")
            lattices = meet(lattices, ((exact(multiple_of), 1),))
        numbers = NumberSet((), (), (lattices,))
        upwards, downwards = (NO_NUMBER, ALL_NUMBERS), (ALL_NUMBERS, NO_NUMBER)
        for bound, closed, between in (
            (least, True, upwards),
            (above, False, upwards),
            (most, True, downwards),
            (below, False, downwards),
        ):
            if bound is not None:
                numbers &= NumberSet((exact(bound),), (closed,), between)
        return numbers

    @staticmethod
    def of_values(values: Iterable[Decimal | int | float]) -> NumberSet:
        """The given numbers. Raises ValueError for a number that is not finite, AutomatonLimitError for a
        long one.
        """
        found: set[Exact] = set()
        check_time = current_budget().check_time
        for number, value in enumerate(values):
            if not number & 255:
                check_time()
            found.add(exact(value))
        cuts = tuple(sorted(found))
        return NumberSet(cuts, (True,) * len(cuts), (NO_NUMBER,) * (len(cuts) + 1))

    @property
    def is_empty(self) -> bool:
        """Whether the set has no number."""
        return self._between == (NO_NUMBER,) and not self._cuts

    @property
    def is_everything(self) -> bool:
        """Whether the set has every number."""
        return self._between == (ALL_NUMBERS,)

    def count(self) -> int | None:
        """Count the numbers; None: infinitely many."""
        total = sum(self._points)
        for condition, low, high in zip(self._between, (None, *self._cuts), (*self._cuts, None), strict=True):
            count = count_between(condition, low, high)
            if count is None:
                return None
            total += count
        return total

    def has(self, number: Exact) -> bool:
        """Whether the number is in the set."""
        index = bisect_left(self._cuts, number)
        if index < len(self._cuts) and self._cuts[index] == number:
            return self._points[index]
        return holds(self._between[index], number)

    def spelled(self, canonical: bool = False) -> ByteDfa:
        """The JSON texts of the numbers: never a text of another number, but not every spelling of its own.

        Accepted are plain decimals with any number of zeros at the end of the fraction: `5`, `5.0`, `-0.50`,
        `-0`. Where the set holds all numbers of a sign, and zero, every spelling of JSON is accepted: `1e5`.

        Args:
            canonical: Whether each number has one text only: a plain decimal without zeros at the end of the
                fraction and without `-0`.

        Raises:
            AutomatonLimitError: The automaton would have too many states.
        """
        return _spelled(self, canonical)

    def __and__(self, other: NumberSet) -> NumberSet:
        if self is other or other.is_everything:
            return self
        if self.is_everything:
            return other
        cuts = tuple(sorted({*self._cuts, *other._cuts}))
        between = [meet(self._between[0], other._between[0])]
        between += [
            meet(self._between[_above(self._cuts, cut)], other._between[_above(other._cuts, cut)])
            for cut in cuts
        ]
        return NumberSet(cuts, tuple(self.has(cut) and other.has(cut) for cut in cuts), tuple(between))

    def __or__(self, other: NumberSet) -> NumberSet:
        return ~(~self & ~other)

    @property
    def num_bytes(self) -> int:
        """Approximate memory."""
        digits = sum(cut.numerator.bit_length() + cut.denominator.bit_length() for cut in self._cuts)
        return 300 * (len(self._cuts) + 1) + digits // 8

    def __sub__(self, other: NumberSet) -> NumberSet:
        return self & ~other

    def __invert__(self) -> NumberSet:
        return NumberSet(
            self._cuts, tuple(not point for point in self._points), tuple(map(complement, self._between))
        )

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, NumberSet):
            return NotImplemented
        return self._cuts == other._cuts and self._points == other._points and self._between == other._between

    def __hash__(self) -> int:
        return self._hash

    def __repr__(self) -> str:
        return f"NumberSet(cuts={self._cuts}, points={self._points}, between={self._between})"


def _simplified(
    cuts: tuple[Exact, ...], points: tuple[bool, ...], between: tuple[Lattices, ...]
) -> tuple[tuple[Exact, ...], tuple[bool, ...], tuple[Lattices, ...]]:
    """Drop cuts that cut nothing, and replace conditions that always or never hold between their cuts."""
    lows, highs = (None, *cuts), (*cuts, None)
    cleared = [
        _cleared(condition, low, high) for condition, low, high in zip(between, lows, highs, strict=True)
    ]
    kept_cuts: list[Exact] = []
    kept_points: list[bool] = []
    kept_between = [cleared[0]]
    check_time = current_budget().check_time
    for number, (cut, point, condition) in enumerate(zip(cuts, points, cleared[1:], strict=True)):
        if number & 1023 == 1023:
            check_time()
        if condition == kept_between[-1] and point == holds(condition, cut):
            continue
        kept_cuts.append(cut)
        kept_points.append(point)
        kept_between.append(condition)
    return tuple(kept_cuts), tuple(kept_points), tuple(kept_between)


def _cleared(condition: Lattices, low: Exact | None, high: Exact | None) -> Lattices:
    if condition in (NO_NUMBER, ALL_NUMBERS):
        return condition
    if count_between(condition, low, high) == 0:
        return NO_NUMBER
    return ALL_NUMBERS if count_between(complement(condition), low, high) == 0 else condition


def _above(cuts: tuple[Exact, ...], cut: Exact) -> int:
    """The index of the condition right above a number."""
    index = bisect_left(cuts, cut)
    return index + 1 if index < len(cuts) and cuts[index] == cut else index


def _with_few_multiples_listed(numbers: NumberSet) -> NumberSet:
    """List a few multiples of a large step one by one: that takes fewer states than residues."""
    values: list[Exact] = []
    between = list(numbers._between)
    for index, (low, high) in enumerate(zip(numbers._cuts, numbers._cuts[1:], strict=False), start=1):
        condition = between[index]
        if len(condition) != 1 or condition[0][0].numerator < LARGE_STEP:
            continue
        count, step = count_between(condition, low, high), condition[0][0]
        if count is not None and count <= FEW_MULTIPLES:
            first = low // step + 1
            values += [_exact_multiple(first + number, step) for number in range(count)]
            between[index] = NO_NUMBER
    if not values:
        return numbers
    listed = NumberSet(tuple(values), (True,) * len(values), (NO_NUMBER,) * (len(values) + 1))
    return listed | NumberSet(numbers._cuts, numbers._points, tuple(between))


def _exact_multiple(number: int, step: Exact) -> Exact:
    product = number * step
    return product.numerator if product.denominator == 1 else product


def _spell(numbers: NumberSet, canonical: bool) -> ByteDfa:
    numbers = _with_few_multiples_listed(numbers)
    positive, negative = magnitudes(numbers._cuts, numbers._points, numbers._between, numbers.has(0))
    if canonical:
        negative.points[0] = False
    return _NumberReader(positive, negative, canonical).automaton()


def _size(spelled: ByteDfa, numbers: NumberSet, canonical: bool) -> int:
    return spelled.num_bytes + numbers.num_bytes


_spelled = Remembered(_spell, _size)


ZERO, NINE, POINT, MINUS, PLUS, E_UPPER, E_LOWER = b"09.-+Ee"
ReaderEdge = tuple[int, int, Hashable]

_DIGITS = (ZERO, NINE)
_POINT = (POINT, POINT, "point")
_MARKS = ((E_UPPER, E_UPPER, "e"), (E_LOWER, E_LOWER, "e"))
_POWER = (*_DIGITS, "power")
_EVERY: dict[str, tuple[ReaderEdge, ...]] = {
    "first": ((ZERO, ZERO, "zero"), (ZERO + 1, NINE, "whole")),
    "zero": (_POINT, *_MARKS),
    "whole": (_POINT, (*_DIGITS, "whole"), *_MARKS),
    "point": ((*_DIGITS, "fraction"),),
    "fraction": ((*_DIGITS, "fraction"), *_MARKS),
    "e": ((PLUS, PLUS, "sign"), (MINUS, MINUS, "sign"), _POWER),
    "sign": (_POWER,),
    "power": (_POWER,),
}
"""Edges of an automaton of all JSON numbers without a sign, by the part that was read last."""


class _NumberReader:
    """Reads a sign and the number behind it.

    A state is None at first, "minus", the name of a part of any number, or the index of the sign with the
    state of its `PlainReader`.
    """

    def __init__(self, positive: Magnitudes, negative: Magnitudes, canonical: bool) -> None:
        self._readers: list[Any] = [
            None if numbers.is_everything and not canonical else PlainReader(numbers, canonical)
            for numbers in (positive, negative)
        ]

    def automaton(self) -> ByteDfa:
        """The texts it accepts, with label 0. Raises AutomatonLimitError for too many states."""
        rows, labels = explored(None, lambda state: (0 if self.is_final(state) else -1, self.edges(state)))
        return ByteDfa.from_rows(rows, labels)

    def edges(self, state: Any) -> Iterable[ReaderEdge]:
        """First digit, last digit and the state behind them, sorted and disjoint."""
        if state is None:
            return [(MINUS, MINUS, "minus"), *self._first(0)]
        if state == "minus":
            return self._first(1)
        if isinstance(state, str):
            return _EVERY[state]
        side, plain = state
        reader = self._readers[side]
        edges = _digits(side, reader.steps(plain))
        point = reader.point(plain)
        return edges if point is None else [(POINT, POINT, (side, point)), *edges]

    def is_final(self, state: Any) -> bool:
        """Whether the number may end in a state."""
        if isinstance(state, tuple):
            side, plain = state
            return bool(self._readers[side].is_final(plain))
        return state in ("zero", "whole", "fraction", "power")

    def _first(self, side: int) -> Iterable[ReaderEdge]:
        reader = self._readers[side]
        return _EVERY["first"] if reader is None else _digits(side, reader.first())


def _digits(side: int, plains: Iterable[Any]) -> list[ReaderEdge]:
    """Edges of the ten digits to the states behind each, None for none; alike neighbours are joined."""
    digits = enumerate(plains, ZERO)
    return list(joined([(byte, byte, (side, plain)) for byte, plain in digits if plain is not None]))


def _up_to(largest: Decimal, step: Decimal) -> NumberSet:
    return NumberSet.of(least=-largest, most=largest, multiple_of=step)


# Fifteen significant digits survive being read into a double and printed again.
WRITTEN_INTEGERS = _up_to(Decimal(10) ** 15, Decimal(1))
WRITTEN_NUMBERS = WRITTEN_INTEGERS | _up_to(Decimal(10) ** 9, Decimal("1e-6"))
# For sets that have none of these.
_SHORT = NumberSet.of(multiple_of=Decimal("1e-15"))


@lru_cache(maxsize=1024)
def written(numbers: NumberSet) -> NumberSet:
    """The integers among the numbers up to 1e15, and the others up to 1e9 with at most six decimals.

    Without such bounds a model may write digits until its budget is spent. A set with no such number yields
    its numbers of at most fifteen decimals, or all of them if it has none of those either.
    """
    for bound in (WRITTEN_NUMBERS, _SHORT):
        bounded = numbers & bound
        if not bounded.is_empty:
            return bounded
    return numbers
