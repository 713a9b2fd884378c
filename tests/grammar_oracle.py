"""Schemas of all kinds, vocabularies made by hand, random walks through grammars, and oracles for masks."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from typing import Any

import numpy as np
import torch

from genret.decoding.grammar.compile_options import GrammarOptions
from genret.decoding.grammar.constraint import GrammarConstraint
from genret.decoding.grammar.json_grammar import Grammar
from genret.decoding.grammar.leaves.leaf_factory import Leaves
from genret.decoding.grammar.vocabulary import Vocabulary
from tests.leaf_oracle import BYTES, tokens_in

COMPACT = GrammarOptions(whitespace="compact")
SPACED = GrammarOptions(whitespace="spaced")
FLEXIBLE = GrammarOptions(max_indent=3)
WHITESPACES = {options.whitespace: options for options in (COMPACT, SPACED, FLEXIBLE)}
OPTIONS = {"reading": GrammarOptions(max_indent=2), "writing": GrammarOptions.for_writing()}

BOOLEAN, STRING, INTEGER, NULL = ({"type": name} for name in ("boolean", "string", "integer", "null"))


def array(items: Any, **more: Any) -> dict[str, Any]:
    return {"type": "array", "items": items, **more}


def record(required: Sequence[str] | None = None, **properties: Any) -> dict[str, Any]:
    """An object of some members and no others; all are required where nothing is said."""
    names = list(properties) if required is None else list(required)
    return {"type": "object", "properties": properties, "required": names, "additionalProperties": False}


_PERSON = {
    "type": "object",
    "properties": {"name": STRING, "age": {"type": ["integer", "null"]}, "tags": {"type": "array"}},
    "required": ["name"],
    "additionalProperties": {"type": ["boolean", "number", "string"]},
}
SCHEMAS: dict[str, Any] = {
    "person": record(name=STRING, age=INTEGER, ok=BOOLEAN),
    "optional": record([], a=INTEGER, b=STRING, ab=NULL, é=BOOLEAN),
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
        "$defs": {"node": record(["v"], v=INTEGER, kids=array({"$ref": "#/$defs/node"}))},
        "$ref": "#/$defs/node",
    },
    "any of": {
        "anyOf": [
            {"properties": {"k": {"const": "a"}, "n": {"type": "integer"}}, "type": "object"},
            {"properties": {"k": {"enum": ["a", "ab"]}, "n": {"type": "string"}}, "required": ["k", "n"]},
            array({"type": ["integer", "null"]}, minItems=2, maxItems=4),
        ]
    },
    "one of": {"oneOf": [{"type": "integer", "multipleOf": 3}, {"type": "integer", "multipleOf": 5}]},
    "lists": {
        "anyOf": [
            array({"anyOf": [array(INTEGER, maxItems=2), array({"type": "number"}, minItems=2)]}, maxItems=3),
            array({"anyOf": [array(BOOLEAN), array(INTEGER, minItems=3)]}, minItems=2),
        ]
    },
    "tuple": {
        "type": "array",
        "prefixItems": [{"type": "boolean"}, {"type": "string", "minLength": 2, "maxLength": 4}],
        "items": {"enum": ["p", "q", "pq"]},
        "minItems": 3,
        "uniqueItems": True,
    },
    "contains": array(INTEGER, contains={"const": 12}, maxItems=4),
    "nested": array(array(_PERSON), minItems=1, maxItems=3),
    "enum": {"enum": ["a", "ab", 1, 12, 1.5, None, True, {"a": [1, 2]}, []]},
    "date": {"type": "string", "format": "date"},
    "number": {"type": "number", "exclusiveMinimum": -2, "maximum": 31.5},
    "long": {"type": "string", "maxLength": 3000, "minLength": 5},
    "any": True,
}


def byte_vocabulary(pieces: Iterable[str | bytes] = (), seed: int = 0, random_pieces: int = 0) -> Vocabulary:
    """All single bytes, an end token, a special token, the given pieces and some random ones; shuffled ids.

    The model has a few logits more than there are tokens, and one text belongs to two tokens.
    """
    rng = random.Random(seed)
    texts = BYTES + [piece.encode() if isinstance(piece, str) else piece for piece in pieces]
    alphabet = b'{}[],:"\\ \n-0123456789.eEtrufalsn/abcd' + bytes([0xC3, 0xA9, 0xF0, 0x9F, 0x98, 0x80])
    texts += [bytes(rng.choices(alphabet, k=rng.randint(2, 5))) for _ in range(random_pieces)]
    texts += [b'"', b"<special>"]
    rng.shuffle(texts)
    texts[texts.index(b"<special>")] = None
    return Vocabulary([*texts, None], len(texts), len(texts) + 7)


# Separated by lines, because blanks are part of them; "\\n" stands for a line break.
_PIECES = r"""
{" "} ": ",  }} ]} }] ]] [[ [{ [{" }, },{" "] [" "," },{ 12 123 1, 0] 1} 2]} "a "a" a": true false
null tru e, null, true} ame "name age ok \\n \\u00 é 日本 hello d"} d", d"] ""
[] {} {}} []] -1 1.5 1e e5 }}}}} ]]]]] \ud8 3d\ud e0
"""
JSON_PIECES = (*_PIECES.split(), '": ', '", "', ", ", ": ", '": "', " world", "  ", "\n  ", "\n")


@cache
def json_leaves() -> Leaves:
    """Leaves of a vocabulary with pieces of JSON, some that open or close several levels, and random ones."""
    opening = ('{"a', '"a": "', '", "b', '", "a": ', '{"b": "x", "b', '{"a":')
    pieces = (*JSON_PIECES, *opening, "}}}}}}}", "]]]]", '"}]}}')
    return Leaves(byte_vocabulary(pieces, seed=9, random_pieces=300))


# Readers' numbers may have exponents that no validator computes with; they need only be JSON.
HUGE = re.compile(rb"[eE][+-]?\d{3}")


def accepts(grammar: Grammar, text: str | bytes) -> bool:
    """Whether a text is a whole document of a grammar."""
    state = grammar.advance_bytes(grammar.start, text.encode() if isinstance(text, str) else text)
    return state >= 0 and grammar.is_complete(state)


def unpacked(grammar: Grammar, state: int) -> set[int]:
    """The tokens of a mask."""
    mask = grammar.mask(state)
    assert mask.dtype == np.uint32
    assert not mask.flags.writeable
    assert len(mask) == -(-grammar.vocab_size // 32)
    return set(tokens_in(mask))


def brute_force(grammar: Grammar, state: int) -> set[int]:
    """The tokens that can be followed byte by byte, and the end token where the text is complete."""
    vocabulary = grammar.vocabulary
    allowed = {vocabulary.end_token_id} if grammar.is_complete(state) else set()
    states = {b"": state}  # by what was followed, also in vain
    for token in range(vocabulary.vocab_size):
        text = vocabulary.bytes_of(token) or b""
        for end in range(1, len(text) + 1):
            if text[:end] not in states:
                before = states[text[: end - 1]]
                states[text[:end]] = grammar.advance_bytes(before, text[end - 1 : end])
        if text and states[text] >= 0:
            allowed.add(token)
    return allowed


def walked_states(grammar: Grammar, rng: random.Random, walks: int, steps: int) -> list[int]:
    """States along random walks, the start among them, each once.

    Half of the walks prefer, the longer they are, tokens that close what is open, so that all parts of a
    schema are reached; the others take any token.
    """
    states = [grammar.start]
    for walk in range(walks):
        state = grammar.start
        for written in range(steps):
            allowed = grammar.tokens(state).tolist()
            allowed = [token for token in allowed if token != grammar.vocabulary.end_token_id]
            if not allowed:
                break
            state = grammar.advance(state, chosen(grammar, rng, allowed, written if walk % 2 else 0))
            assert state >= 0
            states.append(state)
    return list(dict.fromkeys(states))


def chosen(grammar: Grammar, rng: random.Random, allowed: Sequence[int], written: int) -> int:
    """One of some tokens: the more have been written, the likelier one that closes something."""
    if rng.random() < min(0.9, written / 25):
        end = grammar.vocabulary.end_token_id
        closing = [token for token in allowed if token == end or grammar.text([token])[-1:] in b'"]}']
        if closing:
            return rng.choice(closing)
    return rng.choice(allowed)


Choose = Callable[[int, list[int], int], int]
"""Chooses a token: from the number of the walk, the allowed tokens, and how many have been written."""


def walked(grammar: Grammar, budgets: Sequence[int], choose: random.Random | Choose) -> list[list[int]]:
    """Tokens of whole documents, one under each budget; of random ones every second prefers to close."""
    if isinstance(choose, random.Random):
        rng = choose

        def choose(walker: int, allowed: list[int], written: int) -> int:
            return chosen(grammar, rng, allowed, written if walker % 2 else 0)

    constraint = GrammarConstraint([grammar] * len(budgets), budgets)
    states = constraint.start(torch.arange(len(budgets)))
    written: list[list[int]] = [[] for _ in budgets]
    live = list(range(len(budgets)))
    while live:
        taken = []
        for walker, row in zip(live, constraint.allowed(states).numpy(), strict=True):
            allowed = np.flatnonzero(row).tolist()
            assert allowed, f"a dead end behind {grammar.text(written[walker])!r}"
            taken.append(choose(walker, allowed, len(written[walker])))
            written[walker].append(taken[-1])
        states = constraint.advance(states, torch.tensor(taken))
        going = ~constraint.is_final(states)
        live = [walker for walker, goes in zip(live, going.tolist(), strict=True) if goes]
        states = states[going]
    assert all(len(tokens) <= budget for tokens, budget in zip(written, budgets, strict=True))
    return written
