"""Documents of schemas: reading them, what counts as one, and what is said of every keyword."""

from __future__ import annotations

import json
import time
from decimal import Decimal
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import FormatChecker, SchemaError
from jsonschema.validators import validator_for

from genret.decoding.grammar.compile_options import CompileLimits, GrammarOptions
from genret.decoding.grammar.errors import (
    GrammarError,
    InvalidSchemaError,
    SchemaLimitError,
    UnsupportedSchemaError,
)
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
from genret.decoding.grammar.schema.schema_document import canonical_text, parse_document, pointer_step
from genret.decoding.grammar.schema.schema_report import explain_schema
from tests.own_process import TracedMemory, alone

LIMITS = CompileLimits()
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)
SCHEMAS = st.dictionaries(st.text(max_size=3), JSON, max_size=4)


@given(SCHEMAS)
def test_text_and_parsed_schema_are_read_alike(schema: dict[str, Any]) -> None:
    for text in (json.dumps(schema), json.dumps(schema, ensure_ascii=False, indent=1).encode()):
        assert parse_document(text, LIMITS) == parse_document(schema, LIMITS) == schema
        assert list(parse_document(text, LIMITS)) == list(schema)


@given(SCHEMAS)
def test_canonical_text_says_the_same_and_is_its_own_canonical_text(schema: dict[str, Any]) -> None:
    text = canonical_text(schema)
    assert json.loads(text) == schema
    assert canonical_text(parse_document(text, LIMITS)) == text


def test_canonical_text_keeps_order_and_numbers_and_forgets_blanks_and_escapes() -> None:
    def canonical(text: str) -> str:
        return canonical_text(parse_document(text, LIMITS))

    assert canonical('{ "b" : 1 ,\n"a":[ 1.50, -0.0, 2E3, {} ,[ ]] }') == '{"b":1,"a":[1.50,-0.0,2E+3,{},[]]}'
    assert canonical('{"a":"\\u00e9\\/"}') == canonical('{"a":"é/"}')
    assert canonical('{"a":1,"b":2}') != canonical('{"b":2,"a":1}')
    assert canonical('{"a":1}') != canonical('{"a":1.0}') != canonical('{"a":"1.0"}')
    assert canonical('{"a":true,"b":null,"c":false}') == '{"a":true,"b":null,"c":false}'
    assert canonical('["\U0001f600"]') == '["\\ud83d\\ude00"]'


def test_numbers_are_exact() -> None:
    parsed = parse_document('{"a":0.1,"b":1e400,"c":12345678901234567890}', LIMITS)
    assert parsed == {"a": Decimal("0.1"), "b": Decimal("1e400"), "c": 12345678901234567890}
    assert parse_document({"a": 0.1, "b": (1, 2)}, LIMITS) == {"a": Decimal("0.1"), "b": [1, 2]}


@pytest.mark.parametrize(
    ("text", "pointer", "reason"),
    [
        ('{"a":1,', "#", "the schema is not JSON: .* in line 1, column 8"),
        ("", "#", "the schema is not JSON"),
        ("entity.json", "#", "line 1, column 1; expected the text of a schema, not a path$"),
        ('{"a":NaN}', "#", "NaN is no JSON number"),
        ('{"a":-Infinity}', "#", "-Infinity is no JSON number"),
        ('{"a":1,"a":1}', "#/a", "the key comes twice"),
        ('{"a/b":[0,{"ü":1,"ü":2}]}', "#/a~1b/1/%C3%BC", "the key comes twice"),
        ('{"a":{"b":1,"b":2},"a":1}', "#/a", "the key comes twice"),
        ('{"a":{"b":1,"b":2},"c":{"a":{},"a":1}}', "#/a/b", "the key comes twice"),
        ('{"a":["\\ud800"]}', "#/a/0", "half a surrogate pair"),
        ('{"\\udc00":1}', "#", "half a surrogate pair"),
        (b'{"a":"\xff"}', "#", "the schema is not UTF-8: byte 6"),
        ({"a": float("nan")}, "#/a", "nan is no JSON number"),
        ({"a": Decimal("Infinity")}, "#/a", "Infinity is no JSON number"),
        ({"a": [{1: 2}]}, "#/a/0", "a key is a string, not int"),
        ({"a": {"b": {1, 2}}}, "#/a/b", "set is no JSON value"),
        ({"a": "\ud800"}, "#/a", "half a surrogate pair"),
        ([1], "#", "a schema is an object or a boolean, not list"),
        (None, "#", "a schema is an object or a boolean, not NoneType"),
    ],
)
def test_what_is_no_document_is_refused(text: Any, pointer: str, reason: str) -> None:
    with pytest.raises(InvalidSchemaError, match=reason) as caught:
        parse_document(text, LIMITS)
    assert caught.value.pointer == pointer


