"""Documents are valid whatever tokens are taken, and the last check refuses what is not."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from benchmarks.harness.answer_schemas import SCHEMAS, AnswerSchema
from genret.decoding.grammar.compile_options import GrammarOptions
from genret.decoding.grammar.errors import VocabularyError
from genret.decoding.grammar.json_grammar import Grammar, compile_schema
from genret.retrieval.answers.validation import AnswerValidator, InvalidAnswerError
from tests.grammar_oracle import BOOLEAN, HUGE, Choose, walked
from tests.json_tokenizers import KINDS, leaves


def check(schema: object, text: str) -> None:
    AnswerValidator(json.dumps(schema)).check(text)


@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        ({"type": "number", "multipleOf": 0.01}, ["0.07"], ["0.075"]),  # 7.000000000000001 in binary
        ({"type": "integer"}, ["1.0", "1e3"], ["1.5", "true"]),
        ({"minimum": 0.1}, ["0.1"], []),
        ({"items": [{"type": "string"}], "additionalItems": False}, ['["a"]'], ['["a", 1]']),
        ({"minimum": 3, "exclusiveMinimum": True}, ["4"], ["3"]),
        ({"dependencies": {"a": ["b"]}}, ['{"a": 1, "b": 2}'], ['{"a": 1}']),
        ({"type": "string", "x-genret-index": "titles"}, ['"anything"'], []),
        ({"type": "string", "format": "date"}, [], ['"2023-02-29"']),
        (True, [], ['{"a": ', "NaN"]),
        (False, [], ["1"]),
    ],
)
def test_valid_documents_pass_and_others_are_refused(schema: object, good: list[str], bad: list[str]) -> None:
    for text in good:
        check(schema, text)
    for text in bad:
        with pytest.raises(InvalidAnswerError):
            check(schema, text)


def test_the_message_says_where_and_does_not_quote_the_document() -> None:
    schema = {"properties": {"a": {"items": {"type": "integer"}}}}
    with pytest.raises(
        InvalidAnswerError, match=r"\$\.a\[1\] breaks 'type' at #/properties/a/items/type"
    ) as caught:
        check(schema, '{"a": [1, "secret"]}')
    assert "secret" not in str(caught.value)


def test_numbers_that_no_decimal_holds_are_refused_by_name() -> None:
    with pytest.raises(InvalidAnswerError, match="too large an exponent"):
        AnswerValidator("true").check("1.5e99999999999999999999")


@pytest.mark.parametrize("draft", ["draft/2020-12", "draft/2019-09", "draft-07"])
def test_what_refers_back_to_the_root_is_validated_as_the_root_is(draft: str) -> None:
    schema = {
        "$schema": f"http{'s' if '/' in draft else ''}://json-schema.org/{draft}/schema",
        "properties": {"v": {"type": "integer", "multipleOf": 0.5}, "left": {"$ref": "#"}},
    }
    validator = AnswerValidator(json.dumps(schema))
    validator.check('{"v": 1.5e22, "left": {"v": 2.0, "left": {"v": 1.5e22}}}')
    with pytest.raises(InvalidAnswerError, match=r"left\.v breaks 'type'"):
        validator.check('{"left": {"v": 1.5}}')


def test_formats_are_only_checked_where_they_are_enforced() -> None:
    AnswerValidator('{"format": "date"}', "annotate").check('"no date"')


OPTIONS = {"reading": GrammarOptions(), "writing": GrammarOptions.for_writing()}
# Tokens beyond those of the shortest document.
SPARE = (0, 0, 1, 6, 30, 90)


def grammar_of(one: AnswerSchema, kind: str, how: str) -> Grammar | None:
    """The grammar, None where the vocabulary cannot write any document."""
    options = OPTIONS[how]
    if kind == "wordpiece" and how == "writing":
        options = replace(options, whitespace="compact")  # its tokens write no blanks
    try:
        return compile_schema(one.text, leaves(kind), options)
    except VocabularyError:
        assert kind == "wordpiece", one.name
        return None


def chooser(grammar: Grammar, seed: int) -> Choose:
    """Every other walk takes any token, the others some far more often."""
    rng = np.random.default_rng(seed)
    weights = rng.standard_normal((seed, grammar.vocab_size)) * 4
    weights[::2] = 0

    def choose(walker: int, allowed: list[int], written: int) -> int:
        return allowed[int(np.argmax(weights[walker, allowed] + rng.gumbel(size=len(allowed))))]

    return choose


def check_walks(one: AnswerSchema, grammar: Grammar, how: str, num_walks: int) -> int:
    """Walk, and validate what was written; returns how many documents were validated in full."""
    needed = grammar.tokens_to_finish(grammar.start)
    budgets = [needed + SPARE[number % len(SPARE)] for number in range(num_walks)]
    validator = AnswerValidator(one.text)
    validated = 0
    end = grammar.vocabulary.end_token_id
    for budget, tokens in zip(budgets, walked(grammar, budgets, chooser(grammar, num_walks)), strict=True):
        assert len(tokens) <= budget
        assert tokens.index(end) == len(tokens) - 1
        text = grammar.text(tokens)
        if how == "reading" and HUGE.search(text):
            json.loads(text, parse_float=str)
            continue
        validator.check(text.decode())
        validated += 1
    return validated


def every_walk(num_walks: int, one_in: int) -> tuple[int, int]:
    """Walk under the schemas, in every vocabulary; returns documents that were written, and validated.

    Args:
        num_walks: Under each grammar.
        one_in: Of so many pairs of a schema with a vocabulary and options one is taken, each schema in turn.
    """
    schemas = [one for one in SCHEMAS if not one.has_titles]
    ways = [(kind, how) for kind in KINDS for how in OPTIONS]
    written = validated = compiled = 0
    for number, (kind, how) in enumerate(ways):
        for place, one in enumerate(schemas):
            if (number + place) % one_in:
                continue
            grammar = grammar_of(one, kind, how)
            if grammar is not None:
                compiled += 1
                written += num_walks
                validated += check_walks(one, grammar, how, num_walks)
    assert compiled >= 0.95 * len(ways) * len(schemas) // one_in
    return written, validated


@pytest.mark.parametrize(
    ("num_walks", "one_in", "least"),
    [(4, 3, 300), pytest.param(39, 1, 10_000, marks=[pytest.mark.slow, pytest.mark.timeout(1800)])],
)
def test_no_walk_is_stuck_and_all_are_valid(num_walks: int, one_in: int, least: int) -> None:
    written, validated = every_walk(num_walks, one_in)
    assert written >= least
    assert validated > 0.95 * written


@pytest.mark.parametrize("how", sorted(OPTIONS))
@pytest.mark.parametrize(
    "schema",
    [
        {"properties": {"a": BOOLEAN, "b c": BOOLEAN}, "required": ["a"], "additionalProperties": False},
        {"properties": {"b c": BOOLEAN}, "patternProperties": {"^ß": BOOLEAN}, "additionalProperties": False},
        {"patternProperties": {"^ß": BOOLEAN}, "additionalProperties": {"type": "null"}, "maxProperties": 3},
        {"patternProperties": {"^(ß|a)$": BOOLEAN}, "additionalProperties": False, "minProperties": 1},
    ],
    ids=["a name", "a class of names", "a class among others", "all names but one"],
)
def test_keys_that_a_vocabulary_cannot_write_are_left_out(schema: dict[str, object], how: str) -> None:
    one = AnswerSchema("keys", {"type": "object", **schema})
    grammar = grammar_of(one, "wordpiece", how)
    check_walks(one, grammar, how, 24)


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ({"properties": {"a": BOOLEAN, "b c": BOOLEAN}, "required": ["a", "b c"]}, "cannot write ' '"),
        (
            {"patternProperties": {"^ß": BOOLEAN}, "additionalProperties": False, "minProperties": 1},
            "any of the keys that are allowed",
        ),
    ],
    ids=["a name", "a class of names"],
)
def test_where_a_key_must_be_there_that_cannot_be_written_the_vocabulary_is_to_blame(
    schema: dict[str, object], message: str
) -> None:
    with pytest.raises(VocabularyError, match=message):
        compile_schema({"type": "object", **schema}, leaves("wordpiece"), GrammarOptions())
