"""Damaged schemas, random bytes and random tokens: refused by name or read, never a crash, never a hang."""

from __future__ import annotations

import copy
import json
import random
import time
from typing import Any

import pytest

from benchmarks.harness.answer_schemas import SCHEMAS
from genret.decoding.grammar.compile_options import CompileLimits, GrammarOptions
from genret.decoding.grammar.errors import GrammarError
from genret.decoding.grammar.json_grammar import Grammar, compile_schema
from tests.fuzz.damage import places_in
from tests.grammar_oracle import json_leaves, unpacked

LIMITS = CompileLimits(seconds=1.0, nodes=3_000, automaton_states=5_000)
OPTIONS = (GrammarOptions(limits=LIMITS), GrammarOptions.for_writing(LIMITS))
# Polls of the clock are apart by what one of them allows; a hang is far beyond.
PATIENCE = 15.0
KEYWORDS = sorted(set().union(*(one.keywords for one in SCHEMAS)) - {"x-genret-index", "x-genret-filter"})
VALUES: list[Any] = [
    *(None, True, False, 0, -1, 1, 2, 1.5, 1e300, 10**30, "", "a", "#", "#/", "#/$defs/node", "#nowhere"),
    *("^(", "(a*)*b", "[a-z]{2,400}", "date", "integer", "\ud800", "\x00", [], [[]], [True], ["a", "a"]),
    *(["string", "null"], {}, {"": {}}, {"$ref": "#"}, {"not": {}}, {"type": "array"}),
    *({"a": {"$ref": "#"}}, {"enum": []}, [{"$ref": "#"}]),
]


def damaged(rng: random.Random) -> Any:
    """A schema with one to three of its parts replaced, removed, renamed, copied or joined by others."""
    schema = copy.deepcopy(rng.choice(SCHEMAS).schema)
    for _ in range(rng.randint(1, 3)):
        if not isinstance(schema, dict) or not schema:
            break
        holder, key = rng.choice(list(places_in(schema)))
        how = rng.randrange(5)
        if how == 0:
            holder[key] = copy.deepcopy(rng.choice(VALUES))
        elif how == 1:
            del holder[key]
        elif isinstance(holder, dict):
            if how == 2:
                holder[rng.choice(KEYWORDS)] = holder.pop(key)
            elif how == 3:
                holder[rng.choice(KEYWORDS)] = copy.deepcopy(rng.choice(VALUES))
            else:
                holder[rng.choice(KEYWORDS)] = copy.deepcopy(rng.choice(SCHEMAS).schema)
    return schema


def exercise(grammar: Grammar, rng: random.Random) -> None:
    """Follow a few tokens and random bytes."""
    end = grammar.vocabulary.end_token_id
    state = grammar.start
    for _ in range(6):
        allowed = unpacked(grammar, state)
        assert allowed, "a dead end"
        assert grammar.tokens_to_finish(state) >= 1
        grammar.forced_bytes(state)
        for token in rng.sample(range(-2, grammar.vocab_size + 2), 8):
            assert (grammar.advance(state, token) >= 0) == (token in allowed)
        assert grammar.advance_bytes(state, rng.randbytes(rng.randint(1, 6))) >= -1
        following = sorted(allowed - {end})
        if not following:
            break
        state = grammar.advance(state, rng.choice(following))


@pytest.mark.parametrize(
    ("seed", "number"),
    [
        *((seed, 60) for seed in range(4)),
        pytest.param(1000, 4000, marks=[pytest.mark.slow, pytest.mark.timeout(1800)]),
    ],
)
def test_damaged_schemas(seed: int, number: int) -> None:
    rng = random.Random(seed)
    compiled = 0
    for _ in range(number):
        schema = damaged(rng)
        begun = time.thread_time()
        try:
            grammar = compile_schema(schema, json_leaves(), rng.choice(OPTIONS))
        except GrammarError:
            continue
        finally:
            assert time.thread_time() - begun < PATIENCE, json.dumps(schema)
        compiled += 1
        exercise(grammar, rng)
    assert compiled > number // 4


def test_random_texts_are_no_schemas() -> None:
    rng = random.Random(5)
    for one in SCHEMAS:
        text = bytearray(one.text.encode())
        for _ in range(6):
            damaged_text = bytearray(text)
            for _ in range(rng.randint(1, 4)):
                damaged_text[rng.randrange(len(text))] = rng.randrange(256)
            for given in (bytes(damaged_text), bytes(text[: rng.randrange(len(text))]), rng.randbytes(20)):
                try:
                    grammar = compile_schema(given, json_leaves(), OPTIONS[0])
                except GrammarError:
                    continue
                assert unpacked(grammar, grammar.start)
