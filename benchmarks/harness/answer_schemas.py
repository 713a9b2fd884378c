"""Fifty schemas that together use every keyword, four of them with titles of an index in their strings."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

_DRAFT = "https://json-schema.org/draft/{}/schema"
_OLD_DRAFT = "http://json-schema.org/draft-0{}/schema#"


@dataclass(frozen=True, slots=True)
class AnswerSchema:
    """A schema of an answer."""

    name: str
    schema: Any

    @property
    def text(self) -> str:
        """The schema as JSON text."""
        return json.dumps(self.schema, ensure_ascii=False)

    @property
    def has_titles(self) -> bool:
        """Whether any of its strings must be a title of an index."""
        return "x-genret-index" in self.text

    @property
    def keywords(self) -> frozenset[str]:
        """Every name of an object in the schema: its keywords, and its properties' names with them."""
        return frozenset(_names(self.schema))


def _names(value: Any) -> set[str]:
    if isinstance(value, dict):
        return set(value).union(*(_names(inner) for inner in value.values()))
    if isinstance(value, list):
        return set().union(*(_names(inner) for inner in value))
    return set()


def _closed(required: list[str] | None = None, **properties: Any) -> dict[str, Any]:
    names = list(properties) if required is None else required
    return {"type": "object", "properties": properties, "required": names, "additionalProperties": False}


def _array(items: Any, **more: Any) -> dict[str, Any]:
    return {"type": "array", "items": items, **more}


_TEXT = {"type": "string"}
_INTEGER = {"type": "integer"}
_NUMBER = {"type": "number"}
_BOOLEAN = {"type": "boolean"}
_TITLE = {"type": "string", "x-genret-index": "titles"}

_SCALARS: dict[str, Any] = {
    "anything": True,
    "a text": _TEXT,
    "a short text": {"type": "string", "minLength": 2, "maxLength": 5},
    "a long text": {"type": "string", "minLength": 20, "maxLength": 300},
    "a code": {"type": "string", "pattern": "^[A-Z]{2}-[0-9]{3,5}$"},
    "a text with a word in it": {"type": "string", "pattern": "(red|green|blé)", "maxLength": 12},
    "an integer": _INTEGER,
    "a number": {"type": "number", "minimum": -2.5, "exclusiveMaximum": 1000},
    "money": {"type": "number", "multipleOf": 0.01, "minimum": 0, "maximum": 99.99},
    "a multiple": {"type": "integer", "multipleOf": 7, "exclusiveMinimum": -50, "maximum": 10_000},
    "null": {"type": "null"},
    "one of several types": {"type": ["string", "null", "integer"], "maxLength": 3, "maximum": 5},
    "an enumeration": {
        "enum": ["red", "red wine", 'quo"te', "é\n", 1, 12, 1.5, -0.5, True, None, [1], {"a": []}]
    },
    "a constant": {"const": {"kind": "unit", "values": [1, "x", None], "ok": False}},
    "a date": {"type": "string", "format": "date"},
    "a number or a text of digits": {"anyOf": [_NUMBER, {"type": "string", "pattern": "^-?[0-9]+$"}]},
    "fizz or buzz": {"type": "integer", "oneOf": [{"multipleOf": 3}, {"multipleOf": 5}]},
    "not too near": {"type": "integer", "not": {"minimum": -3, "maximum": 20}},
}

