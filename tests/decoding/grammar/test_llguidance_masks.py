"""Masks are those of llguidance, an engine of other authors, bit by bit, wherever both mean the same."""

from __future__ import annotations

import json
import random
import re
from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from benchmarks.harness.schema_classes import CLASSES, SchemaClass
from genret.decoding.grammar.compile_options import GrammarOptions
from genret.decoding.grammar.errors import GrammarError
from genret.decoding.grammar.json_grammar import compile_schema
from genret.decoding.grammar.leaves.leaf_factory import Leaves
from genret.decoding.grammar.vocabulary import Vocabulary
from tests.json_tokenizers import byte_level
from tests.leaf_oracle import tokens_in
from tests.shared_titles import schema_rows

llguidance = pytest.importorskip("llguidance")
pytest.importorskip("llguidance.numpy")

# One spelling for each value, one blank behind commas and colons, keys in the schema's order.
OPTIONS = GrammarOptions(whitespace="spaced", property_order="schema", inexact="narrow")
SPACING = {"item_separator": ", ", "key_separator": ": ", "whitespace_flexible": False}
TEXTS = [text for token in range(byte_level().vocab_size) if (text := byte_level().bytes_of(token))]
END = len(TEXTS)
VOCABULARY = Vocabulary([*TEXTS, None], END, END + 1)
LEAVES = Leaves(VOCABULARY)


class Tokens:
    """The vocabulary as llguidance asks for one; no text is ever tokenised."""

    tokens = (*TEXTS, b"</s>")
    eos_token_id, bos_token_id, special_token_ids = END, None, (END,)

    def __call__(self, text: bytes) -> list[int]:
        return list(text)


TOKENIZER = llguidance.LLTokenizer(llguidance.TokenizerWrapper(Tokens()))
# Formats that mean more or less there: the year 0, no words in quotes before an at-sign, no leap seconds.
OTHER_FORMATS = ("date", "date-time", "time", "email")
# Keywords that may stand beside a `$ref`; others apply there, while drafts up to 7 ignore them.
ANNOTATIONS = {"$ref", "title", "description", "default", "examples", "$comment", "definitions", "$schema"}
OLD_DRAFT = re.compile("draft-0[4-7]")
# A number that could be spelled in fewer characters.
LONG_NUMBER = re.compile(rb"[-.0-9]*\.[0-9]*0|-0|[-.0-9]+[eE][-+]?[0-9]+")


def is_known_difference(written: bytes, token: int, is_ours: bool) -> bool:
    """Whether a token that only one of both allows is one of those that may differ.

    * DEL in a string: written as it is here, as `json.dumps` does, and never there.
    * A number's spelling: one for each value here, any there (`1.50`, `1e3`, `-0`).
    """
    text = TEXTS[token]
    if b"\x7f" in text:
        return is_ours
    in_string = written.replace(b"\\\\", b"").replace(b'\\"', b"").count(b'"') % 2
    if is_ours or in_string:
        return False
    number = written[len(written.rstrip(b"-+.0123456789eE")) :]
    return bool(LONG_NUMBER.fullmatch(number)) or text.lstrip()[:1] in b"-+.0123456789eE"


def means_the_same(schema: Any, is_old: bool) -> bool:
    """Whether a schema says nothing that both read differently."""
    if isinstance(schema, list):
        return all(means_the_same(part, is_old) for part in schema)
    if not isinstance(schema, dict):
        return True
    if schema.get("format") in OTHER_FORMATS or (is_old and "$ref" in schema and schema.keys() - ANNOTATIONS):
        return False
    return all(means_the_same(part, is_old) for part in schema.values())


def tokenised(text: bytes, rng: random.Random) -> Iterator[int]:
    """Spell a text by random tokens of the vocabulary."""
    place = 0
    while place < len(text):
        node, found = VOCABULARY.root, []
        for byte in text[place:]:
            if byte not in node.children:
                break
            node = node.children[byte]
            found += node.tokens
        token = rng.choice(found)
        place += len(TEXTS[token])
        yield token


def compared(schema: dict[str, Any], value: Any) -> str:
    """Compare all masks on the way to a value; return why schemas cannot be compared, or "" if they were."""
    text = json.dumps(value, ensure_ascii=False).encode()
    grammar_text = json.dumps({**schema, "x-guidance": SPACING})
    # Without `no_forcing`, only one spelling of a text that must come would be allowed.
    grammar = llguidance.LLMatcher.grammar_from_lark(
        f'%llguidance {{"no_forcing": true}}\nstart: %json {grammar_text}'
    )
    theirs = llguidance.LLMatcher(TOKENIZER, grammar, log_level=0)
    if theirs.is_error():
        return "refused there"
    try:
        ours = compile_schema(schema, LEAVES, OPTIONS)
    except GrammarError:
        return "refused here"
    state, written = ours.start, b""
    bits = np.zeros((1, VOCABULARY.num_words), np.int32)
    for token in (*tokenised(text, random.Random(len(text))), None):
        llguidance.numpy.fill_next_token_bitmask(theirs, bits, 0)
        mask, other = ours.mask(state), bits[0].view(np.uint32)
        for differing in tokens_in(mask ^ other):
            is_ours = bool(mask[differing >> 5] >> (differing & 31) & 1)
            known = is_known_difference(written, differing, is_ours)
            assert known, (schema, written, TEXTS[differing], is_ours)
        state = -1 if token is None else ours.advance(state, token)
        if state < 0:
            break  # the value is spelled or ordered in another way
        theirs.consume_token(token)
        written += TEXTS[token]
    return ""


@pytest.mark.parametrize("of", CLASSES, ids=lambda of: of.name)
def test_masks_of_small_schemas(of: SchemaClass) -> None:
    for value in of.instances(3):
        assert compared(of.schema, value) == ""


@pytest.mark.parametrize(
    ("pattern", "bounds", "value"),
    [
        ("^[a-zé]+( [a-zé]+)*$", (3, 400), "abc é" * 79),
        ("^(?:ab|cde)*$", (5, 40), "abcde" * 8),
        (r"^(?:a\\|\"b)+$", (0, 255), 'a\\"b' * 60),
    ],
)
def test_lengths_beside_patterns(pattern: str, bounds: tuple[int, int], value: str) -> None:
    schema = {"type": "string", "pattern": pattern, "minLength": bounds[0], "maxLength": bounds[1]}
    assert compared(schema, value) == ""


@pytest.mark.shared_data
@pytest.mark.slow
def test_masks_of_real_schemas() -> None:
    outcomes: Counter[str] = Counter()
    for row in schema_rows():
        schema = row["schema"]
        values = [test["data"] for test in row["tests"] if test["valid"]]
        if not values or not isinstance(schema, dict):
            continue
        if not means_the_same(schema, bool(OLD_DRAFT.search(str(schema.get("$schema"))))):
            outcomes["means something else there"] += 1
            continue
        outcomes[compared(schema, values[0])] += 1
        if outcomes[""] == 500:
            break
    assert outcomes[""] == 500, outcomes
