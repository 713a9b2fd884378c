"""Grammars of compiled schemas: the documents they allow, walks that end within budgets, what is forced."""

from __future__ import annotations

import json
import random
from decimal import Decimal
from itertools import product
from typing import Any

import jsonschema
import numpy as np
import pytest

from genret.decoding.grammar.compile_options import GrammarOptions
from genret.decoding.grammar.constraint import GrammarConstraint
from genret.decoding.grammar.errors import AnswerBudgetError, UnsatisfiableSchemaError, VocabularyError
from genret.decoding.grammar.json_grammar import Grammar, compile_schema
from genret.decoding.grammar.leaves.leaf_factory import Leaves
from genret.decoding.grammar.vocabulary import Vocabulary
from tests.grammar_oracle import (
    BOOLEAN,
    COMPACT,
    HUGE,
    INTEGER,
    NULL,
    OPTIONS,
    SCHEMAS,
    STRING,
    WHITESPACES,
    accepts,
    array,
    brute_force,
    byte_vocabulary,
    chosen,
    json_leaves,
    record,
    unpacked,
    walked,
    walked_states,
)
from tests.leaf_oracle import BYTES, in_threads
from tests.own_process import outputs_by_hash_seed

ITSELF = {"$ref": "#"}
# Objects that may hold themselves, and the shortest document of each.
RECURSIVE: dict[str, tuple[Any, str]] = {
    "itself first": (record(["a"], b=ITSELF, a=BOOLEAN), '{"a":true}'),
    "itself under a short name": (record(["name"], x=ITSELF, name=BOOLEAN), '{"name":true}'),
    "two of themselves": (record(["v"], l=ITSELF, r=ITSELF, v=BOOLEAN), '{"v":true}'),
    "a value or itself": (
        record(["a"], a={"anyOf": [ITSELF, {"const": "long enough to be dear"}]}),
        '{"a":"long enough to be dear"}',
    ),
    "each other": (
        {
            "$defs": {
                "x": record(["p"], q={"$ref": "#/$defs/y"}, p={"const": 12345}),
                "y": record(["p"], q={"$ref": "#/$defs/x"}, p=BOOLEAN, r={"$ref": "#/$defs/y"}),
            },
            "$ref": "#/$defs/x",
        },
        '{"p":12345}',
    ),
}
PERSON = {**record(a=STRING, b={"enum": ["x", "yy"]}), "required": ["a"]}
# Items that must differ: states count as alike until a text that matters begins like them.
DIFFERENT = {
    "strings that differ": array(STRING, uniqueItems=True, minItems=2),
    "records that differ": array(PERSON, uniqueItems=True, minItems=2),
    "strings and arrays that differ": array(
        {"anyOf": [STRING, array(INTEGER, maxItems=2)]}, uniqueItems=True, minItems=2
    ),
    "strings that differ from the first": {
        **array(STRING, uniqueItems=True, minItems=3),
        "prefixItems": [{"enum": ["", "a", "b"]}],
    },
}
ALL = {**SCHEMAS, **{name: schema for name, (schema, _) in RECURSIVE.items()}, **DIFFERENT}


def grammar_of(name: str, how: str) -> Grammar:
    return compile_schema(json.dumps(ALL[name]), json_leaves(), OPTIONS[how])


def number(text: str) -> int | float:
    """A number, exact where it is whole: a double would make infinity of 1e400."""
    exact = Decimal(text)
    return int(exact) if exact == exact.to_integral_value() else float(exact)


def is_valid(name: str, text: bytes) -> bool:
    return jsonschema.Draft202012Validator(
        ALL[name], format_checker=jsonschema.Draft202012Validator.FORMAT_CHECKER
    ).is_valid(json.loads(text, parse_float=number))


@pytest.mark.parametrize("how", sorted(OPTIONS))
@pytest.mark.parametrize("name", sorted(ALL))
def test_walks_end_in_valid_json_within_any_budget(name: str, how: str) -> None:
    grammar = grammar_of(name, how)
    needed = grammar.tokens_to_finish(grammar.start)
    with pytest.raises(AnswerBudgetError) as caught:
        GrammarConstraint([grammar], needed - 1)
    assert (caught.value.budget, caught.value.needed) == (needed - 1, needed)
    budgets = [needed + more for more in (0, 1, 2, 4, 10, 40, 60) for _ in range(4)]
    for tokens in walked(grammar, budgets, random.Random(f"{name} {how}")):
        text = grammar.text(tokens)
        # Numbers of hundreds of digits are for the tests of numbers; here they need only be JSON.
        assert json.loads(text, parse_float=str) is not None if HUGE.search(text) else is_valid(name, text)
        assert grammar.holes(text) == ()


