"""What is said of every keyword."""

from __future__ import annotations

import json
from typing import Any

import pytest

from genret.decoding.grammar.compile_options import GrammarOptions
from genret.decoding.grammar.errors import InvalidSchemaError
from genret.decoding.grammar.schema.schema_report import explain_schema


def said(schema: Any, **options: Any) -> dict[str, tuple[str, str]]:
    report = explain_schema(json.dumps(schema), GrammarOptions(**options))
    return {pointer: (how, note) for pointer, _, how, note in report.table()}


def test_every_occurrence_is_listed_in_order() -> None:
    schema = {
        "type": "object",
        "title": "Person",
        "properties": {"name": {"type": "string", "default": ""}, "a/b": {"items": {"minimum": 3}}},
        "required": ["name"],
        "$defs": {"unused": {"const": 1}},
    }
    assert said(schema) == {
        "#/type": ("enforced", ""),
        "#/title": ("annotation", ""),
        "#/properties": ("enforced", ""),
        "#/properties/name/type": ("enforced", ""),
        "#/properties/name/default": ("annotation", ""),
        "#/properties/a~1b/items": ("enforced", ""),
        "#/properties/a~1b/items/minimum": ("enforced", ""),
        "#/required": ("enforced", ""),
        "#/$defs": ("enforced", "for references"),
        "#/$defs/unused/const": ("vacuous here", "nothing refers to this definition"),
    }
    report = explain_schema(json.dumps(schema))
    assert report.dialect == "2020-12 with forms of older drafts"
    assert report.counts() == {"enforced": 7, "annotation": 2, "vacuous here": 1, "refused": 0}
    assert report.refusals() == ()


@pytest.mark.parametrize(
    ("schema", "how", "note"),
    [
        ({"nullable": True}, "annotation", "a keyword of OpenAPI, not of JSON Schema"),
        ({"x-order": 1}, "annotation", "an extension"),
        ({"minlength": 1}, "annotation", "an unknown keyword"),
        ({"then": False}, "vacuous here", "says nothing without if"),
        ({"if": False}, "vacuous here", "says nothing without then or else"),
        ({"minContains": 2}, "vacuous here", "says nothing without contains"),
        ({"additionalItems": False}, "vacuous here", "says nothing where items is not an array"),
        ({"additionalItems": False, "items": [True]}, "enforced", ""),
        ({"exclusiveMinimum": True}, "vacuous here", "says nothing without minimum"),
        ({"exclusiveMaximum": False, "maximum": 3}, "vacuous here", "maximum itself is allowed anyway"),
        ({"maxLength": 3, "type": "integer"}, "vacuous here", "speaks of strings, and type allows none"),
        ({"minimum": 3, "type": ["integer", "null"]}, "enforced", ""),
        ({"minItems": 0}, "vacuous here", "every value passes"),
        ({"format": "slug"}, "annotation", "a format that JSON Schema does not define"),
        ({"format": "date"}, "enforced", ""),
        ({"format": "time"}, "enforced", "only such texts are written, but not all there are"),
        ({"contentSchema": {"type": "string"}}, "annotation", ""),
    ],
)
def test_why(schema: Any, how: str, note: str) -> None:
    """The first keyword is explained."""
    assert said(schema)[f"#/{next(iter(schema))}"] == (how, note)


def test_formats_may_be_annotations() -> None:
    got = said({"format": "date"}, formats="annotate")
    assert got == {"#/format": ("annotation", "formats are not asserted")}


def test_older_drafts_have_fewer_keywords() -> None:
    got = said(
        {
            "$schema": "http://json-schema.org/draft-04/schema#",
            "const": 1,
            "type": "integer",
            "not": {"$ref": "#/definitions/x", "minimum": 3},
            "definitions": {"x": {"maximum": 3}},
        }
    )
    assert got["#/$schema"] == ("enforced", "read as draft-04")
    assert got["#/const"] == ("annotation", "no keyword of draft-04")
    assert got["#/type"] == ("enforced", "1.0 is no integer in draft-04")
    assert got["#/not/minimum"] == ("vacuous here", "stands beside $ref, which stands alone in draft-04")
    assert got["#/definitions/x/maximum"] == ("enforced", "")


def test_all_that_is_refused_is_listed_and_not_only_what_comes_first() -> None:
    schema = {
        "properties": {"a": {"pattern": r"(a)\1"}, "b": {"pattern": r"(b)\1"}},
        "items": {"patternProperties": {r"(c)\1": True}},
        "contains": {"$ref": "other.json"},
    }
    report = explain_schema(schema)
    assert [entry.pointer for entry in report.refusals()] == [
        "#/properties/a/pattern",
        "#/properties/b/pattern",
        "#/items/patternProperties",
        "#/contains/$ref",
    ]
    assert report.counts()["refused"] == 4
    assert all(entry.note for entry in report.refusals())


def test_what_is_refused_behind_a_definition_that_nothing_uses_is_not_in_the_way() -> None:
    schema = {"$defs": {"x": {"$ref": "other.json"}}, "type": "string"}
    assert said(schema)["#/$defs/x/$ref"] == ("vacuous here", "nothing refers to this definition")


def test_what_is_no_schema_has_no_report() -> None:
    with pytest.raises(InvalidSchemaError):
        explain_schema({"type": "text"})
