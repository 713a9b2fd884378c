"""Predicates over Arrow columns against a three-valued evaluator in plain Python, on random catalogues."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from genret.retrieval.filters.evaluate import check, evaluate
from genret.retrieval.filters.predicate import (
    COMPARISONS,
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

TEXT = st.text(st.sampled_from("aAb%_\\'é漢\n.*\x00 "), max_size=4)
EDGES = [0, 1, -1, 2**53, 2**53 + 1, 2**63 - 1, -(2**63)]
INT64 = st.sampled_from(EDGES) | st.integers(-4, 4) | st.integers(-(2**63), 2**63 - 1)
DOUBLES = st.sampled_from([0.0, -0.0, 0.5, float("nan"), float("inf"), float("-inf"), 2.0**53, 2.0**63])
FLOATS = DOUBLES | st.integers(-4, 4).map(float) | st.floats()
INTEGERS = INT64 | st.integers(-(2**70), 2**70) | st.sampled_from([10**400, -(10**400), 2**63])
NUMBERS = INTEGERS | st.floats(allow_nan=False, allow_infinity=False).map(lambda x: x + 0.0)
TYPES = {
    "text": (pa.string(), TEXT),
    "large": (pa.large_string(), TEXT),
    "coded": (pa.dictionary(pa.uint8(), pa.string()), TEXT),
    "int": (pa.int64(), INT64),
    "small": (pa.uint8(), st.integers(0, 255)),
    "float": (pa.float64(), FLOATS),
    "flag": (pa.bool_(), st.booleans()),
}
STRINGS, ORDERED = ("text", "large", "coded"), ("int", "small", "float")
Rows = list[dict[str, Any]]


def columns_of(rows: Rows, chunk: int) -> dict[str, pa.ChunkedArray]:
    """Lay rows out as columns of chunks, those of one dictionary sharing it, as a file has them."""
    columns = {}
    for name, (data_type, _) in TYPES.items():
        values = [row[name] for row in rows]
        if pa.types.is_dictionary(data_type):
            words = sorted({value for value in values if value is not None})
            codes = pa.array([None if v is None else words.index(v) for v in values], pa.uint8())
            whole: pa.Array = pa.DictionaryArray.from_arrays(codes, pa.array(words, pa.string()))
        else:
            whole = pa.array(values, data_type)
        chunks = [whole.slice(at, chunk) for at in range(0, len(rows), chunk)]
        columns[name] = pa.chunked_array(chunks, type=whole.type)
    return columns


@st.composite
def catalogues(draw: st.DrawFn) -> Rows:
    row = st.fixed_dictionaries({name: st.none() | values for name, (_, values) in TYPES.items()})
    return draw(st.lists(row, min_size=1, max_size=12))


def literals(name: str) -> st.SearchStrategy[Literal]:
    values: Any = TEXT if name in STRINGS else st.booleans() if name == "flag" else NUMBERS
    return (st.none() | values | values).map(Literal)


@st.composite
def leaf_predicates(draw: st.DrawFn) -> Predicate:
    name = draw(st.sampled_from(list(TYPES)))
    column = Column(name)
    kinds = ["compare", "in", "null"] + ["like"] * (name in STRINGS) + ["truth"] * (name == "flag")
    match draw(st.sampled_from(kinds)):
        case "compare":
            operators = ("=", "!=") if name == "flag" else COMPARISONS
            return Comparison(column, draw(st.sampled_from(operators)), draw(literals(name)))
        case "in":
            return Membership(column, tuple(draw(st.lists(literals(name), min_size=1, max_size=4))))
        case "null":
            return IsNull(column)
        case "truth":
            return Truth(column)
    pattern = draw(TEXT.filter(lambda t: (len(t) - len(t.rstrip("\\"))) % 2 == 0))
    return Like(column, Literal(pattern))


PREDICATES: st.SearchStrategy[Predicate] = st.recursive(
    leaf_predicates() | st.sampled_from([True, False, None]).map(Constant),
    lambda inner: (
        inner.map(Not)
        | st.lists(inner, min_size=2, max_size=3).map(lambda operands: And(tuple(operands)))
        | st.lists(inner, min_size=2, max_size=3).map(lambda operands: Or(tuple(operands)))
    ),
    max_leaves=6,
)


def truth(predicate: Predicate, row: dict[str, Any]) -> bool | None:
    """SQL's truth of a predicate for one row."""
    match predicate:
        case And():
            found = [truth(operand, row) for operand in predicate.operands]
            return False if False in found else None if None in found else True
        case Or():
            found = [truth(operand, row) for operand in predicate.operands]
            return True if True in found else None if None in found else False
        case Not():
            inner = truth(predicate.operand, row)
            return None if inner is None else not inner
        case Constant():
            return predicate.value
        case IsNull():
            return row[predicate.column.name] is None
        case Truth():
            flag: bool | None = row[predicate.column.name]
            return flag
        case Comparison():
            return compared(row[predicate.column.name], predicate.operator, predicate.literal.value)
        case Membership():
            value = row[predicate.column.name]
            found = [compared(value, "=", literal.value) for literal in predicate.literals]
            return True if True in found else None if None in found else False
        case Like():
            text = row[predicate.column.name]
            return None if text is None else liked(text, str(predicate.pattern.value))


