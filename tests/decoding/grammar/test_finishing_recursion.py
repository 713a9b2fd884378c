"""Shortest ends of objects that may hold themselves: found, exact, and kept within budgets."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
import torch

from genret.decoding.grammar.compile_options import GrammarOptions
from genret.decoding.grammar.constraint import GrammarConstraint
from genret.decoding.grammar.json_grammar import compile_schema
from genret.decoding.grammar.leaves.leaf_factory import Leaves
from genret.decoding.grammar.vocabulary import Vocabulary
from tests.grammar_shapes import byte_vocabulary

OPTIONS = {
    "compact": GrammarOptions(whitespace="compact"),
    "reading": GrammarOptions(max_indent=2),
    "writing": GrammarOptions.for_writing(),
}
BOOLEAN = {"type": "boolean"}
LEAVES = Leaves(byte_vocabulary())


def record(required: list[str], **properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


SCHEMAS: dict[str, tuple[Any, str]] = {
    "itself first": (record(["a"], b={"$ref": "#"}, a=BOOLEAN), '{"a":true}'),
    "itself under a short name": (record(["name"], x={"$ref": "#"}, name=BOOLEAN), '{"name":true}'),
    "two of themselves": (record(["v"], l={"$ref": "#"}, r={"$ref": "#"}, v=BOOLEAN), '{"v":true}'),
    "a value or itself": (
        record(["a"], a={"anyOf": [{"$ref": "#"}, {"const": "long enough to be dear"}]}),
        '{"a":"long enough to be dear"}',
    ),
    "each other": (
        {
            "$defs": {
                "x": record(["p"], q={"$ref": "#/$defs/y"}, p={"const": 12345}),
                "y": record(["p"], q={"$ref": "#/$defs/x"}, p=BOOLEAN, r={"$ref": "#/$defs/y"}),
            },
            "$ref": "#/$defs/x",
        },
        '{"p":12345}',
    ),
}


@pytest.mark.parametrize("how", sorted(OPTIONS))
@pytest.mark.parametrize("name", sorted(SCHEMAS))
def test_objects_that_may_hold_themselves_can_be_finished(name: str, how: str) -> None:
    schema, shortest = SCHEMAS[name]
    grammar = compile_schema(schema, LEAVES, OPTIONS[how])
    needed = grammar.tokens_to_finish(grammar.start)
    if how == "compact":
        assert needed == len(shortest) + 1
    rng = random.Random(f"{name} {how}")
    for budget in (needed, needed + 5, needed + 40):
        constraint = GrammarConstraint([grammar], budget)
        for _ in range(5):
            state, written = constraint.start(torch.zeros(1, dtype=torch.int64)), []
            while not constraint.is_final(state).item():
                allowed = constraint.children(state).token.tolist()
                assert allowed
                written.append(rng.choice(allowed))
                state = constraint.advance(state, torch.tensor(written[-1:]))
            assert len(written) <= budget
            json.loads(grammar.text(written))


@pytest.mark.parametrize("options", [GrammarOptions(), GrammarOptions.for_writing()])
def test_objects_that_need_members_under_any_names_are_ended_without_trying_all_names(
    options: GrammarOptions,
) -> None:
    """Every free key is a text of its own where members are counted; a short one will do."""
    leaves = Leaves(Vocabulary([*(bytes([byte]) for byte in range(256)), None], 256, 257))
    grammar = compile_schema({"type": "object", "minProperties": 2}, leaves, options)
    for begun in (b"", b"{", b'{"k', b'{"key": [1, 2'):
        state = grammar.advance_bytes(grammar.start, begun)
        left = grammar.tokens_to_finish(state)
        while state != grammar.finished:
            state = next(
                following
                for token in grammar.tokens(state).tolist()
                if grammar.can_finish(following := grammar.advance(state, token), left - 1)
            )
            left -= 1
        assert left >= 0
