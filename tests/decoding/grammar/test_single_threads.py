"""Threads that are alone are walked and read without levels, and find what levels in lockstep find."""

from __future__ import annotations

import json
import random
from functools import cache
from typing import Any

import numpy as np
import pytest

from decoding.grammar.automaton.configurations import Configuration
from decoding.grammar.automaton.nodes import BLANK, LINE_BREAK, START, Whitespace
from decoding.grammar.automaton.threads import gap_at
from decoding.grammar.automaton.token_masks import Walk
from decoding.grammar.compile_options import GrammarOptions
from decoding.grammar.json_grammar import Grammar, compile_schema
from decoding.grammar.leaves.leaf_factory import Leaves
from tests.grammar_shapes import JSON_PIECES, byte_vocabulary

_PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "age": {"type": ["integer", "null"]},
        "tags": {"type": "array"},
    },
    "required": ["name"],
    "additionalProperties": {"type": ["boolean", "number", "string"]},
}
SCHEMAS: dict[str, dict[str, Any]] = {
    "object": _PERSON,
    "nested": {"type": "array", "minItems": 1, "maxItems": 3, "items": {"type": "array", "items": _PERSON}},
    "enum": {"enum": ["a", "ab", 1, 12, 1.5, None, True, {"a": [1, 2]}, []]},
    "alike": {"anyOf": [_PERSON, {"type": "object", "properties": {"name": {"const": "x"}}}]},
    "anything": {},
    "tree": {
        "$defs": {
            "tree": {
                "type": "object",
                "properties": {
                    "n": {"type": "integer"},
                    "of": {"type": "array", "items": {"$ref": "#/$defs/tree"}},
                },
                "required": ["n"],
                "additionalProperties": {"$ref": "#/$defs/tree"},
            }
        },
        "type": "array",
        "items": {"$ref": "#/$defs/tree"},
    },
}
WHITESPACE = {
    "compact": GrammarOptions(whitespace="compact"),
    "spaced": GrammarOptions(whitespace="spaced"),
    "flexible": GrammarOptions(max_indent=2),
}


@cache
def leaves() -> Leaves:
    return Leaves(byte_vocabulary([*JSON_PIECES, b"\n  ", b"  \n", b', "', b'],["', b"}, {"], seed=5))


def in_lockstep(grammar: Grammar, place: Configuration, text: bytes) -> Configuration | None:
    """What levels alone make of some bytes."""
    return grammar._configurations._after_levels(place.level, place.below, text, 0)


@pytest.mark.parametrize("whitespace", WHITESPACE)
@pytest.mark.parametrize("name", SCHEMAS)
def test_tokens_lead_where_levels_lead(name: str, whitespace: str) -> None:
    vocabulary = leaves().vocabulary
    grammar = compile_schema(json.dumps(SCHEMAS[name]), leaves(), WHITESPACE[whitespace])
    rng = random.Random(f"{name}/{whitespace}")
    texts = [text for token in range(vocabulary.vocab_size) if (text := vocabulary.bytes_of(token))]
    num_read = 0
    for _ in range(6):
        place = grammar._configurations.start
        for _ in range(25):
            behind = []
            for text in texts:
                expected = in_lockstep(grammar, place, text)
                assert grammar._configurations.after(place, text) is expected, (name, text)
                if expected is not None:
                    behind.append(expected)
            num_read += len(behind)
            if not behind:
                break
            place = rng.choice(behind)
    assert num_read > 10


@pytest.mark.parametrize("whitespace", WHITESPACE)
@pytest.mark.parametrize("name", SCHEMAS)
def test_masks_are_those_of_levels(name: str, whitespace: str) -> None:
    vocabulary = leaves().vocabulary
    grammar = compile_schema(json.dumps(SCHEMAS[name]), leaves(), WHITESPACE[whitespace])
    rng = random.Random(f"{name}/{whitespace}")
    for _ in range(6):
        state = grammar.start
        for _ in range(25):
            place = grammar._configuration(state)
            walk = Walk(grammar._levels, grammar._configurations, place, vocabulary.root, is_recorded=True)
            expected = vocabulary.packed(walk.tokens) if walk.tokens else vocabulary.empty_mask()
            for found in walk.inside:
                if found.few:
                    expected |= vocabulary.packed(found.few)
                if found.many is not None:
                    expected |= found.many
            if place.is_complete:
                expected |= vocabulary.packed([vocabulary.end_token_id])
            np.testing.assert_array_equal(grammar.mask(state), expected)
            state = grammar.advance(state, rng.choice(grammar.tokens(state).tolist()))
            if state == grammar.finished:
                break


def whitespace_texts(rules: Whitespace, is_behind_separator: bool, longest: int) -> dict[bytes, int]:
    """All whitespace that may be written from the start of a place, and what it leaves."""
    found = {b"": START}
    waiting = [b""]
    while waiting:
        text = waiting.pop()
        for byte in (BLANK, LINE_BREAK):
            after = rules.after(found[text], byte, is_behind_separator)
            if after is not None and len(text) < longest:
                longer = text + bytes([byte])
                found[longer] = after
                waiting.append(longer)
    return found


@pytest.mark.parametrize("is_behind_separator", [False, True])
@pytest.mark.parametrize("whitespace", WHITESPACE)
def test_gaps_are_all_ways_to_write_whitespace(whitespace: str, is_behind_separator: bool) -> None:
    vocabulary = leaves().vocabulary
    rules = Whitespace(WHITESPACE[whitespace])
    gap = gap_at(vocabulary.root, rules, START, is_behind_separator)
    assert gap_at(vocabulary.root, rules, START, is_behind_separator) is gap
    blanks = whitespace_texts(rules, is_behind_separator, vocabulary.longest_token)
    of_bytes = {token: vocabulary.written(token) for token in range(vocabulary.vocab_size)}
    assert sorted(gap.tokens) == sorted(token for token, text in of_bytes.items() if text and text in blanks)
    behind = {
        text[len(blank)]
        for text in of_bytes.values()
        for blank, state in blanks.items()
        if text.startswith(blank) and len(text) > len(blank)
        if not rules.must_come(state, is_behind_separator)
    }
    assert set(gap.rest.children) == behind
