"""Queries that say nothing, or far too much: an answer all the same, and always the same one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("faiss")
pytest.importorskip("sklearn")

from decoding.cancellation import CancelToken
from index_builder.evidence_wish import VectorWish
from retrieval.index.reader import Index
from retrieval.text import TextTokenizer
from retrieval.vectors.lexical import LexicalEmbedder
from retrieval.vectors.methods import VectorMethod
from retrieval.vectors.shortlist import Shortlist
from retrieval.vectors.shortlister import Shortlister
from tests.checkpoints import END, make_index, train_tokenizer

MEGABYTE = " ".join(format(number, "x") for number in range(170_000))


@pytest.fixture(scope="module")
def shortlister(tmp_path_factory: pytest.TempPathFactory) -> Shortlister:
    tokenizer = TextTokenizer(train_tokenizer(), END, "tiny")
    wish = VectorWish(VectorMethod.parse("lexical"))
    return Shortlister.open(Index.open(make_index(tmp_path_factory.mktemp("i"), tokenizer, vectors=wish)))


@pytest.mark.parametrize("query", ["\u0301", "\u200b\u200d", " \t ", "\x00"])
def test_of_a_query_that_says_nothing_the_first_entities_come(shortlister: Shortlister, query: str) -> None:
    allowed = np.arange(12) % 2 == 1
    for mask, wanted in ((None, [0, 1, 2]), (allowed, [1, 3, 5])):
        (found,) = shortlister.propose([query], [3], [mask])
        assert found.entities.tolist() == wanted
        assert not found.similarities.any()
    assert not shortlister.similarities(query, [0, 5]).any()


def test_a_query_that_was_cancelled_is_not_searched_for(
    shortlister: Shortlister, monkeypatch: pytest.MonkeyPatch
) -> None:
    token, search, searched = CancelToken(), shortlister._searcher.search, []

    def searching(text: str, *rest: Any) -> Shortlist:
        searched.append(text)
        token.cancel()  # while the one before is searched for
        return search(text, *rest)

    monkeypatch.setattr(shortlister._searcher, "search", searching)
    found = shortlister.propose(["river", "lake", "sea"], [3, 3, 3], cancel=[CancelToken(), token, None])
    assert searched == ["river", "sea"]
    assert [len(one.entities) for one in found] == [3, 0, 3]


def test_of_a_query_of_a_megabyte_the_beginning_counts(shortlister: Shortlister) -> None:
    assert len(MEGABYTE) > 900_000
    (long,) = shortlister.propose([f"mercury {MEGABYTE}"], [12])
    (cut,) = shortlister.propose([f"mercury {MEGABYTE}"[: 1 << 16]], [12])
    assert long.entities.tolist() == cut.entities.tolist()
    assert long.similarities.tolist() == cut.similarities.tolist()


def test_texts_of_a_catalogue_are_not_cut() -> None:
    embedder = LexicalEmbedder.fit(["river"], 16)
    long = "mill " * 20_000
    assert (embedder.embed_texts([long + "river"]) != embedder.embed_texts([long])).any()
    assert (embedder.embed_queries([long + "river"]) == embedder.embed_queries([long])).all()
