"""Numbers that every reader of JSON keeps as they are: what a model is held to when it writes."""

from __future__ import annotations

from decimal import Decimal
from functools import lru_cache

from decoding.grammar.regular.number_set import NumberSet


def _up_to(largest: Decimal, step: Decimal) -> NumberSet:
    return NumberSet.of(least=-largest, most=largest, multiple_of=step)


# Fifteen significant digits survive being read into a double and printed again.
WRITTEN_INTEGERS = _up_to(Decimal(10) ** 15, Decimal(1))
WRITTEN_NUMBERS = WRITTEN_INTEGERS | _up_to(Decimal(10) ** 9, Decimal("1e-6"))
# For sets that have none of these.
_SHORT = NumberSet.of(multiple_of=Decimal("1e-15"))


@lru_cache(maxsize=1024)
def written(numbers: NumberSet) -> NumberSet:
    """Return the integers among the numbers up to 1e15, and the others up to 1e9 with at most six decimals.

    Without such bounds a model may write digits until its budget is spent. Of a set that has no such number
    those with at most fifteen decimals are returned, or all where there are none.
    """
    for bound in (WRITTEN_NUMBERS, _SHORT):
        bounded = numbers & bound
        if not bounded.is_empty:
            return bounded
    return numbers
