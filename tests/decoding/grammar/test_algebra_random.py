"""Random schemas against two validators: the graph allows exactly what is valid, and ends everywhere."""

from __future__ import annotations

import json
import random
from decimal import InvalidOperation
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from genret.decoding.grammar.compile_options import GrammarOptions
from genret.decoding.grammar.errors import SchemaLimitError, UnsatisfiableSchemaError, UnsupportedSchemaError
from genret.decoding.grammar.schema.formula_table import FormulaTable
from genret.decoding.grammar.schema.value_nodes import compile_value
from genret.decoding.grammar.shapes import ValueNode
from genret.retrieval.answers.validation import AnswerValidator, InvalidAnswerError
from tests.formula_oracle import evaluates
from tests.random_schemas import schemas, values
from tests.shape_walker import RandomWriter, ShapeWalker, byte_leaves

LEAVES = byte_leaves()
ANY_ORDER = GrammarOptions()
IN_ORDER = GrammarOptions(property_order="schema")
WRITING = GrammarOptions.for_writing()
budget = settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))


def compiled(schema: Any, options: GrammarOptions) -> tuple[FormulaTable, ValueNode | None]:
    """A schema's formulas and node, None if nothing is valid; refused schemas are not looked at."""
    try:
        table = FormulaTable(schema, options)
        return table, compile_value(table, options, LEAVES)
    except UnsatisfiableSchemaError:
        return table, None
    except (UnsupportedSchemaError, SchemaLimitError):
        assume(False)
        raise


def reordered(value: Any, rng: random.Random) -> Any:
    """The same value with the members of its objects in another order."""
    if isinstance(value, list):
        return [reordered(item, rng) for item in value]
    if not isinstance(value, dict):
        return value
    members = [(key, reordered(inner, rng)) for key, inner in value.items()]
    rng.shuffle(members)
    return dict(members)


@pytest.mark.parametrize("unique", [False, True])
@budget
@given(data=st.data(), seed=st.integers(0, 1000))
def test_what_is_allowed_is_what_is_valid(unique: bool, data: st.DataObject, seed: int) -> None:
    schema = data.draw(schemas(unique))
    table, node = compiled(schema, ANY_ORDER)
    _, ordered = compiled(schema, IN_ORDER)
    assert (node is None) == (ordered is None)
    validator = Draft202012Validator(schema)
    for value in data.draw(st.lists(values, min_size=1, max_size=12)):
        valid = evaluates(table.root, table, value)
        assert valid == validator.is_valid(value), (schema, value)
        if node is None or ordered is None:
            assert not valid, (schema, value)
            continue
        rng = random.Random(seed)
        assert ShapeWalker(any_order=False).allows(node, value) == valid, (schema, value)
        assert ShapeWalker(any_order=False).allows(node, reordered(value, rng)) == valid, (schema, value)
        assert ShapeWalker(any_order=True).allows(ordered, value) == valid, (schema, value)


@pytest.mark.parametrize("options", [ANY_ORDER, IN_ORDER, WRITING], ids=["any", "schema", "writing"])
@pytest.mark.parametrize("unique", [False, True])
@budget
@given(data=st.data(), seed=st.integers(0, 1 << 30))
def test_every_walk_ends_in_a_valid_value(
    options: GrammarOptions, unique: bool, data: st.DataObject, seed: int
) -> None:
    schema = data.draw(schemas(unique))
    _, node = compiled(schema, options)
    assume(node is not None)
    assert node is not None
    validator = AnswerValidator(json.dumps(schema))  # knows numbers as they are written: 1e-400 is not 0
    rng = random.Random(seed)
    for _ in range(4):
        text = RandomWriter(rng, rng.choice([0, 20, 100])).value(node)[0].decode()
        valid = is_valid(validator, text)
        # Nobody is answered with numbers that the validator cannot look at.
        assert valid or (valid is None and options is not WRITING), (schema, text)


def is_valid(validator: AnswerValidator, text: str) -> bool | None:
    """None where the validator cannot know, as what divides 1e9999."""
    try:
        validator.check(text)
    except InvalidAnswerError as error:
        return None if isinstance(error.__cause__, InvalidOperation) else False
    return True
