"""Versions of JSON Schema, and which of them a schema is written in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from decoding.grammar.errors import InvalidSchemaError, UnsupportedSchemaError
from decoding.grammar.schema import keywords
from decoding.grammar.schema.document import Json
from decoding.grammar.schema.keywords import Keyword


@dataclass(frozen=True, slots=True, eq=False)
class Dialect:
    """A version of JSON Schema.

    Attributes:
        name: For people.
        keywords: Its keywords by name.
        id_keyword: How a schema says its URI.
        ref_stands_alone: Whether what stands beside `$ref` is ignored.
        has_boolean_schemas: Whether true and false are schemas everywhere.
        contains_evaluates: Whether items that `contains` finds count as evaluated.
        has_plain_integers: Whether 1.0 is no integer.
        locating: Keywords that give a schema a name.
    """

    name: str
    keywords: Mapping[str, Keyword]
    id_keyword: str = "$id"
    ref_stands_alone: bool = False
    has_boolean_schemas: bool = True
    contains_evaluates: bool = False
    has_plain_integers: bool = False

    locating: frozenset[str] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "locating", _LOCATING & self.keywords.keys())


_LOCATING = frozenset({"id", "$id", "$anchor", "$dynamicAnchor", "$recursiveAnchor"})

UNDECLARED = Dialect("2020-12 with forms of older drafts", keywords.UNDECLARED, contains_evaluates=True)
DRAFT_2020_12 = Dialect("2020-12", keywords.DRAFT_2020_12, contains_evaluates=True)
DRAFT_2019_09 = Dialect("2019-09", keywords.DRAFT_2019_09)
DRAFT_7 = Dialect("draft-07", keywords.DRAFT_7, ref_stands_alone=True)
DRAFT_6 = Dialect("draft-06", keywords.DRAFT_6, ref_stands_alone=True)
DRAFT_4 = Dialect(
    "draft-04",
    keywords.DRAFT_4,
    id_keyword="id",
    ref_stands_alone=True,
    has_boolean_schemas=False,
    has_plain_integers=True,
)

_BY_URI = {
    "json-schema.org/draft/2020-12/schema": DRAFT_2020_12,
    "json-schema.org/draft/2019-09/schema": DRAFT_2019_09,
    "json-schema.org/draft-07/schema": DRAFT_7,
    "json-schema.org/draft-06/schema": DRAFT_6,
    "json-schema.org/draft-04/schema": DRAFT_4,
}


def dialect_of(schema: Json, pointer: str, otherwise: Dialect) -> Dialect:
    """The version that `$schema` names, or `otherwise` where there is none.

    Raises:
        InvalidSchemaError: `$schema` is not a string.
        UnsupportedSchemaError: it is draft 3 or older, or a dialect of somebody's own.
    """
    uri = schema.get("$schema") if isinstance(schema, dict) else None
    if uri is None and not (isinstance(schema, dict) and "$schema" in schema):
        return otherwise
    place = f"{pointer}/$schema"
    if not isinstance(uri, str):
        raise InvalidSchemaError("$schema", place, "expected a URI")
    dialect = _BY_URI.get(uri.removesuffix("#").removeprefix("https://").removeprefix("http://"))
    if dialect is None:
        known = ", ".join(d.name for d in _BY_URI.values())
        raise UnsupportedSchemaError("$schema", place, f"{uri!r} is not one of the dialects {known}")
    return dialect
