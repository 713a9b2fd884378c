"""Comparisons of number columns with literals of any size, exactly.

A literal that the column's type cannot hold is never rounded into it: the comparison becomes one with a
neighbouring value that says the same of every value of the column, or a constant.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import pyarrow as pa

# What a comparison is when the column's value is certainly below, or above, the literal.
_BELOW = {"=": False, "!=": True, "<": True, "<=": True, ">": False, ">=": False}
_ABOVE = {"=": False, "!=": True, "<": False, "<=": False, ">": True, ">=": True}


class Narrow(NamedTuple):
    """A comparison with a value of the column's own type."""

    operator: str
    value: int | float


def integer_bounds(data_type: pa.DataType) -> tuple[int, int]:
    """Return the least and the greatest value of an integer type."""
    bits = data_type.bit_width
    if pa.types.is_unsigned_integer(data_type):
        return 0, 2**bits - 1
    return -(2 ** (bits - 1)), 2 ** (bits - 1) - 1


def narrow_to_integer(operator: str, literal: int | float, data_type: pa.DataType) -> Narrow | bool:
    """Return the comparison that decides `integer column operator literal`; a bool where all agree."""
    least, greatest = integer_bounds(data_type)
    if literal > greatest:
        return _BELOW[operator]
    if literal < least:
        return _ABOVE[operator]
    whole = math.floor(literal)
    if whole == literal:
        return Narrow(operator, whole)
    if operator in ("=", "!="):
        return operator == "!="
    # Between two integers: up to the lower one is below the literal, all else above it.
    return Narrow("<=" if operator in ("<", "<=") else ">", whole)


def narrow_to_float(operator: str, literal: int | float) -> Narrow | bool:
    """Return the comparison that decides `double column operator literal`; a bool where all agree.

    NaN in the column equals nothing and is neither below nor above anything.
    """
    try:
        nearest = float(literal)
    except OverflowError:
        nearest = math.inf if literal > 0 else -math.inf
    if nearest == literal:  # Python compares integers and floats exactly
        return Narrow(operator, nearest)
    if operator in ("=", "!="):
        return operator == "!="
    # No double lies between the literal and the one nearest to it.
    nearest_is_above = nearest > literal
    if operator in ("<", "<="):
        return Narrow("<" if nearest_is_above else "<=", nearest)
    return Narrow(">=" if nearest_is_above else ">", nearest)