@pytest.mark.parametrize("name", RECURSIVE)
def test_objects_that_may_hold_themselves_end_as_soon_as_they_can(name: str) -> None:
    schema, shortest = RECURSIVE[name]
    grammar = compile_schema(schema, Leaves(byte_vocabulary()), COMPACT)
    assert grammar.tokens_to_finish(grammar.start) == len(shortest) + 1


@pytest.mark.parametrize("how", sorted(OPTIONS))
def test_objects_that_need_members_under_any_names_are_ended_without_trying_all_names(how: str) -> None:
    """Every free key is a text of its own where members are counted; a short one will do."""
    vocabulary = Vocabulary([*BYTES, None], 256, 257)
    grammar = compile_schema({"type": "object", "minProperties": 2}, Leaves(vocabulary), OPTIONS[how])
    # The fourth ends within a character of four bytes: three levels of 64 states without an end.
    for begun in (b"", b"{", b'{"k', b'{"?\xf1', b'{"key": [1, 2'):
        state = grammar.advance_bytes(grammar.start, begun)
        left = grammar.tokens_to_finish(state)
        while state != grammar.finished:
            state = next(
                following
                for token in grammar.tokens(state).tolist()
                if grammar.can_finish(following := grammar.advance(state, token), left - 1)
            )
            left -= 1
        assert left >= 0


@pytest.mark.parametrize("how", sorted(OPTIONS))
@pytest.mark.parametrize("name", sorted({*SCHEMAS, *DIFFERENT}))
def test_what_is_needed_falls_by_one_with_some_token(name: str, how: str) -> None:
    grammar = grammar_of(name, how)
    rng = random.Random(f"{name} {how}")
    for state in walked_states(grammar, rng, 4, 12):
        needed = grammar.tokens_to_finish(state)
        assert len(grammar.fitting_tokens(state, needed))
        left = needed + rng.randrange(4)
        fitting = set(grammar.fitting_tokens(state, left).tolist())
        most = grammar.most_tokens_to_finish(state)
        tokens = grammar.tokens(state).tolist()
        for token in rng.sample(tokens, min(40, len(tokens))):
            behind = grammar.tokens_to_finish(grammar.advance(state, token))
            assert (token in fitting) == (behind < left)
            assert most is None or behind <= most
        assert all(
            grammar.can_finish(state, n) == (n >= needed) for n in (needed - 1, needed, 2 * needed + 9)
        )


@pytest.mark.parametrize("name", sorted(SCHEMAS))
def test_forced_bytes_are_the_only_ones(name: str) -> None:
    grammar = grammar_of(name, "writing")
    for state in walked_states(grammar, random.Random(name), 2, 30):
        place = state
        for byte in grammar.forced_bytes(state):
            following = [b for b in range(256) if grammar.advance_bytes(place, bytes([b])) >= 0]
            assert following == [byte]
            assert not grammar.is_complete(place)
            place = grammar.advance_bytes(place, bytes([byte]))
        following = [b for b in range(256) if grammar.advance_bytes(place, bytes([b])) >= 0]
        assert len(following) != 1 or grammar.is_complete(place)


@pytest.mark.parametrize("name", ["any", "tree"])
def test_deep_nesting(name: str) -> None:
    grammar = grammar_of(name, "writing")
    opening, closing = {"any": (b"[", b"]"), "tree": (b'{"v": 1, "kids": [', b"]}")}[name]
    inside = b"" if name == "any" else b'{"v": 1}'
    state = grammar.advance_bytes(grammar.start, opening * 10_000 + inside)
    assert state >= 0
    assert unpacked(grammar, state)
    assert grammar.tokens_to_finish(state) > 100
    done = grammar.advance_bytes(state, closing * 10_000)
    assert grammar.is_complete(done)
    assert grammar.forced_bytes(done) == b""


