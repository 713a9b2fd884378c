"""Leaves that remember their texts and leave some out, and arrays whose items differ."""

from __future__ import annotations

import json
import random
from typing import Any

import numpy as np
import pytest

from genret.decoding.grammar.compile_options import GrammarOptions
from genret.decoding.grammar.json_grammar import compile_schema
from genret.decoding.grammar.leaves.distinct_leaf import DistinctLeaf, Texts
from genret.decoding.grammar.leaves.leaf import Leaf
from genret.decoding.grammar.leaves.leaf_factory import Leaves
from genret.decoding.grammar.regular.dfa import Dfa
from genret.decoding.grammar.regular.number_set import NumberSet
from genret.decoding.grammar.regular.text_set import TextSet
from genret.decoding.grammar.vocabulary import Vocabulary
from tests.grammar_oracle import INTEGER, STRING, array, brute_force, byte_vocabulary, unpacked
from tests.leaf_oracle import after, check_tokens, in_threads, label_of, steps_of

PIECES = [
    b"ab", b'a"', b'ab"', b'ab",', b'b"]', b'"a', b"12", b"1,", b"12]", b"23", b'"]', "é".encode(),
    b'\\n"',
]  # fmt: skip
VOCABULARY = Vocabulary([None, *[bytes([byte]) for byte in range(256)], *PIECES], 0, 300)
WORDS = ["", "a", "ab", "abc", "b", "bb", "é", "ef", "e", "x\ny", *"cdfghijklmnop"]


def language(leaf: Leaf, limit: int = 8) -> set[bytes]:
    """All texts of a leaf of up to so many bytes; checks that no state is a dead end."""
    found = set()
    waiting = [(b"", 0)]
    for text, state in waiting:
        if leaf.label(state) >= 0:
            found.add(text)
        steps = steps_of(leaf, state)
        assert leaf.goes_on(state) == bool(steps)
        assert leaf.edges(state) in (None, steps)
        assert label_of(leaf, leaf.shortest(state), state) >= 0
        if len(text) < limit:
            waiting.extend((text + bytes([byte]), behind) for byte, behind in steps.items())
    return found


def words(leaves: Leaves) -> Leaf:
    return leaves.texts(TextSet.of(automaton=Dfa.of_texts(WORDS)))


def small_numbers(leaves: Leaves) -> Leaf:
    return leaves.numbers(NumberSet.of_values([1, 2, 10, 11, 12, 123, 23, 3, 4, 5, 6, 7, 8, 9, -1]), True)


@pytest.mark.parametrize("make", [words, small_numbers])
@pytest.mark.parametrize("seed", range(4))
def test_excluding_is_the_difference_of_sets(make: object, seed: int) -> None:
    leaves = Leaves(VOCABULARY)
    base = make(leaves)  # type: ignore[operator]
    texts = Texts()
    leaf = leaves.remembering(base, texts)
    everything = language(base)
    assert language(leaf) == everything
    order = np.random.default_rng(seed).permutation(sorted(everything, key=repr)).tolist()
    for number, text in enumerate(order):
        label = label_of(leaf, text)
        assert texts.bytes_of(label) == text
        left = everything - set(order[: number + 1])
        following = leaves.excluding(leaf, frozenset({label}))
        if not left:
            assert following is None
            return
        assert following is not None
        assert language(following) == left
        assert following.shortest(0) == min(left, key=lambda one: (len(one), one))
        for state in (0, following.step(0, min(left)[0])):
            check_tokens(VOCABULARY, following, state)
        leaf = following
    raise AssertionError("the last one was never left out")


@pytest.mark.parametrize("is_warm", [False, True])
def test_strings_of_any_content_can_be_left_out(is_warm: bool) -> None:
    leaves = Leaves(VOCABULARY)
    if is_warm:
        leaves.warm_up()
    texts = Texts()
    leaf = leaves.remembering(leaves.texts(TextSet.everything()), texts)
    for written in ('""', '"a"', '"ab"', '"é"', '"abab"'):
        leaf = leaves.excluding(leaf, frozenset({label_of(leaf, written.encode())}))  # type: ignore[assignment]
        assert leaf is not None
        assert label_of(leaf, written.encode()) == -1
    assert leaf.shortest(0) == b'" "'
    assert label_of(leaf, b'"aba"') >= 0
    assert label_of(leaf, b'"\\/"') == -1  # one spelling for a text
    for prefix in (b'"', b'"a', b'"ab', b'"aba', b'"\xc3', b'"x'):
        check_tokens(VOCABULARY, leaf, after(leaf, prefix), (b"", b'"', b"a"))


