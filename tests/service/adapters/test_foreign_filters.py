"""Foreign filters as predicates of ours, against the libraries' own evaluation, on random entities."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from genret.retrieval.errors import InputError
from genret.retrieval.filters.evaluate import check, evaluate
from genret.retrieval.filters.predicate import parse
from genret.service.adapters.foreign_filters import haystack_filter, llama_index_filter

TYPES = {"kind": pa.string(), "year": pa.int64(), "height": pa.float64(), "a b": pa.string()}
WORDS = st.sampled_from(["film", "book", "o'clock", ""])
NUMBERS = st.integers(-2, 2) | st.sampled_from([0.5, -1.0])
VALUES = {"kind": WORDS, "year": NUMBERS, "height": NUMBERS, "a b": WORDS}
ROWS = st.lists(
    st.fixed_dictionaries(
        {
            "kind": st.none() | WORDS,
            "year": st.none() | st.integers(-2, 2),
            "height": st.none() | NUMBERS.map(float),
            "a b": st.none() | WORDS,
        }
    ),
    max_size=8,
)
Rows = list[dict[str, Any]]


def passing(text: str | None, rows: Rows) -> list[bool]:
    if text is None:
        return [True] * len(rows)
    columns = {
        name: pa.chunked_array([pa.array([row[name] for row in rows], kind)]) for name, kind in TYPES.items()
    }
    predicate = parse(text)
    check(predicate, TYPES)
    return [bool(value) for value in evaluate(predicate, columns.__getitem__, len(rows))]


@st.composite
def compared(draw: st.DrawFn, orders: tuple[str, ...], excludes: str, none: bool) -> dict[str, Any]:
    """One comparison; Haystack orders no text but dates, and LlamaIndex compares with no missing value."""
    name = draw(st.sampled_from(list(TYPES)))
    ordered = orders if TYPES[name] != pa.string() else ()
    operator = draw(st.sampled_from(["==", "!=", *ordered, "in", excludes]))
    value: Any
    if operator in ("in", excludes):
        value = draw(st.lists(VALUES[name], max_size=3))
    else:
        missing = st.none() if none and operator in ("==", "!=") else st.nothing()
        value = draw(VALUES[name] | missing)
    return {"field": f"meta.{name}", "operator": operator, "value": value}


ORDERS = (">", ">=", "<", "<=")


def groups(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.fixed_dictionaries(
        {"operator": st.sampled_from(["AND", "OR", "NOT"]), "conditions": st.lists(inner, max_size=3)}
    )


HAYSTACK = st.recursive(compared(ORDERS, "not in", True), groups, max_leaves=6)


@given(ROWS, HAYSTACK)
def test_filters_of_haystack_pass_what_haystack_lets_pass(rows: Rows, filters: dict[str, Any]) -> None:
    haystack = pytest.importorskip("haystack.utils.filters")
    documents = pytest.importorskip("haystack.dataclasses")
    own = [haystack.document_matches_filter(filters, documents.Document(meta=row)) for row in rows]
    assert passing(haystack_filter(filters), rows) == own


@given(
    ROWS, st.lists(compared(ORDERS, "nin", False), max_size=4), st.sampled_from(["and", "or", "not", None])
)
def test_filters_of_llama_index_pass_what_it_lets_pass(
    rows: Rows, tests: list[dict[str, Any]], condition: str | None
) -> None:
    types = pytest.importorskip("llama_index.core.vector_stores.types")
    utils = pytest.importorskip("llama_index.core.vector_stores.utils")
    for one in tests:  # its lists are of one type
        if isinstance(one["value"], list) and not all(isinstance(v, str) for v in one["value"]):
            one["value"] = [float(v) for v in one["value"]]
    conditions = [
        types.MetadataFilter(key=one["field"][5:], operator=one["operator"], value=one["value"])
        for one in tests
    ]
    filters = types.MetadataFilters(filters=conditions, condition=condition)
    passes = utils.build_metadata_filter_fn(dict(enumerate(rows)).__getitem__, filters)
    assert passing(llama_index_filter(filters), rows) == [passes(i) for i in range(len(rows))]


def test_nested_filters_of_llama_index() -> None:
    types = pytest.importorskip("llama_index.core.vector_stores.types")
    inner = types.MetadataFilters(
        filters=[
            types.MetadataFilter(key="kind", value="film"),
            types.MetadataFilter(key="kind", value="book"),
        ],
        condition="or",
    )
    late = types.MetadataFilter(key="year", value=1990, operator=">=")
    both = types.MetadataFilters(filters=[inner, late])
    assert llama_index_filter(both) == "(kind = 'book' or kind = 'film') and year >= 1990"


@pytest.mark.parametrize(
    ("filters", "text"),
    [
        (None, None),
        ({}, None),
        ({"field": "id", "operator": "in", "value": ["a", "b"]}, "entity_id in ('a', 'b')"),
        ({"field": "meta.id", "operator": "==", "value": "a"}, "id = 'a'"),
        ({"field": "meta.release year", "operator": ">", "value": -3}, '"release year" > -3'),
        ({"field": "meta.kind", "operator": "!=", "value": "film"}, "kind is null or not kind = 'film'"),
    ],
)
def test_examples(filters: dict[str, Any] | None, text: str | None) -> None:
    assert haystack_filter(filters) == text
    assert text is None or parse(text)


@pytest.mark.parametrize(
    ("filters", "message"),
    [
        ([1], r"filters: must be a condition, got \[1\]"),
        ({"field": "kind"}, "filters: lacks 'operator'; got {'field': 'kind'}"),
        ({"operator": "AND"}, "filters: lacks 'conditions'"),
        ({"operator": "XOR", "conditions": []}, "filters: operator must be one of AND, OR, NOT; got 'XOR'"),
        ({"operator": "AND", "conditions": "x"}, "filters: conditions must be a list, got 'x'"),
        ({"field": 3, "operator": "==", "value": 3}, "filters: field must name a column of the index, got 3"),
        (
            {"operator": "AND", "conditions": [{"field": "kind", "operator": "like", "value": "a%"}]},
            r"filters.conditions\[0\]: operator must be one of ==, >, >=, <, <=, in, !=, not in; got 'like'",
        ),
        (
            {"field": "kind", "operator": "in", "value": "ab"},
            "filters: the operator in needs a list of values",
        ),
        (
            {"field": "kind", "operator": "in", "value": [None]},
            "filters: value must be text, a finite number",
        ),
        ({"field": "year", "operator": "<", "value": float("nan")}, "filters: value must be text, a finite"),
        ({"field": "year", "operator": "<", "value": None}, "filters: value must be text, a finite number"),
    ],
)
def test_what_has_no_counterpart_is_refused_by_its_place(filters: Any, message: str) -> None:
    with pytest.raises(InputError, match=f"^{message}"):
        haystack_filter(filters)


def test_what_llama_index_has_alone_is_refused() -> None:
    types = pytest.importorskip("llama_index.core.vector_stores.types")

    def filters(operator: str, value: Any) -> Any:
        return types.MetadataFilters(
            filters=[types.MetadataFilter(key="kind", operator=operator, value=value)]
        )

    for operator in ("any", "all", "contains", "text_match", "text_match_insensitive"):
        value: Any = ["film"] if operator in ("any", "all") else "film"
        with pytest.raises(
            InputError, match=rf"^filters.conditions\[0\]: operator must be .*; got '{operator}'"
        ):
            llama_index_filter(filters(operator, value))
    with pytest.raises(InputError, match=r"^filters: 'kind' is_empty needs a value, got None"):
        llama_index_filter(filters("is_empty", None))
