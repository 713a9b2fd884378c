"""Reading the text of a schema, and writing it in one form."""

from __future__ import annotations

import json
import time
from decimal import Decimal
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from genret.decoding.grammar.compile_options import CompileLimits
from genret.decoding.grammar.errors import InvalidSchemaError, SchemaLimitError
from genret.decoding.grammar.schema.schema_document import canonical_text, parse_document, pointer_step
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
