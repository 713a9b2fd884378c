"""Random schemas: graphs allow exactly what jsonschema finds valid, and every walk ends; refused ones."""

from __future__ import annotations

import json
import random
from decimal import InvalidOperation
from itertools import permutations
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from jsonschema import validators

from genret.decoding.grammar.compile_options import GrammarOptions
from genret.decoding.grammar.errors import (
    SchemaError,
    SchemaLimitError,
    UnsatisfiableSchemaError,
    UnsupportedSchemaError,
)
from genret.decoding.grammar.schema.array_shapes import cheapest_assignment
from genret.decoding.grammar.shapes import ValueNode
from genret.retrieval.answers.validation import AnswerValidator, InvalidAnswerError
from tests.grammar_oracle import array, record
from tests.shape_walker import RandomWriter, ShapeWalker, node_of, random_value

ANY_ORDER = GrammarOptions()
IN_ORDER = GrammarOptions(property_order="schema")
WRITING = GrammarOptions.for_writing()

NAMES = st.sampled_from(["a", "b", "ab"])
SCALARS = st.sampled_from([None, True, False, 0, 1, 2, -1, 1.0, 2.5, "", "a", "ab", "b", "é"])
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=6,
)
TYPES = st.sampled_from(["array", "boolean", "integer", "null", "number", "object", "string"])
COUNTS = st.integers(0, 3)
BOUNDS = st.sampled_from([-1, 0, 1, 1.5, 2])
NAME_LISTS = st.lists(NAMES, max_size=2, unique=True)
PATTERNS = st.sampled_from(["a", "^b", "^[ab]$", "b$"])
REFERENCES = {
    "2020-12": st.sampled_from(["#/$defs/x", "#/$defs/y", "#y"]),
    "draft-04": st.sampled_from(["#/definitions/x", "#/definitions/y"]),
}


def plain_keywords(draft: str) -> dict[str, st.SearchStrategy[Any]]:
    """Keywords without schemas in them, and their values."""
    counts = ("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties")
    made: dict[str, st.SearchStrategy[Any]] = {
        "type": TYPES | st.lists(TYPES, min_size=1, max_size=3, unique=True),
        "enum": st.lists(VALUES, min_size=1, max_size=3, unique_by=lambda value: json.dumps(value)),
        **dict.fromkeys(("minimum", "maximum"), BOUNDS),
        "multipleOf": st.sampled_from([1, 0.5, 2]),
        "pattern": PATTERNS,
        **dict.fromkeys(counts, COUNTS),
        "uniqueItems": st.booleans(),
        "required": st.lists(NAMES, min_size=1, max_size=2, unique=True),
        "$ref": REFERENCES[draft],
    }
    if draft == "2020-12":
        made |= dict.fromkeys(("exclusiveMinimum", "exclusiveMaximum"), BOUNDS)
        made |= dict.fromkeys(("minContains", "maxContains"), COUNTS)
        made |= {"const": VALUES, "dependentRequired": st.dictionaries(NAMES, NAME_LISTS, max_size=2)}
    return made


def containers(draft: str, inner: st.SearchStrategy[Any]) -> dict[str, st.SearchStrategy[Any]]:
    """Keywords with schemas in them."""
    several = st.lists(inner, min_size=1, max_size=3)
    by_name = st.dictionaries(NAMES, inner, max_size=2)
    made: dict[str, st.SearchStrategy[Any]] = {
        **dict.fromkeys(("allOf", "anyOf", "oneOf"), several),
        "not": inner,
        "properties": by_name,
        "patternProperties": st.dictionaries(PATTERNS, inner, max_size=2),
        "additionalProperties": inner,
        "items": inner,
    }
    if draft == "draft-04":
        return made | {
            "items": inner | several,
            "additionalItems": inner,
            "dependencies": st.dictionaries(
                NAMES, inner | st.lists(NAMES, min_size=1, max_size=2, unique=True), max_size=2
            ),
        }
    single = ("propertyNames", "contains", "if", "then", "else", "unevaluatedProperties", "unevaluatedItems")
    made |= dict.fromkeys(single, inner)
    return made | {"prefixItems": several, "dependentSchemas": by_name}


def schemas(draft: str) -> st.SearchStrategy[Any]:
    leaf = st.fixed_dictionaries({}, optional=plain_keywords(draft))
    few = leaf.map(lambda made: dict(list(made.items())[:3]))
    base = few | st.booleans() if draft == "2020-12" else few

    def deeper(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
        outer = st.fixed_dictionaries({}, optional=containers(draft, inner))
        return st.builds(lambda one, other: {**one, **other}, few, outer)

    return st.recursive(base, deeper, max_leaves=5)


@st.composite
def schemas_of_2020_12(draw: st.DrawFn) -> dict[str, Any]:
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "allOf": [draw(schemas("2020-12"))],
        "$defs": {"x": draw(schemas("2020-12")), "y": {"$anchor": "y", "type": ["integer", "array"]}},
    }


