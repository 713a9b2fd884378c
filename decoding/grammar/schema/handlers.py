"""Which function translates which keyword."""

from __future__ import annotations

from functools import lru_cache

from decoding.grammar.schema import arrays, combinations, literals, objects, scalars, unevaluated
from decoding.grammar.schema.dialects import Dialect
from decoding.grammar.schema.translation import LATE, Handler, Handlers

_GROUPS: tuple[tuple[Handler, tuple[str, ...]], ...] = (
    (combinations.reference, ("$ref",)),
    (combinations.reference, ("$dynamicRef",)),
    (combinations.reference, ("$recursiveRef",)),
    (scalars.types, ("type",)),
    (scalars.numbers, tuple(scalars.NUMERIC)),
    (scalars.texts, ("minLength", "maxLength", "pattern", "format")),
    (scalars.hole, ("x-genret-index", "x-genret-filter")),
    (literals.enumerated, ("enum",)),
    (literals.constant, ("const",)),
    (objects.properties, ("properties", "patternProperties", "additionalProperties")),
    (objects.required, ("required",)),
    (objects.property_count, ("minProperties", "maxProperties")),
    (objects.property_names, ("propertyNames",)),
    (objects.dependent_required, ("dependentRequired",)),
    (objects.dependent_schemas, ("dependentSchemas",)),
    (objects.dependencies, ("dependencies",)),
    (arrays.items, ("items", "prefixItems")),
    (arrays.item_count, ("minItems", "maxItems")),
    (arrays.contains, ("contains",)),
    (arrays.unique_items, ("uniqueItems",)),
    (combinations.all_of, ("allOf",)),
    (combinations.any_of, ("anyOf",)),
    (combinations.one_of, ("oneOf",)),
    (combinations.negation, ("not",)),
    (combinations.conditional, ("if",)),
)
_LATE: tuple[tuple[Handler, tuple[str, ...]], ...] = (
    (unevaluated.unevaluated_properties, ("unevaluatedProperties",)),
    (unevaluated.unevaluated_items, ("unevaluatedItems",)),
)


@lru_cache(maxsize=16)
def handlers_of(dialect: Dialect) -> Handlers:
    """The handlers of a dialect's keywords."""
    return {
        name: (first << n, handler)
        for first, groups in ((1, _GROUPS), (LATE, _LATE))
        for n, (handler, names) in enumerate(groups)
        for name in names
        if name in dialect.keywords
    }