def compared(value: Any, operator: str, literal: Any) -> bool | None:
    if value is None or literal is None:
        return None
    if isinstance(value, str):
        value, literal = value.encode(), literal.encode()
    answers = {
        "=": value == literal,
        "!=": value != literal,
        "<": value < literal,
        "<=": value <= literal,
        ">": value > literal,
        ">=": value >= literal,
    }
    return bool(answers[operator])


def liked(text: str, pattern: str) -> bool:
    """Match by trying every split, one pattern character at a time."""
    if not pattern:
        return not text
    if pattern[0] == "%":
        return any(liked(text[at:], pattern[1:]) for at in range(len(text) + 1))
    if pattern[0] == "_":
        return bool(text) and liked(text[1:], pattern[1:])
    length = 2 if pattern[0] == "\\" else 1
    return text[:1] == pattern[length - 1] and liked(text[1:], pattern[length:])


def passing(predicate: Predicate, rows: Rows, chunk: int = 5) -> list[bool]:
    columns = columns_of(rows, chunk)
    check(predicate, {name: values.type for name, values in columns.items()})
    mask = evaluate(predicate, columns.__getitem__, len(rows))
    assert mask.dtype == np.bool_
    return [bool(value) for value in mask]


@settings(max_examples=200, deadline=None)
@given(catalogues(), PREDICATES, st.integers(1, 6))
def test_mask_is_that_of_the_brute_force(rows: Rows, predicate: Predicate, chunk: int) -> None:
    assert passing(predicate, rows, chunk) == [truth(predicate, row) is True for row in rows]


@settings(max_examples=100, deadline=None)
@given(catalogues(), PREDICATES)
def test_canonical_text_is_the_same_filter(rows: Rows, predicate: Predicate) -> None:
    text = canonical(predicate)
    again = parse(text)
    assert canonical(again) == text
    assert [truth(again, row) for row in rows] == [truth(predicate, row) for row in rows]


def row(**values: Any) -> dict[str, Any]:
    return {**dict.fromkeys(TYPES), **values}


def test_chunks_with_dictionaries_of_their_own() -> None:
    chunks = [pa.array(["a", "b"]).dictionary_encode(), pa.array(["b", "a", None]).dictionary_encode()]
    column = pa.chunked_array(chunks)
    mask = evaluate(parse("kind = 'b'"), lambda name: column, 5)
    assert mask.tolist() == [False, True, True, False, False]


def test_a_dictionary_that_holds_null() -> None:
    codes = pa.array([0, 1, None, 1], pa.uint8())
    column = pa.chunked_array([pa.DictionaryArray.from_arrays(codes, pa.array(["a", None]))])
    assert evaluate(parse("kind is null"), lambda name: column, 4).tolist() == [False, True, True, True]
    assert evaluate(parse("kind != 'b'"), lambda name: column, 4).tolist() == [True, False, False, False]


@pytest.mark.parametrize(
    ("text", "value", "expected"),
    [
        (f"int < {2**63}", 2**63 - 1, True),
        (f"int > {-(2**63) - 1}", -(2**63), True),
        (f"int = {2**64}", 0, False),
        (f"int != {2**64}", 0, True),
        ("int >= 1990.5", 1990, False),
        ("int >= 1990.5", 1991, True),
        ("int = 1990.0", 1990, True),
        ("int < -0.5", -1, True),
        ("int < 1e300", 5, True),
        (f"float = {2**53 + 1}", 2.0**53, False),
        (f"float < {2**53 + 1}", 2.0**53, True),
        (f"float > {10**400}", float("inf"), True),
        ("float = 0", -0.0, True),
        ("float in (0)", -0.0, True),
        ("float != 1", float("nan"), True),
    ],
)
def test_numbers_compare_exactly(text: str, value: float, expected: bool) -> None:
    name = text.split(" ")[0]
    assert passing(parse(text), [row(**{name: value})]) == [expected]
