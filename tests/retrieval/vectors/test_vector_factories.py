"""Factory strings: what faiss makes of one can be searched under filters, or is refused by the build."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("faiss")

from retrieval.errors import GenretError, InputError
from retrieval.vectors.faiss_index import new_index, train
from retrieval.vectors.vector_search import VectorProposer, VectorSearcher
from tests.retrieval.vectors.test_making_vectors import ROWS, made

pytestmark = pytest.mark.usefixtures("trigrams")

D = 16
NUM_TEXTS, NUM_ENTITIES = 300, 200
USABLE = (
    "IDMap2,Flat",
    "IDMap,PCA8,Flat",
    "L2norm,IVF4,Flat",
    "IVF4_HNSW8,Flat",
    "IVF4,PQ8x4fsr",
    "OPQ8,IVF4,PQ8x4fs",
    "IVF500,Flat",
    "HNSW16,SQ8",
    "SQ8",
)
WITHOUT_IDS = ("PCA8,IDMap,Flat", "IVF4,Flat,RFlat", "OPQ8,IVF4,PQ8x4fs,RFlat")
WITHOUT_FILTERS = ("PQ8", "PQ8x4fs", "SQ8,RFlat", "RQ4x4", "IVF4,RQ2x4", "IDMap,IVF4,Flat")


def filled(wish: str) -> tuple[Any, np.ndarray[Any, Any]]:
    vectors = np.random.default_rng(0).standard_normal((NUM_TEXTS, D)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    index = new_index("factory", wish, D, NUM_TEXTS, 0)
    train(index, vectors)
    return index, vectors


def searcher(index: Any) -> VectorSearcher:
    return VectorSearcher(index, NUM_ENTITIES, 1)


@pytest.mark.parametrize("wish", USABLE)
def test_what_is_taken_can_be_searched_under_filters(wish: str) -> None:
    index, vectors = filled(wish)
    assert searcher(index).refusal() is None
    index.add_with_ids(vectors, np.arange(NUM_TEXTS) % NUM_ENTITIES)
    allowed = np.arange(NUM_ENTITIES) % 7 == 0
    for size in (3, NUM_ENTITIES):
        found = searcher(index).search(vectors[7], size, allowed).entities
        assert len(found) == min(size, np.count_nonzero(allowed))
        assert allowed[found].all()
    assert searcher(index).refusal() is None


@pytest.mark.parametrize("wish", WITHOUT_IDS)
def test_what_keeps_no_ids_is_refused(wish: str) -> None:
    with pytest.raises(InputError, match=r"^vector_index: .* keeps no ids beside its vectors"):
        new_index("factory", wish, D, NUM_TEXTS, 0)


def test_another_metric_is_refused() -> None:
    with pytest.raises(InputError, match=r"^vector_index: 'HNSW16_PQ8' does not compare by inner products"):
        new_index("factory", "HNSW16_PQ8", D, NUM_TEXTS, 0)


@pytest.mark.parametrize("wish", WITHOUT_FILTERS)
def test_what_takes_no_filter_says_so_empty_and_full(wish: str) -> None:
    index, vectors = filled(wish)
    assert searcher(index).refusal()
    index.add_with_ids(vectors, np.arange(NUM_TEXTS) % NUM_ENTITIES)
    assert searcher(index).refusal()


@pytest.mark.parametrize(
    ("wish", "reason"),
    [
        ("PQ8", "cannot search 'PQ8' under a filter: "),
        ("IDMap,IVF4,Flat", "cannot search 'IDMap,IVF4,Flat' under a filter: "),
        ("PQ8x10", "cannot train it on "),
        ("PCA128,Flat", "cannot train it on "),
    ],
)
def test_a_build_refuses_what_could_not_be_asked(tmp_path: Any, wish: str, reason: str) -> None:
    with pytest.raises(InputError, match=f"^vector_index: faiss {reason}"):
        made(tmp_path / "index", ROWS[:40], wish)


def test_vectors_that_cannot_be_asked_are_not_opened(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("retrieval.vectors.vector_maker._check_searchable", lambda *_: None)
    index = made(tmp_path / "index", ROWS[:40], "PQ8")
    with pytest.raises(GenretError, match=r"^vectors\.faiss: PQ8 cannot be searched: "):
        VectorProposer.open(index)
