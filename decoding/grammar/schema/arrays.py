"""Keywords about arrays."""

from __future__ import annotations

from decoding.grammar.schema.document import Json
from decoding.grammar.schema.formula import (
    ANYTHING,
    And,
    Contains,
    Formula,
    ItemCount,
    Items,
    Place,
    UniqueItems,
)
from decoding.grammar.schema.scalars import count
from decoding.grammar.schema.translation import Schema, Scope, Translation


def items(t: Translation, schema: Schema, keyword: str, pointer: str, scope: Scope) -> Formula:
    """`prefixItems` and `items`, or `items` and `additionalItems` of older drafts."""
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


def item_keywords(schema: Schema, scope: Scope) -> tuple[str | None, str | None]:
    """The keywords that speak of the first items and of all others, where they are there and mean it."""
    if isinstance(schema.get("items"), list):
        return "items", "additionalItems" if "additionalItems" in schema else None
    known = scope.resource.dialect.keywords
    first = "prefixItems" if "prefixItems" in schema and "prefixItems" in known else None
    return first, "items" if "items" in schema else None


def item_count(t: Translation, schema: Schema, keyword: str, pointer: str, scope: Scope) -> Formula:
    """`minItems` and `maxItems`."""
    least = count(schema, "minItems", pointer) or 0
    most = count(schema, "maxItems", pointer)
    if not least and most is None:
        return ANYTHING
    return ItemCount(least, most, Place(keyword, f"{pointer}/{keyword}"))


def contains(t: Translation, schema: Schema, keyword: str, pointer: str, scope: Scope) -> Formula:
    """`contains` with `minContains` and `maxContains`."""
    least, most = contains_bounds(schema, pointer, scope)
    if not least and most is None:
        return ANYTHING
    place = Place("contains", f"{pointer}/contains")
    item = t.formula(schema["contains"], place.pointer, scope)
    if most is None or not t.is_inexact:
        return Contains(item, least, most, place)
    possible = t.formula(schema["contains"], place.pointer, t.flipped(scope))
    return And((Contains(item, least, None, place), Contains(possible, 0, most, place)))


def contains_bounds(schema: Schema, pointer: str, scope: Scope) -> tuple[int, int | None]:
    """How many items must and may be as `contains` says."""
    if "minContains" not in scope.resource.dialect.keywords:
        return 1, None
    least = count(schema, "minContains", pointer)
    return 1 if least is None else least, count(schema, "maxContains", pointer)


def unique_items(t: Translation, schema: Schema, keyword: str, pointer: str, scope: Scope) -> Formula:
    """`uniqueItems`."""
    wanted: Json = schema["uniqueItems"]
    return UniqueItems(Place("uniqueItems", f"{pointer}/uniqueItems")) if wanted else ANYTHING
