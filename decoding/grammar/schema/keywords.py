"""Every keyword of every draft: which values it may have, which schemas it holds, and what is done with it.

The form of values is what the metaschemas say, written as functions, since a metaschema run on every schema
would cost more than compiling it.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from enum import IntEnum
from typing import Literal

from decoding.grammar.schema.schema_document import Json

Role = Literal["enforced", "annotation", "structure"]
TYPE_NAMES = ("array", "boolean", "integer", "null", "number", "object", "string")
_TYPES = frozenset(TYPE_NAMES)


class Holds(IntEnum):
    """Which schemas a keyword's value holds."""

    NOTHING = 0
    SCHEMA = 1
    SCHEMAS = 2
    SCHEMA_BY_NAME = 3
    SCHEMA_OR_SCHEMAS = 4
    SCHEMA_OR_NAMES = 5


@dataclass(frozen=True, slots=True)
class Keyword:
    """A keyword of one draft.

    Attributes:
        name: How it is written.
        role: "enforced": a condition on values; "annotation": says nothing about them; "structure": names,
            places or versions of schemas, used while reading.
        check: Whether a value has the right form, apart from the schemas in it.
        expected: The right form in words.
        holds: Which schemas are in it.
        note: For reports.
    """

    name: str
    role: Role
    check: Callable[[Json], bool]
    expected: str
    holds: Holds = Holds.NOTHING
    note: str = ""


def is_text(value: Json) -> bool:
    """Whether it is a string."""
    return isinstance(value, str)


def is_bool(value: Json) -> bool:
    """Whether it is true or false."""
    return isinstance(value, bool)


def is_list(value: Json) -> bool:
    """Whether it is an array."""
    return isinstance(value, list)


def is_filled_list(value: Json) -> bool:
    """Whether it is an array with something in it."""
    return isinstance(value, list) and bool(value)


def is_distinct_list(value: Json) -> bool:
    """Whether it is an array with something in it, and nothing twice."""
    return is_filled_list(value) and len(set(map(_equality_key, value))) == len(value)


def _equality_key(value: Json) -> object:
    """Equal for values that JSON Schema calls equal: 1 and 1.0 are, 1 and true are not."""
    if isinstance(value, dict):
        return dict, frozenset((name, _equality_key(inner)) for name, inner in value.items())
    if isinstance(value, list):
        return list, tuple(map(_equality_key, value))
    return (bool, value) if isinstance(value, bool) else value


def is_object(value: Json) -> bool:
    """Whether it is an object."""
    return isinstance(value, dict)


def is_anything(value: Json) -> bool:
    """Every value will do."""
    return True


def is_number(value: Json) -> bool:
    """Whether it is a number."""
    return isinstance(value, int | Decimal) and not isinstance(value, bool)


def is_positive_number(value: Json) -> bool:
    """Whether it is a number above 0."""
    return is_number(value) and bool(value > 0)


def is_count(value: Json) -> bool:
    """Whether it is an integer from 0, `2.0` included."""
    if type(value) is int:
        return value >= 0
    return isinstance(value, Decimal) and value >= 0 and value == value.to_integral_value()


def is_plain_count(value: Json) -> bool:
    """Whether it is an integer from 0, written as one."""
    return type(value) is int and value >= 0


def is_name_list(value: Json) -> bool:
    """Whether it is an array of distinct strings."""
    return isinstance(value, list) and all(map(is_text, value)) and len(set(value)) == len(value)


def is_filled_name_list(value: Json) -> bool:
    """Whether it is an array of distinct strings with something in it."""
    return is_name_list(value) and bool(value)


def is_type(value: Json) -> bool:
    """Whether it is a type's name or an array of distinct ones."""
    if isinstance(value, str):
        return value in TYPE_NAMES
    return is_filled_name_list(value) and _TYPES.issuperset(value)


def is_names_by_name(value: Json) -> bool:
    """Whether it is an object of arrays of distinct strings."""
    return isinstance(value, dict) and all(map(is_name_list, value.values()))


def is_vocabulary(value: Json) -> bool:
    """Whether it is an object of booleans."""
    return isinstance(value, dict) and all(map(is_bool, value.values()))


