"""Strategies for schemas and for values that nearly fit them: few keys, few texts, small numbers."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

KEYS = ["a", "b", "c", "ab"]
TEXTS = ["", "a", "b", "ab", "é"]
NUMBERS = [0, 1, 2, 3, -1, 1.5]

keys = st.sampled_from(KEYS)
scalars = st.sampled_from([None, True, False, *NUMBERS, *TEXTS])
values: st.SearchStrategy[Any] = st.recursive(
    scalars,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4), st.dictionaries(st.sampled_from([*KEYS, "d"]), inner, max_size=4)
    ),
    max_leaves=6,
)
patterns = st.sampled_from(["^a", "b", "^a$", "c|d"])
counts = st.integers(0, 3)


def _fields(**fields: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    """Up to two of some keywords."""
    names = st.lists(st.sampled_from(sorted(fields)), max_size=2, unique=True)
    return names.flatmap(lambda chosen: st.fixed_dictionaries({name: fields[name] for name in chosen}))


_leaves = st.one_of(
    st.just(True),
    st.just(False),
    st.builds(
        lambda kind: {"type": kind}, st.sampled_from(["string", "number", "integer", "boolean", "null"])
    ),
    st.builds(lambda options: {"enum": options}, st.lists(scalars, min_size=1, max_size=3)),
    st.builds(lambda value: {"const": value}, scalars),
    _fields(minimum=st.integers(-1, 2), maximum=st.integers(0, 3), multipleOf=st.sampled_from([1, 2, 0.5])),
    _fields(minLength=counts, maxLength=counts, pattern=patterns),
)


def _containers(inner: st.SearchStrategy[Any], unique: bool) -> st.SearchStrategy[Any]:
    objects = {
        "properties": st.dictionaries(keys, inner, max_size=3),
        "patternProperties": st.dictionaries(patterns, inner, max_size=2),
        "additionalProperties": inner,
        "required": st.lists(keys, max_size=2, unique=True),
        "minProperties": counts,
        "maxProperties": counts,
        "propertyNames": inner,
        "dependentRequired": st.dictionaries(keys, st.lists(keys, max_size=2, unique=True), max_size=2),
        "dependentSchemas": st.dictionaries(keys, inner, max_size=2),
        "type": st.sampled_from(["object", ["object", "string"]]),
    }
    arrays = {
        "items": inner,
        "prefixItems": st.lists(inner, min_size=1, max_size=2),
        "contains": inner,
        "minContains": counts,
        "maxContains": counts,
        "minItems": counts,
        "maxItems": counts,
        "type": st.sampled_from(["array", ["array", "null"]]),
    }
    if unique:
        arrays["uniqueItems"] = st.just(True)
    logic = {
        "not": inner,
        "allOf": st.lists(inner, min_size=1, max_size=2),
        "anyOf": st.lists(inner, min_size=1, max_size=3),
        "oneOf": st.lists(inner, min_size=1, max_size=3),
        "if": inner,
        "then": inner,
        "else": inner,
    }
    both = st.tuples(_fields(**objects), _fields(**objects)).map(lambda two: two[0] | two[1])
    items = st.tuples(_fields(**arrays), _fields(**arrays)).map(lambda two: two[0] | two[1])
    mixed = st.tuples(_fields(**objects), _fields(**arrays), _fields(**logic)).map(
        lambda three: three[0] | three[1] | three[2]
    )
    return st.one_of(both, items, _fields(**logic), mixed)


def schemas(unique: bool = False, max_leaves: int = 6) -> st.SearchStrategy[Any]:
    """Random schemas; with `uniqueItems` only if asked for, because much of it is refused."""
    return st.recursive(_leaves, lambda inner: _containers(inner, unique), max_leaves=max_leaves)
