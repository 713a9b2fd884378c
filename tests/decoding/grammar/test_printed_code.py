"""What the printed code of an article on structured output gets wrong, and must not be wrong here.

"Structured Output Acceleration: Compressed FSMs, Speculative JSON, and Grammar Caching": its sections 1
("The Performance Problem with Naive Constrained Decoding") to 7 ("Putting It All Together: Production
Pipeline") print a compiler, precomputed masks, a speculative decoder, a pushdown automaton and a cache. One
test for each thing that code gets wrong and that no other test is about.
"""

from __future__ import annotations

import json
import threading
import time
from functools import cache
from typing import Any

import numpy as np
import pytest

from decoding.grammar.compile_options import CompileLimits, GrammarOptions
from decoding.grammar.constraint import GrammarConstraint
from decoding.grammar.errors import (
    AnswerBudgetError,
    CompileTimeoutError,
    SchemaLimitError,
    UnsupportedSchemaError,
    VocabularyError,
)
from decoding.grammar.grammar_cache import GrammarCache
from decoding.grammar.json_grammar import Grammar, compile_schema
from decoding.grammar.leaves.leaf_factory import Leaves
from decoding.grammar.vocabulary import Vocabulary, read_token_bytes
from tests.grammar_shapes import JSON_PIECES, brute_force, byte_vocabulary, unpacked

COMPACT = GrammarOptions(whitespace="compact", property_order="schema", extra_properties="declared")
BOOLEAN = {"type": "boolean"}
STRING = {"type": "string"}


@cache
def leaves() -> Leaves:
    return Leaves(byte_vocabulary([*JSON_PIECES, '{"a":', "}}}}}}}", "]]]]", '"}]}}'], seed=4))


def grammar_of(schema: Any, options: GrammarOptions = COMPACT) -> Grammar:
    return compile_schema(schema, leaves(), options)


def admits(grammar: Grammar, text: str | bytes) -> bool:
    state = grammar.advance_bytes(grammar.start, text.encode() if isinstance(text, str) else text)
    return state >= 0 and grammar.is_complete(state)


