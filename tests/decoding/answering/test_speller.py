"""Forced spans: never a token that the tokenizer would not have made of the whole text."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Regex, Tokenizer, pre_tokenizers

from genret.decoding.answering import Speller
from genret.decoding.answering.speller import CONTEXT_TOKENS
from genret.decoding.grammar.vocabulary import Vocabulary
from tests.checkpoints import train_tokenizer
from tests.text_grammar import TextGrammar

END = "<end>"
WORDS = ["amber", "river", "Zürich", "quiet engine", "x", "naïve", "日本語", "", "1, 2"]
WORDS += ['"q"', "a\\b", "\n", "7"]
KEYS = ["name", "names", "id", "user id", "größe", "active", "children", "x", "キー"]
# One that splits by words as GPT-2 does, one with digits in threes, one that keeps words together with signs.
PRE_TOKENIZERS = {
    "words": pre_tokenizers.ByteLevel(add_prefix_space=False),
    "digits": pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(r"\p{N}{1,3}| ?[^\s\p{N}]+|\s+(?!\S)|\s+"), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    ),
    "whole": pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
}


def random_value(rng: random.Random, depth: int = 2) -> object:
    kind = rng.randrange(6 if depth else 4)
    if kind == 0:
        return rng.choice([True, False, None, rng.randrange(10**6), rng.random()])
    if kind == 4:
        return [random_value(rng, depth - 1) for _ in range(rng.randrange(3))]
    if kind == 5:
        return {key: random_value(rng, depth - 1) for key in rng.sample(KEYS, rng.randrange(1, 4))}
    return " ".join(rng.choices(WORDS, k=rng.randrange(4)))


def records(rng: random.Random, count: int, compact: bool) -> list[str]:
    """Objects of one shape, so that much of each is common to all that begin alike."""
    keys = rng.sample(KEYS, 4)
    separators = (",", ":") if compact else (", ", ": ")
    return [
        json.dumps({key: random_value(rng, 1) for key in keys}, ensure_ascii=False, separators=separators)
        for _ in range(count)
    ]


def train(kind: str, num_tokens: int, seed: int = 0) -> Tokenizer:
    rng = random.Random(seed)
    texts = [text for compact in (True, False) for _ in range(20) for text in records(rng, 10, compact)]
    return train_tokenizer(texts, num_tokens, [END], PRE_TOKENIZERS[kind])


def speller_of(tokenizer: Tokenizer, asked: list[bytes] | None = None) -> Speller:
    """A speller of a tokenizer; the texts that it encodes are added to a list."""

    def encode(text: bytes) -> list[int] | None:
        if asked is not None:
            asked.append(text)
        try:
            return ids(tokenizer, text.decode())
        except UnicodeDecodeError:
            return None

    size = tokenizer.get_vocab_size()
    end = tokenizer.token_to_id(END)
    vocabulary = Vocabulary.from_tokenizer(tokenizer.to_str(), size if end is None else end, size + 1)
    return Speller(encode, vocabulary)


def ids(tokenizer: Tokenizer, text: str) -> list[int]:
    return list(tokenizer.encode(text, add_special_tokens=False).ids)


TOKENIZERS = {f"{kind}-{size}": train(kind, size) for kind in PRE_TOKENIZERS for size in (300, 500, 1500)}
SPELLERS = {name: speller_of(tokenizer) for name, tokenizer in TOKENIZERS.items()}


@pytest.mark.parametrize("name", TOKENIZERS)
@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10**9), compact=st.booleans())
def test_spans_are_what_the_tokenizer_makes_of_the_whole_text(name: str, seed: int, compact: bool) -> None:
    tokenizer, speller = TOKENIZERS[name], SPELLERS[name]
    texts = records(random.Random(seed), 12, compact)
    grammar = TextGrammar(speller._vocabulary, [text.encode() for text in texts])
    for text in grammar.texts:
        tokens = ids(tokenizer, text.decode())
        assert grammar.text(tokens) == text
        place = 0
        while place < len(tokens):
            state = grammar.advance_bytes(grammar.start, grammar.text(tokens[:place]))
            span = speller.span(grammar, state, tokens[:place])
            assert list(span) == tokens[place : place + len(span)]
            place += max(len(span), 1)


def span_of(speller: Speller, text: bytes, *others: bytes, written: Sequence[int] = ()) -> list[int]:
    """The forced tokens of a text among the texts that may be written."""
    grammar = TextGrammar(speller._vocabulary, [text, *others])
    return list(speller.span(grammar, grammar.advance_bytes(0, grammar.text(written)), written))


def test_one_text_is_forced_as_a_whole() -> None:
    for name, tokenizer in TOKENIZERS.items():
        text = '{"größe": "river 日本", "names": 1234567}'
        tokens = ids(tokenizer, text)
        assert span_of(SPELLERS[name], text.encode()) == tokens


def test_a_text_is_forced_up_to_where_tokens_could_go_on() -> None:
    tokenizer, speller = TOKENIZERS["words-500"], SPELLERS["words-500"]
    text = b'{"name": "river", "names": '
    tokens = ids(tokenizer, text.decode())
    span = span_of(speller, text + b"1", text + b" 1", text + b"null", text + b'"x"')
    assert span == tokens[: len(span)]
    assert len(tokens) - 3 <= len(span) < len(tokens)


def test_nothing_is_forced_behind_a_cut_that_is_not_the_tokenizers() -> None:
    tokenizer, speller = TOKENIZERS["words-1500"], SPELLERS["words-1500"]
    text = b'{"name": "river", "id": 7}'
    whole = ids(tokenizer, text.decode())
    assert span_of(speller, text) == whole
    letters = ids(tokenizer, '{"nam')
    assert span_of(speller, text, written=letters) == []


def test_spans_begin_and_end_within_characters() -> None:
    """Alternatives may share the first bytes of a character, and so may tokens."""
    tokenizer, speller = TOKENIZERS["words-300"], SPELLERS["words-300"]
    whole = {text: ids(tokenizer, text) for text in ('"日"', '"旧"', '"é"', '"è"')}
    both = [text.encode() for text in whole]
    for text, tokens in whole.items():
        for place in range(len(tokens)):
            span = span_of(speller, text.encode(), *both, written=tokens[:place])
            assert span == tokens[place : place + len(span)]
    # No text says what the tokenizer makes of a part of a character.
    assert span_of(speller, '"日"'.encode(), '"旧"'.encode()) == []


def test_only_the_last_tokens_are_encoded_again() -> None:
    asked: list[bytes] = []
    tokenizer = TOKENIZERS["words-500"]
    watched = speller_of(tokenizer, asked)
    text = '{"name": "' + "amber river " * 200 + 'x"}'
    tokens = ids(tokenizer, text)
    assert span_of(watched, text.encode(), written=tokens[:-4]) == tokens[-4:]
    assert max(map(len, asked)) <= (CONTEXT_TOKENS + 4) * watched._vocabulary.longest_token


def test_spans_are_remembered() -> None:
    asked: list[bytes] = []
    watched = speller_of(TOKENIZERS["words-500"], asked)
    grammar = TextGrammar(watched._vocabulary, [b'{"name": "x", "id": 1}', b'{"name": "y", "id": 2}'])
    first = watched.span(grammar, 0, [])
    count = len(asked)
    assert watched.span(grammar, 0, []) == first != ()
    assert len(asked) == count


def test_what_the_tokenizer_changes_is_not_forced() -> None:
    """A normaliser, or a blank put before every text, and the tokens write other bytes."""
    vocabulary = SPELLERS["words-300"]._vocabulary
    tokenizer = TOKENIZERS["words-300"]
    with_blank = Speller(lambda text: ids(tokenizer, " " + text.decode()), vocabulary)
    assert span_of(with_blank, b'{"name": "x"}') == []
    assert span_of(Speller(lambda text: None, vocabulary), b'{"name": "x"}') == []
