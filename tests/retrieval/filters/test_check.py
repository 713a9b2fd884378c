"""Predicates that do not fit an index are refused by the place, the column and its type."""

from __future__ import annotations

import pyarrow as pa
import pytest

from retrieval.errors import InputError
from retrieval.filters.check import check
from retrieval.filters.predicate import parse

COLUMNS = {
    "kind": pa.dictionary(pa.uint8(), pa.string()),
    "title": pa.string(),
    "year": pa.int64(),
    "score": pa.float64(),
    "live": pa.bool_(),
    "seen": pa.timestamp("s"),
}
HAS = "the index has: kind, live, score, seen, title, year"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("knd = 'film'", f"at character 1: unknown column 'knd', did you mean 'kind'? {HAS}"),
        ("YEAR = 1", f"at character 1: unknown column 'YEAR', did you mean 'year'? {HAS}"),
        ("year = 1 and zzz is null", f"at character 14: unknown column 'zzz'; {HAS}"),
        (
            "year >= 'x'",
            "at character 9: column 'year' is int, got a string: 'x'",
        ),
        (
            "year >= '1990'",
            "at character 9: column 'year' is int, got a string: '1990'; numbers stand without quotes",
        ),
        ("year = true", "at character 8: column 'year' is int, got a truth value: true"),
        (
            "kind in ('a', 3)",
            "at character 15: column 'kind' is string, got a number: 3; text stands in single quotes: '3'",
        ),
        ("live = 1", "at character 8: column 'live' is bool, got a number: 1"),
        ("live < true", "at character 1: column 'live' is bool, which has no order; expected = or !="),
        ("not year", "at character 5: column 'year' is int, not bool; expected a comparison after it"),
        ("year like '1%'", "at character 1: like needs a string column, and column 'year' is int"),
        (
            r"title like 'a\'",
            r"at character 12: the pattern ends in a single \; a backslash itself is written \\",
        ),
        (
            "seen = 3",
            "at character 1: column 'seen' is timestamp[s], which filters cannot compare",
        ),
    ],
)
def test_misfits(text: str, message: str) -> None:
    with pytest.raises(InputError) as error:
        check(parse(text), COLUMNS)
    assert error.value.field == "filter"
    assert error.value.message == message


@pytest.mark.parametrize(
    "text",
    [
        "kind = 'film' and year >= 1990",
        "year < 2.5 and score = 3 and score in (1, 2.5, null)",
        "live or live = true or live in (true, false) or live != null",
        "seen is null or seen is not null",
        r"title like 'a\\' or title like '\%'",
        "true and not null",
    ],
)
def test_fits(text: str) -> None:
    check(parse(text), COLUMNS)


def test_long_names_and_many_columns_are_cut_short() -> None:
    columns = {f"column {n:03d}": pa.string() for n in range(100)}
    with pytest.raises(InputError) as error:
        check(parse('"' + "x" * 9000 + "\" = 'a'"), columns)
    assert "column 029 and 70 more" in error.value.message
    assert len(error.value.message) < 700