def compiled(schema: Any, options: GrammarOptions) -> ValueNode | None:
    """A schema's node, None if nothing is valid; refused schemas are not looked at."""
    try:
        return node_of(schema, options)
    except UnsatisfiableSchemaError:
        return None
    except (UnsupportedSchemaError, SchemaLimitError):
        assume(False)
        raise


def reordered(value: Any, rng: random.Random) -> Any:
    """The same value with the members of its objects in another order."""
    if isinstance(value, list):
        return [reordered(item, rng) for item in value]
    if not isinstance(value, dict):
        return value
    members = [(key, reordered(inner, rng)) for key, inner in value.items()]
    rng.shuffle(members)
    return dict(members)


def check_2020_12(data: st.DataObject) -> None:
    schema = data.draw(schemas_of_2020_12())
    values = data.draw(st.lists(VALUES, min_size=1, max_size=12))
    node, ordered = compiled(schema, ANY_ORDER), compiled(schema, IN_ORDER)
    assert (node is None) == (ordered is None)
    validator = validators.validator_for(schema)(schema)
    rng = random.Random(data.draw(st.integers(0, 1000)))
    for value in values:
        valid = validator.is_valid(value)
        if node is None or ordered is None:
            assert not valid, (schema, value)
            continue
        assert ShapeWalker(any_order=False).allows(node, value) == valid, (schema, value)
        assert ShapeWalker(any_order=False).allows(node, reordered(value, rng)) == valid, (schema, value)
        assert ShapeWalker(any_order=True).allows(ordered, value) == valid, (schema, value)


budget = settings(deadline=None, suppress_health_check=list(HealthCheck))


@settings(budget, max_examples=200)
@given(st.data())
def test_schemas_of_2020_12(data: st.DataObject) -> None:
    check_2020_12(data)


@settings(budget, max_examples=100)
@given(st.data())
def test_schemas_of_draft_4(data: st.DataObject) -> None:
    schema = {
        "$schema": "http://json-schema.org/draft-04/schema#",
        "allOf": [data.draw(schemas("draft-04"))],
        "definitions": {"x": data.draw(schemas("draft-04")), "y": {"type": ["string", "array"]}},
    }
    values = data.draw(st.lists(VALUES, min_size=1, max_size=12))
    node = compiled(schema, ANY_ORDER)
    validator = validators.validator_for(schema)(schema)
    # 1.0 is equal to 1 but no integer there: what is made of equalities and of integers at once is left out.
    for value in json.loads(json.dumps(values).replace("1.0", "1")):
        allowed = node is not None and ShapeWalker(any_order=False).allows(node, value)
        assert allowed == validator.is_valid(value), (schema, value)


def plain(number: str) -> float:
    return int(float(number)) if float(number).is_integer() else float(number)


