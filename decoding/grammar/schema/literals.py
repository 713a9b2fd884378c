"""`enum` and `const`: values that are listed."""

from __future__ import annotations

from decimal import Decimal

from decoding.grammar.budget import AutomatonLimitError, current_budget
from decoding.grammar.errors import SchemaLimitError
from decoding.grammar.regular.dfa import Dfa
from decoding.grammar.regular.number_set import NumberSet
from decoding.grammar.regular.remembered import Remembered
from decoding.grammar.regular.text_set import TextSet
from decoding.grammar.schema.document import Json
from decoding.grammar.schema.formula import (
    NOTHING,
    And,
    Formula,
    ItemCount,
    Items,
    NumberIn,
    Or,
    Place,
    Properties,
    Required,
    TextIn,
)
from decoding.grammar.schema.scalars import ARRAY, NUMBER, OBJECT, STRING, TYPES
from decoding.grammar.schema.translation import Schema, Scope, Translation


def enumerated(t: Translation, schema: Schema, keyword: str, pointer: str, scope: Scope) -> Formula:
    """`enum`."""
    return one_of(schema["enum"], Place("enum", f"{pointer}/enum"))


def constant(t: Translation, schema: Schema, keyword: str, pointer: str, scope: Scope) -> Formula:
    """`const`."""
    return one_of((schema["const"],), Place("const", f"{pointer}/const"))


def one_of(values: list[Json] | tuple[Json, ...], place: Place) -> Formula:
    """The value is equal to one of these; all scalars among them are one condition."""
    mask = 0
    texts: list[str] = []
    numbers: list[int | Decimal] = []
    containers: list[Formula] = []
    check_time = current_budget().check_time
    for number, value in enumerate(values):
        if not number & 255:
            check_time()
        if isinstance(value, str):
            texts.append(value)
        elif value is None:
            mask |= 1
        elif isinstance(value, bool):
            mask |= 4 if value else 2
        elif isinstance(value, list):
            containers.append(_array(value, place))
        elif isinstance(value, dict):
            containers.append(_object(value, place))
        else:
            numbers.append(value)
    scalars = _scalars(mask, texts, numbers, place)
    if not containers:
        return scalars
    # Equal containers must not be alternatives of their own, or one text would be spelled in two ways.
    distinct: dict[Formula, None] = {}
    for number, container in enumerate(containers):
        if not number & 63:
            check_time()
        distinct[container] = None
    parts = ([] if scalars is NOTHING else [scalars]) + list(distinct)
    return parts[0] if len(parts) == 1 else Or(tuple(parts), place)


def _scalars(mask: int, texts: list[str], numbers: list[int | Decimal], place: Place) -> Formula:
    conditions: list[Formula] = []
    try:
        if texts:
            mask |= STRING
            conditions.append(TextIn(_text_set(tuple(texts)), place))
        if numbers:
            mask |= NUMBER
            conditions.append(NumberIn(_number_set(tuple(numbers)), place))
    except AutomatonLimitError as error:
        raise SchemaLimitError(place.keyword, place.pointer, str(error)) from None
    if not mask:
        return NOTHING
    return And((TYPES[mask], *conditions)) if conditions else TYPES[mask]


def _texts_one_by_one(texts: tuple[str, ...]) -> TextSet:
    return TextSet.of(automaton=Dfa.of_texts(texts))


def _size_of_texts(made: TextSet, texts: tuple[str, ...]) -> int:
    return made.num_bytes + sum([80 + 4 * len(text) for text in texts])


_text_set = Remembered(_texts_one_by_one, _size_of_texts)
_number_set = Remembered(NumberSet.of_values, lambda made, numbers: 2 * made.num_bytes + 100 * len(numbers))


def _array(value: list[Json], place: Place) -> Formula:
    count = ItemCount(len(value), len(value), place)
    if not value:
        return And((TYPES[ARRAY], count))
    items = tuple(one_of((item,), place) for item in value)
    return And((TYPES[ARRAY], Items(items, NOTHING, place), count))


def _object(value: dict[str, Json], place: Place) -> Formula:
    named = tuple((name, one_of((inner,), place)) for name, inner in value.items())
    parts: list[Formula] = [TYPES[OBJECT], Properties(named, (), NOTHING, True, place)]
    if value:
        parts.append(Required(tuple(value), place))
    return And(tuple(parts))
