"""Checks that a predicate fits an index: its columns exist, and have the types of their values."""

from __future__ import annotations

import difflib
from collections.abc import Mapping

import pyarrow as pa

from genret.retrieval.filters.predicate import (
    Column,
    Comparison,
    Constant,
    IsNull,
    Leaf,
    Like,
    Literal,
    Membership,
    Predicate,
    Truth,
    error_at,
    leaves,
    literal_text,
)

_MAX_LISTED = 30
_SHOWN_CHARS = 40

# Types of the values that a column of each type may be compared with.
_VALUES: dict[str, tuple[type, ...]] = {
    "string": (str,),
    "int": (int, float),
    "float": (int, float),
    "bool": (bool,),
}


def kind_of(data_type: pa.DataType) -> str:
    """Return "string", "int", "float" or "bool", or Arrow's name of a type that filters cannot compare."""
    if pa.types.is_dictionary(data_type):
        data_type = data_type.value_type
    if pa.types.is_string(data_type) or pa.types.is_large_string(data_type):
        return "string"
    if pa.types.is_boolean(data_type):
        return "bool"
    if pa.types.is_integer(data_type):
        return "int"
    if pa.types.is_float64(data_type):
        return "float"
    return str(data_type)


def check(predicate: Predicate, columns: Mapping[str, pa.DataType]) -> None:
    """Refuse a predicate that does not fit the columns of an index.

    Raises:
        InputError: a column is unknown, or has another type than its value; the field is "filter".
    """
    for leaf in leaves(predicate):
        if not isinstance(leaf, Constant):
            _check_leaf(leaf, columns)


def _check_leaf(leaf: Leaf, columns: Mapping[str, pa.DataType]) -> None:
    match leaf:
        case Constant():
            return
        case IsNull():
            _known(leaf.column, columns)
        case Truth():
            kind = _known(leaf.column, columns)
            if kind != "bool":
                raise error_at(
                    leaf.column.at,
                    f"{_named(leaf.column)} is {kind}, not bool; expected a comparison after it",
                )
        case Like():
            kind = _known(leaf.column, columns)
            if kind != "string":
                raise error_at(
                    leaf.column.at, f"like needs a string column, and {_named(leaf.column)} is {kind}"
                )
            _check_pattern(leaf.pattern)
        case Membership():
            kind = _comparable(leaf.column, columns)
            for literal in leaf.literals:
                _check_value(leaf.column, kind, literal)
        case Comparison():
            kind = _comparable(leaf.column, columns)
            _check_value(leaf.column, kind, leaf.literal)
            if kind == "bool" and leaf.operator not in ("=", "!="):
                raise error_at(
                    leaf.column.at,
                    f"{_named(leaf.column)} is bool, which has no order; expected = or !=",
                )


def _known(column: Column, columns: Mapping[str, pa.DataType]) -> str:
    if column.name in columns:
        return kind_of(columns[column.name])
    folded = {name.casefold(): name for name in columns}
    close = difflib.get_close_matches(column.name.casefold()[:_SHOWN_CHARS], folded, n=1)
    hint = f", did you mean {_clip(folded[close[0]])!r}?" if close else ""
    names = sorted(columns)
    listed = ", ".join(_clip(name) for name in names[:_MAX_LISTED])
    more = f" and {len(names) - _MAX_LISTED} more" if len(names) > _MAX_LISTED else ""
    raise error_at(
        column.at, f"unknown column {_clip(column.name)!r}{hint or ';'} the index has: {listed}{more}"
    )


def _comparable(column: Column, columns: Mapping[str, pa.DataType]) -> str:
    kind = _known(column, columns)
    if kind not in _VALUES:
        raise error_at(column.at, f"{_named(column)} is {kind}, which filters cannot compare")
    return kind


def _check_value(column: Column, kind: str, literal: Literal) -> None:
    value = literal.value
    if value is None or (type(value) in _VALUES[kind]):
        return
    names: dict[type, str] = {str: "a string", bool: "a truth value", int: "a number", float: "a number"}
    shown = _clip(literal_text(value))
    message = f"{_named(column)} is {kind}, got {names[type(value)]}: {shown}"
    if kind == "string" and isinstance(value, int | float):
        message += f"; text stands in single quotes: '{shown}'"
    elif kind in ("int", "float") and isinstance(value, str) and _is_number(value):
        message += "; numbers stand without quotes"
    raise error_at(literal.at, message)


def _check_pattern(pattern: Literal) -> None:
    text = str(pattern.value)
    if (len(text) - len(text.rstrip("\\"))) % 2:
        raise error_at(pattern.at, r"the pattern ends in a single \; a backslash itself is written \\")


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _named(column: Column) -> str:
    return f"column {_clip(column.name)!r}"


def _clip(text: str) -> str:
    return text if len(text) <= _SHOWN_CHARS else text[: _SHOWN_CHARS - 1] + "…"
