"""What counts as a schema, held against the metaschemas themselves."""

from __future__ import annotations

import json
from typing import Any

import pytest
from jsonschema import FormatChecker, SchemaError
from jsonschema.validators import validator_for

from genret.decoding.grammar.errors import GrammarError, InvalidSchemaError, UnsupportedSchemaError
from genret.decoding.grammar.schema.formula_table import FormulaTable
from genret.decoding.grammar.schema.resources import (
    DRAFT_4,
    DRAFT_6,
    DRAFT_7,
    DRAFT_2019_09,
    DRAFT_2020_12,
    UNDECLARED,
    dialect_of,
)

URIS = {
    "https://json-schema.org/draft/2020-12/schema": DRAFT_2020_12,
    "https://json-schema.org/draft/2019-09/schema": DRAFT_2019_09,
    "http://json-schema.org/draft-07/schema#": DRAFT_7,
    "http://json-schema.org/draft-06/schema#": DRAFT_6,
    "http://json-schema.org/draft-04/schema#": DRAFT_4,
}
VALUES: list[Any] = [
    *(None, True, False, 0, 1, -1, 2.0, 2.5, "", "a", "string", "#/$defs/a", "foo#bar", "ä"),
    *([], [1], ["a"], ["a", "a"], ["string"], ["string", "string"], ["string", "x"], [True]),
    *([{}], [{}, 1], [1, 1.0], [1, True]),
    *({}, {"a": 1}, {"a": {}}, {"a": True}, {"a": []}, {"a": ["b"]}, {"a": ["b", "b"]}, {"a": [1]}),
    *({"type": "x"}, {"type": "string"}, {"a": {"type": "x"}}, [{"type": "x"}], [{"minimum": 1}]),
]
# Their values are looked at by more than their form: references must lead somewhere, URIs must be URIs.
LOOKED_UP = {"$ref", "$dynamicRef", "$recursiveRef", "$schema"}
# The text of draft 7 says what it may be, its metaschema forgets to.
FORGOTTEN = {("draft-07", "writeOnly")}


# Lists of these must not repeat anything by the metaschemas. Schemas in use do, and mean no more by it.
MAY_REPEAT = {"type", "required", "enum", "dependentRequired", "dependencies"}


def without_repeats(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: without_repeats(inner) for name, inner in value.items()}
    if not isinstance(value, list):
        return value
    return [each for n, each in enumerate(value) if each not in value[:n] or isinstance(each, bool | int)]


def refused(schema: dict[str, Any]) -> str:
    try:
        FormulaTable(json.dumps(schema))
    except GrammarError as error:
        return type(error).__name__
    return ""


@pytest.mark.parametrize("uri", URIS)
def test_forms_are_those_of_the_metaschema(uri: str) -> None:
    validator = validator_for({"$schema": uri})
    unlike = []
    for keyword in sorted(URIS[uri].keywords.keys() - LOOKED_UP):
        for value in VALUES:
            if keyword.startswith("x-genret") or (URIS[uri].name, keyword) in FORGOTTEN:
                continue
            schema = {"$schema": uri, keyword: value}
            if keyword.startswith("exclusive"):
                schema[keyword[len("exclusive") :].lower()] = 3
            try:
                once = {**schema, keyword: without_repeats(value)} if keyword in MAY_REPEAT else schema
                validator.check_schema(once, format_checker=FormatChecker(formats=()))
                expected = ""
            except SchemaError:
                expected = InvalidSchemaError.__name__
            got = refused(schema)
            if (got == InvalidSchemaError.__name__) != bool(expected):
                unlike.append((keyword, value, expected or "valid", got))
    assert unlike == []


@pytest.mark.parametrize("uri", URIS)
def test_dialects_are_known_with_and_without_hash_and_by_both_schemes(uri: str) -> None:
    plain = uri.removesuffix("#").split("://")[1]
    for spelled in (f"http://{plain}", f"https://{plain}", f"http://{plain}#", f"https://{plain}#"):
        assert dialect_of({"$schema": spelled}, "#", UNDECLARED) is URIS[uri]


@pytest.mark.parametrize("uri", ["http://json-schema.org/draft-03/schema#", "https://example.com/own", ""])
def test_other_dialects_are_refused_by_name(uri: str) -> None:
    with pytest.raises(UnsupportedSchemaError, match="#/\\$schema: \\$schema: ") as caught:
        FormulaTable(json.dumps({"$schema": uri}))
    assert repr(uri) in caught.value.reason


@pytest.mark.parametrize(
    ("schema", "keyword", "pointer", "reason"),
    [
        ({"minLength": -1}, "minLength", "#/minLength", "expected an integer from 0, got -1"),
        ({"properties": {"a/b": {"type": "x"}}}, "type", "#/properties/a~1b/type", "expected one of "),
        ({"$defs": {"ü": {"enum": 1}}}, "enum", "#/$defs/%C3%BC/enum", "expected an array, got 1"),
        ({"anyOf": [True, 1]}, "", "#/anyOf/1", "expected a schema, got 1"),
        ({"dependencies": {"a": [1]}}, "dependencies", "#/dependencies/a", "expected a schema or an array"),
        ({"$id": "http://a/", "not": {"$id": "//[b"}}, "$id", "#/not/$id", "'//[b' is no URI"),
        ({"$ref": "#/nowhere"}, "$ref", "#/$ref", "'#/nowhere' leads nowhere"),
        ({"$ref": "#/title", "title": "x"}, "", "#/title", "expected a schema, got 'x'"),
        ({"$ref": "#/odd/0", "odd": [{"type": 1}]}, "type", "#/odd/0/type", "expected one of"),
        ({"$ref": "#%zz"}, "$ref", "#/$ref", "leads nowhere"),
    ],
)
def test_errors_name_keyword_and_pointer(
    schema: dict[str, Any], keyword: str, pointer: str, reason: str
) -> None:
    with pytest.raises(InvalidSchemaError) as caught:
        FormulaTable(json.dumps(schema))
    assert (caught.value.keyword, caught.value.pointer) == (keyword, pointer)
    assert reason in caught.value.reason


@pytest.mark.parametrize("schema", ["1", "[]", "null", '"a"', '{"not": 1}'])
def test_what_is_no_schema_is_refused(schema: str) -> None:
    with pytest.raises(InvalidSchemaError, match="expected a schema"):
        FormulaTable(schema)


def test_forms_of_older_drafts_are_known_where_no_draft_is_named() -> None:
    old = {
        "items": [{"type": "string"}],
        "additionalItems": False,
        "dependencies": {"a": ["b"], "c": {"required": ["d"]}},
        "definitions": {"x": True},
        "minimum": 1,
        "exclusiveMinimum": True,
    }
    FormulaTable(json.dumps(old))
    with pytest.raises(InvalidSchemaError, match="#/items: expected a schema, got an array"):
        FormulaTable(json.dumps({"$schema": "https://json-schema.org/draft/2020-12/schema", **old}))
