"""Titles wherever a string may stand: walks end in documents an oracle accepts; titles are found again."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from functools import cache
from typing import Any

import jsonschema
import pytest
from jsonschema import Draft202012Validator, validators

from genret.decoding.grammar.errors import UnsatisfiableSchemaError, UnsupportedSchemaError
from genret.decoding.grammar.holes.text_leaf import TextLeaf, TextSearcher
from genret.decoding.grammar.json_grammar import Grammar, compile_schema
from genret.decoding.grammar.leaves.leaf import TitleSlotName
from genret.decoding.sorted_texts import SortedTexts
from tests.grammar_oracle import HUGE, OPTIONS, array, brute_force, record, unpacked, walked, walked_states
from tests.json_tokenizers import leaves

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
    TitleSlotName("people"): ["Ada", "Alan", 'A "q" ü', "Ada"],
    TitleSlotName("places"): ["Ada", "Oslo"],
}


def title(index: str, predicate: str | None = None) -> dict[str, Json]:
    filtered = {} if predicate is None else {"x-genret-filter": predicate}
    return {"type": "string", "x-genret-index": index, **filtered}


def places(*first: Json, **more: Json) -> dict[str, Json]:
    return {"type": "array", "prefixItems": list(first), **more}


def members(**keywords: Json) -> dict[str, Json]:
    return {"type": "object", **keywords}


ANY, FEW, ONE, NONE = title("odd"), title("few"), title("odd", "one"), title("odd", "none")
PEOPLE, PLACES = title("people"), title("places")
TREE = record(["t"], t=ANY, c=array({"$ref": "#/$defs/tree"}, maxItems=2))
UNIQUE, ITSELF = {"uniqueItems": True}, {"$ref": "#"}
# Every string of these documents is a title.
SCHEMAS: dict[str, Json] = {
    "alone": ANY,
    "property": record(t=ANY),
    "nullable": record(t={**ANY, "type": ["string", "null"]}),
    "index of one": record(t=title("one")),
    "filter of one": record(t=ONE),
    "filter of none": members(properties={"t": NONE, "u": FEW}),
    "filter of none or null": {"anyOf": [NONE, {"type": "null"}]},
    "items of none": array(NONE),
    "items": array(ANY),
    "different": array(ANY, **UNIQUE, minItems=3, maxItems=6),
    "all there are": array(FEW, **UNIQUE, minItems=3),
    "equal titles": array(title("twice"), **UNIQUE, minItems=2),
    "different of two sets": array({"anyOf": [ANY, FEW]}, **UNIQUE, minItems=2, maxItems=5),
    "different of sets and values": array(
        {"anyOf": [FEW, {"enum": ["a", "ab", 1]}]}, **UNIQUE, minItems=5, maxItems=5
    ),
    "different by place": places(ANY, FEW, ONE, items=False, minItems=3, **UNIQUE),
    "different, values first": places({"enum": ["b", "ab"]}, items=FEW, minItems=3, **UNIQUE),
    "different, values left for later places": places(FEW, items={"enum": ["b", "ab"]}, minItems=3, **UNIQUE),
    "by place": places(ANY, FEW, items={"type": "integer"}, minItems=2),
    "nested": record(a=array(record(t=ANY, u=array(FEW)), minItems=1, maxItems=2)),
    "any of": {"anyOf": [ANY, FEW, {"type": "null"}, array(ONE)]},
    "one of": {"oneOf": [record(k={"const": 1}, t=ANY), record(k={"const": 2}, t=FEW)]},
    "all of": {"allOf": [{"type": "string"}, ANY]},
    "parts": {"allOf": [record(t=ANY, o=FEW), {"required": ["o"]}]},
    "reference": {"$defs": {"t": ANY}, **array({"$ref": "#/$defs/t"}, minItems=1)},
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
    "counted": array({"anyOf": [ANY, {"type": "integer"}]}, contains={"type": "integer"}, maxItems=3),
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
    needed = grammar.tokens_to_finish(grammar.start)
    budgets = [needed + (0, 1, 5, 20, 60)[number % 5] for number in range(num_walks)]
    for tokens in walked(grammar, budgets, random.Random(f"{name} {num_walks}")):
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
    for state in walked_states(grammar, random.Random(name), 1, 3):
        assert unpacked(grammar, state) == brute_force(grammar, state)


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
    ("schema", "pointer"),
    [
        ({"oneOf": [ANY, FEW]}, "#/oneOf"),
        ({"not": ANY}, "#/not"),
        ({"allOf": [ANY, FEW]}, "#/allOf/0/x-genret-index"),
        ({**ANY, "const": "a"}, "#/x-genret-index"),
        ({**ANY, "maxLength": 3}, "#/x-genret-index"),
    ],
    ids=["one of two", "not", "all of two", "const", "length"],
)
def test_what_titles_cannot_be_combined_with_is_refused_by_name(schema: Json, pointer: str) -> None:
    with pytest.raises(UnsupportedSchemaError) as caught:
        grammar_of(schema)
    assert (caught.value.keyword, caught.value.pointer) == (pointer.rsplit("/", 1)[-1], pointer)


@pytest.mark.parametrize(
    "schema",
    [NONE, array(NONE, minItems=1), array(FEW, **UNIQUE, minItems=4), record(t=NONE)],
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


def found_in(schema: Json, text: str) -> list[tuple[str, str, tuple[int, ...], str]]:
    """Pointer, index, numbers and spelling of every title in a text."""
    written = text.encode()
    return [
        (found.pointer, found.name.index, found.members, written[found.first_byte : found.last_byte].decode())
        for found in grammar_of(schema, how="reading").holes(written)
    ]


def test_an_alternative_that_died_claims_nothing() -> None:
    """Both write the name; the kind behind it says whose it was."""
    schema = {"anyOf": [record(name=PEOPLE, kind={"const": "x"}), record(name=PLACES, kind={"const": "y"})]}
    assert found_in(schema, '{"name":"Ada","kind":"y"}') == [("/name", "places", (0,), '"Ada"')]
    assert found_in(schema, '{"name":"Ada","kind":"x"}') == [("/name", "people", (0, 3), '"Ada"')]


def test_an_alternative_that_died_far_above_claims_nothing() -> None:
    """The lists are alike until a number says which of two kinds the whole was."""
    kinds = [record(l=array(PEOPLE), n={"const": 1}), record(l=array(PLACES), n={"enum": [2, 12]})]
    text = '[{"l":["Ada"],"n":2},{"l":["Ada","Ada"],"n":1},{"l":["Ada"],"n":12}]'
    assert [(pointer, index) for pointer, index, _, _ in found_in(array({"anyOf": kinds}), text)] == [
        ("/0/l/0", "places"),
        ("/1/l/0", "people"),
        ("/1/l/1", "people"),
        ("/2/l/0", "places"),
    ]


def test_alternatives_that_both_live_both_claim() -> None:
    schema = {"anyOf": [PEOPLE, PLACES, {"type": "string"}]}
    assert [index for _, index, _, _ in found_in(schema, '"Ada"')] == ["people", "places"]
    assert [index for _, index, _, _ in found_in(schema, '"Oslo"')] == ["places"]
    assert found_in(schema, '"Bergen"') == []


def test_titles_in_recursion() -> None:
    tree = {"anyOf": [PEOPLE, array(ITSELF)]}
    assert [pointer for pointer, *_ in found_in(tree, '[[["Ada"]],"Alan",[]]')] == ["/0/0/0", "/1"]
    deep = "[" * 10_000 + '"Ada"' + "]" * 10_000
    assert [pointer for pointer, *_ in found_in(tree, deep)] == ["/0" * 10_000]


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ('{"a/b":"Ada","m~n":"Alan"}', ["/a~1b", "/m~0n"]),
        ('{"u":"Ada","u":"Alan"}', ["/u"]),
        ('{"u":"Ada","v":"Alan","u":5}', ["/v"]),
        ('{"u":{"t":"Ada"},"u":{"s":"Alan"},"ut":"Ada"}', ["/u/s", "/ut"]),
        ('{"u":["Ada","Alan"],"u":["Ada"]}', ["/u/0"]),
        ('[{"u":"Ada"},{"u":"Alan"}]', ["/0/u", "/1/u"]),
        ('{"u":{"u":"Ada"},"v":{"u":"Alan"}}', ["/u/u", "/v/u"]),
    ],
)
def test_what_a_parser_drops_is_not_reported(text: str, left: list[str]) -> None:
    anything = {"anyOf": [PEOPLE, {"type": "integer"}, array(ITSELF), members(additionalProperties=ITSELF)]}
    found = found_in(anything, text)
    assert [pointer for pointer, *_ in found] == left
    document = dict(strings(json.loads(text)))
    assert [json.loads(spelled) for *_, spelled in found] == [document[pointer] for pointer in left]


@pytest.mark.parametrize(
    "text", ["", "[", "[1]", '["Ada"', '["Ada"]]', '["Oslo"]', "{}", '"Ada"', "]", "\x00", "-"]
)
def test_what_is_no_answer_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="expected a complete answer"):
        grammar_of({"anyOf": [array(PEOPLE), {"type": "integer"}]}).holes(text.encode())
