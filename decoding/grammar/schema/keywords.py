"""Tables of the keywords of every dialect: the form of their values, the schemas they hold, and their role.

The forms are what the metaschemas say, written as functions, since a metaschema run on every schema would
cost more than compiling it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from decimal import Decimal
from enum import IntEnum
from functools import partial
from typing import Literal

from genret.decoding.grammar.schema.schema_document import Json, pointer_step

Role = Literal["enforced", "annotation", "structure"]
TYPE_NAMES = ("array", "boolean", "integer", "null", "number", "object", "string")
_TYPES = frozenset(TYPE_NAMES)


class Holds(IntEnum):
    """The schemas that a keyword's value holds."""

    NOTHING = 0
    SCHEMA = 1
    SCHEMAS = 2
    SCHEMA_BY_NAME = 3
    SCHEMA_OR_SCHEMAS = 4
    SCHEMA_OR_NAMES = 5


@dataclass(frozen=True, slots=True)
class Keyword:
    """A keyword of one dialect."""

    name: str
    # "enforced": a condition on values; "annotation": says nothing about them; "structure": names, places or
    # versions of schemas, used while reading.
    role: Role
    check: Callable[[Json], bool]  # Whether a value has the right form, apart from the schemas in it
    expected: str  # The right form in words
    holds: Holds = Holds.NOTHING  # The schemas in a value

    def inner(self, value: Json) -> Iterator[tuple[str, Json]]:
        """The schemas in a value, and what stands for one in `dependencies`, with the end of its pointer."""
        by_name = self.holds in (Holds.SCHEMA_BY_NAME, Holds.SCHEMA_OR_NAMES)
        if by_name and isinstance(value, dict):
            for name, schema in value.items():
                yield f"/{pointer_step(name)}", schema
        elif isinstance(value, list) and self.holds != Holds.SCHEMA:
            for n, schema in enumerate(value):
                yield f"/{n}", schema
        else:
            yield "", value


def _is_text(value: Json) -> bool:
    return isinstance(value, str)


def _is_bool(value: Json) -> bool:
    return isinstance(value, bool)


def _is_object(value: Json) -> bool:
    return isinstance(value, dict)


def _is_filled_list(value: Json) -> bool:
    return isinstance(value, list) and bool(value)


def _is_number(value: Json) -> bool:
    return isinstance(value, int | Decimal) and not isinstance(value, bool)


def _is_count(value: Json) -> bool:
    """Whether it is an integer from 0, `2.0` included."""
    if type(value) is int:
        return value >= 0
    return isinstance(value, Decimal) and value >= 0 and value == value.to_integral_value()


def is_name_list(value: Json) -> bool:
    """Whether it is an array of strings; drafts forbid repeats, which say nothing and do occur."""
    return isinstance(value, list) and all(map(_is_text, value))


def _is_filled_name_list(value: Json) -> bool:
    return is_name_list(value) and bool(value)


def _is_type(value: Json) -> bool:
    if isinstance(value, str):
        return value in TYPE_NAMES
    return _is_filled_name_list(value) and _TYPES.issuperset(value)


def _is_object_of(check: Callable[[Json], bool]) -> Callable[[Json], bool]:
    return lambda value: isinstance(value, dict) and all(map(check, value.values()))


def _is_object_or_list(value: Json) -> bool:
    return isinstance(value, dict | bool) or _is_filled_list(value)


def _matches(pattern: str) -> Callable[[Json], bool]:
    """Whether it is a string that the pattern matches as a whole."""
    matcher = re.compile(pattern)
    return lambda value: isinstance(value, str) and matcher.fullmatch(value) is not None


_Form = tuple[Callable[[Json], bool], str] | tuple[Callable[[Json], bool], str, Holds]
_TEXT: _Form = (_is_text, "a string")
_BOOL: _Form = (_is_bool, "true or false")
_LIST: _Form = (lambda value: isinstance(value, list), "an array")
_VALUE: _Form = (lambda value: True, "a value")
_NUMBER: _Form = (_is_number, "a number")
_COUNT: _Form = (_is_count, "an integer from 0")
_SCHEMA: _Form = (lambda value: True, "a schema", Holds.SCHEMA)
_SCHEMAS: _Form = (_is_filled_list, "an array of at least one schema", Holds.SCHEMAS)
_BY_NAME: _Form = (_is_object, "an object of schemas", Holds.SCHEMA_BY_NAME)
_REFERENCE: _Form = (_is_text, "a URI reference")
_ANCHOR: _Form = (_matches("[A-Za-z_][-A-Za-z0-9._]*"), "a name")
_OLD_ANCHOR: _Form = (_matches("[A-Za-z][-A-Za-z0-9.:_]*"), "a name")

Table = dict[str, Keyword]


def _keywords(role: Role, form: _Form, *names: str) -> Table:
    return {name: Keyword(name, role, *form) for name in names}


