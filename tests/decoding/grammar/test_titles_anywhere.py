"""Titles as leaves, and wherever a string may stand: every title can be written there and nothing else."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Iterator
from functools import cache
from typing import Any

import jsonschema
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator, validators

from genret.decoding.grammar.errors import UnsatisfiableSchemaError, UnsupportedSchemaError
from genret.decoding.grammar.holes.text_leaf import ShortestTexts, TextLeaf, TextSearcher, widest_places
from genret.decoding.grammar.holes.text_places import START, TextRange, TextSearch, pack, spelled, unpack
from genret.decoding.grammar.json_grammar import Grammar, compile_schema
from genret.decoding.grammar.leaves.leaf import TitleSlotLeaf, TitleSlotName
from genret.decoding.grammar.vocabulary import Vocabulary
from genret.decoding.sorted_texts import SortedTexts, TextBatches
from tests.grammar_oracle import HUGE, OPTIONS, array, brute_force, record, unpacked, walked, walked_states
from tests.json_tokenizers import leaves
from tests.leaf_oracle import STRING_VOCABULARY, Found, after, check_tokens, in_threads, tokens_in, tokens_of
from tests.shape_walker import spelled as written

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


NAME = TitleSlotName("titles")

TEXT = st.text(st.sampled_from('ab"\\/\n\t\x00\x01\x0b\x1f\x7f é😀\u2028\ud7ff\uffff'), max_size=6)
TEXTS = st.lists(TEXT, min_size=1, max_size=25)


SEARCHERS = [TextSearcher(STRING_VOCABULARY), TextSearcher(STRING_VOCABULARY)]
SEARCHERS[1].warm_up()


def in_order(texts: list[str], rows: int = 4) -> SortedTexts:
    encoded = [text.encode() for text in texts]
    order = np.array(sorted(range(len(texts)), key=encoded.__getitem__), dtype=np.int32)
    return SortedTexts(TextBatches.of(encoded, rows), order)


def leaf_of(texts: list[str], searcher: TextSearcher, rows: int = 4) -> TextLeaf:
    return TextLeaf(NAME, tuple(texts), in_order(texts, rows), searcher)


def test_the_loops_are_compiled_where_numba_is() -> None:
    pytest.importorskip("numba")
    assert SEARCHERS[1]._compiled is not None


@settings(max_examples=150, deadline=None)
@given(TEXTS, st.data())
def test_bytes_tokens_and_texts_are_those_of_brute_force(texts: list[str], data: st.DataObject) -> None:
    goals = sorted({written(text) for text in texts})
    goal = data.draw(st.sampled_from(goals))
    prefix = goal[: data.draw(st.integers(0, len(goal)))]
    following = {goal[len(prefix)] for goal in goals if goal.startswith(prefix) and len(goal) > len(prefix)}
    rests = [goal[len(prefix) :] for goal in goals if goal.startswith(prefix)]
    states = set()
    for searcher in SEARCHERS:
        leaf = leaf_of(texts, searcher)
        assert isinstance(leaf, TitleSlotLeaf)
        state = after(leaf, prefix)
        states.add(state)
        assert {byte for byte in range(256) if leaf.step(state, byte) >= 0} == following
        edges = leaf.edges(state)
        if edges is not None:
            assert dict(edges) == {byte: leaf.step(state, byte) for byte in following}
            assert list(edges) == sorted(edges)
        assert leaf.goes_on(state) == bool(following)
        assert leaf.label(state) == (0 if prefix in goals else -1)
        if prefix in goals:
            assert leaf.members(state) == tuple(n for n, text in enumerate(texts) if written(text) == prefix)
        assert leaf.shortest(state) == min(rests, key=lambda rest: (len(rest), rest))
        check_tokens(STRING_VOCABULARY, leaf, state)
        check_tokens(STRING_VOCABULARY, leaf, 0, (b'"', b"a", b","))  # tokens that have begun outside
        assert pack(unpack(state, len(texts))) == state
    assert len(states) == 1


@settings(max_examples=60, deadline=None)
@given(TEXTS, st.data())
def test_a_subset_is_a_set_of_its_own(texts: list[str], data: st.DataObject) -> None:
    allowed = data.draw(st.lists(st.booleans(), min_size=len(texts), max_size=len(texts)))
    some = in_order(texts).among(np.array(allowed))
    kept = {text for text, is_allowed in zip(texts, allowed, strict=True) if is_allowed}
    for searcher in SEARCHERS:
        leaf = TextLeaf(NAME, "some", some, searcher)
        assert leaf.is_empty == (not kept)
        if leaf.is_empty:
            leaf.warm_up()
            continue
        for text in texts:
            state = after(leaf, written(text))
            assert (state >= 0) == (text in kept)
            if state >= 0:
                expected = tuple(n for n, other in enumerate(texts) if other == text and allowed[n])
                assert leaf.members(state) == expected


def test_texts_have_the_one_spelling_of_json() -> None:
    for number in range(0x250):
        assert b'"' + spelled(chr(number).encode()) + b'"' == written(chr(number))
    leaf = leaf_of(['a"b', "a/b", "é", "\x1f", "\n", "\x7f"], SEARCHERS[1])
    for other in ("a\\u0022b", "a\\/b", "\\u00e9", "\\u001F", "\\u000a", "\\u007f", "\x1f"):
        assert after(leaf, f'"{other}"'.encode()) < 0


@pytest.mark.parametrize("number", [0, 1])
def test_wide_runs_are_found_before_anybody_asks(number: int) -> None:
    letters = ["abcdefgh", "abcdefgh", "abcdefgh", "abcdefghijklmnop"]
    texts = list(map("".join, itertools.product(*letters)))
    leaf = leaf_of(texts, SEARCHERS[number], 1 << 16)
    places = list(widest_places(leaf._texts, SEARCHERS[number], 100))
    widths = [place.end - place.begin for place in places]
    assert widths == sorted(widths, reverse=True)
    assert widths[:2] == [8192, 1024]
    assert len(places) == len(set(places)) == 1 + 8 + 64
    leaf.warm_up()
    begun = leaf.num_bytes
    state = after(leaf, b'"')
    found = leaf.tokens(state, STRING_VOCABULARY.root)
    assert found is leaf.tokens(state, STRING_VOCABULARY.root)
    assert leaf.num_bytes == begun
    check_tokens(STRING_VOCABULARY, leaf, state)
    assert leaf.shortest(0) == b'"aaaa"'


@pytest.mark.parametrize("number", [0, 1])
def test_an_order_that_is_none_leads_to_nonsense_and_no_further(number: int) -> None:
    """An index whose digests nobody has looked at may have any order of numbers in range."""
    rng = np.random.default_rng(number)
    for size in (1, 2, 5, 60):
        texts = [bytes(rng.choice(list(b'ab"\\\x01c'), rng.integers(0, 6)).tolist()) for _ in range(size)]
        order = rng.integers(0, size, size).astype(np.int32)
        leaf = TextLeaf(NAME, "any", SortedTexts(TextBatches.of(texts, 4), order), SEARCHERS[number])
        leaf.warm_up()
        states, known = [0], {0}
        for state in states:
            assert leaf.tokens(state, STRING_VOCABULARY.root) is not None
            leaf.shortest(state)
            leaf.members(state)
            leaf.edges(state)
            after_bytes = {leaf.step(state, byte) for byte in range(256)} - known - {-1}
            states += sorted(after_bytes)[: 200 - len(states)]
            known |= after_bytes


def test_threads_find_the_same() -> None:
    texts = [f"{a}{b}{c}" for a in "abcdef" for b in "abcdefgh" for c in 'abcdefghijklmnop"\\\n']
    alone, shared = (leaf_of(texts, SEARCHERS[1], 64) for _ in range(2))
    prefixes = [written(text)[:length] for text in texts[::7] for length in range(6)]

    def walk(leaf: TextLeaf) -> list[Found]:
        states = [after(leaf, prefix) for prefix in prefixes]
        return [tokens_of(leaf.tokens(state, STRING_VOCABULARY.root)) for state in states]

    expected = walk(alone)
    assert all(found == expected for found in in_threads(lambda: walk(shared), 4))


def brute(texts: list[bytes], begin: int, end: int, depth: int) -> bytes:
    return min((spelled(text[depth:]) for text in texts[begin:end]), key=lambda text: (len(text), text))


@pytest.mark.parametrize("longest", [(1 << 16) - 1, 3])
def test_runs_of_many_blocks(longest: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("genret.decoding.grammar.holes.text_leaf._LONGEST", longest)
    rng = random.Random(0)
    for alphabet in ("ab", 'a"\\', '"\x01', "\x00\x01\n"):
        texts = sorted("".join(rng.choices(alphabet, k=rng.randint(2, 9))).encode() for _ in range(700))
        found = ShortestTexts(SortedTexts.of(texts))
        for _ in range(150):
            begin, end = sorted(rng.sample(range(len(texts) + 1), 2))
            assert found.spelling(begin, end, 0) == brute(texts, begin, end, 0)
            assert found.spelling(begin, end, 2) == brute(texts, begin, end, 2)
        for begin, end in ((0, 700), (64, 128), (63, 129), (70, 100), (0, 64), (640, 700)):
            assert found.spelling(begin, end, 1) == brute(texts, begin, end, 1)


def test_no_run() -> None:
    with pytest.raises(ValueError, match=r"expected a run of texts, got \[0, 0\)"):
        ShortestTexts(SortedTexts.of([b"a"])).spelling(0, 0, 0)


SOME_TEXT = st.text(st.sampled_from('abc"\\\n\x01\x1fé😀'), max_size=8)
PIECE = st.one_of(
    SOME_TEXT.map(lambda text: spelled(text.encode())),
    SOME_TEXT.map(lambda text: spelled(text.encode()) + b'",'),
    st.binary(max_size=4),
    st.none(),
)


@settings(max_examples=100, deadline=None)
@given(st.lists(SOME_TEXT, min_size=1, max_size=20), st.lists(PIECE, max_size=60), st.data())
def test_walks_agree_on_any_trie(texts: list[str], pieces: list[bytes | None], data: st.DataObject) -> None:
    pytest.importorskip("numba")
    from genret.decoding.grammar.holes.compiled_search import CompiledSearch

    goal = data.draw(st.sampled_from(texts))
    opening = [b'"' + spelled(goal.encode())[:2], b'"']
    tokens = [*pieces, *opening, None]
    vocabulary = Vocabulary(tokens, end_token_id=len(tokens) - 1, vocab_size=len(tokens))
    trie = vocabulary.trie
    compiled = CompiledSearch(vocabulary)
    assert compiled.num_bytes == 16 * (len(trie.byte) + 1)
    these = SortedTexts.of([text.encode() for text in texts])
    place = TextRange(0, len(these), 0, START)
    search = TextSearch(these)
    for byte in b'"' + spelled(goal.encode())[: data.draw(st.integers(0, 6))]:
        after = search.narrow(place, byte)
        assert after is not None
        assert compiled.narrow(these, place, byte) == after
        place = after
    roots = data.draw(st.lists(st.integers(0, len(trie.byte) - 1), max_size=3, unique=True))
    for positions in ((0,), tuple(roots)):
        expected = search.walk(place, trie, positions)
        found = compiled.walk(these, place, positions)
        written = found.tokens if found.mask is None else tokens_in(found.mask)
        assert written is not None
        assert expected.tokens is not None
        assert set(written) == set(expected.tokens)
        assert sorted(found.exits.get(0, [])) == sorted(expected.exits.get(0, []))
