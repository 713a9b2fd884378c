"""Formats of which only some texts are known: whatever is around them, nothing invalid gets through."""

from __future__ import annotations

import json
from typing import Any

import pytest

from genret.decoding.grammar.compile_options import GrammarOptions
from genret.decoding.grammar.regular.formats import FORMATS, Enforcement
from genret.decoding.grammar.schema.formula import ExactlyOne, Reference
from genret.decoding.grammar.schema.formula_table import FormulaTable
from tests.formula_oracle import evaluates

# A valid name of a host that is not among the known ones, one that is, and no such name at all.
LEFT_OUT, KNOWN, WRONG = "xn--9n2bp8q.xn--9t4b11yi5a", "host.example", "-host"
HOST = {"format": "hostname"}


def holds(schema: Any, value: Any) -> bool:
    table = FormulaTable(json.dumps(schema))
    return evaluates(table.root, table, value)


def test_the_examples_are_what_they_are_taken_for() -> None:
    assert FORMATS["hostname"] is Enforcement.SUBSET
    assert [holds(HOST, value) for value in (LEFT_OUT, KNOWN, WRONG, 5)] == [False, True, False, True]


@pytest.mark.parametrize("host", [HOST, {"allOf": [HOST]}, {"$ref": "#/$defs/host"}])
def test_what_is_left_out_is_not_taken_for_wrong(host: Any) -> None:
    definitions = {"$defs": {"host": HOST}}
    refusing: list[Any] = [
        {"not": host},
        {"oneOf": [{"type": "string"}, host]},
        {"if": host, "then": False},
        {"if": host, "then": {"maxLength": 3}, "else": True},
        {"not": {"not": {"not": host}}},
    ]
    for schema in refusing:
        assert not holds({**schema, **definitions}, LEFT_OUT), schema
        assert not holds({**schema, **definitions}, KNOWN), schema
    assert not holds({"contains": host, "minContains": 0, "maxContains": 1, **definitions}, [KNOWN, LEFT_OUT])
    assert holds({"contains": host, "maxContains": 1, **definitions}, [KNOWN, 5][:1])
    unevaluated = {
        "if": {"properties": {"a": host}, "required": ["a"]},
        "else": {"properties": {"a": True}},
        "unevaluatedProperties": False,
        **definitions,
    }
    assert not holds({**unevaluated, "then": {"minProperties": 2}}, {"a": LEFT_OUT})


def test_alternatives_of_other_types_stay_whole() -> None:
    schema = {"oneOf": [{"type": "string", **HOST}, {"type": "null"}, {"type": "string", "maxLength": 4}]}
    assert holds(schema, None)
    assert holds({"oneOf": schema["oneOf"][:2]}, KNOWN)
    assert not holds({"oneOf": schema["oneOf"][:2]}, WRONG)
    assert holds({"not": {"not": HOST}}, KNOWN)
    assert not holds({"not": {"not": HOST}}, WRONG)


def test_what_cannot_reach_such_a_format_is_translated_once() -> None:
    branches = [{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/b"}]
    definitions = {"a": {"type": "null"}, "b": {"items": {"$ref": "#/$defs/a"}}, "c": HOST}
    table = FormulaTable({"oneOf": branches, "$defs": definitions})
    assert isinstance(table.root, ExactlyOne)
    assert table.root.parts == (Reference("#/$defs/a"), Reference("#/$defs/b"))
    table.resolve_all()
    assert set(table.translation.targets) == {"#/$defs/a", "#/$defs/b"}


def test_without_formats_nothing_is_known_in_part() -> None:
    table = FormulaTable({"not": HOST}, GrammarOptions(formats="annotate"))
    assert not evaluates(table.root, table, WRONG)
    assert not table.translation.is_inexact


@pytest.mark.parametrize(("pattern", "differs"), [(r"^a\sb$", True), ("^[a-z]*$", False), (r"^\d$", False)])
def test_patterns_that_are_read_differently_are_negated_as_a_whole(pattern: str, differs: bool) -> None:
    narrow = GrammarOptions(inexact="narrow")
    table = FormulaTable({"not": {"pattern": pattern}, "type": "string"}, narrow)
    assert table.translation.is_inexact == differs
    if differs:
        # White space in one reading alone: it does not match for sure, nor can it be said not to match.
        one_reading = "a\ufeffb"
        plain = FormulaTable({"pattern": pattern}, narrow)
        assert not evaluates(plain.root, plain, one_reading)
        assert not evaluates(table.root, table, one_reading)
        assert evaluates(plain.root, plain, "a b")
