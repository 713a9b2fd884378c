"""Whether a formula holds for a value, asked part by part: slow, and plain enough to be right."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from typing import Any

from genret.decoding.grammar.regular.number_set import NumberSet
from genret.decoding.grammar.schema.formula import (
    AllOf,
    AnyOf,
    Contains,
    ExactlyOne,
    Formula,
    ItemCount,
    Items,
    JsonType,
    NotOf,
    NumberIn,
    Properties,
    PropertyCount,
    PropertyNames,
    Reference,
    Required,
    TextIn,
    TypeIs,
    UniqueItems,
)
from genret.decoding.grammar.schema.formula_table import FormulaTable

_INTEGERS = NumberSet.of(integers=True)


def type_of(value: Any) -> JsonType:
    """The one type of a parsed value."""
    if value is None:
        return JsonType.NULL
    if value is True:
        return JsonType.TRUE
    if value is False:
        return JsonType.FALSE
    if isinstance(value, str):
        return JsonType.STRING
    if isinstance(value, list):
        return JsonType.ARRAY
    return JsonType.OBJECT if isinstance(value, dict) else JsonType.NUMBER


def identity(value: Any) -> Any:
    """A hashable stand-in for a parsed value, equal exactly for values that JSON Schema calls equal."""
    kind = int(type_of(value))
    if isinstance(value, list):
        return kind, tuple(map(identity, value))
    if isinstance(value, dict):
        return kind, frozenset((key, identity(inner)) for key, inner in value.items())
    if kind == JsonType.NUMBER:
        return kind, Fraction(Decimal(repr(value)) if isinstance(value, float) else value)
    return kind, value


def evaluates(formula: Formula, table: FormulaTable, instance: Any) -> bool:
    """Whether a formula holds for a value.

    Args:
        formula: What to ask.
        table: Resolves its references.
        instance: A parsed JSON value: dict, list, str, int, float or Decimal, bool, None.
    """

    def holds(part: Formula, value: Any) -> bool:
        return evaluates(part, table, value)

    match formula:
        case AllOf():
            return all(holds(part, instance) for part in formula.parts)
        case AnyOf():
            return any(holds(part, instance) for part in formula.parts)
        case ExactlyOne():
            return sum(holds(part, instance) for part in formula.parts) == 1
        case NotOf():
            return not holds(formula.part, instance)
        case Reference():
            return holds(table.resolve(formula.target), instance)
        case TypeIs():
            return bool(formula.types & type_of(instance))
    kind = type_of(instance)
    if kind == JsonType.NUMBER:
        return not isinstance(formula, NumberIn) or _is_number_in(formula, table, instance)
    if kind == JsonType.STRING:
        return not isinstance(formula, TextIn) or formula.texts.accepts(instance)
    if kind == JsonType.ARRAY:
        return _of_array(formula, instance, holds)
    return kind != JsonType.OBJECT or _of_object(formula, instance, holds)


def _is_number_in(formula: NumberIn, table: FormulaTable, number: Any) -> bool:
    if table.plain_integers and not isinstance(number, int) and (formula.numbers - _INTEGERS).is_empty:
        return False
    return formula.numbers.has(identity(number)[1])


_Holds = Callable[[Formula, Any], bool]


def _within(count: int, least: int, most: int | None) -> bool:
    return least <= count and (most is None or count <= most)


def _of_array(formula: Formula, items: list[Any], holds: _Holds) -> bool:
    match formula:
        case Items():
            said = [*formula.prefix, *[formula.rest] * len(items)]
            return all(holds(part, item) for part, item in zip(said, items, strict=False))
        case ItemCount():
            return _within(len(items), formula.least, formula.most)
        case Contains():
            return _within(sum(holds(formula.item, item) for item in items), formula.least, formula.most)
        case UniqueItems():
            return len({identity(item) for item in items}) == len(items)
    return True


def _of_object(formula: Formula, members: dict[str, Any], holds: _Holds) -> bool:
    match formula:
        case Properties():
            return all(
                holds(part, value) for key, value in members.items() for part in _said_of(key, formula)
            )
        case Required():
            return all(name in members for name in formula.names)
        case PropertyCount():
            return _within(len(members), formula.least, formula.most)
        case PropertyNames():
            return all(formula.names.accepts(key) for key in members)
    return True


def _said_of(key: str, properties: Properties) -> list[Formula]:
    said = [part for name, part in properties.named if name == key]
    said += [part for keys, part in properties.patterns if keys.accepts(key)]
    return said or [properties.additional]
