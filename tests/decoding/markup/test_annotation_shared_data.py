"""Real tokenizers, and titles and texts as odd as real ones are: every walk ends and is read back."""

from __future__ import annotations

import random

import pytest

from decoding.grammar.holes.text_leaf import TextSearcher
from decoding.grammar.vocabulary import Vocabulary
from decoding.markup.annotation_grammar import AnnotationGrammar
from decoding.markup.link_syntax import MentionRules, read_annotated
from decoding.markup.link_titles import LinkTitles
from decoding.sorted_texts import SortedTexts
from tests.shared_titles import load_tokenizer, odd_titles

pytestmark = pytest.mark.shared_data
END_TOKENS = {"gpt2": "<|endoftext|>", "mistral_v1_sp32k": "</s>", "titles_bytebpe8k": "</s>"}


@pytest.mark.parametrize("name", END_TOKENS)
@pytest.mark.parametrize("is_compiled", [False, True], ids=["python", "compiled"])
def test_odd_titles_are_written_into_odd_texts(name: str, is_compiled: bool) -> None:
    tokenizer = load_tokenizer(name)
    end = tokenizer.token_id(END_TOKENS[name])
    if end is None:
        end = 0
    vocabulary = Vocabulary.from_tokenizer(tokenizer.serialized, end, tokenizer.vocab_size)
    odd = [title for title in odd_titles() if title and title.isprintable()]
    searcher = TextSearcher(vocabulary)
    if is_compiled:
        searcher.warm_up()
    titles = LinkTitles(SortedTexts.of(title.encode() for title in odd), searcher)
    rng = random.Random(11)
    num_links = 0
    for _ in range(150):
        text = " ".join(rng.choices(odd, k=3))[:200]
        grammar = AnnotationGrammar(text, titles, MentionRules(word_boundaries=rng.random() < 0.5))
        state, tokens = grammar.start, []
        while state != grammar.finished:
            allowed = grammar.tokens(state).tolist()
            assert allowed
            opening = [token for token in allowed if b"[" in vocabulary.written(token)]
            tokens.append(rng.choice(opening if opening and rng.random() < 0.3 else allowed))
            state = grammar.advance(state, tokens[-1])
        read = read_annotated(grammar.text(tokens))
        assert read.text.decode() == text
        for link in read.links:
            assert [odd[number] for number in titles.members(link.title)] == [
                title for title in odd if title == link.title.decode()
            ]
        num_links += len(read.links)
    assert num_links > 100