@pytest.mark.parametrize("opening", ['{"a":', "["])
def test_nesting_is_limited_without_exhausting_the_stack(opening: str) -> None:
    closing = "}" if opening.startswith("{") else "]"

    def nested(depth: int) -> str:
        return opening * depth + "1" + closing * depth

    limits = CompileLimits(depth=20)
    parse_document(nested(20), limits)
    for text in (nested(21), nested(100_000)):
        with pytest.raises(SchemaLimitError, match="nested deeper than 20 levels"):
            parse_document(text, limits)
    flat = '{"a":[' + "[],{}," * 40 + '"[[[[[[[[[[[[[[[[[[[[[[[["]}'
    parse_document(flat, limits)


def test_nesting_of_parsed_schemas_is_limited() -> None:
    schema: Any = {}
    for _ in range(100_000):
        schema = {"not": schema}
    with pytest.raises(SchemaLimitError, match="nested deeper than 128 levels"):
        parse_document(schema, LIMITS)
    while schema:
        # Taken apart by hand: the interpreter would free it recursively.
        schema = schema["not"]


def test_size_is_limited_in_bytes() -> None:
    limits = CompileLimits(schema_bytes=40)
    parse_document('{"a":"' + "x" * 32 + '"}', limits)
    too_long = [
        '{"a":"' + "x" * 33 + '"}',
        '{"a":"' + "é" * 17 + '"}',
        {"a": "x" * 40},
        {"a": list(range(30))},
    ]
    for schema in (*too_long, b'{"a":"' + b"x" * 33 + b'"}'):
        with pytest.raises(SchemaLimitError, match="bytes; 40 are allowed"):
            parse_document(schema, limits)  # type: ignore[arg-type]
    with pytest.raises(SchemaLimitError, match="too many digits"):
        parse_document('{"a":' + "9" * 5000 + "}", LIMITS)


def test_mappings_are_read_like_dicts() -> None:
    assert parse_document(MappingProxyType({"a": MappingProxyType({"b": 1})}), LIMITS) == {"a": {"b": 1}}
    assert parse_document(True, LIMITS) is True


def test_steps_of_pointers_are_escaped_for_uris() -> None:
    names = {"a": "a", "a b": "a%20b", "~/": "~0~1", "%": "%25", '"\\^': "%22%5C%5E", "$defs": "$defs"}
    assert {name: pointer_step(name) for name in names} == names
    assert pointer_step("é\U0001f600") == "%C3%A9%F0%9F%98%80"


def test_a_key_that_comes_twice_among_very_many_is_found_at_once() -> None:
    names = ",".join(f'"k{number}":1' for number in range(70_000))
    begun = time.thread_time()
    with pytest.raises(InvalidSchemaError) as caught:
        parse_document('{"properties":{' + names + ',"k69999":1}}', LIMITS)
    assert time.thread_time() - begun < 2  # comparing every key with every other takes minutes
    assert caught.value.pointer == "#/properties/k69999"


def test_half_a_surrogate_is_looked_for_without_writing_all_pointers() -> None:
    assert alone(peak_of_half_a_surrogate) < 8 * 2**20  # the pointers would take 60 MB


def peak_of_half_a_surrogate() -> int:
    text = '{"\\u0061":1,"' + "k" * 30_000 + '":[' + "0," * 2_000 + '"\\ud800"]}'
    with TracedMemory() as memory, pytest.raises(InvalidSchemaError) as caught:
        parse_document(text, LIMITS)
    assert caught.value.pointer == "#/" + "k" * 30_000 + "/2000"
    return memory.peak


def test_long_names_above_very_many_values_are_refused() -> None:
    many = ",".join(["{}"] * 10_000)
    text = '{"$defs":{"%s":{"anyOf":[' + many + "]}}}"
    parse_document(text % "short", LIMITS)
    with pytest.raises(SchemaLimitError, match="pointers"):
        parse_document(text % ("k" * 400_000), LIMITS)


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
