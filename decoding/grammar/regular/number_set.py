"""Sets of numbers as schemas speak of them: integers, bounds, multiples; and how they are spelled."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable
from decimal import Decimal
from fractions import Fraction

from decoding.grammar.budget import AutomatonLimitError, current_budget
from decoding.grammar.regular.byte_dfa import ByteDfa
from decoding.grammar.regular.number_lattice import (
    ALL_NUMBERS,
    INTEGERS,
    NO_NUMBER,
    Exact,
    Lattices,
    complement,
    count_between,
    holds,
    meet,
)
from decoding.grammar.regular.number_texts import spell
from decoding.grammar.regular.remembered import Remembered

MAX_DIGITS = 400
"""Most decimal places before or behind the point of a number in a schema; floats have up to 324."""

MAX_DIGITS_OF_VALUE = 100_000
"""The same for numbers that are only looked up."""


def exact(number: Decimal | int | float, max_digits: int = MAX_DIGITS) -> Exact:
    """The number without rounding, a float as the decimal it prints as.

    Raises:
        ValueError: Not a finite number.
        AutomatonLimitError: More than `max_digits` decimal places on one side of the point.
    """
    if isinstance(number, int):
        return int(number)
    decimal = Decimal(repr(number)) if isinstance(number, float) else number
    if not decimal.is_finite():
        raise ValueError(f"{decimal} is not a JSON number")
    exponent = decimal.as_tuple().exponent
    if decimal.adjusted() > max_digits or (isinstance(exponent, int) and exponent < -max_digits):
        if not decimal:
            return 0
        raise AutomatonLimitError(f"it has a number of more than {max_digits:,} digits")
    fraction = Fraction(decimal)
    return fraction.numerator if fraction.denominator == 1 else fraction


LARGE_STEP, FEW_MULTIPLES = 1_000, 256
"""Between two bounds, so few multiples of so large a step are spelled one by one."""


class NumberSet:
    """A set of JSON numbers by value. Closed under `&`, `|`, `-`, `~`; immutable and hashable.

    The line is cut at finitely many points. Of each point it is known whether it belongs to the set, and
    between two of them a condition of divisibility decides. Sets made alike are equal; different
    descriptions of one set, such as integers above 0 and integers from 1, may be unequal, which
    `(a - b).is_empty and (b - a).is_empty` decides exactly.
    """

    __slots__ = ("_between", "_cuts", "_hash", "_points")

    def __init__(
        self, cuts: tuple[Exact, ...], points: tuple[bool, ...], between: tuple[Lattices, ...]
    ) -> None:
        """Use `of` and `of_values`.

        Args:
            cuts: Where the line is cut, ascending.
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
        """Numbers x with least <= x <= most, above < x < below, that are integers and multiples where asked.

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
        for bound, closed in ((least, True), (above, False)):
            if bound is not None:
                numbers &= NumberSet((exact(bound),), (closed,), (NO_NUMBER, ALL_NUMBERS))
        for bound, closed in ((most, True), (below, False)):
            if bound is not None:
                numbers &= NumberSet((exact(bound),), (closed,), (ALL_NUMBERS, NO_NUMBER))
        return numbers

    @staticmethod
    def of_values(values: Iterable[Decimal | int | float]) -> NumberSet:
        """These numbers. Raises ValueError for one that is not finite, AutomatonLimitError for a long one."""
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
        """Whether there is no number in it."""
        return self._between == (NO_NUMBER,) and not self._cuts

    @property
    def is_everything(self) -> bool:
        """Whether all numbers are in it."""
        return self._between == (ALL_NUMBERS,)

    def count(self) -> int | None:
        """How many numbers are in it; None: infinitely many."""
        total = sum(self._points)
        for condition, low, high in zip(self._between, (None, *self._cuts), (*self._cuts, None), strict=True):
            count = count_between(condition, low, high)
            if count is None:
                return None
            total += count
        return total

    def contains(self, number: Decimal | int | float) -> bool:
        """Whether the number is in it; a float counts as the decimal it prints as.

        Raises:
            ValueError: Not a finite number.
            AutomatonLimitError: The number has too many digits.
        """
        return self._holds(exact(number, MAX_DIGITS_OF_VALUE))

    def _holds(self, number: Exact) -> bool:
        index = bisect_left(self._cuts, number)
        if index < len(self._cuts) and self._cuts[index] == number:
            return self._points[index]
        return holds(self._between[index], number)

    def spelled(self, canonical: bool = False) -> ByteDfa:
        """The JSON texts of its numbers: never a text of another number, but not every spelling of its own.

        Admitted are
        * every JSON number, where the set holds all numbers, and every one without a minus sign and `-0`,
          where it holds all that are not negative;
        * plain decimals with any number of zeros at the end of the fraction: `5`, `5.0`, `-0.50`, `-0`;
        * one digit from 1 to 9, possibly a fraction, and an exponent, as programs print large and small
          numbers: `1e+16`, `1.5E20`, `1e-07`. Between two bounds with a condition of divisibility this needs
          either that the exponent alone decides it: at least 0 for integers without a fraction, at least
          16 with one of up to 16 digits, and likewise for every step that divides a power of ten; or that
          the number is smaller than every step.
        Refused are all others: exponents behind other mantissas, `10e3`, `0e0`, `12.5e+1`.

        Args:
            canonical: One text for each number: plain decimals without zeros at the end of the fraction and
                without `-0`.

        Raises:
            AutomatonLimitError: It would be too many states.
        """
        return _spelled(self, canonical)

    def __and__(self, other: NumberSet) -> NumberSet:
        if self is other or other.is_everything:
            return self
        if self.is_everything:
            return other
        return _combined(self, other, meet, lambda left, right: left and right)

    def __or__(self, other: NumberSet) -> NumberSet:
        return ~(~self & ~other)

    @property
    def num_bytes(self) -> int:
        """Memory it takes, about."""
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
    """The same set without cuts that cut nothing, and with conditions made trivial where they are so."""
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


def _combined(
    left: NumberSet,
    right: NumberSet,
    between: Callable[[Lattices, Lattices], Lattices],
    points: Callable[[bool, bool], bool],
) -> NumberSet:
    """Both sets cut at the cuts of both, combined piece by piece."""
    cuts = tuple(sorted({*left._cuts, *right._cuts}))
    conditions = [between(left._between[0], right._between[0])]
    kept = []
    for cut in cuts:
        kept.append(points(left._holds(cut), right._holds(cut)))
        conditions.append(
            between(left._between[_above(left._cuts, cut)], right._between[_above(right._cuts, cut)])
        )
    return NumberSet(cuts, tuple(kept), tuple(conditions))


def _above(cuts: tuple[Exact, ...], cut: Exact) -> int:
    """Index of the condition right above a number."""
    index = bisect_left(cuts, cut)
    return index + 1 if index < len(cuts) and cuts[index] == cut else index


def _with_few_multiples_listed(numbers: NumberSet) -> NumberSet:
    """The same set, where a few multiples of a large step are single numbers: fewer states than residues."""
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
    return spell(numbers._cuts, numbers._points, numbers._between, canonical)


def _size(spelled: ByteDfa, numbers: NumberSet, canonical: bool) -> int:
    return spelled.num_bytes + numbers.num_bytes


_spelled = Remembered(_spell, _size)
