"""Grammars of compiled schemas: masks against walking every byte, walks that end in valid JSON, budgets."""

from __future__ import annotations

import json
import os
import random
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from functools import cache
from threading import Barrier
from typing import Any

import jsonschema
import pytest
import torch

from decoding.grammar.compile_options import GrammarOptions
from decoding.grammar.constraint import GrammarConstraint
from decoding.grammar.json_grammar import Grammar, compile_schema
from decoding.grammar.leaves.leaf_factory import Leaves
from tests.grammar_shapes import JSON_PIECES, brute_force, byte_vocabulary, unpacked

OPTIONS = {"reading": GrammarOptions(max_indent=2), "writing": GrammarOptions.for_writing()}
HUGE = re.compile(rb"[eE][+-]?\d{3}")
SCHEMAS: dict[str, Any] = {
    "person": {
        "type": "object",
        "properties": {"name": {"type": "string"}, "age": {"type": "integer"}, "ok": {"type": "boolean"}},
        "required": ["name", "age", "ok"],
        "additionalProperties": False,
    },
    "open": {
        "type": "object",
        "properties": {"a": {"type": "integer", "minimum": 3}, "ab": {"enum": ["x", 1, None, [1]]}},
        "required": ["ab"],
        "maxProperties": 3,
    },
    "patterns": {
        "type": "object",
        "patternProperties": {"^x-": {"type": "string", "pattern": "^[a-c]+$"}},
        "additionalProperties": {"type": "number", "multipleOf": 0.5},
        "minProperties": 1,
    },
    "tree": {
        "$defs": {
            "node": {
                "type": "object",
                "properties": {
                    "v": {"type": "integer"},
                    "kids": {"type": "array", "items": {"$ref": "#/$defs/node"}},
                },
                "required": ["v"],
                "additionalProperties": False,
            }
        },
        "$ref": "#/$defs/node",
    },
    "any of": {
        "anyOf": [
            {"properties": {"k": {"const": "a"}, "n": {"type": "integer"}}, "type": "object"},
            {"properties": {"k": {"enum": ["a", "ab"]}, "n": {"type": "string"}}, "required": ["k", "n"]},
            {"type": "array", "items": {"type": ["integer", "null"]}, "minItems": 2, "maxItems": 4},
        ]
    },
    "one of": {"oneOf": [{"type": "integer", "multipleOf": 3}, {"type": "integer", "multipleOf": 5}]},
    "tuple": {
        "type": "array",
        "prefixItems": [{"type": "boolean"}, {"type": "string", "minLength": 2, "maxLength": 4}],
        "items": {"enum": ["p", "q", "pq"]},
        "minItems": 3,
        "uniqueItems": True,
    },
    "contains": {"type": "array", "items": {"type": "integer"}, "contains": {"const": 12}, "maxItems": 4},
    "date": {"type": "string", "format": "date"},
    "number": {"type": "number", "exclusiveMinimum": -2, "maximum": 31.5},
    "long": {"type": "string", "maxLength": 3000, "minLength": 5},
    "any": True,
}  # fmt: skip


@cache
def leaves(kind: str) -> Leaves:
    pieces = () if kind == "bytes" else JSON_PIECES
    return Leaves(byte_vocabulary(pieces, seed=9, random_pieces=300 if pieces else 0))


def grammar_of(name: str, how: str, kind: str = "pieces") -> Grammar:
    return compile_schema(json.dumps(SCHEMAS[name]), leaves(kind), OPTIONS[how])


def number(text: str) -> int | float:
    """A number, exact where it is whole: a double would make infinity of 1e400."""
    exact = Decimal(text)
    return int(exact) if exact == exact.to_integral_value() else float(exact)


def is_valid(name: str, text: bytes) -> bool:
    return jsonschema.Draft202012Validator(
        SCHEMAS[name], format_checker=jsonschema.Draft202012Validator.FORMAT_CHECKER
    ).is_valid(json.loads(text, parse_float=number))


def choose(grammar: Grammar, rng: random.Random, allowed: list[int], written: int) -> int:
    """A token; the longer the text, the likelier one that ends something."""
    end = grammar.vocabulary.end_token_id
    closing = [t for t in allowed if t == end or grammar.text([t])[-1:] in b'"]}']
    return rng.choice(closing if closing and rng.random() < min(0.9, written / 30) else allowed)


