"""References: URIs, names, dynamic names, older drafts, other documents, and circles."""

from __future__ import annotations

import json
from typing import Any

import pytest
from jsonschema.validators import validator_for

from genret.decoding.grammar.compile_options import CompileLimits, GrammarOptions
from genret.decoding.grammar.errors import InvalidSchemaError, SchemaLimitError, UnsupportedSchemaError
from genret.decoding.grammar.schema.formula_table import FormulaTable
from genret.decoding.grammar.schema.schema_report import explain_schema
from tests.formula_oracle import evaluates
from tests.leaf_oracle import in_threads

DRAFT_2019_09 = "https://json-schema.org/draft/2019-09/schema"
DRAFT_4, DRAFT_7 = (f"http://json-schema.org/draft-0{n}/schema#" for n in (4, 7))


def holds(schema: Any, value: Any) -> bool:
    table = FormulaTable(json.dumps(schema))
    return evaluates(table.root, table, value)


@pytest.mark.parametrize(
    "reference",
    [
        *("#/$defs/text", "#/%24defs/text", "#text", "http://a.example/root.json#/$defs/text"),
        *("root.json#text", "other.json", "http://a.example/other.json#", "#/$defs/text/$defs/inner"),
        *("/other.json#/$defs/inner", "#/odd%20place/0/x~1y", "sub/deep.json", "sub/deep.json#here"),
    ],
)
def test_references_find_their_schema(reference: str) -> None:
    string = {"type": "string"}
    schema = {
        "$id": "http://a.example/root.json",
        "$ref": reference,
        "$defs": {
            "text": {"$anchor": "text", **string, "$defs": {"inner": string}},
            "other": {"$id": "other.json", "$ref": "#/$defs/inner", "$defs": {"inner": string}},
            "deep": {"$id": "sub/", "$defs": {"d": {"$id": "deep.json", "$anchor": "here", **string}}},
        },
        "odd place": [{"x/y": string}],
    }
    assert holds(schema, "a")
    assert not holds(schema, 1)


def test_relative_references_start_from_the_nearest_id() -> None:
    schema = {
        "$id": "http://a.example/root",
        "properties": {"a": {"$id": "http://b.example/x/", "items": {"$ref": "y#/$defs/n"}}},
        "$defs": {"n": False, "y": {"$id": "http://b.example/x/y", "$defs": {"n": {"type": "number"}}}},
    }
    assert holds(schema, {"a": [1]})
    assert not holds(schema, {"a": ["b"]})


@pytest.mark.parametrize(
    ("schema", "uri"),
    [
        ({"$ref": "http://a.example/x.json#/y"}, "http://a.example/x.json"),
        ({"$id": "http://a.example/b/c", "$ref": "d#e"}, "http://a.example/b/d"),
        ({"$ref": "common.json"}, "common.json"),
        ({"$ref": "http://json-schema.org/draft-99/schema"}, "http://json-schema.org/draft-99/schema"),
    ],
)
def test_other_documents_are_not_fetched(schema: Any, uri: str) -> None:
    with pytest.raises(UnsupportedSchemaError) as caught:
        FormulaTable(json.dumps(schema))
    assert (caught.value.keyword, caught.value.pointer) == ("$ref", "#/$ref")
    assert caught.value.reason == f"{uri!r} is another document, and nothing is fetched"


def test_a_name_given_twice_is_refused_where_it_is_used() -> None:
    twice = {"a": {"$anchor": "x"}, "b": {"$anchor": "x"}, "c": {"$id": "u"}, "d": {"$id": "u", "minimum": 1}}
    FormulaTable(json.dumps({"$defs": twice}))
    for reference in ("#x", "u"):
        with pytest.raises(InvalidSchemaError, match=f"several schemas are called '{reference}'"):
            FormulaTable(json.dumps({"$defs": twice, "$ref": reference}))


