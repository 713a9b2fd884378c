"""Types of metadata columns: what cells look like, what a column is, and text to typed values.

Cells travel as canonical text. A column gets the narrowest type from which every cell's text can be had back:
int before float, bool, else string.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from enum import IntFlag, StrEnum

import pyarrow as pa
import pyarrow.compute as pc

_INT64_MIN, _INT64_MAX = -(1 << 63), (1 << 63) - 1
_EXACT_DOUBLE = 1 << 53  # every integer up to here is a double
_INT = re.compile(r"(?:0|-?[1-9][0-9]{0,18})\Z")
# What repr() of a finite float looks like: "1.5", "-0.0", "1e-07", "2.5e+20".
_FLOAT = re.compile(r"-?[0-9]+(?:\.[0-9]+)?(?:e[+-][0-9]+)?\Z")
_INT_PATTERN = r"^(?:0|-?[1-9][0-9]{0,14})$"  # shorter than 2**53, so neither range needs a look
_DECLARED_INT = re.compile(r"[+-]?[0-9]{1,30}\Z")
_DECLARED_FLOAT = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?\Z")
_BOOLS = {"true": "true", "false": "false", "1": "true", "0": "false"}
_SAMPLE = 8


class ColumnType(StrEnum):
    """Type of a metadata column."""

    STRING = "string"
    INT = "int"
    FLOAT = "float"
    BOOL = "bool"

    @property
    def arrow(self) -> pa.DataType:
        """The Arrow type of its cells."""
        return {"string": pa.string(), "int": pa.int64(), "float": pa.float64(), "bool": pa.bool_()}[self]


class Kinds(IntFlag):
    """What the cells of a column look like, as a set.

    Attributes:
        EMPTY: No value.
        INT: An integer of 64 bits in canonical text.
        FLOAT: A number in the text `repr` gives to a float.
        BOOL: "true" or "false".
        STRING: Anything else.
        LONG_INT: Beside INT: one that no float holds exactly.
    """

    NONE = 0
    EMPTY = 1
    INT = 2
    FLOAT = 4
    BOOL = 8
    STRING = 16
    LONG_INT = 32


def kind_of_text(text: str) -> Kinds:
    """Return what one non-empty cell looks like."""
    if _INT.match(text):
        return kind_of_int(int(text))
    if text in ("true", "false"):
        return Kinds.BOOL
    if _FLOAT.match(text) and repr(float(text)) == text:
        return Kinds.FLOAT
    return Kinds.STRING


def kind_of_int(value: int) -> Kinds:
    """Return the kind of an integer; STRING beyond 64 bits."""
    if -_EXACT_DOUBLE <= value <= _EXACT_DOUBLE:
        return Kinds.INT
    if not _INT64_MIN <= value <= _INT64_MAX:
        return Kinds.STRING
    return Kinds.INT | (Kinds.NONE if int(float(value)) == value else Kinds.LONG_INT)


def classify(cells: Sequence[str | None]) -> Kinds:
    """Return what the cells of a text column look like.

    Once STRING is found the rest is not looked at: it cannot change the column's type any more.

    Args:
        cells: Canonical text; None where empty.
    """
    seen = Kinds.NONE
    for cell in cells[:_SAMPLE]:
        seen |= Kinds.EMPTY if cell is None else kind_of_text(cell)
    if seen & Kinds.STRING or len(cells) <= _SAMPLE:
        return seen
    rest = pa.array(cells[_SAMPLE:], type=pa.string())
    if rest.null_count:
        seen |= Kinds.EMPTY
        rest = rest.drop_null()
    short_int = pc.match_substring_regex(rest, _INT_PATTERN)
    if short_int.true_count:
        seen |= Kinds.INT
    for text in pc.unique(rest.filter(pc.invert(short_int))).to_pylist():
        seen |= kind_of_text(text)
        if seen & Kinds.STRING:
            break
    return seen


def resolve(kinds: Kinds, declared: ColumnType | None = None) -> ColumnType:
    """Return the type of a column.

    Args:
        kinds: Of all its cells.
        declared: What the user says it is; goes before everything.
    """
    if declared is not None:
        return declared
    values = kinds & ~Kinds.EMPTY
    if not values or values & Kinds.STRING:
        return ColumnType.STRING
    if values & Kinds.BOOL:
        return ColumnType.BOOL if values == Kinds.BOOL else ColumnType.STRING
    if not values & Kinds.FLOAT:
        return ColumnType.INT
    return ColumnType.STRING if values & Kinds.LONG_INT else ColumnType.FLOAT


def fit(text: str, column_type: ColumnType) -> str | None:
    """Return the canonical text of a cell in a column of a declared type; None when it does not fit.

    The declaration permits what inference would not: leading zeros and a plus sign, "1.50", "TRUE", 0 and 1
    for a bool.
    """
    if column_type is ColumnType.STRING:
        return text
    if column_type is ColumnType.BOOL:
        return _BOOLS.get(text.lower())
    if column_type is ColumnType.INT:
        value = int(text) if _DECLARED_INT.match(text) else None
        return None if value is None or not _INT64_MIN <= value <= _INT64_MAX else str(value)
    number = float(text) if _DECLARED_FLOAT.match(text) else float("inf")
    return repr(number) if abs(number) != float("inf") else None


def fit_number(text: str) -> str | None:
    """Return the canonical text of a number: an int if 64 bits hold it, else a float; None for other text."""
    return fit(text, ColumnType.INT) or fit(text, ColumnType.FLOAT)


def cast(cells: pa.Array, column_type: ColumnType) -> pa.Array:
    """Turn canonical text into typed values, exactly.

    Args:
        cells: string or large_string; null where empty.
        column_type: What `resolve` gave for all cells of the column.

    Returns:
        An array of `column_type.arrow` and the same length; strings keep the type they have.

    Raises:
        pa.ArrowInvalid: a cell is not of this type, so `resolve` has not seen it.
    """
    if column_type is ColumnType.STRING:
        return cells
    if column_type is ColumnType.BOOL:
        unknown = pc.invert(pc.is_in(cells, pa.array(["true", "false", None], type=cells.type)))
        if pc.any(unknown).as_py():
            raise pa.ArrowInvalid("a cell of a bool column is neither 'true' nor 'false'")
        return pc.equal(cells, pa.scalar("true", type=cells.type))
    return cells.cast(column_type.arrow)