def test_strings_of_bounded_length_can_be_left_out() -> None:
    leaves = Leaves(VOCABULARY)
    leaf = leaves.remembering(leaves.texts(TextSet.of(0, 1)), Texts())
    empty = label_of(leaf, b'""')
    rest = leaves.excluding(leaf, frozenset({empty}))
    assert rest is not None
    assert rest.shortest(0) == b'" "'
    assert label_of(rest, b'"a"') >= 0
    only_empty = leaves.remembering(leaves.texts(TextSet.of(0, 0)), leaf.writings.texts)
    assert leaves.excluding(only_empty, frozenset({empty})) is None


def test_equal_texts_of_different_leaves_have_equal_labels() -> None:
    leaves = Leaves(VOCABULARY)
    texts = Texts()
    first = leaves.remembering(words(leaves), texts)
    second = leaves.remembering(leaves.texts(TextSet.of(automaton=Dfa.of_texts(["zz", "ab", "b"]))), texts)
    assert label_of(first, b'"ab"') == label_of(second, b'"ab"') >= 0
    assert len({label_of(second, b'"zz"'), label_of(second, b'"b"'), label_of(second, b'"ab"')}) == 3
    without = leaves.excluding(second, frozenset({label_of(first, b'"a"'), label_of(first, b'"b"')}))
    assert without is not None
    assert language(without) == {b'"zz"', b'"ab"'}
    assert leaves.remembering(words(leaves), texts) is first
    assert leaves.excluding(second, frozenset({label_of(first, b'"a"'), label_of(first, b'"b"')})) is without


def test_threads_number_texts_alike() -> None:
    texts = Texts()
    answers = in_threads(lambda: [texts.number(texts.place_of(b"%d" % n)) for n in range(500)])
    assert all(answer == answers[0] for answer in answers)
    assert sorted(answers[0]) == list(range(500))
    assert [texts.bytes_of(label) for label in answers[0]] == [b"%d" % n for n in range(500)]


def test_memory_is_told() -> None:
    leaves = Leaves(VOCABULARY)
    leaf = leaves.remembering(leaves.texts(TextSet.everything()), Texts())
    before = leaf.num_bytes
    assert label_of(leaf, b'"abcdefghij"') >= 0
    assert leaf.num_bytes > before
    assert not leaf.is_shared
    assert type(leaf) is DistinctLeaf


UNIQUE = {"uniqueItems": True}
ITEMS: list[dict[str, Any]] = [
    STRING, {"type": "string", "maxLength": 40}, {"type": "string", "maxLength": 2},
    {"type": "string", "pattern": "^[ab]*$"}, {"type": "string", "pattern": "^(a|b.*)$"},
    INTEGER, {"enum": ["a", "b", "ab", 1, 2]},
    {"anyOf": [INTEGER, {"type": "string", "pattern": "^a"}, {"const": "b"}]},
    {"type": ["string", "number", "null"]},
]  # fmt: skip
SCHEMAS = [
    *[array(items, **UNIQUE, maxItems=4) for items in ITEMS],
    array(STRING, **UNIQUE, minItems=3),
    {**array({"enum": ["a", "b"]}, **UNIQUE, minItems=2), "prefixItems": [STRING]},
    {"anyOf": [array(STRING, **UNIQUE), array(ITEMS[7])]},
    {"type": "object", "properties": {"a": array(STRING, **UNIQUE)}},
]
_PIECES = r"""
"," "], "] ", a","a a"," ","a ","a" a" "a "a" ab [[" [" 1,1 1, ,1 12 1," 1,"a "a",1 ," "],"a "a":[" ","b","
","a","a" null "]} b","ab" ","ab "]]
"""
ITEM_PIECES = [*_PIECES.split(), '", "', ', "', "\n", '",\n"']


@pytest.mark.parametrize("schema", SCHEMAS, ids=json.dumps)
@pytest.mark.parametrize("whitespace", ["flexible", "compact", "spaced"])
def test_masks_are_the_tokens_that_can_be_read(schema: dict[str, Any], whitespace: str) -> None:
    """Where every text is told apart, tokens are still found together."""
    rng = random.Random(json.dumps(schema) + whitespace)
    pieces = ["".join(rng.choices('ab"",,,] 1\n', k=rng.randint(2, 7))) for _ in range(120)]
    vocabulary = byte_vocabulary([*ITEM_PIECES, *pieces])
    options = GrammarOptions(whitespace=whitespace)  # type: ignore[arg-type]
    grammar = compile_schema(schema, Leaves(vocabulary), options)
    for _ in range(5):
        state = grammar.start
        for _ in range(24):
            allowed = unpacked(grammar, state)
            assert allowed == brute_force(grammar, state)
            read = sorted(allowed - {vocabulary.end_token_id})
            if not read:
                break
            texts = {token: vocabulary.written(token) for token in read}
            likely = [token for token in read if len(texts[token]) > 1 or texts[token] in b'ab"1,[ ']
            state = grammar.advance(state, rng.choice(likely or read))
