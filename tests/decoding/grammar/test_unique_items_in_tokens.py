"""Masks of arrays whose items differ, with tokens that end items and begin others: token by token."""

from __future__ import annotations

import json
import random

import numpy as np
import pytest

from decoding.grammar.compile_options import GrammarOptions
from decoding.grammar.json_grammar import compile_schema
from decoding.grammar.leaves.leaf_factory import Leaves
from decoding.grammar.vocabulary import Vocabulary

STRING: dict[str, object] = {"type": "string"}
ITEMS: list[dict[str, object]] = [
    STRING,
    {"type": "string", "maxLength": 40},
    {"type": "string", "maxLength": 2},
    {"type": "string", "pattern": "^[ab]*$"},
    {"type": "string", "pattern": "^(a|b.*)$"},
    {"type": "integer"},
    {"enum": ["a", "b", "ab", 1, 2]},
    {"anyOf": [{"type": "integer"}, {"type": "string", "pattern": "^a"}, {"const": "b"}]},
    {"type": ["string", "number", "null"]},
]
SCHEMAS = [
    *[{"type": "array", "items": items, "uniqueItems": True, "maxItems": 4} for items in ITEMS],
    {"type": "array", "items": STRING, "uniqueItems": True, "minItems": 3},
    {
        "type": "array",
        "prefixItems": [STRING],
        "items": {"enum": ["a", "b"]},
        "uniqueItems": True,
        "minItems": 2,
    },
    {
        "anyOf": [
            {"type": "array", "items": STRING, "uniqueItems": True},
            {"type": "array", "items": ITEMS[7]},
        ]
    },
    {"type": "object", "properties": {"a": {"type": "array", "items": STRING, "uniqueItems": True}}},
]
PIECES = [
    '","',
    '", "',
    '"],',
    '"]',
    '",',
    'a","a',
    'a","',
    '","a',
    '","a"',
    'a"',
    '"a',
    '"a"',
    "ab",
    '[["',
    '["',
    "1,1",
]
PIECES += [
    "1,",
    ",1",
    "12",
    '1,"',
    '1,"a',
    '"a",1',
    ',"',
    ', "',
    '"],"a',
    '"a":["',
    '","b","',
    '","a","a"',
    "\n",
    "null",
]
PIECES += ['"]}', 'b","ab"', '","ab', '",\n"', '"]]']


def random_vocabulary(rng: random.Random) -> Vocabulary:
    texts: list[bytes | None] = [None, *[bytes([byte]) for byte in range(256)], *[p.encode() for p in PIECES]]
    for _ in range(120):
        texts.append("".join(rng.choices('ab"",,,] 1\n', k=rng.randint(2, 7))).encode())
    return Vocabulary(texts, 0, len(texts))


@pytest.mark.parametrize("schema", SCHEMAS, ids=json.dumps)
@pytest.mark.parametrize("whitespace", ["flexible", "compact", "spaced"])
def test_masks_are_the_tokens_that_can_be_read(schema: dict[str, object], whitespace: str) -> None:
    rng = random.Random(json.dumps(schema) + whitespace)
    vocabulary = random_vocabulary(rng)
    options = GrammarOptions(whitespace=whitespace)  # type: ignore[arg-type]
    grammar = compile_schema(json.dumps(schema), Leaves(vocabulary), options)
    for _ in range(5):
        state = grammar.start
        for _ in range(24):
            mask = np.unpackbits(grammar.mask(state).view(np.uint8), bitorder="little")
            allowed = np.flatnonzero(mask).tolist()
            # Each token's bytes are read one by one, with every text told apart.
            texts = [(token, vocabulary.bytes_of(token)) for token in range(1, vocabulary.vocab_size)]
            read = [token for token, text in texts if text and grammar.advance_bytes(state, text) >= 0]
            assert allowed == ([0] if grammar.is_complete(state) else []) + read
            if not read:
                break
            likely = [
                t for t in read if len(vocabulary.written(t)) > 1 or vocabulary.written(t) in b'ab"1,[ '
            ]
            state = grammar.advance(state, rng.choice(likely or read))