def test_states_and_tokens_that_were_never_handed_out_are_refused() -> None:
    grammar = grammar_of("any of", "reading")
    for token in (-1, -(10**9), grammar.vocab_size - 1, grammar.vocab_size, 10**12):
        assert grammar.advance(grammar.start, token) == -1
    assert grammar.advance(-1, 0) == grammar.advance(grammar.finished, grammar.vocabulary.end_token_id) == -1
    assert not unpacked(grammar, grammar.finished)
    assert grammar.advance_bytes(-1, b"{") == -1
    for state in (10**9, -1):
        with pytest.raises(ValueError, match="must be one that was handed out"):
            grammar.mask(state)


def test_eight_threads_see_the_same_grammar() -> None:
    """Each goes its own way through one cold grammar, and finds what a grammar of its own would say."""
    grammar, seeds = grammar_of("any of", "reading"), iter(range(8))

    def walk(mine: Grammar, seed: int) -> tuple[int, list[tuple[bytes, frozenset[int], int]]]:
        rng = random.Random(seed)
        found = []
        for _ in range(10):
            state, written = mine.start, []
            while state != mine.finished and len(written) < 40:
                allowed = unpacked(mine, state)
                found.append((mine.text(written), frozenset(allowed), mine.tokens_to_finish(state)))
                written.append(chosen(mine, rng, sorted(allowed), len(written)))
                state = mine.advance(state, written[-1])
                assert state >= 0
        return seed, found

    together = in_threads(lambda: walk(grammar, next(seeds)))
    assert sorted(together) == [walk(grammar_of("any of", "reading"), seed) for seed in range(8)]


_SCRIPT = """
import random
from tests.decoding.grammar.test_grammar import SCHEMAS, chosen, grammar_of, unpacked
rng = random.Random(3)
for name in sorted(SCHEMAS):
    grammar = grammar_of(name, "reading")
    states, state = [], grammar.start
    for written in range(40):
        allowed = sorted(unpacked(grammar, state))
        states.append((state, len(allowed), grammar.tokens_to_finish(state)))
        if not allowed:
            break
        state = grammar.advance(state, chosen(grammar, rng, allowed, written))
    print(name, states, grammar.forced_bytes(0))
"""


@pytest.mark.slow
def test_states_do_not_depend_on_hash_seeds() -> None:
    (output,) = outputs_by_hash_seed(_SCRIPT)
    assert all(name in output for name in SCHEMAS)


def test_reports_are_made_when_asked_for() -> None:
    schema = dict(SCHEMAS["date"], description="a day")
    grammar = compile_schema(schema, json_leaves(), OPTIONS["writing"])
    schema.clear()
    report = grammar.report()
    assert report is not None
    assert [(entry.keyword, entry.how) for entry in report.entries] == [
        ("type", "enforced"),
        ("format", "enforced"),
        ("description", "annotation"),
    ]


DECLARED = GrammarOptions(whitespace="compact", property_order="schema", extra_properties="declared")
KINDS = [record(k={"const": "a"}, n=BOOLEAN), record(k={"enum": ["a", "ab"]}, n=STRING)]


def declared(schema: Any, options: GrammarOptions = DECLARED) -> Grammar:
    return compile_schema(schema, json_leaves(), options)


