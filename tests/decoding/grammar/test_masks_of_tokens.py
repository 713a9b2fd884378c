"""Masks are, bit by bit, the tokens whose bytes can be followed, and the end token behind complete texts."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from functools import cache
from typing import Any

import pytest

from benchmarks.harness import answer_schemas
from genret.decoding.grammar.errors import CompileTimeoutError, SchemaError, VocabularyError
from genret.decoding.grammar.json_grammar import Grammar, compile_schema
from genret.decoding.grammar.leaves.leaf_factory import Leaves
from genret.decoding.grammar.schema import resources as dialects
from tests.grammar_oracle import (
    JSON_PIECES,
    OPTIONS,
    SCHEMAS,
    WHITESPACES,
    brute_force,
    byte_vocabulary,
    unpacked,
    walked_states,
)
from tests.json_tokenizers import byte_level
from tests.leaf_oracle import real_vocabulary
from tests.shared_titles import schema_rows

ANSWER_SCHEMAS = answer_schemas.SCHEMAS
WITHOUT_TITLES = [one for one in ANSWER_SCHEMAS if not one.has_titles]


@cache
def leaves(kind: str) -> Leaves:
    """Leaves over a vocabulary: of hand-made pieces, or of merges and parts of characters, some twice."""
    if kind == "pieces":
        return Leaves(byte_vocabulary(JSON_PIECES, seed=11, random_pieces=200))
    trained = byte_level()
    merged = [text for token in range(trained.vocab_size) if len(text := trained.written(token)) > 1]
    parts = [b"\xc3", b"\xa9", b"\xe6\x97", b"\xa5", b"\x9f\x98", b'\xc3\xa9"', b"\xa9\xc3", b'"\xe6']
    parts.append(b"a\xf0")
    return Leaves(byte_vocabulary([*merged, *parts, *parts, *merged[:20]], seed=12))


def check_masks(grammar: Grammar, states: Sequence[int]) -> None:
    for state in states:
        expected = brute_force(grammar, state)
        assert expected, "a dead end"
        assert unpacked(grammar, state) == expected
        assert grammar.tokens(state).tolist() == sorted(expected)


def test_the_schemas_use_every_keyword() -> None:
    used = set().union(*(one.keywords for one in ANSWER_SCHEMAS))
    known = {
        name: keyword.role
        for dialect in (dialects.DRAFT_2020_12, dialects.DRAFT_2019_09, dialects.DRAFT_7, dialects.DRAFT_4)
        for name, keyword in dialect.keywords.items()
    }
    assert {name for name, role in known.items() if role == "enforced"} - used == set()
    assert len(ANSWER_SCHEMAS) == 50


@pytest.mark.parametrize("how", sorted(OPTIONS))
@pytest.mark.parametrize("kind", ["pieces", "merges"])
@pytest.mark.parametrize("one", WITHOUT_TITLES, ids=lambda one: one.name)
def test_masks_are_the_tokens_whose_bytes_can_be_followed(one: Any, kind: str, how: str) -> None:
    grammar = compile_schema(one.text, leaves(kind), OPTIONS[how])
    rng = random.Random(f"{one.name} {kind} {how}")
    states = walked_states(grammar, rng, 4, 12)
    check_masks(grammar, rng.sample(states, min(20, len(states))))


@cache
def punctuation() -> Leaves:
    return Leaves(byte_vocabulary([*JSON_PIECES, b"\n  ", b"  \n", b', "', b'],["', b"}, {"], seed=5))


@pytest.mark.parametrize("whitespace", WHITESPACES)
@pytest.mark.parametrize("name", ["any", "any of", "enum", "lists", "nested", "open", "tree"])
def test_tokens_that_pass_many_places_lead_where_their_bytes_lead(name: str, whitespace: str) -> None:
    """Punctuation and whitespace, ends of values, beginnings of others."""
    shared = punctuation()
    grammar = compile_schema(SCHEMAS[name], shared, WHITESPACES[whitespace])
    states = walked_states(grammar, random.Random(f"{name}/{whitespace}"), 6, 25)
    check_masks(grammar, states)
    for state in states[:25]:
        for token in range(shared.vocabulary.vocab_size):
            text = shared.vocabulary.bytes_of(token)
            if text is None:
                continue
            after = state
            for byte in text:
                after = grammar.advance_bytes(after, bytes((byte,)))
            assert grammar.advance(state, token) == after, (state, text)


@pytest.mark.slow
@pytest.mark.shared_data
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", ["gpt2", "mistral_v1_sp32k"])
def test_masks_of_real_schemas(name: str) -> None:
    """200 of them at least, at several depths, in a vocabulary of merges and in one with byte fallback."""
    vocabulary = real_vocabulary(name, padded=5)
    shared = Leaves(vocabulary)
    rows = list(schema_rows())
    rng = random.Random(name)
    rng.shuffle(rows)
    compiled = num_states = 0
    for row in rows:
        how = OPTIONS["writing" if compiled % 2 else "reading"]
        try:
            grammar = compile_schema(json.dumps(row["schema"]), shared, how)
        except (SchemaError, CompileTimeoutError, VocabularyError):
            continue
        states = walked_states(grammar, rng, 2, 40)
        chosen = [states[0], *rng.sample(states[1:], min(7, len(states) - 1))]
        check_masks(grammar, chosen)
        num_states += len(chosen)
        compiled += 1
        if compiled == 220:
            break
    assert compiled == 220
    assert num_states > 1000