def is_object_or_list(value: Json) -> bool:
    """Whether it is an object, a boolean, or an array with something in it."""
    return isinstance(value, dict | bool) or is_filled_list(value)


def is_bool_or_number(value: Json) -> bool:
    """Whether it is a bound, or draft 4's word on another bound."""
    return is_bool(value) or is_number(value)


_ID = re.compile(r"[^#]*#?")
_ANCHOR = re.compile(r"[A-Za-z_][-A-Za-z0-9._]*")
_OLD_ANCHOR = re.compile(r"[A-Za-z][-A-Za-z0-9.:_]*")


def is_id(value: Json) -> bool:
    """Whether it is a URI without a fragment."""
    return isinstance(value, str) and _ID.fullmatch(value) is not None


def is_anchor(value: Json) -> bool:
    """Whether it is a name as 2020-12 has them."""
    return isinstance(value, str) and _ANCHOR.fullmatch(value) is not None


def is_old_anchor(value: Json) -> bool:
    """Whether it is a name as 2019-09 has them."""
    return isinstance(value, str) and _OLD_ANCHOR.fullmatch(value) is not None


def is_hole_text(value: Json) -> bool:
    """Whether it is a string with something in it."""
    return isinstance(value, str) and bool(value)


def _conditions() -> list[Keyword]:
    """Conditions on values, as 2020-12 has them."""

    def keyword(
        name: str,
        check: Callable[[Json], bool],
        expected: str,
        holds: Holds = Holds.NOTHING,
    ) -> Keyword:
        return Keyword(name, "enforced", check, expected, holds)

    schema, schemas = "a schema", "an array of at least one schema"
    by_name = "an object of schemas"
    made = [
        keyword("type", is_type, f"one of {', '.join(TYPE_NAMES)}, or an array of distinct ones"),
        keyword("const", is_anything, "a value"),
        keyword("enum", is_list, "an array"),
        keyword("multipleOf", is_positive_number, "a number above 0"),
        keyword("pattern", is_text, "a string"),
        keyword("format", is_text, "a string"),
        keyword("uniqueItems", is_bool, "true or false"),
        keyword("required", is_name_list, "an array of distinct strings"),
        keyword("dependentRequired", is_names_by_name, "an object of arrays of distinct strings"),
        keyword("dependentSchemas", is_object, by_name, Holds.SCHEMA_BY_NAME),
        keyword("properties", is_object, by_name, Holds.SCHEMA_BY_NAME),
        keyword("patternProperties", is_object, by_name, Holds.SCHEMA_BY_NAME),
        keyword("prefixItems", is_filled_list, schemas, Holds.SCHEMAS),
        keyword("$ref", is_text, "a URI reference"),
        keyword("$dynamicRef", is_text, "a URI reference"),
    ]
    made += [keyword(name, is_filled_list, schemas, Holds.SCHEMAS) for name in ("allOf", "anyOf", "oneOf")]
    single = ("additionalProperties", "propertyNames", "items", "contains", "not", "if", "then", "else")
    for name in (*single, "unevaluatedItems", "unevaluatedProperties"):
        made.append(keyword(name, is_anything, schema, Holds.SCHEMA))
    for name in ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"):
        made.append(keyword(name, is_number, "a number"))
    for name in ("Length", "Items", "Properties", "Contains"):
        made += [keyword(low + name, is_count, "an integer from 0") for low in ("min", "max")]
    return made


def _annotations() -> list[Keyword]:
    made = [
        Keyword(name, "annotation", is_text, "a string")
        for name in ("title", "description", "$comment", "contentEncoding", "contentMediaType")
    ]
    made += [
        Keyword(name, "annotation", is_bool, "true or false")
        for name in ("deprecated", "readOnly", "writeOnly")
    ]
    made.append(Keyword("default", "annotation", is_anything, "a value"))
    made.append(Keyword("examples", "annotation", is_list, "an array"))
    made.append(Keyword("contentSchema", "annotation", is_anything, "a schema", Holds.SCHEMA))
    return made