@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        (BOOLEAN, ["true", "false"], ["true\0", "True", "null"]),
        ({"type": "number"}, ["-1.5e3"], ["a"]),
        (NULL, ["null"], ["", "0"]),
        (array(INTEGER), ["[1,2]"], ["[a]"]),
        (record(b=record(c=BOOLEAN)), ['{"b":{"c":true}}'], ['{"b":{}}']),
        (SCHEMAS["person"], ['{"name":"x","age":1,"ok":true}'],
         ['{"name":"x","age":1}', '{"age":1}', "{}", '{"name":"x",}']),
        (SCHEMAS["optional"], ["{}", '{"a":1}', '{"a":1,"ab":null}', '{"é":true}'],
         ['{"b":"","a":1}', '{"a":1,"a":1}', "{,}"]),
        ({"enum": ["red", 1, None]}, ['"red"', "1", "null"], ['"blue"']),
        ({"anyOf": [{"enum": [1, 12, -3.5, "a", True]}, {"type": "number"}]},
         ["1", "12", "-3.5", "13", '"a"', "true"], ["01", '"b"', "false", "1.", "-"]),
        ({**record(a={"$ref": "#/$defs/x"}), "$defs": {"x": {"const": 7}}}, ['{"a":7}'], ['{"a":"any"}']),
        (True, ["1", "[]", "true", "null", "1.5", '"x"'], []),
        (STRING, ['"é日😀"', r'"\"\\\/\b\f\n\r\t"', r'"\u00e9\ud83d\ude00"', '""'],
         [r'"\x"', '"\n"', r'"\ud83d"', '"a']),
        ({"type": "string", "minLength": 2, "maxLength": 3, "pattern": "^é"}, ['"é😀"'],
         ['"é"', '"éabc"', '"aé"']),
        (INTEGER, ["-7", "0", "-0", "120", "1.0"],
         ["007", "-", "-01", "1.5", "+1", "1.", ".5", "1e", "1e2", "1.5e22", "0x1"]),
        (record(**{'a"b\\': BOOLEAN}), [r'{"a\"b\\":true}'], ['{"a"b\\":true}']),
        ({"anyOf": [*KINDS, array(INTEGER, maxItems=3), array({"anyOf": [{"const": "q"}, array(NULL)]})]},
         ['{"k":"a","n":true}', '{"k":"a","n":"x"}', '{"k":"ab","n":"x"}', "[1]", '["q",[]]'],
         ['{"k":"ab","n":true}', '{"k":"b","n":"x"}', "[1,2,3,4]", '[1,"q"]']),
        (SCHEMAS["lists"], ["[[1]]", "[[1.5,2]]", "[[],[true]]", "[[1,2,3],[]]"],
         ["[[1.5]]", "[[1],[true]]"]),
        (array({"enum": ["a", "ab", "b", 'q"']}, uniqueItems=True, minItems=2),
         ['["a","b"]', '["ab","q\\"","a"]'], ['["a"]', '["a","a"]', "[]"]),
        (array({**record(a=STRING, b=BOOLEAN), "required": ["a"]}, uniqueItems=True, minItems=2),
         ['[{"a":"x"},{"a":"x","b":true},{"a":"y"}]', '[{"a":"}"},{"a":"{"}]'],
         ['[{"a":"x"},{"a":"x"}]', '[{"a":"x"}]', '[{"b":true},{"a":"x"}]', '[{"a":"x","b":1},{"a":""}]']),
        (array({"anyOf": [INTEGER, array(INTEGER)]}, uniqueItems=True),
         ["[1,[1],[],2,[1,1]]", "[]"], ["[[1],2,[1]]", "[1,1]", "[[],[]]"]),
        (array({"enum": ["ab", [1]]}), ['["ab",[1],"ab"]', "[[1]]"], ['["abbb"]']),
        ({"anyOf": [array(ITSELF), BOOLEAN]}, ["[[],true,[false]]"], ["[1]", "[true,]"]),
    ],
)  # fmt: skip
def test_documents(schema: Any, good: list[str], bad: list[str]) -> None:
    """Alone, and as a member: behind a number or a word the next byte decides."""
    alone = declared(schema)
    assert [text for text in good if not accepts(alone, text)] == []
    assert [text for text in bad if accepts(alone, text)] == []
    if schema is True or "$ref" not in str(schema):
        member = declared(record(a=schema, z=BOOLEAN))
        assert [text for text in good if not accepts(member, f'{{"a":{text},"z":true}}')] == []
        assert [text for text in bad if accepts(member, f'{{"a":{text},"z":true}}')] == []


REPEATED = ["a", "a", True, [1], [1], {"a": 1, "b": 2}, {"b": 2, "a": 1}, None]


@pytest.mark.parametrize("draft", ["draft-04", "draft-06", "draft-07"])
@pytest.mark.parametrize("schema", [
    {"enum": REPEATED}, array({"enum": ["a", "a", 1, 1.0, True]}, uniqueItems=True),
    {"required": ["a", "a", "b"], "minProperties": 2}, {"type": ["string", "array", "string"]},
])  # fmt: skip
def test_repeats_in_a_schema_say_nothing(schema: dict[str, Any], draft: str) -> None:
    said = {"$schema": f"http://json-schema.org/{draft}/schema#", **schema}
    grammar, validator = declared(said, COMPACT), jsonschema.validators.validator_for(said)(said)
    for value in [*REPEATED, ["a", 1, True], ["a", "a"], {"a": 1}]:
        assert accepts(grammar, json.dumps(value, separators=(",", ":"))) == validator.is_valid(value), value