_OBJECTS: dict[str, Any] = {
    "a person": _closed(name=_TEXT, age={"type": "integer", "minimum": 0, "maximum": 150}, active=_BOOLEAN),
    "some of three": _closed(["b"], a=_INTEGER, b={"type": ["boolean", "null"]}, c=_TEXT),
    "odd names": _closed(
        **{
            'qu"ote': _BOOLEAN,
            "back\\slash": _INTEGER,
            "é 日本": _TEXT,
            "": {"type": "null"},
            "tab\t": _BOOLEAN,
        }
    ),
    "nested": _closed(id=_INTEGER, user=_closed(name=_TEXT, address=_closed(street=_TEXT, code=_TEXT))),
    "names by pattern": {
        "type": "object",
        "patternProperties": {"^x-": {"type": "string", "maxLength": 4}, "^n": _INTEGER},
        "additionalProperties": False,
        "minProperties": 1,
        "maxProperties": 3,
    },
    "a dictionary": {
        "type": "object",
        "additionalProperties": {"type": "number"},
        "propertyNames": {"maxLength": 3},
    },
    "an open object": {
        "type": "object",
        "properties": {"a": _INTEGER},
        "required": ["a", "b"],
        "maxProperties": 4,
    },
    "a card": {
        **_closed(["number"], number=_INTEGER, expires={"type": "string", "format": "date"}, owner=_TEXT),
        "dependentRequired": {"expires": ["owner"]},
    },
    "a delivery": {
        **_closed(["kind"], kind={"enum": ["parcel", "letter"]}, weight=_NUMBER, stamps=_INTEGER),
        "dependentSchemas": {"weight": {"properties": {"kind": {"const": "parcel"}}}},
    },
    "an address": {
        **_closed(["country", "code"], country={"enum": ["DE", "GB"]}, code=_TEXT),
        "if": {"properties": {"country": {"const": "DE"}}},
        "then": {"properties": {"code": {"pattern": "^[0-9]{5}$"}}},
        "else": {"properties": {"code": {"pattern": "^[A-Z0-9]{2,4} [0-9][A-Z]{2}$"}}},
    },
    "both of two": {
        "allOf": [
            {"type": "object", "properties": {"a": _INTEGER}, "required": ["a"]},
            {"properties": {"b": {"type": "string", "maxLength": 6}, "a": {"minimum": 3}}, "required": ["b"]},
        ],
        "unevaluatedProperties": False,
    },
    "a shape": {
        "oneOf": [
            _closed(kind={"const": "circle"}, radius={"type": "number", "exclusiveMinimum": 0}),
            _closed(kind={"const": "square"}, side={"type": "number", "exclusiveMinimum": 0}),
            _closed(["kind"], kind={"const": "text"}, text=_TEXT),
        ]
    },
    "alike alternatives": {
        "anyOf": [
            _closed(k={"enum": ["a", "ab"]}, n=_INTEGER),
            _closed(k={"enum": ["ab", "abc"]}, n=_TEXT, more=_BOOLEAN),
        ]
    },
    "not empty": {**_closed([], a=_INTEGER, b=_INTEGER), "not": {"maxProperties": 0}},
    "annotated": {
        "$id": "https://example.org/annotated",
        "$comment": "a note",
        "title": "Annotated",
        "description": "x",
        **_closed(
            a={"type": "integer", "default": 1, "examples": [1, 2]},
            b={
                "type": "string",
                "contentEncoding": "base64",
                "contentMediaType": "text/plain",
                "contentSchema": True,
            },
        ),
        "deprecated": False,
        "readOnly": False,
        "writeOnly": False,
    },
}

_ARRAYS: dict[str, Any] = {
    "integers": _array(_INTEGER, minItems=1, maxItems=4),
    "people": _array(_closed(name=_TEXT, ok=_BOOLEAN), maxItems=3),
    "a tuple": {
        "type": "array",
        "prefixItems": [_BOOLEAN, {"enum": ["p", "pq"]}],
        "items": _INTEGER,
        "minItems": 2,
    },
    "different words": _array({"enum": ["a", "ab", "b", 'q"']}, uniqueItems=True, minItems=2),
    "a twelve among integers": {**_array(_INTEGER, maxItems=5), "contains": {"const": 12}},
    "few threes": {
        **_array({"enum": [3, 4]}, maxItems=6),
        "contains": {"const": 3},
        "minContains": 1,
        "maxContains": 2,
    },
    "closed by what was evaluated": {"type": "array", "prefixItems": [_INTEGER], "unevaluatedItems": False},
}

_REFERENCES: dict[str, Any] = {
    "a tree": {
        "$defs": {"node": _closed(["v"], v=_INTEGER, kids=_array({"$ref": "#/$defs/node"}))},
        "$ref": "#/$defs/node",
    },
    "a list of lists": {
        "$schema": _DRAFT.format("2020-12"),
        "$dynamicAnchor": "node",
        "anyOf": [_BOOLEAN, _array({"$dynamicRef": "#node"}, maxItems=3)],
    },
    "an anchor": {
        "$defs": {"x": {"$anchor": "short", "type": "string", "maxLength": 2}},
        **_closed(x={"$ref": "#short"}),
    },
    "draft 2019-09": {
        "$schema": _DRAFT.format("2019-09"),
        "$recursiveAnchor": True,
        **_closed(["v"], v=_INTEGER, left={"$recursiveRef": "#"}),
    },
    "draft 7": {
        "$schema": _OLD_DRAFT.format(7),
        "definitions": {"flag": _BOOLEAN},
        **_closed(
            ["pair"],
            a=_INTEGER,
            pair={
                "type": "array",
                "items": [{"$ref": "#/definitions/flag"}, _INTEGER],
                "additionalItems": _TEXT,
                "minItems": 2,
                "maxItems": 3,
            },
        ),
        "dependencies": {"a": ["pair"]},
    },
    "draft 4": {
        "$schema": _OLD_DRAFT.format(4),
        "id": "https://example.org/four",
        **_closed(n={"type": "integer", "minimum": 0, "exclusiveMinimum": True, "maximum": 9}),
    },
}

_TITLES: dict[str, Any] = {
    "a title": _closed(title=_TITLE),
    "titles": _closed(answer=_array(_TITLE, minItems=1, maxItems=3), sure=_BOOLEAN),
    "an animal": _closed(animal={**_TITLE, "x-genret-filter": "kind = 'animal'"}, legs=_INTEGER),
    "a title or a remark": _array({"anyOf": [_closed(title=_TITLE), _closed(remark=_TEXT)]}, maxItems=2),
}

SCHEMAS: tuple[AnswerSchema, ...] = tuple(
    AnswerSchema(name, schema)
    for group in (_SCALARS, _OBJECTS, _ARRAYS, _REFERENCES, _TITLES)
    for name, schema in group.items()
)
