"""Schemas with titles in them: what can be written, what the values stand for, what is refused."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest

from genret.decoding.grammar.compile_options import GrammarOptions
from genret.decoding.grammar.errors import InvalidSchemaError, UnsatisfiableSchemaError
from genret.decoding.grammar.json_grammar import Grammar, compile_schema
from genret.decoding.grammar.leaves.leaf_factory import Leaves
from genret.decoding.grammar.vocabulary import Vocabulary
from genret.retrieval.answers.title_holes import TitleSlots
from genret.retrieval.filters.entity_filter import FilterStore
from genret.retrieval.index.reader import Index
from tests.index_fixtures import build, character_tokenizer

TOKENIZER = character_tokenizer('abcdefghxyz "\\/é😀')
PEOPLE = [
    "entity_id\ttitle\tkind",
    "1\tabc\tx",
    "2\tabc\ty",
    "3\ta\tx",
    '4\ta "b" c\\d\tz',
    "5\té😀\ty",
]
PLACES = ["h", "gh", 'x"y', "xyz"]
PIECES = [
    *(bytes([byte]) for byte in range(256)),
    b'{"',
    b'": "',
    b'", "',
    b'"]',
    b'"}',
    b"ab",
    b'c"',
    b'a", "',
    b'\\"',
]
VOCABULARY = Vocabulary([*PIECES, None], len(PIECES), len(PIECES) + 1)
LEAVES = Leaves(VOCABULARY)
TITLE = {"type": "string", "x-genret-index": "people"}
PLACE = {"type": "string", "x-genret-index": "places"}


@pytest.fixture(scope="module")
def holes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TitleSlots]:
    folder: Path = tmp_path_factory.mktemp("json")
    holes = TitleSlots(LEAVES)
    with (
        Index.open(build(folder, PEOPLE, TOKENIZER, "people.index").index) as people,
        Index.open(build(folder, PLACES, TOKENIZER, "places.index").index) as places,
    ):
        holes.add("people", people, FilterStore(people, "cpu", 1 << 20))
        holes.add("places", places, FilterStore(places, "cpu", 1 << 20))
        holes.warm_up()
        yield holes


def compiled(schema: Any, holes: TitleSlots) -> Grammar:
    return compile_schema(schema, LEAVES, GrammarOptions.for_writing(), holes)


def admits(grammar: Grammar, value: Any) -> bool:
    text = json.dumps(value, ensure_ascii=False).encode()
    state = grammar.advance_bytes(grammar.start, text)
    return state >= 0 and grammar.is_complete(state)


def found(grammar: Grammar, value: Any, holes: TitleSlots) -> list[tuple[str, str, set[str]]]:
    """Pointers, indexes and ids of the entities behind the titles of an answer."""
    text = json.dumps(value, ensure_ascii=False).encode()
    values = grammar.holes(text)
    for one in values:
        assert text[one.first_byte : one.first_byte + 1] == b'"'
        assert text[one.last_byte - 1 : one.last_byte] == b'"'
    indexes = [holes.index(one.name.index) for one in values]
    return [
        (one.pointer, one.name.index, {index.entity(number).entity_id for number in one.members})
        for one, index in zip(values, indexes, strict=True)
    ]


def test_titles_stand_anywhere_and_come_back_as_entities(holes: TitleSlots) -> None:
    schema = {
        "type": "object",
        "properties": {
            "who": TITLE,
            "where": {"type": "object", "properties": {"place": PLACE}, "required": ["place"]},
            "also": {"type": "array", "items": TITLE, "maxItems": 3},
        },
        "required": ["who", "where", "also"],
    }
    grammar = compiled(schema, holes)
    answer = {"who": "abc", "where": {"place": 'x"y'}, "also": ["é😀", 'a "b" c\\d', "a"]}
    assert admits(grammar, answer)
    assert found(grammar, answer, holes) == [
        ("/who", "people", {"1", "2"}),
        ("/where/place", "places", {'x"y'}),
        ("/also/0", "people", {"5"}),
        ("/also/1", "people", {"4"}),
        ("/also/2", "people", {"3"}),
    ]
    for wrong in ({**answer, "who": "h"}, {**answer, "who": "ab"}, {**answer, "also": ["abcd"]}):
        assert not admits(grammar, wrong)


def test_filters_of_one_schema_are_independent(holes: TitleSlots) -> None:
    schema = {
        "type": "array",
        "prefixItems": [{**TITLE, "x-genret-filter": f"kind = '{kind}'"} for kind in "xy"],
    }
    schema |= {"items": False, "minItems": 2}
    grammar = compiled(schema, holes)
    assert found(grammar, ["abc", "abc"], holes) == [("/0", "people", {"1"}), ("/1", "people", {"2"})]
    assert admits(grammar, ["a", "é😀"])
    assert not admits(grammar, ["é😀", "a"])


def test_items_that_differ(holes: TitleSlots) -> None:
    grammar = compiled({"type": "array", "items": PLACE, "uniqueItems": True, "minItems": 1}, holes)
    assert admits(grammar, ["h", "gh", 'x"y', "xyz"])
    assert not admits(grammar, ["h", "h"])
    assert not admits(grammar, ["h", "gh", 'x"y', "xyz", "h"])
    assert [place for _, _, ids in found(grammar, ["gh", "h"], holes) for place in ids] == ["gh", "h"]


def test_a_filter_that_nothing_passes(holes: TitleSlots) -> None:
    nobody = {**TITLE, "x-genret-filter": "kind = 'none'"}
    with pytest.raises(UnsatisfiableSchemaError):
        compiled(nobody, holes)
    grammar = compiled({"anyOf": [nobody, {"type": "null"}]}, holes)
    assert admits(grammar, None)
    assert not admits(grammar, "abc")


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ({**TITLE, "x-genret-index": "other"}, "there is no index 'other'; there are: 'people', 'places'"),
        ({**TITLE, "x-genret-filter": "kinds = 'x'"}, "unknown column 'kinds', did you mean 'kind'"),
        (
            {**PLACE, "x-genret-filter": "kind = 'x'"},
            "unknown column 'kind'; the index has: entity_id, title",
        ),
    ],
)
def test_what_cannot_be_opened_is_refused_with_its_place(
    schema: dict[str, Any], message: str, holes: TitleSlots
) -> None:
    with pytest.raises(InvalidSchemaError, match=message) as caught:
        compiled({"type": "object", "properties": {"who": schema}, "required": ["who"]}, holes)
    assert caught.value.pointer.startswith("#/properties/who/x-genret-")


def test_random_walks_end_in_valid_answers(holes: TitleSlots) -> None:
    schema = {
        "type": "object",
        "properties": {
            "who": TITLE,
            "tags": {"type": "array", "items": PLACE, "uniqueItems": True, "maxItems": 4},
        },
        "required": ["who", "tags"],
        "additionalProperties": False,
    }
    grammar = compiled(schema, holes)
    titles = {line.split("\t")[1] for line in PEOPLE[1:]}
    rng = random.Random(0)
    seen = set()
    for _ in range(150):
        state, tokens = grammar.start, []
        while state != grammar.finished:
            bits = np.unpackbits(grammar.mask(state).view(np.uint8), bitorder="little")
            allowed = np.flatnonzero(bits).tolist()
            assert allowed
            tokens.append(rng.choice(allowed))
            state = grammar.advance(state, tokens[-1])
            assert state >= 0
        answer = json.loads(grammar.text(tokens))
        jsonschema.validate(answer, schema)
        assert answer["who"] in titles
        assert set(answer["tags"]) <= set(PLACES)
        seen.add(answer["who"])
    assert seen == titles
