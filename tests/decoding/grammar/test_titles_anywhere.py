"""Titles wherever a string may stand, however they are spelled: walks end in documents an oracle accepts."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterator
from functools import cache
from typing import Any

import jsonschema
import numpy as np
import pytest
import torch
from jsonschema import Draft202012Validator, validators

from genret.decoding.grammar.compile_options import GrammarOptions
from genret.decoding.grammar.constraint import GrammarConstraint
from genret.decoding.grammar.errors import UnsatisfiableSchemaError, UnsupportedSchemaError
from genret.decoding.grammar.holes.text_leaf import TextLeaf, TextSearcher
from genret.decoding.grammar.json_grammar import Grammar, compile_schema
from genret.decoding.grammar.leaves.leaf import TitleSlotName
from genret.decoding.grammar.leaves.leaf_factory import Leaves
from genret.decoding.sorted_texts import SortedTexts
from tests.grammar_shapes import brute_force, unpacked
from tests.json_tokenizers import KINDS

Json = Any
# Quotes, backslashes, control characters, characters beyond the first plane, beginnings of one another, equal
# only once normalised, keywords, what looks like JSON or like a step of a pointer, blanks at either end, two
# entities of one title, and the empty title.
ODD = [
    *("a", "ab", "ab", 'a"b', "a\\", "\\", '"', "a\nb", "\x00", "\x1f\x7f", "😀", "😀😀", "e\u0301", "é"),
    *("", "null", "a/b", "a~b", "~1", "日本", "\u2028", "\ud7ff", "\uffff", "x" * 70, " a", "a ", "Ａ"),
    *('ab", "k": "ab', '{"k": []}'),
]
TITLES: dict[TitleSlotName, list[str]] = {
    TitleSlotName("odd"): ODD,
    TitleSlotName("few"): ["b", "ab", 'z"z'],
    TitleSlotName("odd", "one"): ['a"b'],
    TitleSlotName("odd", "none"): [],
    TitleSlotName("one"): ["\\"],
    TitleSlotName("twice"): ["a", "a", "b"],
}
# Readers' numbers may have exponents that no validator computes with.
HUGE = re.compile(rb"[eE][+-]?\d{3}")
OPTIONS = {"writing": GrammarOptions.for_writing(), "reading": GrammarOptions()}


def title(index: str, predicate: str | None = None) -> dict[str, Json]:
    filtered = {} if predicate is None else {"x-genret-filter": predicate}
    return {"type": "string", "x-genret-index": index, **filtered}


def record(**properties: Json) -> dict[str, Json]:
    required = {"required": list(properties), "additionalProperties": False}
    return {"type": "object", "properties": properties, **required}


def items(inner: Json, **more: Json) -> dict[str, Json]:
    return {"type": "array", "items": inner, **more}


def places(*first: Json, **more: Json) -> dict[str, Json]:
    return {"type": "array", "prefixItems": list(first), **more}


def members(**keywords: Json) -> dict[str, Json]:
    return {"type": "object", **keywords}


ANY, FEW, ONE, NONE = title("odd"), title("few"), title("odd", "one"), title("odd", "none")
TREE = {**record(t=ANY, c=items({"$ref": "#/$defs/tree"}, maxItems=2)), "required": ["t"]}
UNIQUE = {"uniqueItems": True}
# Every string of these documents is a title.
SCHEMAS: dict[str, Json] = {
    "alone": ANY,
    "property": record(t=ANY),
    "nullable": record(t={**ANY, "type": ["string", "null"]}),
    "index of one": record(t=title("one")),
    "filter of one": record(t=ONE),
    "filter of none": members(properties={"t": NONE, "u": FEW}),
    "filter of none or null": {"anyOf": [NONE, {"type": "null"}]},
    "items of none": items(NONE),
    "items": items(ANY),
    "different": items(ANY, **UNIQUE, minItems=3, maxItems=6),
    "all there are": items(FEW, **UNIQUE, minItems=3),
    "equal titles": items(title("twice"), **UNIQUE, minItems=2),
    "different of two sets": items({"anyOf": [ANY, FEW]}, **UNIQUE, minItems=2, maxItems=5),
    "different of sets and values": items(
        {"anyOf": [FEW, {"enum": ["a", "ab", 1]}]}, **UNIQUE, minItems=5, maxItems=5
    ),
    "different by place": places(ANY, FEW, ONE, items=False, minItems=3, **UNIQUE),
    "different, values first": places({"enum": ["b", "ab"]}, items=FEW, minItems=3, **UNIQUE),
    "different, values left for later places": places(FEW, items={"enum": ["b", "ab"]}, minItems=3, **UNIQUE),
    "by place": places(ANY, FEW, items={"type": "integer"}, minItems=2),
    "nested": record(a=items(record(t=ANY, u=items(FEW)), minItems=1, maxItems=2)),
    "any of": {"anyOf": [ANY, FEW, {"type": "null"}, items(ONE)]},
    "one of": {"oneOf": [record(k={"const": 1}, t=ANY), record(k={"const": 2}, t=FEW)]},
    "all of": {"allOf": [{"type": "string"}, ANY]},
    "parts": {"allOf": [record(t=ANY, o=FEW), {"required": ["o"]}]},
    "reference": {"$defs": {"t": ANY}, **items({"$ref": "#/$defs/t"}, minItems=1)},
    "recursion": {"$defs": {"tree": TREE}, "$ref": "#/$defs/tree"},
    "patterns": members(patternProperties={"^[tu]$": ANY}, additionalProperties=False, minProperties=1),
    "other properties": members(
        additionalProperties=ANY, propertyNames={"enum": ["a/b", "m~n"]}, minProperties=2
    ),
    "not evaluated": members(
        properties={"a": {"type": "integer"}},
        propertyNames={"enum": ["a", "b"]},
        unevaluatedProperties=ANY,
        minProperties=2,
    ),
    "items not evaluated": places({"type": "integer"}, unevaluatedItems=ANY, minItems=2, maxItems=3),
    "dependent": {
        **record(a={"type": "boolean"}, t=True),
        "dependentSchemas": {"a": {"properties": {"t": ANY}}},
    },
    "conditions": {
        **record(k={"enum": [1, 2]}, t=True),
        "if": {"properties": {"k": {"const": 1}}},
        "then": {"properties": {"t": ANY}},
        "else": {"properties": {"t": FEW}},
    },
    "counted": items({"anyOf": [ANY, {"type": "integer"}]}, contains={"type": "integer"}, maxItems=3),
    "odd keys": record(**{"a/b": ANY, "a~b": FEW, "~1": ANY, 'q"\\': ONE, "": ANY, "é\n": FEW}),
}


def _is_title(_validator: object, index: str, instance: Json, schema: dict[str, Json]) -> Iterator[Any]:
    if (
        isinstance(instance, str)
        and instance not in TITLES[TitleSlotName(index, schema.get("x-genret-filter"))]
    ):
        yield jsonschema.ValidationError(f"{instance!r} is no title of {index}")


Oracle = validators.extend(Draft202012Validator, {"x-genret-index": _is_title})  # type: ignore[no-untyped-call]


@cache
def leaves(kind: str) -> Leaves:
    return Leaves(KINDS[kind]())


@cache
def hole(kind: str, name: TitleSlotName) -> TextLeaf:
    texts = SortedTexts.of([text.encode() for text in TITLES[name]])
    return TextLeaf(name, name, texts, TextSearcher(leaves(kind).vocabulary))


def grammar_of(schema: Json, kind: str = "byte-level", how: str = "writing") -> Grammar:
    return compile_schema(json.dumps(schema), leaves(kind), OPTIONS[how], lambda name: hole(kind, name))


def strings(document: Json, pointer: str = "") -> Iterator[tuple[str, str]]:
    """The strings of a document in its order, by their JSON pointers."""
    if isinstance(document, str):
        yield pointer, document
    elif isinstance(document, list):
        for place, inner in enumerate(document):
            yield from strings(inner, f"{pointer}/{place}")
    elif isinstance(document, dict):
        for name, inner in document.items():
            yield from strings(inner, f"{pointer}/{name.replace('~', '~0').replace('/', '~1')}")


def has_key_twice(text: bytes) -> bool:
    """Whether an object has a key twice, of those that its schema does not name: parsers drop one value."""
    objects: list[list[tuple[str, Json]]] = []
    json.loads(text, object_pairs_hook=objects.append)
    return any(len(dict(pairs)) < len(pairs) for pairs in objects)


def walked(grammar: Grammar, budgets: list[int], rng: np.random.Generator) -> list[list[int]]:
    """Take any allowed token, under each of the budgets."""
    constraint = GrammarConstraint([grammar] * len(budgets), budgets)
    states = constraint.start(torch.arange(len(budgets)))
    written: list[list[int]] = [[] for _ in budgets]
    live = list(range(len(budgets)))
    while live:
        allowed = constraint.allowed(states).numpy()
        assert allowed.any(axis=1).all(), "a dead end"
        taken = [int(rng.choice(np.flatnonzero(row))) for row in allowed]
        for walker, token in zip(live, taken, strict=True):
            written[walker].append(token)
        states = constraint.advance(states, torch.tensor(taken))
        going = ~constraint.is_final(states)
        live = [walker for walker, goes in zip(live, going.tolist(), strict=True) if goes]
        states = states[going]
    return written


@pytest.mark.parametrize("name", SCHEMAS)
@pytest.mark.parametrize(
    ("kind", "how", "num_walks"),
    [
        ("byte-level", "writing", 5),
        *(
            pytest.param(kind, how, 40, marks=pytest.mark.slow)
            for kind in ("byte-level", "byte fallback")
            for how in sorted(OPTIONS)
        ),
    ],
)
def test_walks_end_in_titles_and_come_back_with_their_places(
    name: str, kind: str, how: str, num_walks: int
) -> None:
    schema = SCHEMAS[name]
    grammar = grammar_of(schema, kind, how)
    rng = np.random.default_rng([len(name), num_walks])
    needed = grammar.tokens_to_finish(grammar.start)
    budgets = [needed + (0, 1, 5, 20, 60)[number % 5] for number in range(num_walks)]
    for budget, tokens in zip(budgets, walked(grammar, budgets, rng), strict=True):
        assert len(tokens) <= budget
        text = grammar.text(tokens)
        values = grammar.holes(text)
        spelled = {(value.pointer, json.loads(text[value.first_byte : value.last_byte])) for value in values}
        if how == "reading" and HUGE.search(text):
            continue
        document = json.loads(text)
        Oracle(schema).validate(document)
        if has_key_twice(text):
            continue
        assert spelled <= set(strings(document))
        for value in values:
            members = {TITLES[value.name][number] for number in value.members}
            (one,) = members
            assert (value.pointer, one) in spelled
            assert len(value.members) == TITLES[value.name].count(one)
        if how == "writing" and "values" not in name:
            assert spelled == set(strings(document))


@pytest.mark.parametrize("name", [*list(SCHEMAS)[::4], "different of sets and values", "any of"])
def test_masks_are_those_of_following_every_token(name: str) -> None:
    grammar = grammar_of(SCHEMAS[name])
    rng = random.Random(name)
    end = grammar.vocabulary.end_token_id
    state = grammar.start
    for _ in range(4):
        allowed = unpacked(grammar, state)
        assert allowed == brute_force(grammar, state)
        going = sorted(allowed - {end})
        if not going:
            break
        state = grammar.advance(state, rng.choice(going))


@pytest.mark.parametrize("written", sorted(set(ODD)), ids=ascii)
def test_every_title_can_be_written_in_one_way_and_its_near_misses_cannot(written: str) -> None:
    grammar = grammar_of(record(t=ANY))
    spelled = json.dumps({"t": written}, ensure_ascii=False).encode()
    (value,) = grammar.holes(spelled)
    assert [ODD[number] for number in value.members] == [written] * ODD.count(written)
    others = [json.dumps({"t": near}, ensure_ascii=False) for near in near_misses(written)]
    if written not in ("a/b",):
        others.append(json.dumps({"t": written}, ensure_ascii=True).replace("a", r"\u0061"))
    for other in {text.encode() for text in others} - {spelled}:
        state = grammar.advance_bytes(grammar.start, other)
        assert state < 0 or not grammar.is_complete(state), other


def near_misses(text: str) -> list[str]:
    near = [text + text, text[:-1], text[1:], text.upper(), text + "\u200b", f"{text}a", f"\\{text}"]
    return [one for one in near if one not in ODD]


@pytest.mark.parametrize(
    "schema",
    [
        {"oneOf": [ANY, FEW]},
        {"not": ANY},
        {"allOf": [ANY, FEW]},
        {**ANY, "const": "a"},
        {**ANY, "maxLength": 3},
        {"type": "object", "propertyNames": ANY},
    ],
    ids=["one of two", "not", "all of two", "const", "length", "names"],
)
def test_what_titles_cannot_be_combined_with_is_refused_by_name(schema: Json) -> None:
    with pytest.raises(UnsupportedSchemaError) as caught:
        grammar_of(schema)
    assert caught.value.keyword
    assert caught.value.pointer.startswith("#/")


@pytest.mark.parametrize(
    "schema",
    [NONE, items(NONE, minItems=1), items(FEW, **UNIQUE, minItems=4), record(t=NONE)],
    ids=["filter", "items", "too many", "property"],
)
def test_too_few_titles_are_said(schema: Json) -> None:
    with pytest.raises(UnsatisfiableSchemaError, match="no value is valid"):
        grammar_of(schema)


def test_no_title_is_written_that_a_later_place_needs() -> None:
    """Also without a budget, which would keep from it as well."""
    grammar = grammar_of(SCHEMAS["different, values left for later places"])
    for begun, is_open in (('["b"', False), ('["ab"', False), (r'["z\"z"', True)):
        assert (grammar.advance_bytes(grammar.start, begun.encode()) >= 0) == is_open, begun
    assert unpacked(grammar, grammar.start) == brute_force(grammar, grammar.start)