_enforced = partial(_keywords, "enforced")
_annotation = partial(_keywords, "annotation")
_structure = partial(_keywords, "structure")


def _without(table: Table, *names: str) -> Table:
    return {name: keyword for name, keyword in table.items() if name not in names}


DRAFT_2020_12 = {
    **_enforced((_is_type, f"one of {', '.join(TYPE_NAMES)}, or an array of them"), "type"),
    **_enforced(_VALUE, "const"),
    **_enforced(_LIST, "enum"),
    **_enforced((lambda value: _is_number(value) and value > 0, "a number above 0"), "multipleOf"),
    **_enforced(_NUMBER, "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"),
    **_enforced(_TEXT, "pattern", "format"),
    **_enforced(_BOOL, "uniqueItems"),
    **_enforced((is_name_list, "an array of strings"), "required"),
    **_enforced((_is_object_of(is_name_list), "an object of arrays of strings"), "dependentRequired"),
    **_enforced(_BY_NAME, "dependentSchemas", "properties", "patternProperties"),
    **_enforced(_SCHEMAS, "prefixItems", "allOf", "anyOf", "oneOf"),
    **_enforced(_SCHEMA, "additionalProperties", "propertyNames", "items", "contains"),
    **_enforced(_SCHEMA, "not", "if", "then", "else", "unevaluatedItems", "unevaluatedProperties"),
    **_enforced(_COUNT, "minLength", "maxLength", "minItems", "maxItems"),
    **_enforced(_COUNT, "minProperties", "maxProperties", "minContains", "maxContains"),
    **_enforced(_REFERENCE, "$ref", "$dynamicRef"),
    **_annotation(_TEXT, "title", "description", "$comment", "contentEncoding", "contentMediaType"),
    **_annotation(_BOOL, "deprecated", "readOnly", "writeOnly"),
    **_annotation(_VALUE, "default"),
    **_annotation(_LIST, "examples"),
    **_annotation(_SCHEMA, "contentSchema"),
    **_structure((_is_text, "a URI"), "$schema"),
    **_structure((_is_object_of(_is_bool), "an object of booleans"), "$vocabulary"),
    **_structure((_matches("[^#]*#?"), "a URI reference without a fragment"), "$id"),
    **_structure(_ANCHOR, "$anchor", "$dynamicAnchor"),
    **_structure(_BY_NAME, "$defs", "definitions"),
    **_enforced((_matches("(?s).+"), "a string that names an index"), "x-genret-index"),
    **_enforced((_matches("(?s).+"), "a string that is a filter"), "x-genret-filter"),
    # Split in two by 2019-09, but its metaschemas still describe it, and who writes it means it.
    **_enforced(
        (_is_object, "an object of schemas and of arrays of strings", Holds.SCHEMA_OR_NAMES),
        "dependencies",
    ),
}
_OLD_ITEMS = {
    **_enforced(
        (_is_object_or_list, "a schema or an array of at least one schema", Holds.SCHEMA_OR_SCHEMAS), "items"
    ),
    **_enforced(_SCHEMA, "additionalItems"),
}

# For schemas that do not say what they are: 2020-12, and what older dialects had where it has nothing.
UNDECLARED = {
    **DRAFT_2020_12,
    **_OLD_ITEMS,
    **_enforced(
        (lambda value: _is_bool(value) or _is_number(value), "a number, or true or false as in draft 4"),
        "exclusiveMinimum",
        "exclusiveMaximum",
    ),
}

DRAFT_2019_09 = {
    **_without(DRAFT_2020_12, "prefixItems", "$dynamicRef", "$dynamicAnchor"),
    **_OLD_ITEMS,
    **_structure(_OLD_ANCHOR, "$anchor"),
    **_enforced(_REFERENCE, "$recursiveRef"),
    **_structure(_BOOL, "$recursiveAnchor"),
}

DRAFT_7 = {
    **_without(
        DRAFT_2019_09,
        *("$vocabulary", "$anchor", "$recursiveRef", "$recursiveAnchor", "$defs"),
        *("dependentRequired", "dependentSchemas", "unevaluatedItems", "unevaluatedProperties"),
        *("minContains", "maxContains", "deprecated", "contentSchema"),
    ),
    **_structure(_REFERENCE, "$id"),
}

DRAFT_6 = _without(
    DRAFT_7, "if", "then", "else", "$comment", "readOnly", "writeOnly", "contentEncoding", "contentMediaType"
)

DRAFT_4 = {
    **_without(DRAFT_6, "$id", "const", "contains", "propertyNames", "examples"),
    **_structure(_REFERENCE, "id"),
    **_enforced((_is_filled_list, "an array of at least one value"), "enum"),
    **_enforced((_is_filled_name_list, "an array of at least one string"), "required"),
    **_enforced(_BOOL, "exclusiveMinimum", "exclusiveMaximum"),
    **_enforced(
        (lambda value: type(value) is int and value >= 0, "an integer from 0"),
        *("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties"),
    ),
}
