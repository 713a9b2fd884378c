"""Conditions of divisibility: "an integer", "a multiple of 0.5", and what Boolean operations make of them.

The multiples of a step are a lattice, and the indicator of the intersection of two lattices is the product of
their indicators. So every Boolean combination of such conditions is an integer combination of indicators of
lattices, and it is so in one way only, because indicators of different lattices are linearly independent. The
operations are arithmetic on coefficients; the sum at a number is 1 if the number meets the condition, else 0.
"""

from __future__ import annotations

from fractions import Fraction
from functools import lru_cache
from math import gcd

from decoding.grammar.budget import AutomatonLimitError

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
    """The step of the numbers that are multiples of both; 0 is no condition."""
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
    """How many numbers above `low` and below `high` meet the condition; None: infinitely many.

    Args:
        lattices: The condition.
        low: None is no bound.
        high: Above `low`; None is no bound.
    """
    if not lattices:
        return 0
    if low is None or high is None or not lattices[0][0]:
        return None
    return sum(factor * int(-(-high // step) - 1 - low // step) for step, factor in lattices)
