"""Sets of numbers as schemas speak of them: integers, bounds, multiples; and how they are spelled."""

from __future__ import annotations

from decimal import Decimal

from decoding.grammar.regular.byte_dfa import ByteDfa


class NumberSet:
    """A set of JSON numbers by value. Closed under `&`, `|`, `-`, `~`; hashable."""

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
        """Numbers x with least <= x <= most, above < x < below, that are integers and multiples where asked."""

    def spelled(self) -> ByteDfa:
        """The texts of its numbers. Raises `AutomatonLimitError` when they are too many states."""
