"""Answers under compiled schemas: valid whatever the model, and forced only as a tokenizer would cut them."""

from __future__ import annotations

import json
import random
from functools import cache
from pathlib import Path

import jsonschema
import pytest
import torch
from transformers import PreTrainedModel

from benchmarks.harness.schema_classes import CLASSES, SchemaClass
from decoding.answering import AnswerParams, AnswerText, Speller, write_answers
from decoding.grammar.compile_options import GrammarOptions
from decoding.grammar.json_grammar import Grammar, compile_schema
from decoding.grammar.leaves.leaf_factory import Leaves
from decoding.grammar.vocabulary import Vocabulary
from decoding.model.hf_model import HFLanguageModel
from retrieval.text import TextTokenizer
from tests.shared_titles import load_tokenizer
from tests.verified_architectures import build

SHIPPED = Path(__file__).resolve().parents[3] / "data" / "small-model"
PIECES = [
    b'{"',
    b'": ',
    b'": "',
    b'", "',
    b'"}',
    b"true",
    b"false",
    b"null",
    b"name",
    b"age",
    b"field",
    b'":',
]
VOCABULARY = Vocabulary(
    [None, None, None, *(bytes([byte]) for byte in range(256)), *PIECES], end_token_id=2, vocab_size=280
)


@cache
def leaves() -> Leaves:
    return Leaves(VOCABULARY)


@cache
def grammar_of(name: str) -> Grammar:
    (one,) = (one for one in CLASSES if one.name == name)
    return compile_schema(one.text, leaves(), GrammarOptions.for_writing())


def longest_match(text: bytes) -> list[int]:
    """A tokenizer that takes the longest piece from the left."""
    tokens = []
    while text:
        best = max((t for t in range(3, 271) if text.startswith(VOCABULARY.bytes_of(t) or b"?")), key=_length)
        tokens.append(best)
        text = text[_length(best) :]
    return tokens


def _length(token: int) -> int:
    return len(VOCABULARY.bytes_of(token) or b"")


def model_of(architecture: str, seed: int = 0) -> PreTrainedModel:
    positions = {} if architecture == "t5" else {"max_position_embeddings": 512}
    return build(architecture, seed=seed, changes={"vocab_size": 280, **positions})


def check(answers: list[object], names: list[str], budgets: list[int]) -> list[AnswerText]:
    schemas = {one.name: one.schema for one in CLASSES}
    checked = []
    for answer, name, budget in zip(answers, names, budgets, strict=True):
        assert isinstance(answer, AnswerText)
        jsonschema.validate(json.loads(answer.text), schemas[name])
        assert len(answer.token_ids) <= budget
        checked.append(answer)
    return checked


@pytest.mark.parametrize("architecture", ["llama-gqa", "gpt2", "gemma3", "bart", "t5"])
def test_answers_are_valid_with_and_without_everything(architecture: str) -> None:
    names = ["simple3", "boolnull", "enum5", "freetext"]
    grammars = [grammar_of(name) for name in names]
    target, draft = (HFLanguageModel(model_of(architecture, seed)) for seed in (0, 1))
    prompts = [[5, 6, 7], [8], [9, 10], [11, 12, 13, 14]]
    budgets = [grammar.tokens_to_finish(grammar.start) + 7 * place for place, grammar in enumerate(grammars)]
    speller = Speller(longest_match, VOCABULARY)
    for temperature in (0.0, 1.0):
        params = [AnswerParams(max_tokens=n, temperature=temperature, forced_spans=False) for n in budgets]
        plain = check(write_answers(target, prompts, grammars, params), names, budgets)
        drafted = check(write_answers(target, prompts, grammars, params, draft=draft), names, budgets)
        if temperature == 0:
            assert [one.token_ids for one in drafted] == [one.token_ids for one in plain]
            for one, other in zip(drafted, plain, strict=True):
                assert one.logprob == pytest.approx(other.logprob, abs=1e-3)
        params = [AnswerParams(max_tokens=n, temperature=temperature) for n in budgets]
        forced = write_answers(target, prompts, grammars, params, speller=speller, draft=draft)
        assert all(one.counts.forced > 0 for one in check(forced, names, budgets)[1:])


def test_logprobs_are_those_of_plain_passes() -> None:
    module = model_of("llama-gqa")
    grammar = grammar_of("simple3")
    prompt = [5, 6, 7]
    speller = Speller(longest_match, VOCABULARY)
    (answer,) = write_answers(
        HFLanguageModel(model_of("llama-gqa")),
        [prompt],
        [grammar],
        AnswerParams(max_tokens=48),
        speller=speller,
    )
    assert isinstance(answer, AnswerText)
    assert answer.counts.forced > 5
    with torch.no_grad():
        logits = module(input_ids=torch.tensor([[*prompt, *answer.token_ids[:-1]]])).logits[0, 2:]
    said = logits.double().log_softmax(-1).gather(1, torch.tensor(answer.token_ids)[:, None])
    assert answer.logprob == pytest.approx(float(said.sum()), abs=1e-3)


