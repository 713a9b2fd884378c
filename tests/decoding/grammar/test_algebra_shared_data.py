"""The JSON-Schema-Test-Suite and real schemas: graphs allow exactly the values that are valid."""

from __future__ import annotations

import gzip
import json
import random
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from jsonschema.validators import validator_for
from referencing.exceptions import Unresolvable

from genret.decoding.grammar.compile_options import GrammarOptions, compile_budget
from genret.decoding.grammar.errors import CompileTimeoutError, SchemaError, UnsatisfiableSchemaError
from genret.decoding.grammar.leaves.leaf_factory import Leaves
from genret.decoding.grammar.schema.formula_table import FormulaTable
from genret.decoding.grammar.schema.value_nodes import compile_value
from genret.decoding.grammar.shapes import ValueNode
from tests.shape_walker import ShapeWalker, byte_leaves, random_value
from tests.shared_titles import shared_file

pytestmark = [pytest.mark.shared_data, pytest.mark.slow]

SUITE = "json_schema_test_suite.draft2020-12.jsonl.gz"
REAL = "real_world.dev.jsonl.gz"
ASSERTED = "optional/format/"  # the part of the suite that asks what formats mean


def rows(name: str) -> Iterator[dict[str, Any]]:
    with gzip.open(shared_file("schemas", name), "rt", encoding="utf-8") as lines:
        for line in lines:
            yield json.loads(line)


@dataclass
class Outcome:
    """What came of some schemas with labelled values."""

    leaves: Leaves = field(default_factory=byte_leaves)
    compiled: int = 0
    whole: int = 0
    right: int = 0
    over: list[str] = field(default_factory=list)
    under: list[str] = field(default_factory=list)
    refused: dict[str, SchemaError | CompileTimeoutError] = field(default_factory=dict)

    def add(self, name: str, row: dict[str, Any], options: GrammarOptions) -> ValueNode | None:
        """Compile one schema and ask for all its values."""
        node: ValueNode | None = None
        try:
            with compile_budget(options.limits):
                node = compile_value(FormulaTable(row["schema"], options), options, self.leaves)
        except UnsatisfiableSchemaError:
            pass
        except (SchemaError, CompileTimeoutError) as error:
            self.refused[name] = error
            return None
        self.compiled += 1
        wrong = len(self.over) + len(self.under)
        for test in row["tests"]:
            allowed = node is not None and ShapeWalker(any_order=False).allows(node, test["data"])
            if allowed == test["valid"]:
                self.right += 1
            else:
                (self.over if allowed else self.under).append(f"{name}: {test['description']}")
        self.whole += wrong == len(self.over) + len(self.under)
        return node


def test_the_suite() -> None:
    outcome = Outcome()
    for row in rows(SUITE):
        formats = "assert" if row["file"].startswith(ASSERTED) else "annotate"
        options = GrammarOptions(formats=formats)
        outcome.add(f"{row['file']}: {row['description']}", row, options)
    asserted = [name for name in outcome.over + outcome.under if not name.startswith(ASSERTED)]
    assert not asserted
    wrong = len(outcome.over) + len(outcome.under)
    assert wrong <= 0.02 * (wrong + outcome.right), outcome.over + outcome.under
    assert outcome.whole >= 400, (outcome.compiled, outcome.whole)
    for error in outcome.refused.values():
        assert isinstance(error, SchemaError)
        assert error.keyword
        assert error.pointer.startswith("#")


def test_real_schemas() -> None:
    outcome = Outcome()
    num_rows = 0
    for row in rows(REAL):
        num_rows += 1
        outcome.add(row["name"], row, GrammarOptions())
    assert not outcome.over
    assert not outcome.under
    assert outcome.right > 5500
    assert outcome.compiled >= 0.95 * num_rows, outcome.refused
    for error in outcome.refused.values():
        assert isinstance(error, CompileTimeoutError) or error.keyword


def test_what_is_written_under_real_schemas_is_valid() -> None:
    options, leaves, rng = GrammarOptions.for_writing(), byte_leaves(), random.Random(7)
    written = 0
    for number, row in enumerate(rows(REAL)):
        if number % 8:
            continue
        try:
            with compile_budget(options.limits):
                node = compile_value(FormulaTable(row["schema"], options), options, leaves)
        except (SchemaError, CompileTimeoutError):
            continue
        validator = validator_for(row["schema"])(row["schema"])
        for size in (0, 200):
            value = random_value(node, rng, size)
            try:
                valid = validator.is_valid(value)
            except (re.error, Unresolvable):  # patterns and references that this validator cannot follow
                break
            assert valid, (row["name"], value)
            written += 1
    assert written > 250