@pytest.mark.parametrize("draft", [DRAFT_4, DRAFT_7])
def test_in_older_drafts_a_reference_stands_alone(draft: str) -> None:
    schema = {
        "$schema": draft,
        "properties": {"a": {"$ref": "#/definitions/n", "maximum": 3}},
        "definitions": {"n": {"type": "number"}},
    }
    assert holds(schema, {"a": 5})
    assert not holds({**schema, "$schema": DRAFT_2019_09}, {"a": 5})
    assert not holds({k: v for k, v in schema.items() if k != "$schema"}, {"a": 5})


def test_names_of_older_drafts() -> None:
    for draft, keyword in ((DRAFT_4, "id"), (DRAFT_7, "$id")):
        schema = {
            "$schema": draft,
            keyword: "http://a.example/root",
            "items": {"$ref": "#name"},
            "additionalProperties": {"$ref": "b#other"},
            "definitions": {
                "x": {keyword: "#name", "type": "string"},
                "b": {keyword: "http://a.example/b#other", "type": "number"},
            },
        }
        assert holds(schema, ["a"])
        assert not holds(schema, [1])
        assert holds(schema, {"a": 1})
        assert not holds(schema, {"a": "b"})
        ignored = {"$schema": draft, "$ref": "#/definitions/x", keyword: "http://elsewhere.example/"}
        assert holds({**ignored, "definitions": {"x": {"type": "string"}}}, "a")


def test_where_no_draft_is_named_id_is_no_keyword() -> None:
    schema = {"id": "http://a.example/b", "items": {"id": 5, "$ref": "#/definitions/x"}}
    assert not holds({**schema, "definitions": {"x": False}}, [1])


def test_a_schema_inside_may_be_of_another_draft() -> None:
    inner = {"$schema": DRAFT_7, "$id": "http://a.example/old", "$ref": "#/definitions/x", "maximum": 3}
    schema = {
        "items": {"$ref": "http://a.example/old"},
        "$defs": {"old": {**inner, "definitions": {"x": True}}},
    }
    assert holds(schema, [5])


def test_metaschemas_can_be_referred_to() -> None:
    for draft in ("https://json-schema.org/draft/2020-12/schema", DRAFT_2019_09, DRAFT_7, DRAFT_4):
        schema = {"additionalProperties": {"$ref": draft}}
        assert holds(schema, {"a": {"properties": {"b": {"type": "string", "minLength": 3}}}})
        for value in ({"properties": {"b": {"minLength": "3"}}}, {"allOf": [{"type": "text"}]}, 5):
            assert not holds(schema, {"a": value}), (draft, value)


def test_dynamic_references_mean_the_outermost_schema_of_the_name() -> None:
    tree = {
        "$id": "http://a.example/tree",
        "$dynamicAnchor": "node",
        "properties": {"data": True, "children": {"items": {"$dynamicRef": "#node"}}},
    }
    strict = {
        "$id": "http://a.example/strict",
        "$dynamicAnchor": "node",
        "$ref": "tree",
        "unevaluatedProperties": False,
        "$defs": {"tree": tree},
    }
    misspelled = {"children": [{"daat": 1}]}
    assert holds({"$ref": "tree", "$id": "http://a.example/", "$defs": {"t": tree}}, misspelled)
    assert not holds(strict, misspelled)
    assert holds(strict, {"children": [{"data": 1}]})
    # The same tree, loose on one side and strict on the other.
    both = {
        "$id": "http://a.example/both",
        "properties": {"loose": {"$ref": "tree"}, "strict": {"$ref": "strict"}},
        "$defs": {"strict": strict},
    }
    assert holds(both, {"loose": misspelled})
    assert not holds(both, {"strict": misspelled})


