"""Handlers of the keywords about types, numbers and strings, and of `enum` and `const`."""

from __future__ import annotations

from decimal import Decimal
from functools import lru_cache

from genret.decoding.bounded_cache import Remembered
from genret.decoding.grammar.compile_options import check_time, naming_limits
from genret.decoding.grammar.errors import InvalidSchemaError, SchemaLimitError, UnsupportedSchemaError
from genret.decoding.grammar.leaves.leaf import TitleSlotName
from genret.decoding.grammar.regular.dfa import Dfa
from genret.decoding.grammar.regular.formats import FORMATS, Enforcement, format_texts
from genret.decoding.grammar.regular.number_set import NumberSet
from genret.decoding.grammar.regular.text_set import TextSet
from genret.decoding.grammar.schema.formula import (
    ANYTHING,
    NOTHING,
    AllOf,
    AnyOf,
    Formula,
    ItemCount,
    Items,
    JsonType,
    NumberIn,
    Place,
    Properties,
    Required,
    TextFromSlot,
    TextIn,
    TypeIs,
)
from genret.decoding.grammar.schema.schema_document import Json
from genret.decoding.grammar.schema.translation import Schema, SchemaScope, Translation, pattern_dfa

TYPES = tuple(TypeIs(JsonType(mask)) for mask in range(128))
"""`TypeIs` for every set of types, so that none has to be made."""
NUMBER, STRING, ARRAY, OBJECT, ANY = 8, 16, 32, 64, 127
_MASKS = {
    "null": 1,
    "boolean": 6,
    "integer": NUMBER,
    "number": NUMBER,
    "string": STRING,
    "array": ARRAY,
    "object": OBJECT,
}
_BY_NAME = {name: TYPES[mask] for name, mask in _MASKS.items()}
NUMERIC = frozenset({"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"})
_INTEGERS = NumberSet.of(integers=True)


def allows_type(schema: Schema, name: str) -> bool:
    """Whether a schema's `type` names this one."""
    types = schema.get("type")
    return types == name or (isinstance(types, list) and name in types)


def is_only_integers(schema: Schema) -> bool:
    """Whether a schema's `type` lets integers through and no other numbers."""
    types = schema.get("type")
    return types == "integer" or (isinstance(types, list) and "integer" in types and "number" not in types)


def types(t: Translation, schema: Schema, keyword: str, pointer: str, scope: SchemaScope) -> Formula:
    """`type`; integers are a set of numbers, unless a bound on numbers says so anyway."""
    named = schema["type"]
    if isinstance(named, str):
        condition = _BY_NAME[named]
    else:
        mask = 0
        for name in named:
            mask |= _MASKS[name]
        condition = TYPES[mask]
    if not is_only_integers(schema) or not NUMERIC.isdisjoint(schema):
        return condition
    return AllOf((condition, NumberIn(_INTEGERS, Place("type", f"{pointer}/type"))))


def numbers(t: Translation, schema: Schema, keyword: str, pointer: str, scope: SchemaScope) -> Formula:
    """All bounds on numbers, `integer` included, as one set."""
    least, above = schema.get("minimum"), schema.get("exclusiveMinimum")
    most, below = schema.get("maximum"), schema.get("exclusiveMaximum")
    if isinstance(above, bool):
        least, above = (None, least) if above else (least, None)
    if isinstance(below, bool):
        most, below = (None, most) if below else (most, None)
    step = schema.get("multipleOf")
    if least is None and above is None and most is None and below is None and step is None:
        # Draft 4's word on a bound that is not there.
        return NumberIn(_INTEGERS, Place("type", f"{pointer}/type")) if is_only_integers(schema) else ANYTHING
    place = Place(keyword, f"{pointer}/{keyword}")
    with naming_limits(keyword, place.pointer):
        return NumberIn(_number_set(is_only_integers(schema), least, above, most, below, step), place)


@lru_cache(maxsize=1024)
def _number_set(
    integers: bool,
    least: Decimal | None,
    above: Decimal | None,
    most: Decimal | None,
    below: Decimal | None,
    step: Decimal | None,
) -> NumberSet:
    bounds = {"least": least, "above": above, "most": most, "below": below, "multiple_of": step}
    given = {name: Decimal(bound) for name, bound in bounds.items() if bound is not None}
    return NumberSet.of(integers=integers, **given)


MAX_COUNT_DIGITS = 18


def count(schema: Schema, keyword: str, pointer: str) -> int | None:
    """The value of a keyword that counts something; None where it is absent."""
    value = schema.get(keyword)
    if value is None or type(value) is int:
        return value
    if value.adjusted() > MAX_COUNT_DIGITS:
        reason = f"a count of more than {MAX_COUNT_DIGITS} digits"
        raise SchemaLimitError(keyword, f"{pointer}/{keyword}", reason)
    return int(value)


