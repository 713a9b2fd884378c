"""Graphs of particular schemas: what is refused and why, and what is left out."""

from __future__ import annotations

from itertools import permutations
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from genret.decoding.grammar.compile_options import GrammarOptions
from genret.decoding.grammar.errors import SchemaError, UnsatisfiableSchemaError, UnsupportedSchemaError
from genret.decoding.grammar.schema.array_shapes import cheapest_assignment
from genret.decoding.grammar.schema.formula_table import FormulaTable
from genret.decoding.grammar.schema.value_nodes import compile_value
from genret.decoding.grammar.shapes import ValueNode
from tests.grammar_oracle import array, record
from tests.shape_walker import ShapeWalker, byte_leaves

LEAVES = byte_leaves()
ITSELF = {"type": "array", "items": {"$ref": "#"}}


def compiled(schema: Any, options: GrammarOptions | None = None) -> ValueNode:
    options = options or GrammarOptions()
    return compile_value(FormulaTable(schema, options), options, LEAVES)


def allows(schema: Any, value: Any, options: GrammarOptions | None = None) -> bool:
    return ShapeWalker(any_order=False).allows(compiled(schema, options), value)


@pytest.mark.parametrize(
    ("schema", "error", "keyword", "pointer"),
    [
        ({"minimum": 2, "maximum": 1, "type": "number"}, UnsatisfiableSchemaError, None, None),
        (record(a={"$ref": "#"}), UnsatisfiableSchemaError, None, None),
        (array({"type": "object"}, uniqueItems=True), UnsupportedSchemaError, "uniqueItems", "#/uniqueItems"),
        (array(ITSELF, uniqueItems=True), UnsupportedSchemaError, "uniqueItems", "#/uniqueItems"),
    ],
)
def test_refusals_name_their_place(
    schema: Any, error: type[SchemaError], keyword: str | None, pointer: str | None
) -> None:
    with pytest.raises(error) as caught:
        compiled(schema)
    assert caught.value.pointer.startswith("#")
    if keyword is not None:
        assert (caught.value.keyword, caught.value.pointer) == (keyword, pointer)


def test_undeclared_members_are_left_out_when_writing() -> None:
    writing = GrammarOptions.for_writing()
    schema = {"type": "object", "properties": {"a": {}}, "required": ["b"]}
    assert allows(schema, {"a": 1, "b": 2}, writing)
    assert not allows(schema, {"b": 2, "c": 3}, writing)
    assert not allows(schema, {"b": 2, "a": 1}, writing)
    assert allows({**schema, "additionalProperties": True}, {"b": 2, "c": 3}, writing)
    assert allows({"type": "object"}, {"x": 1}, writing)
    assert allows({"type": "object", "not": {"required": ["a"]}}, {"x": 1}, writing)


def test_repeated_types_share_their_node() -> None:
    node = compiled({"type": "object", "properties": {"a": {"type": "string"}, "b": {"type": "string"}}})
    (shape,) = node.objects
    start = shape.start()
    assert shape.after_key(start, 0)[0].value is shape.after_key(start, 1)[0].value


@given(st.lists(st.dictionaries(st.integers(0, 4), st.integers(1, 9), max_size=4), max_size=4))
def test_assignments_are_the_cheapest(choices: list[dict[int, int]]) -> None:
    costs = [
        sum(choice[value] for choice, value in zip(choices, values, strict=True))
        for values in permutations(range(5), len(choices))
        if all(value in choice for choice, value in zip(choices, values, strict=True))
    ]
    assert cheapest_assignment(choices) == min(costs, default=None)
