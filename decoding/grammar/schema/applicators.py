"""Handlers of keywords that apply schemas to members, to items or, like `anyOf` and `$ref`, to the value.

The bounds on the numbers of members and items stand with them. `_texts_of` reduces a formula to what it says
of strings: `propertyNames` speaks of keys, which are strings.
"""

from __future__ import annotations

from genret.decoding.grammar.compile_options import check_time, naming_limits
from genret.decoding.grammar.errors import UnsupportedSchemaError
from genret.decoding.grammar.regular.text_set import TextSet
from genret.decoding.grammar.schema.formula import (
    ANYTHING,
    NOTHING,
    AllOf,
    AnyOf,
    Contains,
    ExactlyOne,
    Formula,
    ItemCount,
    Items,
    JsonType,
    NotOf,
    Place,
    Properties,
    PropertyCount,
    PropertyNames,
    Reference,
    Required,
    TextFromSlot,
    TextIn,
    TypeIs,
    UniqueItems,
)
from genret.decoding.grammar.schema.scalar_keywords import ANY, OBJECT, TYPES, count
from genret.decoding.grammar.schema.schema_document import Json, pointer_step
from genret.decoding.grammar.schema.translation import Handler, Schema, SchemaScope, Translation, pattern_dfa

_NO_OBJECT = TYPES[ANY & ~OBJECT]


def properties(t: Translation, schema: Schema, keyword: str, pointer: str, scope: SchemaScope) -> Formula:
    """`properties`, `patternProperties` and `additionalProperties`."""
    named: list[tuple[str, Formula]] = []
    if "properties" in schema:
        base = f"{pointer}/properties/"
        for number, (name, inner) in enumerate(schema["properties"].items()):
            if number & 255 == 255:
                check_time()
            named.append((name, t.formula(inner, base + pointer_step(name), scope)))
    patterns = []
    if "patternProperties" in schema:
        base = f"{pointer}/patternProperties/"
        for pattern, inner in schema["patternProperties"].items():
            check_time()
            place = base + pointer_step(pattern)
            keys = pattern_dfa(pattern, "patternProperties", place)
            patterns.append((keys, t.formula(inner, place, scope)))
    says_additional = "additionalProperties" in schema
    if not named and not patterns and not says_additional:
        return ANYTHING
    additional: Formula = ANYTHING
    if says_additional:
        additional = t.formula(schema["additionalProperties"], f"{pointer}/additionalProperties", scope)
    whole = Place(keyword, f"{pointer}/{keyword}")
    return Properties(tuple(named), tuple(patterns), additional, says_additional, whole)


def required(t: Translation, schema: Schema, keyword: str, pointer: str, scope: SchemaScope) -> Formula:
    """`required`."""
    names = schema["required"]
    return (
        Required(tuple(dict.fromkeys(names)), Place("required", f"{pointer}/required")) if names else ANYTHING
    )


def _counted(formula: type[ItemCount] | type[PropertyCount], things: str) -> Handler:
    def counted(t: Translation, schema: Schema, keyword: str, pointer: str, scope: SchemaScope) -> Formula:
        least = count(schema, f"min{things}", pointer) or 0
        most = count(schema, f"max{things}", pointer)
        if not least and most is None:
            return ANYTHING
        return formula(least, most, Place(keyword, f"{pointer}/{keyword}"))

    return counted


property_count = _counted(PropertyCount, "Properties")
"""`minProperties` and `maxProperties`."""
item_count = _counted(ItemCount, "Items")
"""`minItems` and `maxItems`."""


def property_names(t: Translation, schema: Schema, keyword: str, pointer: str, scope: SchemaScope) -> Formula:
    """`propertyNames`."""
    if t.only_texts:
        return ANYTHING
    place = Place("propertyNames", f"{pointer}/propertyNames")
    names = t.formula(schema["propertyNames"], place.pointer, scope)
    with naming_limits(place.keyword, place.pointer):
        allowed = _texts_of(names, t, place)
    return ANYTHING if allowed.is_everything else PropertyNames(allowed, place)


def _requires(name: str, needed: list[str], place: Place) -> Formula:
    absent = NotOf(Required((name,), place), place)
    return AnyOf((absent, Required(tuple(dict.fromkeys(needed)), place)), place)


def dependencies(t: Translation, schema: Schema, keyword: str, pointer: str, scope: SchemaScope) -> Formula:
    """`dependentRequired`, `dependentSchemas`, and `dependencies` of older dialects."""
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
    return AllOf(tuple(parts))


