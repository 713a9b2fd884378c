from __future__ import annotations

import math
from functools import reduce

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from retrieval.sources import ColumnType, Kinds, cast, classify, fit, resolve
from retrieval.sources.columns import kind_of_text

texts = st.one_of(
    st.integers(-(1 << 70), 1 << 70).map(str),
    st.floats().map(repr),
    st.sampled_from(
        ["true", "false", "True", "007", "-0", "+1", "1.50", "1e5", "nan", "inf", "1_0", "٣", "a"]
    ),
    st.text("0123456789.e+-", min_size=1, max_size=6),
)


def oracle(text: str) -> Kinds:
    """The rule, as slowly and plainly as possible."""
    try:
        if str(int(text)) == text and -(1 << 63) <= int(text) < 1 << 63:
            exact = int(float(text)) == int(text)
            return Kinds.INT if exact else Kinds.INT | Kinds.LONG_INT
    except ValueError:
        pass
    try:
        if repr(float(text)) == text and math.isfinite(float(text)):
            return Kinds.FLOAT
    except ValueError:
        pass
    return Kinds.BOOL if text in ("true", "false") else Kinds.STRING


@given(texts)
def test_kind_of_one_cell(text: str) -> None:
    assert kind_of_text(text) == oracle(text)


@given(st.lists(st.one_of(st.none(), texts), max_size=40))
def test_kinds_of_a_column_give_the_same_type_as_each_cell(cells: list[str | None]) -> None:
    each = reduce(lambda a, b: a | b, (Kinds.EMPTY if c is None else oracle(c) for c in cells), Kinds.NONE)
    found = classify(cells)
    assert resolve(found) == resolve(each)
    assert found == each or Kinds.STRING in found


numbers = st.one_of(st.integers(-(1 << 63), (1 << 63) - 1), st.floats(allow_nan=False, allow_infinity=False))


@given(st.lists(st.one_of(st.none(), numbers.map(lambda n: str(n) if isinstance(n, int) else repr(n)))))
def test_nothing_is_lost_by_a_type(cells: list[str | None]) -> None:
    column_type = resolve(classify(cells))
    values = cast(pa.array(cells, pa.string()), column_type)
    assert values.type == column_type.arrow
    for text, value in zip(cells, values.to_pylist(), strict=True):
        if text is None:
            assert value is None
        elif column_type is ColumnType.FLOAT:
            # An integer among floats is the float of exactly that value.
            assert repr(value) == text or int(value) == int(text)
        else:
            assert str(value) == text


@pytest.mark.parametrize(
    ("cells", "expected"),
    [
        ([None, None], "string"),
        (["1", None], "int"),
        (["1", "2.5"], "float"),
        (["9007199254740993", "2.5"], "string"),
        (["9007199254740993"], "int"),
        (["true", "false", None], "bool"),
        (["true", "1"], "string"),
        (["1", "007"], "string"),
        (["9223372036854775808"], "string"),
    ],
)
def test_resolve(cells: list[str | None], expected: str) -> None:
    assert resolve(classify(cells)) == expected
    assert resolve(classify(cells * 10)) == expected
    assert resolve(classify(cells), ColumnType.STRING) == "string"


@pytest.mark.parametrize(
    ("text", "column_type", "expected"),
    [
        ("007", "int", "7"),
        ("+5", "int", "5"),
        ("5.0", "int", None),
        ("9223372036854775808", "int", None),
        ("-9223372036854775808", "int", "-9223372036854775808"),
        ("1.50", "float", "1.5"),
        ("7", "float", "7.0"),
        (".5", "float", "0.5"),
        ("1e999", "float", None),
        ("nan", "float", None),
        ("1_0", "float", None),
        ("TRUE", "bool", "true"),
        ("0", "bool", "false"),
        ("yes", "bool", None),
        ("anything", "string", "anything"),
    ],
)
def test_declared_types(text: str, column_type: str, expected: str | None) -> None:
    assert fit(text, ColumnType(column_type)) == expected


def test_cast_refuses_what_resolve_has_not_seen() -> None:
    for column_type in (ColumnType.INT, ColumnType.FLOAT, ColumnType.BOOL):
        with pytest.raises(pa.ArrowInvalid):
            cast(pa.array(["x", None]), column_type)
    assert cast(pa.array(["true", None, "false"], pa.large_string()), ColumnType.BOOL).to_pylist() == [
        True,
        None,
        False,
    ]
