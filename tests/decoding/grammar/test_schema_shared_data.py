"""The JSON-Schema-Test-Suite and real schemas: formulas hold exactly for the values that are valid."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import pytest

from genret.decoding.grammar.compile_options import GrammarOptions, compile_budget
from genret.decoding.grammar.errors import CompileTimeoutError, SchemaError, UnsupportedSchemaError
from genret.decoding.grammar.regular.formats import FORMATS, Enforcement
from genret.decoding.grammar.schema.formula_table import FormulaTable
from genret.decoding.grammar.schema.schema_report import explain_schema
from tests.formula_oracle import evaluates
from tests.shared_titles import schema_rows

pytestmark = pytest.mark.shared_data

SUITE = "json_schema_test_suite.draft2020-12.jsonl.gz"
# What formats mean is asked in this part of the suite alone.
ASSERTED = "optional/format/"


@dataclass
class Outcome:
    """What came of some schemas with labelled values."""

    right: int = 0
    over: list[str] = field(default_factory=list)
    under: list[str] = field(default_factory=list)
    refused: dict[str, SchemaError | CompileTimeoutError] = field(default_factory=dict)

    def add(self, name: str, row: dict[str, Any], options: GrammarOptions) -> None:
        """Read one schema and ask for all its values."""
        try:
            with compile_budget(options.limits):
                table = FormulaTable(json.dumps(row["schema"]), options)
                table.resolve_all()
        except (SchemaError, CompileTimeoutError) as error:
            self.refused[name] = error
            return
        for test in row["tests"]:
            holds = evaluates(table.root, table, test["data"])
            if holds == test["valid"]:
                self.right += 1
            else:
                (self.over if holds else self.under).append(f"{name}: {test['description']}")


def test_the_suite_is_right_but_for_other_documents_and_dialects() -> None:
    outcome = Outcome()
    for row in schema_rows(SUITE):
        formats = "assert" if row["file"].startswith(ASSERTED) else "annotate"
        options = GrammarOptions(formats=formats)  # type: ignore[arg-type]
        outcome.add(f"{row['file']}: {row['description']}", row, options)
    assert outcome.over == []
    in_part = {name for name, enforcement in FORMATS.items() if enforcement is Enforcement.SUBSET}
    files = {f"{ASSERTED}{name}.json" for name in in_part} | {f"{ASSERTED}ecmascript-regex.json"}
    assert [name for name in outcome.under if name.split(":")[0] not in files] == []
    reasons = (
        "is another document, and nothing is fetched",
        "is not one of the dialects",
        "is known in part",
    )
    others = [
        name
        for name, error in outcome.refused.items()
        if not (isinstance(error, UnsupportedSchemaError) and any(text in error.reason for text in reasons))
    ]
    assert others == []
    assert len(outcome.refused) <= 35
    assert outcome.right > 2_000


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_real_schemas_are_right_and_hardly_any_is_refused() -> None:
    outcome = Outcome()
    rows = list(schema_rows())
    for row in rows:
        outcome.add(row["name"], row, GrammarOptions())
    assert outcome.over == []
    assert outcome.under == []
    assert len(outcome.refused) <= 0.01 * len(rows), outcome.refused
    assert outcome.right > 5_000


def test_every_keyword_of_real_schemas_is_in_the_report() -> None:
    for row in islice(schema_rows(), None, None, 10):
        report = explain_schema(json.dumps(row["schema"]), GrammarOptions(formats="annotate"))
        pointers = [entry.pointer for entry in report.entries]
        assert len(set(pointers)) == len(pointers)
        keywords = [f"#/{keyword}" for keyword in row["schema"]]
        assert [p for p in pointers if p.count("/") == 1][: len(keywords)] == keywords
        assert report.refusals() == ()