@pytest.mark.parametrize("kind", ["bytes", "pieces"])
@pytest.mark.parametrize("how", sorted(OPTIONS))
@pytest.mark.parametrize("name", sorted(SCHEMAS))
def test_masks_are_the_tokens_that_can_be_followed(name: str, how: str, kind: str) -> None:
    grammar = grammar_of(name, how, kind)
    rng = random.Random(f"{name} {how} {kind}")
    checked: set[int] = set()
    for _ in range(4):
        state = grammar.start
        for written in range(25):
            allowed = unpacked(grammar, state)
            if state not in checked and rng.random() < 0.5:
                checked.add(state)
                assert allowed == brute_force(grammar, state)
            following = sorted(allowed - {grammar.vocabulary.end_token_id})
            if not following:
                break
            state = grammar.advance(state, choose(grammar, rng, following, written))
            assert state >= 0


@pytest.mark.parametrize("how", sorted(OPTIONS))
@pytest.mark.parametrize("name", sorted(SCHEMAS))
def test_walks_end_in_valid_json_within_any_budget(name: str, how: str) -> None:
    grammar = grammar_of(name, how)
    rng = random.Random(f"{name} {how}")
    needed = grammar.tokens_to_finish(grammar.start)
    for budget in (needed, needed + 2, needed + 10, needed + 60):
        constraint = GrammarConstraint([grammar], budget)
        for _ in range(4):
            state, written = constraint.start(torch.zeros(1, dtype=torch.int64)), []
            while not constraint.is_final(state).item():
                allowed = constraint.children(state).token.tolist()
                assert allowed
                written.append(choose(grammar, rng, allowed, len(written)))
                state = constraint.advance(state, torch.tensor(written[-1:]))
            assert len(written) <= budget
            text = grammar.text(written)
            # Numbers of hundreds of digits are for the tests of numbers; here they need only be JSON.
            assert (
                json.loads(text, parse_float=str) is not None if HUGE.search(text) else is_valid(name, text)
            )
            assert grammar.holes(text) == ()


@pytest.mark.parametrize("how", sorted(OPTIONS))
@pytest.mark.parametrize("name", sorted(SCHEMAS))
def test_what_is_needed_falls_by_one_with_some_token(name: str, how: str) -> None:
    grammar = grammar_of(name, how)
    rng = random.Random(f"{name} {how}")
    for _ in range(3):
        state = grammar.start
        for written in range(12):
            needed = grammar.tokens_to_finish(state)
            assert len(grammar.fitting_tokens(state, needed))
            most = grammar.most_tokens_to_finish(state)
            tokens = grammar.tokens(state).tolist()
            behind = [
                grammar.tokens_to_finish(grammar.advance(state, t))
                for t in rng.sample(tokens, min(20, len(tokens)))
            ]
            assert most is None or max(behind) <= most
            assert all(
                grammar.can_finish(state, n) == (n >= needed) for n in (needed - 1, needed, 2 * needed + 9)
            )
            following = [t for t in tokens if t != grammar.vocabulary.end_token_id]
            if not following:
                break
            state = grammar.advance(state, choose(grammar, rng, following, written))


@pytest.mark.parametrize("name", sorted(SCHEMAS))
def test_forced_bytes_are_the_only_ones(name: str) -> None:
    grammar = grammar_of(name, "writing")
    rng = random.Random(name)
    state = grammar.start
    for written in range(30):
        forced = grammar.forced_bytes(state)
        place = state
        for byte in forced:
            following = [b for b in range(256) if grammar.advance_bytes(place, bytes([b])) >= 0]
            assert following == [byte]
            assert not grammar.is_complete(place)
            place = grammar.advance_bytes(place, bytes([byte]))
        following = [b for b in range(256) if grammar.advance_bytes(place, bytes([b])) >= 0]
        assert len(following) != 1 or grammar.is_complete(place)
        allowed = sorted(unpacked(grammar, state) - {grammar.vocabulary.end_token_id})
        if not allowed:
            break
        state = grammar.advance(state, choose(grammar, rng, allowed, written))


