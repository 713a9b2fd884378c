"""Keys that a schema gives by sets may run out: none is chosen behind which too few are left."""

from __future__ import annotations

import json
import random
from functools import cache
from itertools import product
from typing import Any

import jsonschema
import pytest

from genret.decoding.grammar.errors import UnsatisfiableSchemaError
from genret.decoding.grammar.json_grammar import Grammar, compile_schema
from genret.decoding.grammar.leaves.leaf_factory import Leaves
from tests.grammar_oracle import JSON_PIECES, OPTIONS, accepts, brute_force, byte_vocabulary, unpacked, walked

SHORT = {"enum": ["x", "yy"]}
A_OR_B = {"enum": ["a", "b"]}
EITHER = {"propertyNames": A_OR_B, "additionalProperties": SHORT}
B_OR_C = {"properties": {"a": SHORT}, "patternProperties": {"^[bc]$": SHORT}, "additionalProperties": False}


@cache
def leaves() -> Leaves:
    pieces = [*JSON_PIECES, '{"a', '"a": "', '", "b', '", "a": ', '{"b": "x", "b']
    return Leaves(byte_vocabulary(pieces, seed=9))


def grammar_of(schema: Any, how: str = "writing") -> Grammar:
    return compile_schema(json.dumps({"type": "object", **schema}), leaves(), OPTIONS[how])


RUNNING_OUT: dict[str, dict[str, Any]] = {
    "one free key behind a named one": {"properties": {"a": SHORT}, **EITHER, "minProperties": 2},
    "no free key": {**EITHER, "minProperties": 2},
    "keys of a pattern": {**B_OR_C, "minProperties": 3},
    "a bound on both sides": {**B_OR_C, "minProperties": 2, "maxProperties": 2},
    "two sets of keys": {
        **B_OR_C,
        "patternProperties": {"^b$": SHORT, "^[cd]$": {"const": "x"}},
        "minProperties": 4,
    },
    "not evaluated": {
        "properties": {"a": SHORT},
        "propertyNames": A_OR_B,
        "unevaluatedProperties": SHORT,
        "minProperties": 2,
    },
    "conditions on values": {**EITHER, "not": {"additionalProperties": {"const": "x"}}, "minProperties": 2},
}


@pytest.mark.parametrize("how", sorted(OPTIONS))
@pytest.mark.parametrize("name", RUNNING_OUT)
def test_no_key_is_chosen_behind_which_there_are_too_few(name: str, how: str) -> None:
    grammar, rng = grammar_of(RUNNING_OUT[name], how), random.Random(3)
    needed = grammar.tokens_to_finish(grammar.start)
    for tokens in walked(grammar, [needed + rng.randrange(30) for _ in range(60)], rng):
        jsonschema.validate(json.loads(grammar.text(tokens)), {"type": "object", **RUNNING_OUT[name]})


@pytest.mark.parametrize("how", sorted(OPTIONS))
def test_all_objects_of_few_keys_are_those_that_are_valid(how: str) -> None:
    values = ("x", "yy")
    for name, body in RUNNING_OUT.items():
        grammar = grammar_of(body, how)
        found = False
        for keys in ("", "a", "b", "ab", "ba", "bc", "abc", "cd", "abcd", "bcd", "abd"):
            for chosen in product(values, repeat=len(keys)):
                value = dict(zip(keys, chosen, strict=True))
                is_valid = jsonschema.Draft202012Validator({"type": "object", **body}).is_valid(value)
                in_order = how == "reading" or "a" not in keys[1:] or "a" not in body.get("properties", {})
                found |= is_valid
                assert accepts(grammar, json.dumps(value)) == (is_valid and in_order), (name, value)
        assert found


def test_keys_that_do_not_suffice_make_a_schema_nothing_is_valid_under() -> None:
    with pytest.raises(UnsatisfiableSchemaError):
        grammar_of({"propertyNames": A_OR_B, "minProperties": 3})


@pytest.mark.parametrize("how", sorted(OPTIONS))
def test_a_declared_key_is_never_written_twice_and_another_one_does_not_count_twice(how: str) -> None:
    """Parsers keep the last value of a key: what a bound counts must be different keys."""
    grammar = grammar_of({"properties": {"a": SHORT}, "additionalProperties": SHORT}, how)
    assert accepts(grammar, '{"a": "x", "b": "x"}')
    assert not accepts(grammar, '{"a": "x", "a": "x"}')
    two = grammar_of({"additionalProperties": SHORT, "minProperties": 2}, how)
    assert not accepts(two, '{"b": "x", "b": "yy"}')
    assert accepts(two, '{"b": "x", "c": "yy"}')
    state = two.advance_bytes(two.start, b'{"b": "x", "b')
    assert unpacked(two, state) == brute_force(two, state)