def _implies(
    t: Translation, schema: Schema, name: str, inner: Json, pointer: str, keyword: str, scope: SchemaScope
) -> Formula:
    """An object that has the property `name` is as `inner` says."""
    then = t.formula(inner, pointer, scope)
    if then == ANYTHING:
        return ANYTHING
    place = Place(keyword, pointer)
    absent = NotOf(Required((name,), place), place)
    parts: list[Formula] = [] if schema.get("type") == "object" else [_NO_OBJECT]
    parts.append(absent)
    if then != NOTHING:
        parts.append(then)
    return AnyOf(tuple(parts), place)


def items(t: Translation, schema: Schema, keyword: str, pointer: str, scope: SchemaScope) -> Formula:
    """`prefixItems` and `items`, or `items` and `additionalItems` of older dialects."""
    first_of, rest_of = item_keywords(schema, scope)
    prefix: tuple[Formula, ...] = ()
    if first_of is not None:
        prefix = tuple(
            t.formula(inner, f"{pointer}/{first_of}/{n}", scope) for n, inner in enumerate(schema[first_of])
        )
    rest: Formula = ANYTHING
    if rest_of is not None:
        rest = t.formula(schema[rest_of], f"{pointer}/{rest_of}", scope)
    while prefix and prefix[-1] == rest:
        prefix = prefix[:-1]
    if not prefix and rest == ANYTHING:
        return ANYTHING
    return Items(prefix, rest, Place(keyword, f"{pointer}/{keyword}"))


def item_keywords(schema: Schema, scope: SchemaScope) -> tuple[str | None, str | None]:
    """The keywords for the first items and for all others, None for one that is absent."""
    if isinstance(schema.get("items"), list):
        return "items", "additionalItems" if "additionalItems" in schema else None
    known = scope.resource.dialect.keywords
    first = "prefixItems" if "prefixItems" in schema and "prefixItems" in known else None
    return first, "items" if "items" in schema else None


def contains(t: Translation, schema: Schema, keyword: str, pointer: str, scope: SchemaScope) -> Formula:
    """`contains` with `minContains` and `maxContains`."""
    least, most = contains_bounds(schema, pointer, scope)
    if not least and most is None:
        return ANYTHING
    place = Place("contains", f"{pointer}/contains")
    item = t.formula(schema["contains"], place.pointer, scope)
    if most is None or not t.is_inexact:
        return Contains(item, least, most, place)
    possible = t.formula(schema["contains"], place.pointer, t.flipped(scope))
    return AllOf((Contains(item, least, None, place), Contains(possible, 0, most, place)))


def contains_bounds(schema: Schema, pointer: str, scope: SchemaScope) -> tuple[int, int | None]:
    """The bounds on the number of items that are as `contains` says."""
    if "minContains" not in scope.resource.dialect.keywords:
        return 1, None
    least = count(schema, "minContains", pointer)
    return 1 if least is None else least, count(schema, "maxContains", pointer)


def unique_items(t: Translation, schema: Schema, keyword: str, pointer: str, scope: SchemaScope) -> Formula:
    """`uniqueItems`."""
    wanted: Json = schema["uniqueItems"]
    return UniqueItems(Place("uniqueItems", f"{pointer}/uniqueItems")) if wanted else ANYTHING


def reference(t: Translation, schema: Schema, keyword: str, pointer: str, scope: SchemaScope) -> Formula:
    """`$ref`, `$dynamicRef` and `$recursiveRef`."""
    return t.reference(t.referred(schema, keyword, pointer, scope), scope)


def all_of(t: Translation, schema: Schema, keyword: str, pointer: str, scope: SchemaScope) -> Formula:
    """`allOf`."""
    parts: list[Formula] = []
    for part in branches(t, schema, keyword, pointer, scope):
        parts += part.parts if isinstance(part, AllOf) else (part,)
    return parts[0] if len(parts) == 1 else AllOf(tuple(parts))


def any_of(t: Translation, schema: Schema, keyword: str, pointer: str, scope: SchemaScope) -> Formula:
    """`anyOf`."""
    return either(branches(t, schema, keyword, pointer, scope), Place("anyOf", f"{pointer}/anyOf"))


def either(parts: list[Formula], place: Place) -> Formula:
    """At least one of the formulas, told as simply as at sight it can be."""
    parts = [part for part in parts if part != NOTHING]
    if ANYTHING in parts:
        return ANYTHING
    if len(parts) < 2:
        return parts[0] if parts else NOTHING
    return AnyOf(tuple(parts), place)