def record(**properties: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def token(text: bytes) -> int:
    vocabulary = leaves().vocabulary
    return next(t for t in range(vocabulary.vocab_size) if vocabulary.bytes_of(t) == text)


# Section 1 and 3: tokens and masks.


def test_bytes_of_tokens_are_not_those_of_decoded_text() -> None:
    """1: a token that is part of a character decodes to U+FFFD, whose bytes it does not write."""
    serialised = {
        "model": {"type": "BPE", "vocab": {"Ã": 0, "©": 1, "Ã©": 2, "<e>": 3}, "merges": []},
        "decoder": {"type": "ByteLevel"},
        "added_tokens": [{"id": 3, "content": "<e>", "special": True}],
    }
    assert read_token_bytes(json.dumps(serialised)) == [b"\xc3", b"\xa9", "é".encode(), None]


def test_the_end_token_is_in_masks_and_does_not_come_at_the_first_chance() -> None:
    """2: no mask had it, and generation stopped where a text could end: "12" could not be written."""
    grammar = grammar_of({"type": "integer"})
    end = grammar.vocabulary.end_token_id
    one = grammar.advance(grammar.start, token(b"1"))
    assert {end, token(b"2"), token(b"12")} <= unpacked(grammar, one)
    twelve = grammar.advance(one, token(b"2"))
    assert grammar.advance(twelve, end) == grammar.finished
    assert end not in unpacked(grammar, grammar.start)


def test_masks_are_bits_and_are_shared() -> None:
    """3: a mask was V numbers of 32 bits."""
    grammar = grammar_of(record(a=STRING))
    inside = grammar.advance_bytes(grammar.start, b'{"a":"x')
    assert grammar.mask(inside).nbytes == 4 * -(-grammar.vocab_size // 32)
    assert grammar.mask(grammar.advance_bytes(inside, b"yz")) is grammar.mask(inside)
    other = grammar_of({"type": "array", "items": record(a=STRING)})
    same = other.advance_bytes(other.start, b'[{"a":"x')
    assert set(other.tokens(same)) & set(grammar.tokens(inside))


def test_no_mask_is_empty_and_a_vocabulary_that_can_write_nothing_is_refused() -> None:
    """4: a mask without a token made every probability NaN."""
    needed = sorted({bytes([byte]) for byte in b'{}[]":,\\-+.0123456789eE' + b"abcdflnrstux"})
    with pytest.raises(VocabularyError, match="cannot write"):
        Leaves(Vocabulary([*needed[1:], None], len(needed) - 1, len(needed)))
    shared = Leaves(Vocabulary([*needed, b"ab", b"z", b"bz", None], len(needed) + 3, len(needed) + 4))
    grammar = compile_schema({"type": "object", "additionalProperties": STRING}, shared, COMPACT)
    waiting, seen = [grammar.start], {grammar.start}
    while waiting and len(seen) < 300:
        state = waiting.pop()
        assert state == grammar.finished or unpacked(grammar, state)
        for after in (grammar.advance(state, t) for t in unpacked(grammar, state)):
            if after not in seen:
                seen.add(after)
                waiting.append(after)


def test_special_and_padding_tokens_are_never_text() -> None:
    """5: special tokens were their own names, and logits were longer than masks."""
    texts: list[bytes | None] = [*(bytes([byte]) for byte in range(256)), None, None]
    vocabulary = Vocabulary(texts, 256, 256 + 77)
    grammar = compile_schema(STRING, Leaves(vocabulary), COMPACT)
    inside = grammar.advance_bytes(grammar.start, b'"')
    assert max(unpacked(grammar, inside)) < 256
    assert len(grammar.mask(inside)) == -(-333 // 32)


# Section 2: the compiler.


def test_booleans_are_two_words() -> None:
    """7: they were joined over a NUL byte."""
    grammar = grammar_of(record(a=BOOLEAN))
    assert admits(grammar, '{"a":true}')
    assert admits(grammar, '{"a":false}')
    assert not admits(grammar, b'{"a":true\0}')
    assert grammar.advance_bytes(grammar.start, b'{"a":true\0') == -1


@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        ({"type": "number"}, "-1.5e3", ""),
        ({"type": "null"}, "null", ""),
        ({"type": "array", "items": {"type": "integer"}}, "[1,2]", "[a]"),
        (record(b=record(c=BOOLEAN)), '{"b":{"c":true}}', '{"b":{}}'),
        ({"enum": ["red", 1, None]}, '"red"', '"blue"'),
        ({"$ref": "#/$defs/x"}, "7", '"any"'),
    ],
    ids=["number", "null", "array", "object", "enum", "reference"],
)
def test_every_type_compiles_to_something(schema: Any, good: str, bad: str) -> None:
    """8: numbers, null, arrays and objects were nothing, enumerations and references any string."""
    grammar = grammar_of({**record(a=schema, z=BOOLEAN), "$defs": {"x": {"const": 7}}})
    assert admits(grammar, f'{{"a":{good},"z":true}}')
    assert not admits(grammar, f'{{"a":{bad},"z":true}}')


@pytest.mark.parametrize("text", ["1", "[]", "true", "null", "1.5", '"x"'])
def test_a_document_may_be_anything(text: str) -> None:
    """9: at the top only objects and strings had transitions."""
    assert admits(grammar_of(True), text)


def test_strings_have_escapes_and_all_of_unicode_and_obey_their_keywords() -> None:
    """10: they were ASCII, without escapes, of any length."""
    grammar = grammar_of(STRING)
    for text in ('"é日😀"', r'"\"\\\/\b\f\n\r\t"', r'"\u00e9\ud83d\ude00"', '""'):
        assert admits(grammar, text)
    for text in (r'"\x"', '"\n"', r'"\ud83d"', '"a'):
        assert not admits(grammar, text)
    bounded = grammar_of({"type": "string", "minLength": 2, "maxLength": 3, "pattern": "^é"})
    assert admits(bounded, '"é😀"')
    assert not admits(bounded, '"é"')
    assert not admits(bounded, '"éabc"')
    assert not admits(bounded, '"aé"')


def test_integers_have_signs_and_no_leading_zeros() -> None:
    """11: there was no minus, and 007 was accepted; an integer may be spelled as 1.0 or 1e2."""
    grammar = grammar_of({"type": "integer"})
    assert all(admits(grammar, text) for text in ("-7", "0", "-0", "120", "1.0", "1e2", "1.5e22"))
    assert not any(
        admits(grammar, text) for text in ("007", "-", "-01", "1.5", "+1", "1.", ".5", "1e", "0x1")
    )


def test_keys_are_escaped() -> None:
    r"""12: a key with a quote in it ended at the quote."""
    grammar = grammar_of(record(**{'a"b\\': BOOLEAN}))
    assert admits(grammar, json.dumps({'a"b\\': True}, separators=(",", ":")))
    assert not admits(grammar, '{"a"b\\":true}')


def test_required_properties_additional_ones_and_their_order_are_what_the_schema_says() -> None:
    """13: every property was demanded, in one order, and nothing else was looked at."""
    schema = {**record(a=BOOLEAN, b=BOOLEAN), "required": ["b"]}
    grammar = grammar_of(schema, GrammarOptions(whitespace="compact"))
    assert all(admits(grammar, t) for t in ('{"b":true}', '{"b":true,"a":false}', '{"a":true,"b":true}'))
    assert not any(
        admits(grammar, t) for t in ("{}", '{"a":true}', '{"b":true,"c":1}', '{"b":true,"b":true}')
    )


def test_whitespace_is_bounded() -> None:
    """13: there was no rule; free whitespace lets a model write blanks for ever."""
    grammar = grammar_of(record(a=BOOLEAN), GrammarOptions(max_indent=3))
    assert admits(grammar, '{\n  "a" : true\n}')
    state = grammar.start
    for written in range(100):
        state = grammar.advance_bytes(state, b"{" if not written else b"\n" if written == 1 else b" ")
        if state < 0:
            break
    assert written == 5


def test_equal_prefixes_of_alternatives_are_merged() -> None:
    """14: branches shared a start without being merged, so that one of them was lost."""
    either = [record(k={"const": "a"}, n=BOOLEAN), record(k={"const": "ab"}, n=STRING)]
    grammar = grammar_of({"anyOf": either})
    assert admits(grammar, '{"k":"a","n":true}')
    assert admits(grammar, '{"k":"ab","n":"x"}')
    assert not admits(grammar, '{"k":"a","n":"x"}')


# Section 4: speculation.


def test_tokens_that_are_not_allowed_are_refused() -> None:
    """17: a missing transition kept the state, so that any token passed."""
    grammar = grammar_of(record(a=BOOLEAN))
    for t in range(grammar.vocab_size):
        assert (grammar.advance(grammar.start, t) >= 0) == (t in unpacked(grammar, grammar.start))


def test_what_must_follow_is_told_in_bytes() -> None:
    """18: "one token is allowed" misses nearly every forced span: it has one spelling, many tokenisations."""
    grammar = grammar_of(record(name=STRING, age={"type": "integer"}))
    assert len(unpacked(grammar, grammar.start)) > 1
    assert grammar.forced_bytes(grammar.start) == b'{"name":"'


def test_what_is_forced_stops_at_an_end_and_never_runs_in_circles() -> None:
    """19: a chain went on through states that may end, and round and round where nothing else is possible."""
    deeper: dict[str, Any] = {"$ref": "#"}
    grammar = grammar_of({"anyOf": [{"const": 1}, {"const": 12}]})
    assert grammar.forced_bytes(grammar.start) == b"1"
    assert grammar.forced_bytes(grammar.advance_bytes(grammar.start, b"1")) == b""
    endless = grammar_of({"type": "array", "items": deeper, "maxItems": 1})
    assert endless.forced_bytes(endless.start) == b"["
    long = grammar_of({"type": "string", "pattern": "^(a{40})+$"})
    assert len(long.forced_bytes(long.start, 30)) <= 30


# Section 5: the pushdown automaton.


def test_terminals_of_several_bytes_are_read_byte_by_byte() -> None:
    """24: "ab" accepted "abbb", rules never returned, and a push stayed although its byte was refused."""
    grammar = grammar_of({"type": "array", "items": {"enum": ["ab", [1]]}})
    assert admits(grammar, '["ab",[1],"ab"]')
    assert not admits(grammar, '["abbb"]')
    state = grammar.advance_bytes(grammar.start, b"[")
    assert grammar.advance_bytes(state, b"[x") == -1
    assert admits(grammar, "[[1]]")


def test_a_rule_that_begins_with_itself_is_no_loop() -> None:
    """24: left recursion never ended; a reference back to itself says nothing, one behind a bracket does."""
    itself = {"$defs": {"x": {"anyOf": [{"$ref": "#/$defs/x"}, BOOLEAN]}}, "$ref": "#/$defs/x"}
    with pytest.raises(UnsupportedSchemaError, match="refers to itself without looking into the value"):
        grammar_of(itself)
    grammar = grammar_of({"anyOf": [{"type": "array", "items": {"$ref": "#"}}, BOOLEAN]})
    assert admits(grammar, "[[],true,[false]]")
    assert not admits(grammar, "[1]")


def test_automata_share_nothing_that_grows() -> None:
    """25: numbers of states were kept by the class: a second automaton went on where the first stopped."""
    first = grammar_of(record(a=BOOLEAN))
    states = [first.advance_bytes(first.start, b'{"a":'[:n]) for n in range(6)]
    second = grammar_of(record(a=BOOLEAN))
    assert [second.advance_bytes(second.start, b'{"a":'[:n]) for n in range(6)] == states
    third = grammar_of(record(b=STRING))
    assert third.advance_bytes(third.start, b'{"a"') == -1


@pytest.mark.parametrize("depth", range(1, 12))
def test_a_token_may_close_more_levels_than_any_fixed_number(depth: int) -> None:
    """26: masks were kept by the last four levels; here one token closes seven."""
    schema: Any = {"type": "integer"}
    for _ in range(depth):
        schema = record(a=schema)
    grammar = grammar_of(schema)
    state = grammar.advance_bytes(grammar.start, b'{"a":' * depth + b"1")
    assert unpacked(grammar, state) == brute_force(grammar, state)
    assert (token(b"}}}}}}}") in unpacked(grammar, state)) == (depth >= 7)
    assert (token(b"}}}}}") in unpacked(grammar, state)) == (depth >= 5)


def test_masks_of_stacks_that_differ_far_below_are_told_apart() -> None:
    """26: two stacks with equal tops and another thing below had one mask."""
    inner = record(a=record(a=record(a=record(a=record(a={"type": "integer"})))))
    grammar = grammar_of({"anyOf": [{"type": "array", "items": [inner], "maxItems": 1}, record(a=inner)]})
    brackets = grammar.advance_bytes(grammar.start, b"[" + b'{"a":' * 5 + b"1")
    braces = grammar.advance_bytes(grammar.start, b'{"a":' * 6 + b"1")
    for state in (brackets, braces):
        assert unpacked(grammar, state) == brute_force(grammar, state)
    assert not np.array_equal(
        grammar.mask(grammar.advance_bytes(brackets, b"}" * 5)),
        grammar.mask(grammar.advance_bytes(braces, b"}" * 5)),
    )


# Section 6: the cache.


def test_the_order_of_properties_and_the_tokenizer_tell_grammars_apart() -> None:
    """27: keys were sorted before they were compared, and the tokenizer was no part of the key."""
    one, other = record(a=BOOLEAN, b=STRING), record(b=STRING, a=BOOLEAN)
    assert grammar_of(one).forced_bytes(0) == b'{"a":'
    assert grammar_of(other).forced_bytes(0) == b'{"b":"'
    assert leaves().vocabulary.fingerprint != byte_vocabulary(JSON_PIECES, seed=5).fingerprint


class _Sized:
    def __init__(self, num_bytes: int) -> None:
        self.num_bytes = num_bytes


def test_eight_at_once_compile_once() -> None:
    """28: each of eight concurrent requests compiled."""
    cached: GrammarCache[_Sized] = GrammarCache(1 << 20)
    compiled, together = [], threading.Barrier(8)

    def make() -> _Sized:
        compiled.append(1)
        time.sleep(0.02)
        return _Sized(100)

    def ask() -> None:
        together.wait()
        cached.get("s", 1, lambda: ("s", 1), make)

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(compiled) == 1
    assert cached.stats.compilations == 1


def test_memory_counts_what_is_added_later() -> None:
    """29: only masks were counted, and only once."""
    grammar = grammar_of({"type": "array", "items": record(a=STRING, b={"type": "number"})})
    before = grammar.num_bytes
    for depth in range(40):
        grammar.mask(grammar.advance_bytes(grammar.start, b"[" + b'{"a":"","b":1},' * depth))
        grammar.tokens_to_finish(grammar.advance_bytes(grammar.start, b'[{"a":"x' + b"y" * depth))
    assert grammar.num_bytes > before


def test_compiling_is_bounded() -> None:
    """30: there was no limit on schemas, nor on the time they took."""
    with pytest.raises(SchemaLimitError):
        grammar_of(
            json.dumps({"description": "x" * 3000}), GrammarOptions(limits=CompileLimits(schema_bytes=2000))
        )
    wide = {"properties": {f"p{n}": {"pattern": f"a.{{{n}}}b"} for n in range(40)}, "type": "object"}
    with pytest.raises(CompileTimeoutError):
        grammar_of(wide, GrammarOptions(limits=CompileLimits(seconds=0.0)))


# Section 7: the pipeline.


def test_no_answer_is_cut() -> None:
    """31: "100 % valid" cannot be where generation stops at a number of tokens."""
    grammar = grammar_of(record(text={"type": "string", "minLength": 9}))
    needed = grammar.tokens_to_finish(grammar.start)
    with pytest.raises(AnswerBudgetError):
        GrammarConstraint([grammar], needed - 1)
    assert GrammarConstraint([grammar], needed).max_depth == needed
