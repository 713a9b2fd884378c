"""Predicates as trees, and their canonical text.

Two predicates with one canonical text are the same filter. It is itself a predicate: parsing it gives it
again. Places in the text (`at`, characters from 1) are kept for messages and do not count in comparisons.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

Value = str | int | float | bool | None

KEYWORDS = frozenset({"and", "or", "not", "in", "like", "is", "null", "true", "false"})
COMPARISONS = ("=", "!=", "<=", ">=", "<", ">")
_BARE_NAME = re.compile(r"[^\W\d]\w*")


@dataclass(frozen=True, slots=True)
class Column:
    """A column by name."""

    name: str
    at: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class Literal:
    """A value as it was written: text, an integer of any size, a finite number, true, false or null."""

    value: Value
    at: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class Constant:
    """true, false or null in the place of a predicate."""

    value: bool | None


@dataclass(frozen=True, slots=True)
class Truth:
    """A bare column: true where its value is."""

    column: Column


@dataclass(frozen=True, slots=True)
class Comparison:
    """column operator value; the operator is one of `COMPARISONS`."""

    column: Column
    operator: str
    literal: Literal


@dataclass(frozen=True, slots=True)
class Membership:
    """column in (value, …)."""

    column: Column
    literals: tuple[Literal, ...]


@dataclass(frozen=True, slots=True)
class Like:
    """column like pattern."""

    column: Column
    pattern: Literal


@dataclass(frozen=True, slots=True)
class IsNull:
    """column is null: true or false, never unknown."""

    column: Column


@dataclass(frozen=True, slots=True)
class Not:
    """The opposite; unknown stays unknown."""

    operand: Predicate


@dataclass(frozen=True, slots=True)
class And:
    """True when all are, false when one is false, else unknown. At least two operands."""

    operands: tuple[Predicate, ...]


@dataclass(frozen=True, slots=True)
class Or:
    """True when one is, false when all are false, else unknown. At least two operands."""

    operands: tuple[Predicate, ...]


Leaf = Constant | Truth | Comparison | Membership | Like | IsNull
Predicate = Leaf | Not | And | Or


def leaves(predicate: Predicate) -> list[Leaf]:
    """Return the leaves from left to right."""
    match predicate:
        case Not():
            return leaves(predicate.operand)
        case And() | Or():
            return [leaf for operand in predicate.operands for leaf in leaves(operand)]
        case _:
            return [predicate]


def canonical(predicate: Predicate) -> str:
    """Return the canonical text of a predicate that was parsed.

    Operands of `and` and `or` and the values of `in` are sorted and stand once: in three-valued logic too,
    order and repetition make no difference.
    """
    match predicate:
        case Constant():
            return literal_text(predicate.value)
        case Truth():
            return column_text(predicate.column.name)
        case Comparison():
            value = literal_text(predicate.literal.value)
            return f"{column_text(predicate.column.name)} {predicate.operator} {value}"
        case Membership() | Like() | IsNull():
            return _postfix(predicate, "")
        case Not():
            if isinstance(predicate.operand, Membership | Like | IsNull):
                return _postfix(predicate.operand, "not ")
            return f"not {_bracketed(predicate.operand, And, Or)}"
        case And():
            return " and ".join(sorted({_bracketed(operand, Or) for operand in predicate.operands}))
        case Or():
            return " or ".join(sorted({canonical(operand) for operand in predicate.operands}))


def column_text(name: str) -> str:
    """Return a column's name as a predicate writes it."""
    if _BARE_NAME.fullmatch(name) and name.lower() not in KEYWORDS:
        return name
    return '"' + name.replace('"', '""') + '"'


def literal_text(value: Value) -> str:
    """Return a value as a predicate writes it."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return "'" + value.replace("'", "''") + "'"
    return repr(value)


def _postfix(predicate: Membership | Like | IsNull, negation: str) -> str:
    column = column_text(predicate.column.name)
    match predicate:
        case Membership():
            values = ", ".join(sorted({literal_text(literal.value) for literal in predicate.literals}))
            return f"{column} {negation}in ({values})"
        case Like():
            return f"{column} {negation}like {literal_text(predicate.pattern.value)}"
        case IsNull():
            return f"{column} is {negation}null"


def _bracketed(predicate: Predicate, *kinds: type[And] | type[Or]) -> str:
    text = canonical(predicate)
    return f"({text})" if isinstance(predicate, kinds) else text
