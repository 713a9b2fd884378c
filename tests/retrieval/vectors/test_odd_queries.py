"""Queries that say nothing."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("faiss")

from index_builder.build_options import VectorBuildOptions
from retrieval.index.reader import Index
from retrieval.text import TextTokenizer
from retrieval.vectors.embedder import VectorMethod
from retrieval.vectors.vector_search import VectorProposer
from tests.checkpoints import END, make_index, train_tokenizer


@pytest.fixture(scope="module")
def shortlister(tmp_path_factory: pytest.TempPathFactory, trigrams: VectorMethod) -> VectorProposer:
    tokenizer = TextTokenizer(train_tokenizer(), END, "tiny")
    wish = VectorBuildOptions(trigrams)
    return VectorProposer.open(
        Index.open(make_index(tmp_path_factory.mktemp("i"), tokenizer, vectors=wish, evidence=None))
    )


@pytest.mark.parametrize("query", ["\u0301", "\u200b\u200d", " \t ", "\x00"])
def test_of_a_query_that_says_nothing_the_first_entities_come(
    shortlister: VectorProposer, query: str
) -> None:
    (vector,) = shortlister.embed([query])
    allowed = np.arange(12) % 2 == 1
    for mask, wanted in ((None, [0, 1, 2]), (allowed, [1, 3, 5])):
        found = shortlister.search(vector, 3, mask)
        assert found.entities.tolist() == wanted
        assert not found.similarities.any()
    assert not shortlister.similarities(vector, np.array([0, 5])).any()
