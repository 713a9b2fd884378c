"""What keywords mean, as formulas: also of formats known in part, and behind references."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

import pytest
from jsonschema.validators import validator_for

from genret.decoding.grammar.compile_options import CompileLimits, GrammarOptions, compile_budget
from genret.decoding.grammar.errors import (
    InvalidSchemaError,
    SchemaLimitError,
    UnsatisfiableSchemaError,
    UnsupportedSchemaError,
)
from genret.decoding.grammar.regular.dfa import Dfa
from genret.decoding.grammar.regular.number_set import NumberSet
from genret.decoding.grammar.regular.text_set import TextSet
from genret.decoding.grammar.schema.formula import (
    ANYTHING,
    NOTHING,
    AllOf,
    Contains,
    ExactlyOne,
    Formula,
    Items,
    JsonType,
    NumberIn,
    Place,
    PropertyNames,
    Reference,
    TextIn,
    TypeIs,
)
from genret.decoding.grammar.schema.formula_table import FormulaTable
from genret.decoding.grammar.schema.schema_report import explain_schema
from tests.shape_walker import ShapeWalker, node_of

DRAFT_4 = "http://json-schema.org/draft-04/schema#"
DRAFT_7 = "http://json-schema.org/draft-07/schema#"
STRING, NUMBER, ARRAY = (TypeIs(kind) for kind in (JsonType.STRING, JsonType.NUMBER, JsonType.ARRAY))


def formula(schema: Any, **options: Any) -> Formula:
    return FormulaTable(json.dumps(schema), GrammarOptions(**options)).root


def at(pointer: str) -> Place:
    return Place(pointer.rsplit("/", 1)[-1], f"#/{pointer}")


def test_schemas_that_allow_everything_or_nothing() -> None:
    assert formula(True) == formula({}) == formula({"title": "x", "minLength": 0}) == ANYTHING
    assert formula({"required": [], "minItems": 0, "uniqueItems": False, "properties": {}}) == ANYTHING
    assert formula(False) == formula({"not": {}}) == formula({"anyOf": [False, False]}) == NOTHING


def test_keywords_on_numbers_are_one_set() -> None:
    got = formula({"minimum": 1, "type": "integer", "exclusiveMaximum": 7.5, "multipleOf": 2})
    numbers = NumberSet.of(integers=True, least=Decimal(1), below=Decimal("7.5"), multiple_of=Decimal(2))
    assert got == AllOf((NumberIn(numbers, at("minimum")), NUMBER))
    # Draft 4 says with a boolean whether the bound itself is allowed.
    above = NumberIn(NumberSet.of(above=Decimal(1)), at("minimum"))
    assert formula({"minimum": 1, "exclusiveMinimum": True}) == above
    assert formula({"$schema": DRAFT_4, "minimum": 1, "exclusiveMinimum": True}) == above
    least = NumberIn(NumberSet.of(least=Decimal(1)), at("minimum"))
    assert formula({"minimum": 1, "exclusiveMinimum": False}) == least
    integers = AllOf((NumberIn(NumberSet.of(integers=True), at("type")), NUMBER))
    assert formula({"exclusiveMinimum": True, "type": "integer"}) == integers


def test_keywords_on_strings_are_one_set() -> None:
    lengths = TextSet.of(2, 5)
    assert formula({"minLength": 2, "maxLength": 5.0}) == TextIn(lengths, at("minLength"))
    got = formula({"maxLength": 3, "pattern": "^a*$"})
    assert got == TextIn(TextSet.of(0, 3, Dfa.of_texts(["", "a", "aa", "aaa"])), at("maxLength"))
    assert formula({"minLength": 5, "maxLength": 2}) == TextIn(TextSet.nothing(), at("minLength"))


@pytest.mark.parametrize("keyword", ["pattern", "patternProperties"])
def test_patterns_that_cannot_be_read_are_refused_where_they_stand(keyword: str) -> None:
    def schema(pattern: str) -> Any:
        return {"not": {keyword: pattern if keyword == "pattern" else {pattern: True}}}

    end = "" if keyword == "pattern" else "/("
    with pytest.raises(InvalidSchemaError) as caught:
        formula(schema("("))
    assert (caught.value.keyword, caught.value.pointer) == (keyword, f"#/not/{keyword}{end}")
    with pytest.raises(UnsupportedSchemaError) as refused:
        formula(schema(r"(a)\1"))
    assert refused.value.keyword == keyword
    with compile_budget(CompileLimits(automaton_states=500)), pytest.raises(SchemaLimitError) as limited:
        formula(schema("(a|b)*a(a|b){30}"))
    assert limited.value.keyword == keyword


def test_listed_scalars_are_one_condition() -> None:
    assert formula({"enum": []}) == NOTHING
    got = formula({"enum": [f"text {n}" for n in range(5_000)]})
    assert isinstance(got, AllOf)
    assert len(got.parts) == 2


def test_names_of_properties_are_a_set() -> None:
    def names(schema: Any) -> TextSet:
        got = formula({"propertyNames": schema})
        assert isinstance(got, PropertyNames)
        return got.names

    assert names({"maxLength": 3}) == TextSet.of(0, 3)
    assert names({"type": "number"}) == names(False) == TextSet.nothing()
    assert formula({"propertyNames": {"minimum": 3, "required": ["a"]}}) == ANYTHING
    assert names({"enum": ["a", 1, "b"]}).automaton() == Dfa.of_texts(["a", "b"])
    assert names({"not": {"minLength": 2}}) == TextSet.of(0, 1)
    assert names({"oneOf": [{"maxLength": 4}, {"minLength": 3}]}) == ~TextSet.of(3, 4)
    assert names({"anyOf": [{"const": "a"}, {"maxLength": 0}]}).automaton() == Dfa.of_texts(["a", ""])
    table = FormulaTable('{"propertyNames":{"$ref":"#/$defs/n"},"$defs":{"n":{"allOf":[{"maxLength":2}]}}}')
    assert table.root == PropertyNames(TextSet.of(0, 2), at("propertyNames"))


def test_dependencies_of_older_drafts_are_known_in_newer_ones() -> None:
    for draft in (DRAFT_7, "https://json-schema.org/draft/2020-12/schema"):
        old = {"$schema": draft, "dependencies": {"a": ["b"], "c": {"type": "object"}}}
        assert not holds(old, {"a": 1})
        assert holds(old, {"a": 1, "b": 1, "c": 1})
        # Only objects have properties, so a schema that depends on one says nothing of other values.
        assert holds(old, 5)


def test_arrays_of_older_drafts() -> None:
    old = Items((STRING,), NUMBER, at("items"))
    for draft in ({}, {"$schema": DRAFT_4}):
        assert formula({**draft, "items": [{"type": "string"}], "additionalItems": {"type": "number"}}) == old
    assert formula({"items": True, "additionalItems": False}) == ANYTHING
    assert formula({"$schema": DRAFT_7, "contains": {"type": "string"}, "minContains": 0}) == Contains(
        STRING, 1, None, at("contains")
    )


@pytest.mark.parametrize(
    ("schema", "keyword", "reason"),
    [
        ({"x-genret-index": "titles"}, "x-genret-index", 'expected "type": "string" beside it'),
        ({"type": "integer", "x-genret-index": "t"}, "x-genret-index", 'expected "type": "string" beside it'),
        ({"type": "string", "x-genret-index": ""}, "x-genret-index", "expected a string that names an index"),
        ({"type": "string", "x-genret-index": 1}, "x-genret-index", "expected a string that names an index"),
        ({"type": "string", "x-genret-filter": "a"}, "x-genret-filter", "expected x-genret-index beside it"),
        ({"type": "string", "x-genret-indx": "t"}, "x-genret-indx", "did you mean x-genret-index or"),
    ],
)
def test_indexes_are_named_beside_strings_only(schema: Any, keyword: str, reason: str) -> None:
    with pytest.raises(InvalidSchemaError) as caught:
        formula({"items": schema})
    assert (caught.value.keyword, caught.value.pointer) == (keyword, f"#/items/{keyword}")
    assert reason in caught.value.reason


def test_keys_cannot_come_out_of_an_index() -> None:
    with pytest.raises(
        UnsupportedSchemaError, match="#/propertyNames/x-genret-index: propertyNames: keys cannot"
    ):
        formula({"propertyNames": {"type": "string", "x-genret-index": "titles"}})


def test_counts_that_no_text_reaches_are_refused() -> None:
    with pytest.raises(SchemaLimitError, match="#/minLength: minLength: a count of more than 18 digits"):
        FormulaTable('{"minLength": 1e999999}')


def test_references_are_named_by_their_places() -> None:
    table = FormulaTable('{"items":{"$ref":"#/$defs/a%20b"},"$defs":{"a b":{"items":{"$ref":"#"}}}}')
    assert table.root == Items((), Reference("#/$defs/a%20b"), at("items"))
    assert table.resolve("#/$defs/a%20b") is table.resolve("#/$defs/a%20b")
    assert table.resolve("#/$defs/a%20b") == Items((), Reference("#"), Place("items", "#/$defs/a%20b/items"))
    assert table.resolve("#") == table.root


# A valid name of a host that is not among the known ones, one that is, and no such name at all.
LEFT_OUT, KNOWN, WRONG = "xn--9n2bp8q.xn--9t4b11yi5a", "host.example", "-host"
HOST = {"format": "hostname"}


def holds(schema: Any, value: Any, **options: Any) -> bool:
    """Whether what a schema is compiled to allows a value."""
    try:
        node = node_of(json.dumps(schema), GrammarOptions(**options))
    except UnsatisfiableSchemaError:
        return False
    return ShapeWalker(any_order=False).allows(node, value)


@pytest.mark.parametrize("host", [HOST, {"allOf": [HOST]}, {"$ref": "#/$defs/host"}])
def test_what_is_left_out_is_not_taken_for_wrong(host: Any) -> None:
    definitions = {"$defs": {"host": HOST}}
    refusing: list[Any] = [
        {"not": host},
        {"oneOf": [{"type": "string"}, host]},
        {"if": host, "then": False},
        {"if": host, "then": {"maxLength": 3}, "else": True},
        {"not": {"not": {"not": host}}},
    ]
    for schema in refusing:
        assert not holds({**schema, **definitions}, LEFT_OUT), schema
        assert not holds({**schema, **definitions}, KNOWN), schema
    assert not holds({"contains": host, "minContains": 0, "maxContains": 1, **definitions}, [KNOWN, LEFT_OUT])
    assert holds({"contains": host, "maxContains": 1, **definitions}, [KNOWN, 5][:1])
    unevaluated = {
        "if": {"properties": {"a": host}, "required": ["a"]},
        "else": {"properties": {"a": True}},
        "unevaluatedProperties": False,
        **definitions,
    }
    assert not holds({**unevaluated, "then": {"minProperties": 2}}, {"a": LEFT_OUT})


def test_alternatives_of_other_types_stay_whole() -> None:
    schema = {"oneOf": [{"type": "string", **HOST}, {"type": "null"}, {"type": "string", "maxLength": 4}]}
    assert holds(schema, None)
    assert holds({"oneOf": schema["oneOf"][:2]}, KNOWN)
    assert not holds({"oneOf": schema["oneOf"][:2]}, WRONG)
    assert holds({"not": {"not": HOST}}, KNOWN)
    assert not holds({"not": {"not": HOST}}, WRONG)


def test_what_cannot_reach_such_a_format_is_translated_once() -> None:
    branches = [{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/b"}]
    definitions = {"a": {"type": "null"}, "b": {"items": {"$ref": "#/$defs/a"}}, "c": HOST}
    table = FormulaTable({"oneOf": branches, "$defs": definitions})
    assert isinstance(table.root, ExactlyOne)
    assert table.root.parts == (Reference("#/$defs/a"), Reference("#/$defs/b"))
    table.resolve_all()
    assert set(table.translation.targets) == {"#/$defs/a", "#/$defs/b"}


def test_without_formats_nothing_is_known_in_part() -> None:
    assert not holds({"not": HOST}, WRONG, formats="annotate")
    table = FormulaTable({"not": HOST}, GrammarOptions(formats="annotate"))
    assert not table.translation.is_inexact


@pytest.mark.parametrize(("pattern", "differs"), [(r"^a\sb$", True), ("^[a-z]*$", False), (r"^\d$", False)])
def test_patterns_that_are_read_differently_are_negated_as_a_whole(pattern: str, differs: bool) -> None:
    plain = {"pattern": pattern}
    negated = {"not": plain, "type": "string"}
    assert FormulaTable(negated, GrammarOptions(inexact="narrow")).translation.is_inexact == differs
    if differs:
        # White space in one reading alone: it does not match for sure, nor can it be said not to match.
        for schema in (plain, negated):
            assert not holds(schema, "a\ufeffb", inexact="narrow")
        assert holds(plain, "a b", inexact="narrow")


DRAFT_2019_09 = "https://json-schema.org/draft/2019-09/schema"


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
    for draft in ("https://json-schema.org/draft/2020-12/schema", DRAFT_2019_09, DRAFT_7):
        schema = {"additionalProperties": {"$ref": draft}}
        assert holds(schema, {"a": {"properties": {"b": {"type": "string", "minLength": 3}}}})
        for value in ({"properties": {"b": {"minLength": "3"}}}, {"allOf": [{"type": "text"}]}, 5):
            assert not holds(schema, {"a": value}), (draft, value)
    counted = {"$ref": "http://json-schema.org/draft-04/schema#/definitions/positiveInteger"}
    assert holds(counted, 3)
    assert not holds(counted, -1)


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
