"""Keywords about objects."""

from __future__ import annotations

from decoding.grammar.budget import AutomatonLimitError
from decoding.grammar.errors import SchemaLimitError
from decoding.grammar.schema.document import Json, pointer_step
from decoding.grammar.schema.formula import (
    ANYTHING,
    NOTHING,
    And,
    Formula,
    Not,
    Or,
    Place,
    Properties,
    PropertyCount,
    PropertyNames,
    Required,
)
from decoding.grammar.schema.patterns import pattern_dfa
from decoding.grammar.schema.scalars import ANY, OBJECT, TYPES, count
from decoding.grammar.schema.text_formulas import texts_of
from decoding.grammar.schema.translation import Schema, Scope, Translation

_NO_OBJECT = TYPES[ANY & ~OBJECT]


def properties(t: Translation, schema: Schema, keyword: str, pointer: str, scope: Scope) -> Formula:
    """`properties`, `patternProperties` and `additionalProperties`."""
    named: list[tuple[str, Formula]] = []
    if "properties" in schema:
        base = f"{pointer}/properties/"
        for number, (name, inner) in enumerate(schema["properties"].items()):
            if number & 255 == 255:
                t.budget.check_time()
            named.append((name, t.formula(inner, base + pointer_step(name), scope)))
    patterns = []
    if "patternProperties" in schema:
        base = f"{pointer}/patternProperties/"
        for pattern, inner in schema["patternProperties"].items():
            t.budget.check_time()
            place = base + pointer_step(pattern)
            keys = pattern_dfa(pattern, "patternProperties", place)
            patterns.append((keys, t.formula(inner, place, scope)))
    says_additional = "additionalProperties" in schema
    additional: Formula = ANYTHING
    if says_additional:
        additional = t.formula(schema["additionalProperties"], f"{pointer}/additionalProperties", scope)
    if not named and not patterns and additional == ANYTHING and not says_additional:
        return ANYTHING
    place_of = Place(keyword, f"{pointer}/{keyword}")
    return Properties(tuple(named), tuple(patterns), additional, says_additional, place_of)


def required(t: Translation, schema: Schema, keyword: str, pointer: str, scope: Scope) -> Formula:
    """`required`."""
    names = schema["required"]
    return Required(tuple(names), Place("required", f"{pointer}/required")) if names else ANYTHING


def property_count(t: Translation, schema: Schema, keyword: str, pointer: str, scope: Scope) -> Formula:
    """`minProperties` and `maxProperties`."""
    least = count(schema, "minProperties", pointer) or 0
    most = count(schema, "maxProperties", pointer)
    if not least and most is None:
        return ANYTHING
    return PropertyCount(least, most, Place(keyword, f"{pointer}/{keyword}"))


def property_names(t: Translation, schema: Schema, keyword: str, pointer: str, scope: Scope) -> Formula:
    """`propertyNames`."""
    if t.only_texts:
        return ANYTHING
    place = Place("propertyNames", f"{pointer}/propertyNames")
    names = t.formula(schema["propertyNames"], place.pointer, scope)
    try:
        allowed = texts_of(names, t, place)
    except AutomatonLimitError as error:
        raise SchemaLimitError(place.keyword, place.pointer, str(error)) from None
    return ANYTHING if allowed.is_everything else PropertyNames(allowed, place)


def dependent_required(t: Translation, schema: Schema, keyword: str, pointer: str, scope: Scope) -> Formula:
    """`dependentRequired`."""
    return And(
        tuple(
            _requires(name, needed, Place(keyword, f"{pointer}/{keyword}/{pointer_step(name)}"))
            for name, needed in schema[keyword].items()
            if needed
        )
    )


def _requires(name: str, needed: list[str], place: Place) -> Formula:
    absent = Not(Required((name,), place), place)
    return Or((absent, Required(tuple(needed), place)), place)


def dependent_schemas(t: Translation, schema: Schema, keyword: str, pointer: str, scope: Scope) -> Formula:
    """`dependentSchemas`."""
    parts = []
    for name, inner in schema[keyword].items():
        part = _implies(t, schema, name, inner, f"{pointer}/{keyword}/{pointer_step(name)}", keyword, scope)
        if part != ANYTHING:
            parts.append(part)
    return And(tuple(parts))


def dependencies(t: Translation, schema: Schema, keyword: str, pointer: str, scope: Scope) -> Formula:
    """`dependencies` of older drafts: of names or of schemas."""
    parts = []
    for name, inner in schema[keyword].items():
        place = f"{pointer}/{keyword}/{pointer_step(name)}"
        if not isinstance(inner, list):
            part = _implies(t, schema, name, inner, place, keyword, scope)
        elif inner:
            part = _requires(name, inner, Place(keyword, place))
        else:
            continue
        if part != ANYTHING:
            parts.append(part)
    return And(tuple(parts))


def _implies(
    t: Translation, schema: Schema, name: str, inner: Json, pointer: str, keyword: str, scope: Scope
) -> Formula:
    """An object that has the property is as `inner` says."""
    then = t.formula(inner, pointer, scope)
    if then == ANYTHING:
        return ANYTHING
    place = Place(keyword, pointer)
    absent = Not(Required((name,), place), place)
    parts: list[Formula] = [] if schema.get("type") == "object" else [_NO_OBJECT]
    parts.append(absent)
    if then != NOTHING:
        parts.append(then)
    return Or(tuple(parts), place)
