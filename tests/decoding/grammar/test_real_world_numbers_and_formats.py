"""Numbers and formats of real schemas: what instances have at places where only these keywords apply."""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import pytest

from genret.decoding.grammar.regular.formats import FORMATS, format_texts
from genret.decoding.grammar.regular.number_set import NumberSet
from tests.shared_titles import schema_rows

pytestmark = pytest.mark.shared_data

BOUNDS = {"minimum": "least", "maximum": "most", "exclusiveMinimum": "above", "exclusiveMaximum": "below"}


def schemas() -> Iterator[dict[str, Any]]:
    return schema_rows(parse_float=Decimal)


def places(schema: Any, value: Any) -> Iterator[tuple[dict[str, Any], Any]]:
    """A value and all in it, with the schemas that `properties` and `items` give them."""
    if not isinstance(schema, dict):
        return
    yield schema, value
    if isinstance(value, dict) and isinstance(schema.get("properties"), dict):
        for key in value.keys() & schema["properties"].keys():
            yield from places(schema["properties"][key], value[key])
    if isinstance(value, list) and isinstance(schema.get("items"), dict):
        for item in value:
            yield from places(schema["items"], item)


def is_number(value: Any) -> bool:
    return isinstance(value, (int, Decimal)) and not isinstance(value, bool)


def wants_integer(types: Any) -> bool:
    return types == "integer" or (isinstance(types, list) and "integer" in types and "number" not in types)


def numbers_of(schema: dict[str, Any]) -> NumberSet | None:
    """The numbers a schema allows by its own keywords; None where it says nothing of numbers."""
    keywords: dict[str, Any] = {}
    for keyword, name in BOUNDS.items():
        if is_number(schema.get(keyword)):
            keywords[name] = Decimal(schema[keyword])
    for strict, bound in (("exclusiveMinimum", "least"), ("exclusiveMaximum", "most")):
        if schema.get(strict) is True and bound in keywords:  # as drafts up to 4 have it
            keywords[BOUNDS[strict]] = keywords.pop(bound)
    if is_number(schema.get("multipleOf")):
        keywords["multiple_of"] = Decimal(schema["multipleOf"])
    if wants_integer(schema.get("type")):
        keywords["integers"] = True
    return NumberSet.of(**keywords) if keywords else None


def oracle(schema: dict[str, Any], value: int | Decimal) -> bool:
    """The same condition keyword by keyword."""
    number = Decimal(value)
    keywords: tuple[Any, ...] = tuple(map(schema.get, (*BOUNDS, "multipleOf", "type")))
    low, high, above, below, step, types = keywords
    return all(
        (
            not is_number(low) or number > low or (number == low and above is not True),
            not is_number(high) or number < high or (number == high and below is not True),
            not is_number(above) or number > above,
            not is_number(below) or number < below,
            not is_number(step) or number % step == 0,
            not wants_integer(types) or number % 1 == 0,
        )
    )


def test_numbers_at_properties() -> None:
    kinds, checked, refused = set(), 0, 0
    for row in schemas():
        for case in row["tests"]:
            for schema, value in places(row["schema"], case["data"]):
                numbers = numbers_of(schema) if is_number(value) else None
                if numbers is None:
                    continue
                kinds.add(numbers)
                checked += 1
                belongs = oracle(schema, value)
                refused += not belongs
                assert belongs or not case["valid"], (row["name"], schema, value)
                assert numbers.contains(value) == belongs, (schema, value)
                assert numbers.spelled().accepts(str(value).encode()) == belongs, (schema, value)
                canonical = numbers.spelled(canonical=True)
                assert canonical.accepts(format(Decimal(value).normalize() + 0, "f").encode()) == belongs
    assert len(kinds) > 50
    assert checked > 1000
    assert refused > 50


def test_every_numeric_keyword_of_real_schemas_has_an_automaton() -> None:
    """Also where no instance has a number."""

    def all_parts(part: Any) -> Iterator[dict[str, Any]]:
        if isinstance(part, dict):
            yield part
            part = list(part.values())
        if isinstance(part, list):
            for inner in part:
                yield from all_parts(inner)

    kinds = {
        numbers for row in schemas() for part in all_parts(row["schema"]) if (numbers := numbers_of(part))
    }
    assert len(kinds) > 150
    for numbers in kinds:
        assert numbers.is_empty == numbers.spelled().is_empty
        assert numbers.spelled().num_states < 500
        assert numbers.spelled(canonical=True).count() == numbers.count()


def test_formats_at_properties() -> None:
    """All of valid instances is admitted; of the others, some is refused in all formats that occur often."""
    admitted: dict[str, int] = {}
    refused: dict[str, set[str]] = {}
    for row in schemas():
        for case in row["tests"]:
            for schema, value in places(row["schema"], case["data"]):
                name = schema.get("format")
                if not isinstance(value, str) or not isinstance(name, str) or name not in FORMATS:
                    continue
                texts = format_texts(name)
                assert texts is not None
                if texts.accepts(value):
                    admitted[name] = admitted.get(name, 0) + 1
                else:
                    assert not case["valid"], (row["name"], name, value)
                    refused.setdefault(name, set()).add(value)
    often = {"date", "date-time", "email", "hostname", "ipv4", "uri", "uri-reference", "uuid"}
    assert often <= admitted.keys()
    assert often <= refused.keys()
    for name, value in (
        ("date-time", "2022-01-01T12:00:00"),
        ("date-time", "2022-01-01 12:00:00"),
        ("date", "2022-02-31"),
        ("uri", "not a valid url"),
        ("hostname", "example.com:8080"),
        ("ipv4", "256.1.1.1"),
        ("email", "invalid email"),
        ("uuid", "not-a-uuid"),
    ):
        assert value in refused[name]
