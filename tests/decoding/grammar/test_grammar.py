"""Masks and successors of grammars over shapes made by hand, against walking every token byte by byte."""

from __future__ import annotations

import json
import random

import pytest

from genret.decoding.grammar.compile_options import GrammarOptions
from genret.decoding.grammar.json_grammar import Grammar
from tests.grammar_shapes import (
    COMPACT,
    FLEXIBLE,
    JSON_PIECES,
    SPACED,
    WHITESPACES,
    Maker,
    brute_force,
    byte_vocabulary,
    unpacked,
    zoo,
)

MAKERS = {
    "bytes": Maker(byte_vocabulary()),
    "pieces": Maker(byte_vocabulary(JSON_PIECES, seed=1, random_pieces=400)),
}
NAMES = sorted(zoo(MAKERS["bytes"]))
VALUES = {kind: zoo(maker) for kind, maker in MAKERS.items()}


def grammar_of(name: str, kind: str = "pieces", options: GrammarOptions = COMPACT) -> Grammar:
    return Grammar(VALUES[kind][name], MAKERS[kind].vocabulary, options)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("options", WHITESPACES, ids=lambda options: options.whitespace)
@pytest.mark.parametrize("kind", sorted(MAKERS))
def test_masks_are_the_tokens_that_can_be_followed(name: str, options: GrammarOptions, kind: str) -> None:
    grammar = grammar_of(name, kind, options)
    rng = random.Random(f"{name} {kind} {options.whitespace}")
    checked: set[int] = set()
    for _ in range(6):
        state = grammar.start
        for _ in range(14):
            allowed = unpacked(grammar, state)
            if state not in checked:
                checked.add(state)
                assert allowed == brute_force(grammar, state)
                assert allowed == set(grammar.tokens(state).tolist())
            following = sorted(allowed - {grammar.vocabulary.end_token_id})
            if not following:
                break
            token = rng.choice(following)
            after = grammar.advance(state, token)
            assert after == grammar.advance_bytes(state, grammar.text([token]))
            state = after


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("options", WHITESPACES, ids=lambda options: options.whitespace)
def test_random_walks_end_in_json(name: str, options: GrammarOptions) -> None:
    grammar = grammar_of(name, options=options)
    rng = random.Random(f"{name} {options.whitespace}")
    end = grammar.vocabulary.end_token_id
    for _ in range(20):
        state, written = grammar.start, []
        while state != grammar.finished:
            allowed = sorted(unpacked(grammar, state))
            assert allowed
            # Short texts: tokens that end strings and brackets are preferred.
            closing = [t for t in allowed if t == end or grammar.text([t])[-1:] in b'"]}']
            token = rng.choice(closing if closing and rng.random() < min(0.9, len(written) / 30) else allowed)
            written.append(token)
            state = grammar.advance(state, token)
            assert state >= 0
        assert written[-1] == end
        json.loads(grammar.text(written))


def test_numbers_at_the_top_can_go_on_wherever_they_can_end() -> None:
    grammar = grammar_of("integer")
    end = grammar.vocabulary.end_token_id
    for text in (b"1", b"12", b"-1", b"0", b"-", b""):
        state = grammar.advance_bytes(grammar.start, text)
        assert grammar.is_complete(state) is (text not in (b"-", b""))
        assert (end in unpacked(grammar, state)) is grammar.is_complete(state)
    assert grammar.advance_bytes(grammar.start, b"01") == -1
    assert grammar.advance(grammar.advance_bytes(grammar.start, b"12"), end) == grammar.finished
    assert not unpacked(grammar, grammar.finished)
    assert grammar.advance(grammar.finished, end) == -1


@pytest.mark.parametrize(
    ("name", "good", "bad"),
    [
        ("person", ['{"name":"x","age":1,"ok":true}'],
         ['{"name":"x","age":1}', '{"age":1}', "{}", '{"name":"x",}']),
        ("optional", ["{}", '{"a":1}', '{"a":1,"ab":null}', '{"é":true}'],
         ['{"b":"","a":1}', '{"a":1,"a":1}', "{,}"]),
        ("free order", ['{"ab":true,"a":1}', '{"a":1,"ab":true}'],
         ['{"a":1}', '{"ab":true,"ab":true}', "{}"]),
        ("tree", ["null", '{"l":{"r":null},"r":[[],null]}', "[]"],
         ["[null,]", '{"r":null,"l":null}', "1"]),
        ("union",
         ['{"kind":"one","x":1}', '{"kind":"two","x":"1"}', '{"kind":"z","y":false}', "[1]", '["q",[]]'],
         ['{"kind":"two","x":1}', '{"kind":"one","y":1}', "[1,2,3,4]", '[1,"q"]', '{"kind":"zzz","x":1}']),
        ("lists", ["[[1]]", "[[1.5,2]]", "[[],[true]]", "[[1,2,3],[]]"], ["[[1.5]]", "[[]]", "[[1],[true]]"]),
        ("enum or number", ["1", "12", "-3.5", "13", '"a"', "true"], ["01", '"b"', "false", "1.", "-"]),
        ("distinct", ['["a","b"]', '["ab","q\\"","a"]'], ['["a"]', '["a","a"]', "[]"]),
    ],
)  # fmt: skip
def test_documents(name: str, good: list[str], bad: list[str]) -> None:
    check_texts(grammar_of(name), good, bad)


@pytest.mark.parametrize(
    ("options", "good", "bad"),
    [
        (COMPACT, ['{"a":1,"b":""}'], ['{"a": 1}', '{"a":1, "b":""}', "{ }", '{"a":1} ', ' {}']),
        (SPACED, ['{"a": 1, "b": ""}', "{}"], ['{"a":1}', '{"a":  1}', '{"a": 1,"b": ""}', "{ }"]),
        (
            FLEXIBLE,
            ['{"a":1,"b":""}', '{ "a" : 1 , "b" :\n "" }', '{\n   "a":1\n}', "{ }", "{\n}"],
            ['{  "a":1}', '{\n    "a":1}', '{"a":1}\n', '\n{}', '{"a":\t1}', '{ \n"a":1}'],
        ),
    ],
    ids=lambda value: value.whitespace if isinstance(value, GrammarOptions) else "",
)  # fmt: skip
def test_whitespace(options: GrammarOptions, good: list[str], bad: list[str]) -> None:
    check_texts(grammar_of("optional", options=options), good, bad)


def check_texts(grammar: Grammar, good: list[str], bad: list[str]) -> None:
    def is_allowed(text: str) -> bool:
        state = grammar.advance_bytes(grammar.start, text.encode())
        return state >= 0 and grammar.is_complete(state)

    assert [text for text in good if not is_allowed(text)] == []
    assert [text for text in bad if is_allowed(text)] == []