@pytest.mark.parametrize("name", ["any", "tree"])
def test_deep_nesting(name: str) -> None:
    grammar = grammar_of(name, "writing")
    opening, closing = {"any": (b"[", b"]"), "tree": (b'{"v": 1, "kids": [', b"]}")}[name]
    inside = b"" if name == "any" else b'{"v": 1}'
    state = grammar.advance_bytes(grammar.start, opening * 10_000 + inside)
    assert state >= 0
    assert unpacked(grammar, state)
    assert grammar.tokens_to_finish(state) > 100
    done = grammar.advance_bytes(state, closing * 10_000)
    assert grammar.is_complete(done)
    assert grammar.forced_bytes(done) == b""


def test_nothing_that_is_sent_crashes() -> None:
    rng = random.Random(4)
    for name in SCHEMAS:
        grammar = grammar_of(name, "reading")
        texts = [
            json.dumps(value).encode() for value in ({"a": [1, {}]}, [True, "abc", "p"], -1.5e3, "2020-02-30")
        ]
        for _ in range(40):
            text = bytearray(rng.choice(texts))
            for _ in range(rng.randint(0, 3)):
                text[rng.randrange(len(text))] = rng.randrange(256)
            grammar.advance_bytes(grammar.start, bytes(text))
            grammar.advance_bytes(grammar.start, rng.randbytes(8))
        for token in (-1, -(10**9), grammar.vocab_size - 1, grammar.vocab_size, 10**12):
            assert grammar.advance(grammar.start, token) == -1
        assert grammar.advance(-1, 0) == -1
        assert grammar.advance_bytes(-1, b"{") == -1
        with pytest.raises(ValueError, match="must be one that was handed out"):
            grammar.mask(10**9)
        with pytest.raises(ValueError, match="must be one that was handed out"):
            grammar.mask(-1)


def test_eight_threads_see_the_same_grammar() -> None:
    """Each goes its own way through one cold grammar, and finds what a grammar of its own would say."""
    grammar, barrier = grammar_of("any of", "reading"), Barrier(8)

    def walk(mine: Grammar, seed: int) -> list[tuple[bytes, frozenset[int], int]]:
        rng = random.Random(seed)
        found = []
        for _ in range(10):
            state, written = mine.start, []
            while state != mine.finished and len(written) < 40:
                allowed = unpacked(mine, state)
                found.append((mine.text(written), frozenset(allowed), mine.tokens_to_finish(state)))
                written.append(choose(mine, rng, sorted(allowed), len(written)))
                state = mine.advance(state, written[-1])
                assert state >= 0
        return found

    def start(seed: int) -> list[tuple[bytes, frozenset[int], int]]:
        barrier.wait()
        return walk(grammar, seed)

    with ThreadPoolExecutor(8) as pool:
        together = list(pool.map(start, range(8)))
    assert together == [walk(grammar_of("any of", "reading"), seed) for seed in range(8)]


_SCRIPT = """
import random
from tests.decoding.grammar.test_grammar_schemas import SCHEMAS, choose, grammar_of, unpacked
rng = random.Random(3)
for name in sorted(SCHEMAS):
    grammar = grammar_of(name, "reading")
    states, state = [], grammar.start
    for written in range(40):
        allowed = sorted(unpacked(grammar, state))
        states.append((state, len(allowed), grammar.tokens_to_finish(state)))
        if not allowed:
            break
        state = grammar.advance(state, choose(grammar, rng, allowed, written))
    print(name, states, grammar.forced_bytes(0))
"""


@pytest.mark.slow
def test_states_do_not_depend_on_hash_seeds() -> None:
    outputs = {
        subprocess.run(
            [sys.executable, "-c", _SCRIPT],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            check=True,
            text=True,
        ).stdout
        for seed in ("1", "77")
    }
    assert len(outputs) == 1
    assert all(name in output for output in outputs for name in SCHEMAS)


def test_reports_are_made_when_asked_for() -> None:
    schema = dict(SCHEMAS["date"], description="a day")
    grammar = compile_schema(schema, leaves("bytes"), OPTIONS["writing"])
    schema.clear()
    report = grammar.report()
    assert report is not None
    assert [(entry.keyword, entry.how) for entry in report.entries] == [
        ("type", "enforced"),
        ("format", "enforced"),
        ("description", "annotation"),
    ]
