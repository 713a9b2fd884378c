"""Queries that say nothing, and queries that are cancelled."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("faiss")

from decoding.cancellation import CancelToken
from index_builder.evidence_wish import VectorWish
from retrieval.index.reader import Index
from retrieval.text import TextTokenizer
from retrieval.vectors.embedder import VectorMethod
from retrieval.vectors.searching import Shortlist
from retrieval.vectors.shortlister import Shortlister
from tests.checkpoints import END, make_index, train_tokenizer


@pytest.fixture(scope="module")
def shortlister(tmp_path_factory: pytest.TempPathFactory, trigrams: VectorMethod) -> Shortlister:
    tokenizer = TextTokenizer(train_tokenizer(), END, "tiny")
    wish = VectorWish(trigrams)
    return Shortlister.open(
        Index.open(make_index(tmp_path_factory.mktemp("i"), tokenizer, vectors=wish, evidence=None))
    )


@pytest.mark.parametrize("query", ["\u0301", "\u200b\u200d", " \t ", "\x00"])
def test_of_a_query_that_says_nothing_the_first_entities_come(shortlister: Shortlister, query: str) -> None:
    allowed = np.arange(12) % 2 == 1
    for mask, wanted in ((None, [0, 1, 2]), (allowed, [1, 3, 5])):
        (found,) = shortlister.propose([query], [3], [mask])
        assert found.entities.tolist() == wanted
        assert not found.similarities.any()
    (vector,) = shortlister.embed([query])
    assert not shortlister.similarities(vector, np.array([0, 5])).any()


def test_a_query_that_was_cancelled_is_not_searched_for(
    shortlister: Shortlister, monkeypatch: pytest.MonkeyPatch
) -> None:
    token, search, searched = CancelToken(), shortlister._searcher.search, []

    def searching(query: Any, *rest: Any) -> Shortlist:
        searched.append(query.tolist())
        token.cancel()  # while the one before is searched for
        return search(query, *rest)

    monkeypatch.setattr(shortlister._searcher, "search", searching)
    found = shortlister.propose(["river", "lake", "sea"], [3, 3, 3], cancel=[CancelToken(), token, None])
    assert searched == shortlister.embed(["river", "sea"]).tolist()
    assert [len(one.entities) for one in found] == [3, 0, 3]