def texts(t: Translation, schema: Schema, keyword: str, pointer: str, scope: SchemaScope) -> Formula:
    """Lengths, `pattern` and `format` as one set."""
    least, most = count(schema, "minLength", pointer), count(schema, "maxLength", pointer)
    pattern = schema.get("pattern")
    format_name = schema.get("format") if t.options.formats == "assert" else None
    allowed: TextSet | None = None
    # Metaschemas have formats as annotations.
    if format_name is not None and pointer.startswith("#"):
        allowed = _format_set(t, format_name, f"{pointer}/format", scope.outer)
    if least is not None or most is not None or pattern is not None:
        # What all readers find the pattern in, unless none of the texts may be left out.
        portable = t.options.inexact == "narrow" and not scope.outer
        said = _text_set(least, most, pattern, portable, pointer)
        with naming_limits(keyword, f"{pointer}/{keyword}"):
            allowed = said if allowed is None else allowed & said
    if allowed is None or allowed.is_everything:
        return ANYTHING
    return TextIn(allowed, Place(keyword, f"{pointer}/{keyword}"))


def _text_set(
    least: int | None, most: int | None, pattern: str | None, portable: bool, pointer: str
) -> TextSet:
    automaton = None
    if pattern is not None:
        automaton = pattern_dfa(pattern, "pattern", f"{pointer}/pattern", portable=portable)
    if most is not None and most < (least or 0):
        return TextSet.nothing()
    keyword = "minLength" if most is None else "maxLength"
    with naming_limits(keyword, f"{pointer}/{keyword}"):
        return _limited(least or 0, most, automaton)


_limited = Remembered(
    TextSet.of,
    lambda made, least, most, automaton: made.num_bytes + (0 if automaton is None else automaton.num_bytes),
)


# Formats without some texts that are met in practice; others known in part only miss curiosities.
_LOOSELY_KNOWN = frozenset(("idn-email", "idn-hostname", "regex"))


def _format_set(t: Translation, name: str, pointer: str, outer: bool) -> TextSet | None:
    """The texts of a format; None where nothing is known of it, or `outer` asks for more than is known."""
    if t.options.inexact == "refuse" and name in _LOOSELY_KNOWN:
        reason = f"{name!r} is known in part, and can be written but not read"
        raise UnsupportedSchemaError("format", pointer, reason)
    if outer and FORMATS.get(name) is Enforcement.SUBSET:
        return None
    with naming_limits("format", pointer):
        automaton = format_texts(name)
    return None if automaton is None else _limited(0, None, automaton)


def hole(t: Translation, schema: Schema, keyword: str, pointer: str, scope: SchemaScope) -> Formula:
    """`x-genret-index` and `x-genret-filter`."""
    if "x-genret-index" not in schema:
        place = Place("x-genret-filter", f"{pointer}/x-genret-filter")
        raise InvalidSchemaError.at(place, "expected x-genret-index beside it")
    place = Place("x-genret-index", f"{pointer}/x-genret-index")
    if not allows_type(schema, "string"):
        raise InvalidSchemaError.at(place, 'expected "type": "string" beside it')
    return TextFromSlot(TitleSlotName(schema["x-genret-index"], schema.get("x-genret-filter")), place)


def enumerated(t: Translation, schema: Schema, keyword: str, pointer: str, scope: SchemaScope) -> Formula:
    """`enum`."""
    return one_of(schema["enum"], Place("enum", f"{pointer}/enum"))


def constant(t: Translation, schema: Schema, keyword: str, pointer: str, scope: SchemaScope) -> Formula:
    """`const`."""
    return one_of((schema["const"],), Place("const", f"{pointer}/const"))


def one_of(values: list[Json] | tuple[Json, ...], place: Place) -> Formula:
    """The condition that the value is equal to one of these; all scalars among them are one condition."""
    mask = 0
    texts: list[str] = []
    numbers: list[int | Decimal] = []
    containers: list[Formula] = []
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
    return parts[0] if len(parts) == 1 else AnyOf(tuple(parts), place)


def _scalars(mask: int, texts: list[str], numbers: list[int | Decimal], place: Place) -> Formula:
    conditions: list[Formula] = []
    with naming_limits(place.keyword, place.pointer):
        if texts:
            mask |= STRING
            conditions.append(TextIn(_listed_texts(tuple(texts)), place))
        if numbers:
            mask |= NUMBER
            conditions.append(NumberIn(_listed_numbers(tuple(numbers)), place))
    if not mask:
        return NOTHING
    return AllOf((TYPES[mask], *conditions)) if conditions else TYPES[mask]


_listed_texts = Remembered(
    lambda texts: TextSet.of(automaton=Dfa.of_texts(texts)),
    lambda made, texts: made.num_bytes + sum([80 + 4 * len(text) for text in texts]),
)
_listed_numbers = Remembered(
    NumberSet.of_values, lambda made, numbers: 2 * made.num_bytes + 100 * len(numbers)
)


def _array(value: list[Json], place: Place) -> Formula:
    count = ItemCount(len(value), len(value), place)
    if not value:
        return AllOf((TYPES[ARRAY], count))
    items = tuple(one_of((item,), place) for item in value)
    return AllOf((TYPES[ARRAY], Items(items, NOTHING, place), count))


def _object(value: dict[str, Json], place: Place) -> Formula:
    named = tuple((name, one_of((inner,), place)) for name, inner in value.items())
    parts: list[Formula] = [TYPES[OBJECT], Properties(named, (), NOTHING, True, place)]
    if value:
        parts.append(Required(tuple(value), place))
    return AllOf(tuple(parts))
