"""The JSON-Schema-Test-Suite and real schemas: what they are compiled to allows exactly the valid values."""

from __future__ import annotations

import json
import random
import re
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import pytest
from jsonschema.validators import validator_for
from referencing.exceptions import Unresolvable

from genret.decoding.grammar.compile_options import GrammarOptions, compile_budget
from genret.decoding.grammar.errors import (
    CompileTimeoutError,
    SchemaError,
    SchemaLimitError,
    UnsatisfiableSchemaError,
    UnsupportedSchemaError,
)
from genret.decoding.grammar.regular.formats import FORMATS, Enforcement
from genret.decoding.grammar.schema.schema_report import explain_schema
from genret.decoding.grammar.shapes import ValueNode
from tests.shape_walker import ShapeWalker, node_of, random_value
from tests.shared_titles import schema_rows

pytestmark = pytest.mark.shared_data

SUITE = "json_schema_test_suite.draft2020-12.jsonl.gz"
ASSERTED = "optional/format/"  # the part of the suite that asks what formats mean


@dataclass
class Outcome:
    """What came of some schemas with labelled values."""

    whole: int = 0
    right: int = 0
    over: list[str] = field(default_factory=list)
    under: list[str] = field(default_factory=list)
    refused: dict[str, SchemaError | CompileTimeoutError] = field(default_factory=dict)

    def add(self, name: str, row: dict[str, Any], options: GrammarOptions) -> None:
        """Read one schema and ask for all its values."""
        try:
            with compile_budget(options.limits):
                node = node_of(row["schema"], options)
        except UnsatisfiableSchemaError:
            node = ValueNode()
        except (SchemaError, CompileTimeoutError) as error:
            self.refused[name] = error
            return
        wrong = len(self.over) + len(self.under)
        for test in row["tests"]:
            allowed = ShapeWalker(any_order=False).allows(node, test["data"])
            if allowed == test["valid"]:
                self.right += 1
            else:
                (self.over if allowed else self.under).append(f"{name}: {test['description']}")
        self.whole += wrong == len(self.over) + len(self.under)


def test_the_suite_is_right_but_for_other_documents_and_dialects() -> None:
    outcome = Outcome()
    for row in schema_rows(SUITE):
        formats = "assert" if row["file"].startswith(ASSERTED) else "annotate"
        options = GrammarOptions(formats=formats)  # type: ignore[arg-type]
        outcome.add(f"{row['file']}: {row['description']}", row, options)
    assert outcome.over == []
    in_part = {name for name, enforcement in FORMATS.items() if enforcement is Enforcement.SUBSET}
    files = {f"{ASSERTED}{name}.json" for name in in_part}
    assert [name for name in outcome.under if name.split(":")[0] not in files] == []
    reasons = "another document, and nothing is fetched|is not one of the dialects|is known in part"
    reasons += "|more than 50,000 states|items cannot be compared"
    for error in outcome.refused.values():
        assert isinstance(error, UnsupportedSchemaError | SchemaLimitError)
        assert re.search(reasons, error.reason)
        assert error.keyword
        assert error.pointer.startswith("#")
    assert len(outcome.refused) <= 38
    assert outcome.right > 1_950
    assert outcome.whole >= 400


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_real_schemas_are_right_and_hardly_any_is_refused() -> None:
    outcome, rows = Outcome(), list(schema_rows())
    for row in rows:
        outcome.add(row["name"], row, GrammarOptions())
    assert outcome.over == []
    assert outcome.under == []
    assert len(outcome.refused) <= 0.05 * len(rows), outcome.refused
    assert outcome.right > 5500
    for error in outcome.refused.values():
        assert isinstance(error, CompileTimeoutError) or error.keyword


@pytest.mark.slow
def test_what_is_written_under_real_schemas_is_valid() -> None:
    options, rng = GrammarOptions.for_writing(), random.Random(7)
    written = 0
    for row in islice(schema_rows(), None, None, 8):
        try:
            with compile_budget(options.limits):
                node = node_of(row["schema"], options)
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


def test_every_keyword_of_real_schemas_is_in_the_report() -> None:
    for row in islice(schema_rows(), None, None, 10):
        report = explain_schema(json.dumps(row["schema"]), GrammarOptions(formats="annotate"))
        pointers = [entry.pointer for entry in report.entries]
        assert len(set(pointers)) == len(pointers)
        keywords = [f"#/{keyword}" for keyword in row["schema"]]
        assert [p for p in pointers if p.count("/") == 1][: len(keywords)] == keywords
        assert report.refusals() == ()
