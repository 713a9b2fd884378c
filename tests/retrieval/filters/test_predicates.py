"""Predicates and restrictions: parsed, put into canonical text, checked against columns, and their ids."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from genret.retrieval.arguments import MAX_IDS, IdList, Restriction, checked_ids, read_ids
from genret.retrieval.errors import InputError, SourceError
from genret.retrieval.filters.evaluate import check
from genret.retrieval.filters.predicate import (
    MAX_DEPTH,
    MAX_FILTER_CHARS,
    MAX_TESTS,
    And,
    Column,
    Comparison,
    Constant,
    IsNull,
    Like,
    Literal,
    Membership,
    Not,
    Or,
    Predicate,
    Truth,
    canonical,
    parse,
)


def compare(name: str, operator: str, value: str | float | bool | None) -> Comparison:
    return Comparison(Column(name), operator, Literal(value))


A, B, C = Truth(Column("a")), Truth(Column("b")), Truth(Column("c"))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("kind = 'film'", compare("kind", "=", "film")),
        ("kind == 'film'", compare("kind", "=", "film")),
        ("year<>1990", compare("year", "!=", 1990)),
        ("year >=-3", compare("year", ">=", -3)),
        ("x < +.5e1", compare("x", "<", 5.0)),
        ("x = 1.", compare("x", "=", 1.0)),
        ("flag = TRUE", compare("flag", "=", True)),
        ("a = null", compare("a", "=", None)),
        ("kind = 'O''Brien'", compare("kind", "=", "O'Brien")),
        ("kind = ''", compare("kind", "=", "")),
        ('"a ""b"" c" = \'x\'', compare('a "b" c', "=", "x")),
        ('"and" = 1', compare("and", "=", 1)),
        ("größe_2 = 1", compare("größe_2", "=", 1)),
        ("x in (1, 'b', null)", Membership(Column("x"), (Literal(1), Literal("b"), Literal(None)))),
        ("x NOT IN (1)", Not(Membership(Column("x"), (Literal(1),)))),
        ("x like 'F_o%'", Like(Column("x"), Literal("F_o%"))),
        ("x not like '%'", Not(Like(Column("x"), Literal("%")))),
        ("x is null", IsNull(Column("x"))),
        ("x Is Not Null", Not(IsNull(Column("x")))),
        ("a", A),
        ("null", Constant(None)),
        ("not true", Not(Constant(True))),
        ("not not a", A),
        ("not x not in (1)", Membership(Column("x"), (Literal(1),))),
        ("a or b and not c", Or((A, And((B, Not(C)))))),
        ("(a or b) and c", And((Or((A, B)), C))),
        ("a and (b and c)", And((A, B, C))),
        ("((((a))))", A),
        (" a\n\tand b ", And((A, B))),
    ],
)
def test_predicates(text: str, expected: Predicate) -> None:
    assert parse(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("b AND a and a", "a and b"),
        ("year<>1 or  year==1.50", "year != 1 or year = 1.5"),
        ("x in (3, 1, 1)", "x in (1, 3)"),
        ("(c or a) and b", "(a or c) and b"),
        ("(b and a) or c", "a and b or c"),
        ("b and not not (b or b)", "b"),
        ("((c and b) or (b and c)) and (b and a)", "a and b and c"),
        ("not (a and b)", "not (a and b)"),
        ("not (x like 'a')", "x not like 'a'"),
        ("not x not like 'a'", "x like 'a'"),
        ("\"x\" = 'it''s' and \"In\" = 1", "\"In\" = 1 and x = 'it''s'"),
        ("x = -0.0", "x = 0.0"),
        (f"x = {10**60}", f"x = {10**60}"),
    ],
)
def test_canonical_text(text: str, expected: str) -> None:
    assert canonical(parse(text)) == expected
    assert canonical(parse(expected)) == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "must not be empty"),
        ("a =", "at character 4: expected a value, got the end"),
        ("a = b", "at character 5: expected a value, got the name 'b'; text stands in single quotes: 'b'"),
        ('a="b"', "at character 3: expected a value, got the name \"b\"; text stands in single quotes: 'b'"),
        ("a 5", "at character 3: expected a comparison (= != < <= > >=), in, like, is, and, or, got 5"),
        ("5 = a", "at character 1: expected a column name, got the value 5; columns go left"),
        ("a = 'x", "at character 5: this string is not closed; expected another '"),
        ('"a = 1', 'at character 1: this column name is not closed; expected another "'),
        ("a not = 3", "at character 7: expected in or like, got '='"),
        ("a in ()", "at character 7: expected a value, got ')'"),
        ("a in 3", "at character 6: expected '(' before the values, got 3"),
        ("a in (1 2)", "at character 9: expected ',' or ')' after a value, got 2"),
        ("a like 3", "at character 8: expected a pattern in single quotes, got 3"),
        ("a is 3", "at character 6: expected null or not null, got 3"),
        ("a is not 3", "at character 10: expected null, got 3"),
        ("(a", "at character 3: expected ')' for the '(' at character 1, got the end"),
        ("a)", "at character 2: this ')' closes nothing"),
        ("a = 1 b", "at character 7: expected and, or or the end, got 'b'"),
        ("and", "at character 1: expected a column name, not or '(', got 'and'"),
        ("a; drop", "at character 2: ';' has no meaning here"),
        ("a = 12abc", "at character 5: '12abc' is neither a number nor a column name"),
        ("a = 1e999", "at character 5: the number 1e999 is too large"),
        ("a = " + "9" * 1001, "at character 5: a number of more than 1000 characters"),
        (
            "Like = 'x'",
            "at character 1: expected a column name, not or '(', got 'Like'; "
            'a column of that name is written "Like"',
        ),
        ("(" * 10_000, f"at character {MAX_DEPTH + 1}: brackets are nested more than {MAX_DEPTH} deep"),
        (
            "(" * 10_000 + "a" + ")" * 10_000,
            f"at most {MAX_FILTER_CHARS:,} characters, got 20,001; long lists go into allow_ids",
        ),
    ],
)
def test_what_is_no_predicate_is_refused_by_its_place(text: str, message: str) -> None:
    with pytest.raises(InputError) as error:
        parse(text)
    assert error.value.field == "filter"
    assert error.value.message == message


def test_brackets_up_to_the_depth_are_fine() -> None:
    nested = "a"
    for level in range(MAX_DEPTH):
        nested = f"b {'and' if level % 2 else 'or'} ({nested})"
    assert canonical(parse(canonical(parse(nested)))) == canonical(parse(nested))


def test_chains_need_no_depth() -> None:
    assert parse("not " * 4000 + "a") == A
    assert isinstance(parse(" or ".join(["a"] * MAX_TESTS)), Or)


def test_tests_are_counted_and_values_are_not() -> None:
    in_values = f"a in ({', '.join(map(str, range(2000)))})"
    parse(" or ".join([in_values, *["a"] * (MAX_TESTS - 1)]))
    with pytest.raises(InputError, match=f"at character 1281: more than {MAX_TESTS} tests; many values"):
        parse(" or ".join(["a"] * MAX_TESTS + ["b"]))


PIECES = [
    *"ab=<>!()',.0e1-+\"% \n",
    *(" and ", " or ", " not ", " in ", " like ", " is ", " null ", "a = 1", "'x'"),
]


@given(st.lists(st.sampled_from(PIECES), max_size=20).map("".join) | st.text())
def test_any_text_parses_or_is_refused(text: str) -> None:
    field = "filter"
    try:
        predicate = parse(text)
        assert canonical(parse(canonical(predicate))) == canonical(predicate)
    except InputError as error:
        field = error.field
    assert field == "filter"


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
        ("year >= 'x'", "at character 9: column 'year' is int, got a string: 'x'"),
        (
            "year >= '1990'",
            "at character 9: column 'year' is int, got a string: '1990'; numbers stand without quotes",
        ),
        ("year = true", "at character 8: column 'year' is int, got a truth value: true"),
        (
            "kind in ('a', 3)",
            "at character 15: column 'kind' is string, got a number: 3; '3' compares as text; otherwise "
            "build with --type kind=float (or int)",
        ),
        ("title = 3", "at character 9: column 'title' is string, got a number: 3; '3' compares as text"),
        ("live = 1", "at character 8: column 'live' is bool, got a number: 1"),
        ("live < true", "at character 1: column 'live' is bool, which has no order; expected = or !="),
        ("not year", "at character 5: column 'year' is int, not bool; expected a comparison after it"),
        ("year like '1%'", "at character 1: like needs a string column, and column 'year' is int"),
        (
            r"title like 'a\'",
            r"at character 12: the pattern ends in a single \; a backslash itself is written \\",
        ),
        ("seen = 3", "at character 1: column 'seen' is timestamp[s], which filters cannot compare"),
    ],
)
def test_misfits(text: str, message: str) -> None:
    with pytest.raises(InputError) as error:
        check(parse(text), COLUMNS)
    assert error.value.field == "filter"
    assert error.value.message == message


def test_long_names_and_many_columns_are_cut_short() -> None:
    columns = {f"column {n:03d}": pa.string() for n in range(100)}
    with pytest.raises(InputError) as error:
        check(parse('"' + "x" * 9000 + "\" = 'a'"), columns)
    assert "column 029 and 70 more" in error.value.message
    assert len(error.value.message) < 700
    check(parse("seen is null or seen is not null"), COLUMNS)  # whatever the type


def test_what_says_the_same_has_one_key_and_what_differs_another() -> None:
    one = Restriction(parse("b = 1 AND a == 'x'"), IdList(("Q1", "Q2")), IdList(("Q3", "Q3")))
    other = Restriction(parse("a='x' and (b=1)"), IdList(("Q2", "Q1", "Q2")), IdList(("Q3",)))
    assert one.key() == other.key()
    restrictions = [
        Restriction(),
        Restriction(allow_ids=IdList(())),
        Restriction(allow_ids=IdList(("a", "bc"))),
        Restriction(allow_ids=IdList(("ab", "c"))),
        Restriction(allow_ids=IdList(("abc",))),
        Restriction(deny_ids=IdList(("abc",))),
        Restriction(parse("a")),
        Restriction(parse('"A"')),
        Restriction(parse("a = '1'")),
        Restriction(parse("a = 1")),
    ]
    assert len({restriction.key() for restriction in restrictions}) == len(restrictions)
    assert [restriction.is_open for restriction in restrictions] == [True] + [False] * 9


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        ("Q1", "allow_ids: must be a sequence of ids, got str"),
        (3, "allow_ids: must be a sequence of ids, got int"),
        (["Q1", 2], r"allow_ids\[1\]: must be text, got int"),
        (["Q1", "\ud800"], r"allow_ids\[1\]: not valid Unicode: half a surrogate pair at character 1"),
        (["Q1"] * (MAX_IDS + 1), "allow_ids: at most 100,000 ids, got 100,001"),
    ],
)
def test_lists_that_are_none(ids: object, message: str) -> None:
    with pytest.raises(InputError, match=f"^{message}$"):
        checked_ids("allow_ids", ids)
    assert checked_ids("deny_ids", (f"Q{n}" for n in range(3))) == ("Q0", "Q1", "Q2")
    assert len(checked_ids("deny_ids", ["é"] * MAX_IDS)) == MAX_IDS


def test_a_file_has_one_id_per_line(tmp_path: Path) -> None:
    file = tmp_path / "ids.txt"
    file.write_bytes("\ufeffQ1\r\n\r\n  Q 2 \nähm".encode())
    assert read_ids(file) == ("Q1", "Q 2", "ähm")


def test_files_that_are_no_lists(tmp_path: Path) -> None:
    file = tmp_path / "ids.txt"
    with pytest.raises(SourceError, match=r"ids\.txt: cannot be read: No such file"):
        read_ids(file)
    with pytest.raises(SourceError, match="cannot be read: Is a directory"):
        read_ids(tmp_path)
    file.write_bytes(b"Q1\n\xff\n")
    with pytest.raises(SourceError, match=r"ids\.txt, line 2: not valid UTF-8"):
        read_ids(file)
    file.write_bytes(b"x\n" * (MAX_IDS + 1))
    with pytest.raises(SourceError, match=r"ids\.txt, line 100001: more than 100,000 ids"):
        read_ids(file)