# Share of tokens that need no choice, at least; compact and spaced. Per cent, of twenty instances with GPT-2.
# Of `boolnull` and `enum5` it is all but the values; elsewhere some tokens that lie in forced bytes are held
# back, since a token may go on into a text or a number behind them. With these, as far as they are asked for:
SHARES = {
    "simple3": ((40, 55), (53, 61)),
    "nested2": ((34, 51), (49, 61)),
    "array_objs": ((27, 48), (43, 55)),
    "complex10": ((42, 58), (49, 61)),
    "enum5": ((80, 85), (80, 85)),
    "freetext": ((3, 5), (5, 7)),
    "boolnull": ((77, 80), (77, 80)),
    "optional10": ((14, 31), (28, 42)),
    "tree": ((29, 54), (49, 62)),
    "reviews": ((84, 86), (84, 86)),
    "address": ((23, 34), (33, 42)),
}
# Names of several tokens each, as those of applications.
_FLAGS = ("is_reviewed", "is_published_now", "was_imported", "has_open_issues", "needs_translation")
_PARTS = ("street_name", "house_number", "postal_code", "city_name", "country_code", "phone_number")
WORDY = (
    SchemaClass(
        "reviews",
        {
            "type": "object",
            "properties": {name: {"type": ["boolean", "null"]} for name in _FLAGS},
            "required": list(_FLAGS),
        },
        lambda chosen: {name: chosen.choice([True, False, None]) for name in _FLAGS},
    ),
    SchemaClass(
        "address",
        {"type": "object", "properties": {name: {"type": "string"} for name in _PARTS}},
        lambda chosen: {
            name: " ".join(chosen.choices(("amber", "river", "quiet", "engine"), k=chosen.randint(1, 3)))
            for name in _PARTS
            if chosen.random() < 0.5
        },
    ),
)


@cache
def real(name: str) -> tuple[TextTokenizer, Leaves, Speller]:
    tokenizer = TextTokenizer.load(SHIPPED) if name == "shipped" else load_tokenizer(name)
    size = tokenizer._plain.get_vocab_size()
    vocabulary = Vocabulary.from_tokenizer(tokenizer.serialized, size, size + 1)
    return tokenizer, Leaves(vocabulary), Speller(tokenizer.encode_bytes, vocabulary)


def shares_of(
    tokenizer_name: str, one: SchemaClass, options: GrammarOptions, count: int
) -> tuple[float, float]:
    """Walk along what the tokenizer makes of instances; every span must be part of it.

    The share of tokens that are forced, and of those that are forced or likely.
    """
    tokenizer, its_leaves, speller = real(tokenizer_name)
    grammar = compile_schema(one.text, its_leaves, options)
    separators = (",", ":") if options.whitespace == "compact" else (", ", ": ")
    num_forced = num_likely = num_tokens = 0
    for value in one.instances(count):
        tokens = tokenizer.encode_bytes(json.dumps(value, ensure_ascii=False, separators=separators).encode())
        assert tokens is not None
        place, state = 0, grammar.start
        while place < len(tokens):
            span = list(speller.span(grammar, state, tokens[:place]))
            assert span == tokens[place : place + len(span)]
            num_forced += len(span)
            num_likely += not span and tokens[place] in speller.likely(grammar, state, tokens[:place])[:1]
            for token in tokens[place : place + max(len(span), 1)]:
                state = grammar.advance(state, token)
                place += 1
        assert grammar.is_complete(state)
        num_tokens += len(tokens)
    return num_forced / num_tokens, (num_forced + num_likely) / num_tokens


@pytest.mark.parametrize("one", WORDY, ids=lambda one: one.name)
def test_a_tokenizer_that_puts_a_blank_before_a_text_is_spared_the_names(one: SchemaClass) -> None:
    """An answer stands behind a prompt: the blank, which the shipped tokenizer puts, is no part of it."""
    options = GrammarOptions(whitespace="spaced", property_order="schema", extra_properties="declared")
    assert shares_of("shipped", one, options, 20)[0] > 0.4


@pytest.mark.shared_data
@pytest.mark.parametrize("one", [*CLASSES, *WORDY], ids=lambda one: one.name)
def test_gpt2_is_spared_a_share_of_every_schema(one: SchemaClass) -> None:
    for whitespace, *least in zip(("compact", "spaced"), *SHARES[one.name], strict=True):
        options = GrammarOptions(
            whitespace=whitespace,
            property_order="schema",
            extra_properties="declared",  # type: ignore[arg-type]
        )
        shares = [100 * share for share in shares_of("gpt2", one, options, 20)]
        assert all(share >= asked for share, asked in zip(shares, least, strict=True)), (whitespace, shares)


@pytest.mark.shared_data
@pytest.mark.parametrize(
    "tokenizer",
    [
        pytest.param("cl100k_base", marks=pytest.mark.slow),
        pytest.param("o200k_base", marks=pytest.mark.slow),
        "titles_bytebpe8k",
    ],
)
def test_other_tokenizers_would_have_made_every_forced_token(tokenizer: str) -> None:
    rng = random.Random(0)
    shares = []
    for one in CLASSES:
        options = GrammarOptions(
            whitespace=rng.choice(["compact", "spaced", "flexible"]),  # type: ignore[arg-type]
            property_order="schema",
            extra_properties="declared",
        )
        shares.append(shares_of(tokenizer, one, options, 4)[0])
    assert max(shares) > 0.2