@pytest.mark.parametrize("kind", ["number", "integer"])
@pytest.mark.parametrize("step", ["1", "3", "1.5", "0.01", "1e20"])
def test_multiples_of_large_numbers(kind: str, step: str) -> None:
    grammar = compile_schema(f'{{"type": "{kind}", "multipleOf": {step}}}', json_leaves(), COMPACT)
    for text in ("1", "1.0", "3", "0.0", "0.03", "100000000000000000000", "300000000000000000000", "1e-7"):
        number = Decimal(text)
        expected = number % Decimal(step) == 0 and (kind == "number" or number == number.to_integral_value())
        assert accepts(grammar, text) == expected, text
    large = compile_schema({"type": kind, "multipleOf": 1}, json_leaves(), COMPACT)
    assert accepts(large, "3" + "0" * 22)
    assert [text for text in ("1e+20", "1e20", "3E+22") if accepts(large, text)] == []


@pytest.mark.parametrize(
    ("whitespace", "good", "bad"),
    [
        ("compact", ['{"a":1,"b":""}'], ['{"a": 1}', '{"a":1, "b":""}', "{ }", '{"a":1} ', " {}"]),
        ("spaced", ['{"a": 1, "b": ""}', "{}"], ['{"a":1}', '{"a":  1}', '{"a": 1,"b": ""}', "{ }"]),
        ("flexible",
         ['{"a":1,"b":""}', '{ "a" : 1 , "b" :\n "" }', '{\n   "a":1\n}', "{ }", "{\n}"],
         ['{  "a":1}', '{\n    "a":1}', '{"a":1}\n', "\n{}", '{"a":\t1}', '{ \n"a":1}']),
    ],
)  # fmt: skip
def test_whitespace(whitespace: str, good: list[str], bad: list[str]) -> None:
    grammar = declared(SCHEMAS["optional"], WHITESPACES[whitespace])
    assert [text for text in good if not accepts(grammar, text)] == []
    assert [text for text in bad if accepts(grammar, text)] == []