def one_of(t: Translation, schema: Schema, keyword: str, pointer: str, scope: SchemaScope) -> Formula:
    """`oneOf`."""
    parts = [part for part in branches(t, schema, keyword, pointer, scope) if part != NOTHING]
    if len(parts) < 2:
        return parts[0] if parts else NOTHING
    place = Place("oneOf", f"{pointer}/oneOf")
    if not t.is_inexact:
        return ExactlyOne(tuple(parts), place)
    if scope.outer:
        return AnyOf(tuple(parts), place)
    # Parts that hold for the known texts of a format only may hold for others: one part holds for sure, and
    # it is the only one of those that possibly hold.
    possible = [part for part in branches(t, schema, keyword, pointer, t.flipped(scope)) if part != NOTHING]
    if parts == possible:
        return ExactlyOne(tuple(parts), place)
    return AllOf((AnyOf(tuple(parts), place), ExactlyOne(tuple(possible), place)))


def branches(t: Translation, schema: Schema, keyword: str, pointer: str, scope: SchemaScope) -> list[Formula]:
    """The formulas of an array of schemas."""
    check_time()
    base = f"{pointer}/{keyword}/"
    return [t.formula(inner, f"{base}{n}", scope) for n, inner in enumerate(schema[keyword])]


def negation(t: Translation, schema: Schema, keyword: str, pointer: str, scope: SchemaScope) -> Formula:
    """`not`."""
    place = Place("not", f"{pointer}/not")
    return negated(t.formula(schema["not"], place.pointer, t.flipped(scope)), place)


def negated(formula: Formula, place: Place) -> Formula:
    """The negation of a formula."""
    if formula == ANYTHING:
        return NOTHING
    if formula == NOTHING:
        return ANYTHING
    return formula.part if isinstance(formula, NotOf) else NotOf(formula, place)


def conditional(t: Translation, schema: Schema, keyword: str, pointer: str, scope: SchemaScope) -> Formula:
    """`if`, `then` and `else`, as two cases that exclude each other."""
    if "then" not in schema and "else" not in schema:
        return ANYTHING
    place = Place("if", f"{pointer}/if")
    asked = t.formula(schema["if"], place.pointer, scope)
    then, otherwise = (
        t.formula(schema[name], f"{pointer}/{name}", scope) if name in schema else ANYTHING
        for name in ("then", "else")
    )
    if then == otherwise:
        return then
    if t.is_inexact:
        refused = negated(t.formula(schema["if"], place.pointer, t.flipped(scope)), place)
    else:
        refused = negated(asked, place)
    cases = [both(asked, then), both(refused, otherwise)]
    cases = [case for case in cases if case != NOTHING]
    return cases[0] if len(cases) == 1 else AnyOf(tuple(cases), place)


def both(one: Formula, other: Formula) -> Formula:
    """The conjunction of two formulas."""
    if one == NOTHING or other == NOTHING:
        return NOTHING
    parts = (
        *(one.parts if isinstance(one, AllOf) else (one,)),
        *(other.parts if isinstance(other, AllOf) else (other,)),
    )
    return parts[0] if len(parts) == 1 else AllOf(parts)


def _texts_of(formula: Formula, t: Translation, place: Place, open_targets: tuple[str, ...] = ()) -> TextSet:
    """The texts that a formula for keys lets through; `open_targets` are references being followed."""
    check_time()
    if isinstance(formula, TextIn):
        return formula.texts
    if isinstance(formula, TypeIs):
        return TextSet.everything() if formula.types & JsonType.STRING else TextSet.nothing()
    if isinstance(formula, AllOf | AnyOf | ExactlyOne):
        return _joined(formula, [_texts_of(part, t, place, open_targets) for part in formula.parts])
    if isinstance(formula, NotOf):
        return ~_texts_of(formula.part, t, place, open_targets)
    if isinstance(formula, Reference):
        return _followed(formula.target, t, place, open_targets)
    if isinstance(formula, TextFromSlot):
        slot = formula.place.pointer
        raise UnsupportedSchemaError(place.keyword, slot, "keys cannot be taken from an index")
    return TextSet.everything()


def _joined(formula: AllOf | AnyOf | ExactlyOne, parts: list[TextSet]) -> TextSet:
    if isinstance(formula, AllOf):
        joined = TextSet.everything()
        for part in parts:
            joined = joined & part
        return joined
    once, twice = TextSet.nothing(), TextSet.nothing()
    for part in parts:
        twice = twice | (once & part)
        once = once | part
    return once if isinstance(formula, AnyOf) else once - twice


def _followed(target: str, t: Translation, place: Place, open_targets: tuple[str, ...]) -> TextSet:
    if target in open_targets:
        reason = "a reference leads back to itself without looking into the value"
        raise UnsupportedSchemaError.at(place, reason)
    spot, scope = t.targets[target]
    was_only_texts, t.only_texts = t.only_texts, True
    try:
        formula = t.formula(spot.schema, spot.pointer, scope)
    finally:
        t.only_texts = was_only_texts
    return _texts_of(formula, t, place, (*open_targets, target))
