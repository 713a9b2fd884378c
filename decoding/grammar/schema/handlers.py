"""Which function translates which keyword."""

from __future__ import annotations

from functools import lru_cache

from decoding.grammar.schema.arrays import contains, item_count, items, unique_items
from decoding.grammar.schema.combinations import all_of, any_of, conditional, negation, one_of, reference
from decoding.grammar.schema.dialects import Dialect
from decoding.grammar.schema.literals import constant, enumerated
from decoding.grammar.schema.objects import (
    dependencies,
    dependent_required,
    dependent_schemas,
    properties,
    property_count,
    property_names,
    required,
)
from decoding.grammar.schema.scalars import NUMERIC, hole, numbers, texts, types
from decoding.grammar.schema.translation import LATE, Handler, Handlers
from decoding.grammar.schema.unevaluated import unevaluated_items, unevaluated_properties

_GROUPS: tuple[tuple[Handler, tuple[str, ...]], ...] = (
    (reference, ("$ref",)),
    (reference, ("$dynamicRef",)),
    (reference, ("$recursiveRef",)),
    (types, ("type",)),
    (numbers, tuple(NUMERIC)),
    (texts, ("minLength", "maxLength", "pattern", "format")),
    (hole, ("x-genret-index", "x-genret-filter")),
    (enumerated, ("enum",)),
    (constant, ("const",)),
    (properties, ("properties", "patternProperties", "additionalProperties")),
    (required, ("required",)),
    (property_count, ("minProperties", "maxProperties")),
    (property_names, ("propertyNames",)),
    (dependent_required, ("dependentRequired",)),
    (dependent_schemas, ("dependentSchemas",)),
    (dependencies, ("dependencies",)),
    (items, ("items", "prefixItems")),
    (item_count, ("minItems", "maxItems")),
    (contains, ("contains",)),
    (unique_items, ("uniqueItems",)),
    (all_of, ("allOf",)),
    (any_of, ("anyOf",)),
    (one_of, ("oneOf",)),
    (negation, ("not",)),
    (conditional, ("if",)),
)
_LATE: tuple[tuple[Handler, tuple[str, ...]], ...] = (
    (unevaluated_properties, ("unevaluatedProperties",)),
    (unevaluated_items, ("unevaluatedItems",)),
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
