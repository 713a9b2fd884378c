"""BM25 over titles, aliases and descriptions against its formula, written out."""

from __future__ import annotations

import math
import re
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from genret.retrieval.evaluation.methods.model_free_methods import LexicalIndex
from genret.retrieval.index.reader import Index
from genret.retrieval.text import TextTokenizer
from tests.checkpoints import make_index, train_tokenizer

K1, B = 1.5, 0.75
CATALOGUE = (
    "entity_id\ttitle\taliases\tdescription\n"
    "a\tThe Who\t\tan English rock band\n"
    "b\tC\tC language\tprogramming language of 1972\n"
    "c\tWho Framed Roger Rabbit\tRoger Rabbit\ta film of 1988\n"
    "d\tRabbit\tBunny|Coney\tan animal\n"
    "e\tRabbit, Run\t\ta novel\n"
    "f\tÉclair\t\tpastry\n"
    "g\tRabbit hole\t\t\n"
    "h\tRabbit ears\t\t\n"
)
WORDS = ("the", "who", "c", "rabbit", "RABBIT", "roger", "of", "a", "1988", "éclair", "coney", "nothing")
WORDS += ("language",)


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Index:
    tokenizer = TextTokenizer(train_tokenizer([CATALOGUE]), "</s>", "trained")
    return Index.open(make_index(tmp_path_factory.mktemp("lexical"), tokenizer, CATALOGUE))


@pytest.fixture(scope="module")
def lexical(index: Index) -> LexicalIndex:
    return LexicalIndex(index)


def words_of(text: str) -> list[str]:
    return re.findall(r"\w+", text.lower())


def oracle(index: Index, query: str) -> dict[str, float]:
    """Lucene's BM25 of every entity that shares a word with a query."""
    documents = {}
    for number in range(index.num_entities):
        entity = index.entity(number)
        text = " ".join([entity.title, *entity.aliases, str(entity.metadata["description"] or "")])
        documents[entity.entity_id] = words_of(text)
    mean = sum(map(len, documents.values())) / len(documents)
    scores: dict[str, float] = {}
    for entity_id, words in documents.items():
        counts = Counter(words)
        for word in words_of(query):
            if not counts[word]:
                continue
            with_word = sum(word in other for other in documents.values())
            idf = math.log(1 + (len(documents) - with_word + 0.5) / (with_word + 0.5))
            saturation = counts[word] / (counts[word] + K1 * (1 - B + B * len(words) / mean))
            scores[entity_id] = scores.get(entity_id, 0.0) + idf * saturation
    return scores


@settings(max_examples=150, deadline=None)
@given(st.lists(st.sampled_from(WORDS), max_size=6), st.integers(1, 10))
def test_ranking_is_that_of_the_formula(
    index: Index, lexical: LexicalIndex, words: list[str], k: int
) -> None:
    query = " ".join(words)
    (found,) = lexical.propose([query], k)
    expected = oracle(index, query)
    assert len(found) == min(k, len(expected))
    for entity in found:
        assert entity.score == pytest.approx(expected[entity.entity_id], rel=1e-5)
    order = [(-entity.score, entity.entity_id) for entity in found]
    assert order == sorted(order)  # equal scores in the order of the index, which is that of the ids here
    left = set(expected) - {entity.entity_id for entity in found}
    for entity_id in left:
        assert expected[entity_id] <= found[-1].score * (1 + 1e-5)


def test_words_of_one_letter_and_of_no_weight_elsewhere_are_words(lexical: LexicalIndex) -> None:
    first = [found[0].entity_id for found in lexical.propose(["c", "the who", "ÉCLAIR"], 3)]
    assert first == ["b", "a", "f"]


def test_nothing_in_common_is_no_answer(lexical: LexicalIndex) -> None:
    assert lexical.propose(["", "?!", "zzz qqq", "zzz rabbit"], 2)[:3] == [(), (), ()]
    assert lexical.propose([], 2) == []


def test_a_catalogue_without_words(tmp_path: Path) -> None:
    tokenizer = TextTokenizer(train_tokenizer(), "</s>", "trained")
    index = Index.open(make_index(tmp_path, tokenizer, "title\n!!!\n???\n"))
    assert LexicalIndex(index).propose(["anything", "!!!"], 5) == [(), ()]