def test_recursive_references_mean_the_outermost_schema_that_asks_for_it() -> None:
    tree = {
        "$id": "http://a.example/tree",
        "$recursiveAnchor": True,
        "properties": {"data": True, "children": {"items": {"$recursiveRef": "#"}}},
    }
    strict = {
        "$schema": DRAFT_2019_09,
        "$id": "http://a.example/strict",
        "$recursiveAnchor": True,
        "$ref": "tree",
        "unevaluatedProperties": False,
        "$defs": {"tree": tree},
    }
    misspelled = {"children": [{"daat": 1}]}
    assert not holds(strict, misspelled)
    assert holds({**strict, "$recursiveAnchor": False}, misspelled)


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "#"},
        {"allOf": [{"$ref": "#/$defs/a"}], "$defs": {"a": {"anyOf": [{"type": "null"}, {"$ref": "#"}]}}},
        {"$ref": "#/$defs/a", "$defs": {"a": {"not": {"$ref": "#/$defs/b"}}, "b": {"$ref": "#/$defs/a"}}},
        {"if": {"$ref": "#"}, "then": {"type": "string"}},
        {"dependentSchemas": {"a": {"$ref": "#"}}},
        {"propertyNames": {"$ref": "#/propertyNames"}},
        {"$ref": "#/$defs/a", "unevaluatedProperties": False, "$defs": {"a": {"$ref": "#/$defs/a"}}},
    ],
)
def test_references_in_circles_are_refused(schema: Any) -> None:
    with pytest.raises(UnsupportedSchemaError, match="to itself without looking into the value"):
        FormulaTable(json.dumps(schema))


def test_a_circle_behind_a_property_is_found_when_it_is_asked_for() -> None:
    table = FormulaTable('{"items":{"$ref":"#/$defs/a"},"$defs":{"a":{"$ref":"#/$defs/a"}}}')
    for _ in range(2):
        with pytest.raises(UnsupportedSchemaError, match="#/\\$defs/a: "):
            table.resolve("#/$defs/a")


NODE = {
    "type": "object",
    "properties": {"v": {"type": "integer"}, "c": {"items": {"$ref": "#/$defs/node"}}},
    "required": ["v"],
}
INWARD = [
    {"$ref": "#/$defs/node", "$defs": {"node": NODE}},
    {"propertyNames": {"$ref": "#"}},
    {
        "propertyNames": {"allOf": [{"$ref": "#"}, {"maxLength": 2}]},
        "items": {"propertyNames": {"$ref": "#"}},
    },
    {"anyOf": [{"properties": {"a": {"$ref": "#", "unevaluatedProperties": False}}}, {"type": "null"}]},
    {
        "if": {"properties": {"a": {"$ref": "#", "unevaluatedProperties": False}}, "required": ["a"]},
        "then": {"properties": {"b": True}},
        "else": {"properties": {"c": True}},
    },
    {"contains": {"prefixItems": [{"$ref": "#", "unevaluatedItems": False}]}},
]


@pytest.mark.parametrize("schema", INWARD)
def test_references_back_to_a_schema_around_them_are_followed(schema: Any) -> None:
    values: list[Any] = [
        {"a": inner} for inner in ({}, {"b": 1}, {"a": {}}, {"a": {}, "b": 1}, {"c": 1}, None)
    ]
    values += [{"aaa": 1}, [{"aaa": 1}], [[{"a": 1}]], [], [[[1]]], [[[[3]]]], 5, None, {"c": []}]
    values += [{"v": 1}, {"v": 1, "c": [{"v": 2}]}, {"v": 1, "c": [{"v": 2, "c": [{}]}]}]
    validator = validator_for(schema)(schema)
    for value in values:
        assert holds(schema, value) == validator.is_valid(value), value
    explain_schema(schema)


def test_long_chains_of_references_end_in_a_limit_and_not_in_a_crash() -> None:
    definitions: dict[str, Any] = {f"d{n}": {"$ref": f"#/$defs/d{n + 1}"} for n in range(2_000)}
    definitions["d2000"] = {"type": "string"}
    with pytest.raises(SchemaLimitError, match="nested too deeply"):
        FormulaTable({"$ref": "#/$defs/d0", "$defs": definitions})
    deep = GrammarOptions(limits=CompileLimits(depth=10_000))
    with pytest.raises(SchemaLimitError, match="nested too deeply"):
        FormulaTable('{"not":' * 400 + "true" + "}" * 400, deep)


def test_tables_can_be_made_from_several_threads() -> None:
    schema = json.dumps({"items": {"$ref": "#/$defs/a"}, "$defs": {"a": {"minLength": 1, "maxLength": 9}}})

    def make() -> Any:
        table = FormulaTable(schema)
        return table.root, table.resolve("#/$defs/a")

    made = in_threads(make)
    assert made == made[:1] * 8