def items_of_bounded_depth() -> st.SearchStrategy[Any]:
    """Schemas of arrays and objects that can be told apart by their texts."""
    scalar = st.sampled_from([
        *({"type": "boolean"}, {"type": "integer"}, {"type": "string", "maxLength": 1}),
        *({"enum": [1, "a", [2]]}, {"const": {"a": 1, "b": [1]}}),
    ])  # fmt: skip

    def deeper(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
        counts = {"minItems": st.integers(0, 2), "maxItems": st.integers(0, 2), "items": inner}
        lists = st.fixed_dictionaries(
            {"type": st.just("array")},
            optional={**counts, "prefixItems": st.lists(inner, min_size=1, max_size=2)},
        ).filter(lambda made: "items" in made or "maxItems" in made)
        records = st.fixed_dictionaries(
            {
                "type": st.just("object"),
                "properties": st.dictionaries(NAMES, inner, min_size=1, max_size=3),
                "additionalProperties": st.just(False),
            },
            optional={"required": NAME_LISTS},
        )
        return lists | records | st.builds(lambda *parts: {"anyOf": list(parts)}, inner, lists | records)

    return st.recursive(scalar, deeper, max_leaves=5)


@settings(budget, max_examples=150)
@given(
    items=items_of_bounded_depth(),
    least=st.integers(0, 3),
    draws=st.lists(st.integers(0, 1 << 30), min_size=2, max_size=5),
    values=st.lists(VALUES, max_size=3),
)
def test_containers_that_must_differ(
    items: dict[str, Any], least: int, draws: list[int], values: list[Any]
) -> None:
    """Arrays of random items that the items' schema allows: all that differ, in any order of members."""
    schema = {"type": "array", "uniqueItems": True, "minItems": least, "items": items}
    node, one = compiled(schema, ANY_ORDER), compiled(items, IN_ORDER)
    validator = validators.validator_for(schema)(schema)
    if one is not None:
        values = values + [random_value(one, random.Random(seed), size=20) for seed in draws]
    values = json.loads(json.dumps(values), parse_float=plain)  # items have one spelling each
    rng = random.Random(draws[0])
    for _ in range(6):
        value = [reordered(rng.choice(values), rng) for _ in range(rng.randrange(5))] if values else []
        allowed = node is not None and ShapeWalker(any_order=False).allows(node, value)
        assert allowed == validator.is_valid(value), (schema, value)
    for size in (0, 40) if node is not None else ():
        assert validator.is_valid(random_value(node, rng, size))


@pytest.mark.slow
@settings(budget, max_examples=1000)
@given(st.data())
def test_many_schemas_of_2020_12(data: st.DataObject) -> None:
    check_2020_12(data)


@pytest.mark.parametrize("options", [ANY_ORDER, IN_ORDER, WRITING], ids=["any", "schema", "writing"])
@settings(budget, max_examples=120)
@given(schema=schemas_of_2020_12(), seed=st.integers(0, 1 << 30))
def test_every_walk_ends_in_a_valid_value(options: GrammarOptions, schema: dict[str, Any], seed: int) -> None:
    node = compiled(schema, options)
    assume(node is not None)
    validator = AnswerValidator(json.dumps(schema))  # knows numbers as they are written: 1e-400 is not 0
    rng = random.Random(seed)
    for _ in range(4):
        text = RandomWriter(rng, rng.choice([0, 20, 100])).value(node)[0].decode()
        valid = is_valid(validator, text)
        # Nobody is answered with numbers that the validator cannot look at.
        assert valid or (valid is None and options is not WRITING), (schema, text)


def is_valid(validator: AnswerValidator, text: str) -> bool | None:
    """None where the validator cannot know, as what divides 1e9999."""
    try:
        validator.check(text)
    except InvalidAnswerError as error:
        return None if isinstance(error.__cause__, InvalidOperation) else False
    return True


ITSELF = {"type": "array", "items": {"$ref": "#"}}


@pytest.mark.parametrize(
    ("schema", "error", "keyword", "pointer"),
    [
        ({"minimum": 2, "maximum": 1, "type": "number"}, UnsatisfiableSchemaError, None, None),
        (record(a={"$ref": "#"}), UnsatisfiableSchemaError, None, None),
        (array({"type": "object"}, uniqueItems=True), UnsupportedSchemaError, "uniqueItems", "#/uniqueItems"),
        (array(ITSELF, uniqueItems=True), UnsupportedSchemaError, "uniqueItems", "#/uniqueItems"),
    ],
)
def test_refusals_name_their_place(
    schema: Any, error: type[SchemaError], keyword: str | None, pointer: str | None
) -> None:
    with pytest.raises(error) as caught:
        node_of(schema, ANY_ORDER)
    assert caught.value.pointer.startswith("#")
    if keyword is not None:
        assert (caught.value.keyword, caught.value.pointer) == (keyword, pointer)


def test_undeclared_members_are_left_out_when_writing() -> None:
    def allows(schema: Any, value: Any) -> bool:
        return ShapeWalker(any_order=False).allows(node_of(schema, WRITING), value)

    schema = {"type": "object", "properties": {"a": {}}, "required": ["b"]}
    assert allows(schema, {"a": 1, "b": 2})
    assert not allows(schema, {"b": 2, "c": 3})
    assert not allows(schema, {"b": 2, "a": 1})
    assert allows({**schema, "additionalProperties": True}, {"b": 2, "c": 3})
    assert allows({"type": "object"}, {"x": 1})
    assert allows({"type": "object", "not": {"required": ["a"]}}, {"x": 1})


def test_repeated_types_share_their_node() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "string"}, "b": {"type": "string"}}}
    node = node_of(schema, ANY_ORDER)
    (shape,) = node.objects
    start = shape.start()
    assert shape.after_key(start, 0)[0].value is shape.after_key(start, 1)[0].value


@given(st.lists(st.dictionaries(st.integers(0, 4), st.integers(1, 9), max_size=4), max_size=4))
def test_assignments_are_the_cheapest(choices: list[dict[int, int]]) -> None:
    costs = [
        sum(choice[value] for choice, value in zip(choices, values, strict=True))
        for values in permutations(range(5), len(choices))
        if all(value in choice for choice, value in zip(choices, values, strict=True))
    ]
    assert cheapest_assignment(choices) == min(costs, default=None)
