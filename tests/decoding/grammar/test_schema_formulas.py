"""What keywords mean, as formulas."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

import pytest

from genret.decoding.grammar.compile_options import CompileLimits, GrammarOptions, compile_budget
from genret.decoding.grammar.errors import InvalidSchemaError, SchemaLimitError, UnsupportedSchemaError
from genret.decoding.grammar.leaves.leaf import TitleSlotName
from genret.decoding.grammar.regular.dfa import Dfa
from genret.decoding.grammar.regular.number_set import NumberSet
from genret.decoding.grammar.regular.text_set import TextSet
from genret.decoding.grammar.schema.formula import (
    ANYTHING,
    NOTHING,
    AllOf,
    Contains,
    Formula,
    Items,
    JsonType,
    NumberIn,
    Place,
    PropertyNames,
    Reference,
    TextFromSlot,
    TextIn,
    TypeIs,
)
from genret.decoding.grammar.schema.formula_table import FormulaTable
from tests.formula_oracle import evaluates

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


def test_formats_are_enforced_where_they_are_known_and_asserted() -> None:
    date = formula({"format": "date"})
    assert isinstance(date, TextIn)
    assert date.place == at("format")
    assert date.texts.accepts("2024-02-29")
    assert not date.texts.accepts("2023-02-29")
    assert formula({"format": "date"}, formats="annotate") == ANYTHING
    assert formula({"format": "html-selector"}) == ANYTHING
    both = formula({"format": "ipv4", "maxLength": 7})
    assert isinstance(both, TextIn)
    assert both.texts.accepts("1.2.3.4")
    assert not both.texts.accepts("1.2.3.40")


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
        old = FormulaTable({"$schema": draft, "dependencies": {"a": ["b"], "c": {"type": "object"}}})
        assert not evaluates(old.root, old, {"a": 1})
        assert evaluates(old.root, old, {"a": 1, "b": 1, "c": 1})
        # Only objects have properties, so a schema that depends on one says nothing of other values.
        assert evaluates(old.root, old, 5)


def test_arrays_of_older_drafts() -> None:
    old = Items((STRING,), NUMBER, at("items"))
    for draft in ({}, {"$schema": DRAFT_4}):
        assert formula({**draft, "items": [{"type": "string"}], "additionalItems": {"type": "number"}}) == old
    assert formula({"items": True, "additionalItems": False}) == ANYTHING
    assert formula({"$schema": DRAFT_7, "contains": {"type": "string"}, "minContains": 0}) == Contains(
        STRING, 1, None, at("contains")
    )


@pytest.mark.parametrize("types", ["string", ["null", "string"]])
def test_strings_out_of_an_index(types: Any) -> None:
    schema = {"type": types, "x-genret-index": "titles", "x-genret-filter": "kind = 'person'"}
    got = formula(schema)
    assert isinstance(got, AllOf)
    assert got.parts[1] == TextFromSlot(TitleSlotName("titles", "kind = 'person'"), at("x-genret-index"))


@pytest.mark.parametrize(
    ("schema", "keyword", "reason"),
    [
        ({"x-genret-index": "titles"}, "x-genret-index", 'expected "type": "string" beside it'),
        ({"type": "integer", "x-genret-index": "t"}, "x-genret-index", 'expected "type": "string" beside it'),
        ({"type": "string", "x-genret-index": ""}, "x-genret-index", "expected a string that names an index"),
        ({"type": "string", "x-genret-index": 1}, "x-genret-index", "expected a string that names an index"),
        ({"type": "string", "x-genret-filter": "a"}, "x-genret-filter", "expected x-genret-index beside it"),
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