def test_masks_are_bits_and_are_shared() -> None:
    grammar = declared(record(a=STRING))
    inside = grammar.advance_bytes(grammar.start, b'{"a":"x')
    assert grammar.mask(inside).nbytes == 4 * -(-grammar.vocab_size // 32)
    assert grammar.mask(grammar.advance_bytes(inside, b"yz")) is grammar.mask(inside)


def test_no_mask_is_empty_and_a_vocabulary_that_can_write_nothing_is_refused() -> None:
    needed = sorted({bytes([byte]) for byte in b'{}[]":,\\-+.0123456789eE' + b"abcdflnrstux"})
    with pytest.raises(VocabularyError, match="cannot write"):
        Leaves(Vocabulary([*needed[1:], None], len(needed) - 1, len(needed)))
    shared = Leaves(Vocabulary([*needed, b"ab", b"z", b"bz", None], len(needed) + 3, len(needed) + 4))
    grammar = compile_schema({"type": "object", "additionalProperties": STRING}, shared, DECLARED)
    waiting, seen = [grammar.start], {grammar.start}
    while waiting and len(seen) < 300:
        state = waiting.pop()
        assert state == grammar.finished or unpacked(grammar, state)
        for after in (grammar.advance(state, t) for t in unpacked(grammar, state)):
            if after not in seen:
                seen.add(after)
                waiting.append(after)


def test_what_is_forced_ends_at_the_limit() -> None:
    long = declared({"type": "string", "pattern": "^(a{40})+$"})
    assert len(long.forced_bytes(long.start, 30)) <= 30


@pytest.mark.parametrize("depth", range(1, 12))
def test_a_token_may_close_more_levels_than_any_fixed_number(depth: int) -> None:
    schema: Any = INTEGER
    for _ in range(depth):
        schema = record(a=schema)
    grammar = declared(schema)
    state = grammar.advance_bytes(grammar.start, b'{"a":' * depth + b"1")
    allowed = {grammar.text([token]) for token in unpacked(grammar, state)}
    assert unpacked(grammar, state) == brute_force(grammar, state)
    assert (b"}}}}}}}" in allowed) == (depth >= 7)
    assert (b"}}}}}" in allowed) == (depth >= 5)


def test_masks_of_stacks_that_differ_far_below_are_told_apart() -> None:
    inner = record(a=record(a=record(a=record(a=record(a=INTEGER)))))
    grammar = declared({"anyOf": [{"type": "array", "items": [inner], "maxItems": 1}, record(a=inner)]})
    brackets = grammar.advance_bytes(grammar.start, b"[" + b'{"a":' * 5 + b"1")
    braces = grammar.advance_bytes(grammar.start, b'{"a":' * 6 + b"1")
    for state in (brackets, braces):
        assert unpacked(grammar, state) == brute_force(grammar, state)
    below = [grammar.mask(grammar.advance_bytes(state, b"}" * 5)) for state in (brackets, braces)]
    assert not np.array_equal(*below)


SHORT = {"enum": ["x", "yy"]}
A_OR_B = {"enum": ["a", "b"]}
EITHER = {"propertyNames": A_OR_B, "additionalProperties": SHORT}
B_OR_C = {"properties": {"a": SHORT}, "patternProperties": {"^[bc]$": SHORT}, "additionalProperties": False}


def object_of(schema: Any, how: str = "writing") -> Grammar:
    return compile_schema(json.dumps({"type": "object", **schema}), json_leaves(), OPTIONS[how])


# Keys that a schema gives by sets may run out.
RUNNING_OUT: dict[str, dict[str, Any]] = {
    "one free key behind a named one": {"properties": {"a": SHORT}, **EITHER, "minProperties": 2},
    "no free key": {**EITHER, "minProperties": 2},
    "keys of a pattern": {**B_OR_C, "minProperties": 3},
    "a bound on both sides": {**B_OR_C, "minProperties": 2, "maxProperties": 2},
    "two sets of keys": {
        **B_OR_C,
        "patternProperties": {"^b$": SHORT, "^[cd]$": {"const": "x"}},
        "minProperties": 4,
    },
    "not evaluated": {
        "properties": {"a": SHORT},
        "propertyNames": A_OR_B,
        "unevaluatedProperties": SHORT,
        "minProperties": 2,
    },
    "conditions on values": {**EITHER, "not": {"additionalProperties": {"const": "x"}}, "minProperties": 2},
}


@pytest.mark.parametrize("how", sorted(OPTIONS))
@pytest.mark.parametrize("name", RUNNING_OUT)
def test_no_key_is_chosen_behind_which_there_are_too_few(name: str, how: str) -> None:
    grammar, rng = object_of(RUNNING_OUT[name], how), random.Random(3)
    needed = grammar.tokens_to_finish(grammar.start)
    for tokens in walked(grammar, [needed + rng.randrange(30) for _ in range(60)], rng):
        jsonschema.validate(json.loads(grammar.text(tokens)), {"type": "object", **RUNNING_OUT[name]})


@pytest.mark.parametrize("how", sorted(OPTIONS))
def test_all_objects_of_few_keys_are_those_that_are_valid(how: str) -> None:
    values = ("x", "yy")
    for name, body in RUNNING_OUT.items():
        grammar = object_of(body, how)
        found = False
        for keys in ("", "a", "b", "ab", "ba", "bc", "abc", "cd", "abcd", "bcd", "abd"):
            for picked in product(values, repeat=len(keys)):
                value = dict(zip(keys, picked, strict=True))
                is_valid = jsonschema.Draft202012Validator({"type": "object", **body}).is_valid(value)
                in_order = how == "reading" or "a" not in keys[1:] or "a" not in body.get("properties", {})
                found |= is_valid
                assert accepts(grammar, json.dumps(value)) == (is_valid and in_order), (name, value)
        assert found


def test_keys_that_do_not_suffice_make_a_schema_nothing_is_valid_under() -> None:
    with pytest.raises(UnsatisfiableSchemaError):
        object_of({"propertyNames": A_OR_B, "minProperties": 3})


@pytest.mark.parametrize("how", sorted(OPTIONS))
def test_a_declared_key_is_never_written_twice_and_another_one_does_not_count_twice(how: str) -> None:
    """Parsers keep the last value of a key: what a bound counts must be different keys."""
    grammar = object_of({"properties": {"a": SHORT}, "additionalProperties": SHORT}, how)
    assert accepts(grammar, '{"a": "x", "b": "x"}')
    assert not accepts(grammar, '{"a": "x", "a": "x"}')
    two = object_of({"additionalProperties": SHORT, "minProperties": 2}, how)
    assert not accepts(two, '{"b": "x", "b": "yy"}')
    assert accepts(two, '{"b": "x", "c": "yy"}')
    state = two.advance_bytes(two.start, b'{"b": "x", "b')
    assert unpacked(two, state) == brute_force(two, state)