def _structure() -> list[Keyword]:
    definitions = "an object of schemas"
    return [
        Keyword("$schema", "structure", is_text, "a URI"),
        Keyword("$vocabulary", "structure", is_vocabulary, "an object of booleans"),
        Keyword("$id", "structure", is_id, "a URI reference without a fragment"),
        Keyword("$anchor", "structure", is_anchor, "a name"),
        Keyword("$dynamicAnchor", "structure", is_anchor, "a name"),
        Keyword("$defs", "structure", is_object, definitions, Holds.SCHEMA_BY_NAME),
        Keyword("definitions", "structure", is_object, definitions, Holds.SCHEMA_BY_NAME),
    ]


_HOLES = [
    Keyword("x-genret-index", "enforced", is_hole_text, "a string that names an index"),
    Keyword("x-genret-filter", "enforced", is_hole_text, "a string that is a filter"),
]
_OLD_ITEMS = [
    Keyword(
        "items",
        "enforced",
        is_object_or_list,
        "a schema or an array of at least one schema",
        Holds.SCHEMA_OR_SCHEMAS,
    ),
    Keyword("additionalItems", "enforced", is_anything, "a schema", Holds.SCHEMA),
]
_DEPENDENCIES = [
    Keyword(
        "dependencies",
        "enforced",
        is_object,
        "an object of schemas and of arrays of distinct strings",
        Holds.SCHEMA_OR_NAMES,
    )
]
"""Split in two by 2019-09, but its metaschemas still describe it, and who writes it means it."""


def _table(*groups: list[Keyword]) -> dict[str, Keyword]:
    return {keyword.name: keyword for group in groups for keyword in group}


def _without(table: dict[str, Keyword], *names: str) -> dict[str, Keyword]:
    return {name: keyword for name, keyword in table.items() if name not in names}


DRAFT_2020_12 = _table(_conditions(), _annotations(), _structure(), _HOLES, _DEPENDENCIES)

UNDECLARED = DRAFT_2020_12 | _table(
    _OLD_ITEMS,
    [
        Keyword(name, "enforced", is_bool_or_number, "a number, or true or false as in draft 4")
        for name in ("exclusiveMinimum", "exclusiveMaximum")
    ],
)
"""2020-12 and what older drafts had where it has nothing: for schemas that do not say what they are."""

DRAFT_2019_09 = _without(DRAFT_2020_12, "prefixItems", "$dynamicRef", "$dynamicAnchor") | _table(
    _OLD_ITEMS,
    [
        Keyword("$anchor", "structure", is_old_anchor, "a name"),
        Keyword("$recursiveRef", "enforced", is_text, "a URI reference"),
        Keyword("$recursiveAnchor", "structure", is_bool, "true or false"),
    ],
)

DRAFT_7 = _without(
    DRAFT_2019_09,
    *("$vocabulary", "$anchor", "$recursiveRef", "$recursiveAnchor", "$defs"),
    *("dependentRequired", "dependentSchemas", "unevaluatedItems", "unevaluatedProperties"),
    *("minContains", "maxContains", "deprecated", "contentSchema"),
) | _table([Keyword("$id", "structure", is_text, "a URI reference")])

DRAFT_6 = _without(
    DRAFT_7, "if", "then", "else", "$comment", "readOnly", "writeOnly", "contentEncoding", "contentMediaType"
)

DRAFT_4 = _without(DRAFT_6, "$id", "const", "contains", "propertyNames", "examples") | _table(
    [
        Keyword("id", "structure", is_text, "a URI reference"),
        Keyword("enum", "enforced", is_distinct_list, "an array of at least one value, all distinct"),
        Keyword("required", "enforced", is_filled_name_list, "an array of at least one string, all distinct"),
        Keyword("exclusiveMinimum", "enforced", is_bool, "true or false"),
        Keyword("exclusiveMaximum", "enforced", is_bool, "true or false"),
    ],
    [
        Keyword(low + name, "enforced", is_plain_count, "an integer from 0")
        for name in ("Length", "Items", "Properties")
        for low in ("min", "max")
    ],
)
