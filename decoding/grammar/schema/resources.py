"""Indexes the schemas of a document, checked for their form: their dialects, their URIs and their names.

A dialect is a version of JSON Schema. One walk over a document checks every keyword's value and notes which
schemas have names, so that references are found by dictionary and translating a schema need not look at forms
again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple
from urllib.parse import unquote, urldefrag, urljoin

from genret.decoding.grammar.compile_options import check_time
from genret.decoding.grammar.errors import InvalidSchemaError, UnsupportedSchemaError
from genret.decoding.grammar.schema import keywords
from genret.decoding.grammar.schema.keywords import Holds, Keyword, is_name_list
from genret.decoding.grammar.schema.schema_document import Json, pointer_step

RECURSIVE = "$recursive"
"""Stands for `$recursiveAnchor`, which has no name; no anchor can be called like this."""


@dataclass(slots=True, eq=False)
class Resource:
    """A schema with a URI of its own, and what is in it up to the next such schema."""

    uri: str  # Without fragment; "" for a document that does not say
    dialect: Dialect
    schema: Json  # Its root
    pointer: str  # Pointer to the root, in the document as it was given
    # Names that `$dynamicRef` may find, and the pointers of what they name.
    dynamic: dict[str, str] = field(default_factory=dict)


class Spot(NamedTuple):
    """A schema and where it stands."""

    schema: Json
    pointer: str
    resource: Resource


class SchemaIndex:
    """All resources of a document, and of the official metaschemas it refers to.

    `dialect` is that of a document that does not say its own.

    Raises:
        InvalidSchemaError: a keyword's value has the wrong form.
        UnsupportedSchemaError: it is written in an unknown dialect.
    """

    def __init__(self, document: Json, dialect: Dialect) -> None:
        self._resources: dict[str, Resource] = {}
        self._anchors: dict[str, Spot] = {}
        self._ambiguous: set[str] = set()
        self._checked: set[int] = set()
        self._found: dict[tuple[str, str], Spot] = {}
        self.formats: set[str] = set()  # All values of `format`
        self.patterns: set[str] = set()  # All values of `pattern`
        self.spots: dict[str, Spot] = {}  # Targets of dynamic names, by pointer
        self.embedded: dict[int, Resource] = {}  # Schemas with URIs of their own, by the `id` of the object
        self.root = self._add_document(document, "", "#", dialect)

    def _add_document(self, document: Json, uri: str, pointer: str, dialect: Dialect) -> Resource:
        resource = Resource(uri, dialect_of(document, pointer, dialect), document, pointer)
        self._resources[uri] = resource
        self._visit(document, pointer, resource)
        return self.embedded.get(id(document), resource)

    def _visit(self, schema: Json, pointer: str, resource: Resource) -> None:
        if type(schema) is not dict:
            if isinstance(schema, bool) and (
                resource.dialect.has_boolean_schemas or pointer.endswith(_BOOLEAN_ANYWAY)
            ):
                return
            raise InvalidSchemaError("", pointer, f"expected a schema, got {_kind(schema)}")
        if id(schema) in self._checked:
            return
        self._checked.add(id(schema))
        dialect = resource.dialect
        if not dialect.locating.isdisjoint(schema):
            resource = self._name(schema, pointer, resource)
            dialect = resource.dialect
        known = dialect.keywords
        for name, value in schema.items():
            keyword = known.get(name)
            if keyword is None:
                if name.startswith("x-genret"):
                    reason = "unknown keyword, did you mean x-genret-index or x-genret-filter?"
                    raise InvalidSchemaError(name, f"{pointer}/{pointer_step(name)}", reason)
                continue
            if not keyword.check(value):
                reason = f"expected {keyword.expected}, got {_kind(value)}"
                raise InvalidSchemaError(name, f"{pointer}/{pointer_step(name)}", reason)
            if keyword.holds:
                self._visit_inner(keyword, value, f"{pointer}/{name}", resource)
            elif name == "format":
                self.formats.add(value)
            elif name == "pattern":
                self.patterns.add(value)

    def _visit_inner(self, keyword: Keyword, value: Json, pointer: str, resource: Resource) -> None:
        may_be_names = keyword.holds == Holds.SCHEMA_OR_NAMES
        for number, (step, inner) in enumerate(keyword.inner(value)):
            if not number & 255:
                check_time()
            if not (may_be_names and isinstance(inner, list)):
                self._visit(inner, pointer + step, resource)
            elif not is_name_list(inner) or not (inner or resource.dialect.has_boolean_schemas):
                reason = "expected a schema or an array of strings"
                raise InvalidSchemaError(keyword.name, pointer + step, reason)

    def _name(self, schema: dict[str, Json], pointer: str, resource: Resource) -> Resource:
        """Note the names a schema gives itself; return the resource it belongs to."""
        dialect = resource.dialect
        written = schema.get(dialect.id_keyword)
        if isinstance(written, str) and not (dialect.ref_stands_alone and "$ref" in schema):
            resource = self._identify(schema, written, pointer, resource)
        spot = Spot(schema, pointer, resource)
        for name in ("$anchor", "$dynamicAnchor"):
            anchor = schema.get(name)
            if isinstance(anchor, str) and name in resource.dialect.keywords:
                self._add_anchor(resource.uri, anchor, spot)
                if name == "$dynamicAnchor":
                    resource.dynamic.setdefault(anchor, pointer)
                    self.spots[pointer] = spot
        if schema.get("$recursiveAnchor") is True and "$recursiveAnchor" in resource.dialect.keywords:
            resource.dynamic.setdefault(RECURSIVE, pointer)
            self.spots[pointer] = spot
        return resource

    def _identify(self, schema: dict[str, Json], written: str, pointer: str, resource: Resource) -> Resource:
        keyword = resource.dialect.id_keyword
        try:
            uri, fragment = urldefrag(join(resource.uri, written))
        except ValueError as error:
            place = f"{pointer}/{keyword}"
            raise InvalidSchemaError(keyword, place, f"{written!r} is no URI: {error}") from None
        if uri != resource.uri:
            dialect = dialect_of(schema, pointer, resource.dialect)
            resource = Resource(uri, dialect, schema, pointer)
            if uri in self._resources:
                self._ambiguous.add(uri)
            self._resources[uri] = resource
            self.embedded[id(schema)] = resource
        if fragment and not fragment.startswith("/"):
            self._add_anchor(uri, fragment, Spot(schema, pointer, resource))
        return resource

    def _add_anchor(self, uri: str, anchor: str, spot: Spot) -> None:
        full = f"{uri}#{anchor}"
        if self._anchors.setdefault(full, spot).schema is not spot.schema:
            self._ambiguous.add(full)

    def locate(self, reference: str, resource: Resource, keyword: str, pointer: str) -> Spot:
        """Find the schema that a reference, as it is written in a resource, means.

        Raises InvalidSchemaError if there is nothing, or no schema, and UnsupportedSchemaError if it is in
        another document; both name the keyword and the pointer.
        """
        key = (resource.uri, reference)
        spot = self._found.get(key)
        if spot is None:
            try:
                if reference.startswith("#"):
                    uri, fragment = resource.uri, reference[1:]
                else:
                    uri, fragment = urldefrag(join(resource.uri, reference))
                fragment = unquote(fragment, errors="strict")
            except ValueError as error:
                raise InvalidSchemaError(keyword, pointer, f"{reference!r} is no URI: {error}") from None
            spot = self._found[key] = self._find(uri, fragment, Spot(reference, pointer, resource), keyword)
        return spot

    def _find(self, uri: str, fragment: str, asking: Spot, keyword: str) -> Spot:
        target = self._resources.get(uri) or self._metaschema(uri)
        if target is None:
            reason = f"{uri!r} is another document, and nothing is fetched"
            raise UnsupportedSchemaError(keyword, asking.pointer, reason)
        full = f"{uri}#{fragment}"
        if uri in self._ambiguous or full in self._ambiguous:
            raise InvalidSchemaError(keyword, asking.pointer, f"several schemas are called {asking.schema!r}")
        if not fragment:
            return Spot(target.schema, target.pointer, target)
        found = self._follow(fragment, target) if fragment.startswith("/") else self._anchors.get(full)
        if found is None:
            raise InvalidSchemaError(keyword, asking.pointer, f"{asking.schema!r} leads nowhere")
        return found

    def _follow(self, fragment: str, resource: Resource) -> Spot | None:
        """Go along a JSON pointer; what it finds outside of known keywords is checked now."""
        value, pointer = resource.schema, resource.pointer
        for step in fragment[1:].split("/"):
            name = step.replace("~1", "/").replace("~0", "~")
            if isinstance(value, dict) and name in value:
                value = value[name]
            elif isinstance(value, list) and _is_position(name) and len(name) < 10 and int(name) < len(value):
                value = value[int(name)]
            else:
                return None
            pointer = f"{pointer}/{pointer_step(name)}"
            resource = self.embedded.get(id(value), resource)
        self._visit(value, pointer, resource)
        return Spot(value, pointer, self.embedded.get(id(value), resource))

    def _metaschema(self, uri: str) -> Resource | None:
        """The official metaschema of a URI; they come with jsonschema."""
        if "json-schema.org/" not in uri:
            return None
        # Few schemas refer to them, and the package reads twenty files when it is imported.
        from jsonschema_specifications import REGISTRY  # type: ignore[import-untyped]

        found = REGISTRY.get(uri)
        if found is None:
            return None
        dialect = dialect_of(found.contents, uri + "#", self.root.dialect)
        return self._add_document(found.contents, uri, uri + "#", dialect)


_BOOLEAN_ANYWAY = ("/additionalProperties", "/additionalItems")


def join(base: str, reference: str) -> str:
    """Resolve a URI reference (RFC 3986); bases that are not hierarchical keep what stands before `#`."""
    if reference.startswith("#"):
        return urldefrag(base).url + reference
    return urljoin(base, reference)


def _is_position(step: str) -> bool:
    return step.isascii() and step.isdigit() and (step == "0" or step[0] != "0")


def _kind(value: Json) -> str:
    if isinstance(value, dict):
        return "an object"
    if isinstance(value, list):
        return "an array" if value else "an empty array"
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    text = repr(value) if isinstance(value, str) else str(value)
    return text if len(text) <= 40 else f"{text[:40]}..."


@dataclass(frozen=True, slots=True, eq=False)
class Dialect:
    """A version of JSON Schema."""

    name: str  # For people
    keywords: Mapping[str, Keyword]  # By name
    id_keyword: str = "$id"  # The keyword by which a schema says its URI
    ref_stands_alone: bool = False  # Whether what stands beside `$ref` is ignored
    has_boolean_schemas: bool = True  # Whether true and false are schemas everywhere
    contains_evaluates: bool = False  # Whether items that `contains` finds count as evaluated
    has_plain_integers: bool = False  # Whether 1.0 is no integer
    locating: frozenset[str] = field(init=False)  # Keywords that give a schema a name

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
    """The dialect that `$schema` names, or `otherwise` where there is none.

    Raises:
        InvalidSchemaError: `$schema` is not a string.
        UnsupportedSchemaError: it is draft 3 or older, or a dialect of somebody's own.
    """
    if not isinstance(schema, dict) or "$schema" not in schema:
        return otherwise
    uri, place = schema["$schema"], f"{pointer}/$schema"
    if not isinstance(uri, str):
        raise InvalidSchemaError("$schema", place, "expected a URI")
    dialect = _BY_URI.get(uri.removesuffix("#").removeprefix("https://").removeprefix("http://"))
    if dialect is None:
        known = ", ".join(d.name for d in _BY_URI.values())
        raise UnsupportedSchemaError("$schema", place, f"{uri!r} is not one of the dialects {known}")
    return dialect
