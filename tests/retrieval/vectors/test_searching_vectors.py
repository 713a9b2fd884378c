"""Searching under filters: whatever holds the vectors, what comes is what a look at all of them gives."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

pytest.importorskip("faiss")

from retrieval.vectors.faiss_index import kind_of, new_index, train
from retrieval.vectors.vector_search import VectorSearcher

D = 16
WISHES = ("flat", "hnsw", "ivfpq", "IVF4,Flat", "PCA8,IVF2,Flat", "SQ8")
UNCHANGED = ("flat", "IVF4,Flat")  # kinds that keep vectors as they are


class Case:
    """Vectors of entities, some without any, some with several, some equal, some all 0."""

    def __init__(self, wish: str, seed: int, num_texts: int, num_entities: int) -> None:
        random = np.random.default_rng(seed)
        vectors = random.standard_normal((num_texts, D)).astype(np.float32)
        if num_texts > 3:
            vectors[random.integers(num_texts)] = 0
            vectors[random.integers(num_texts)] = vectors[0]
        lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
        self.vectors = vectors / np.where(lengths, lengths, 1)
        self.numbers = np.sort(random.integers(num_entities, size=num_texts))
        self.num_entities = num_entities
        self.query = random.standard_normal(D).astype(np.float32)
        self.query /= np.linalg.norm(self.query)
        index: Any = new_index(kind_of(wish, num_texts), wish, D, num_texts, 0)
        train(index, self.vectors)
        index.add_with_ids(self.vectors, self.numbers)
        self.searcher = VectorSearcher(index, num_entities, 1 if "i" in wish.lower() else 0)

    def exact(self, entities: Any) -> Any:
        """By hand: the most alike vector of each entity, 0 where there is none."""
        values = self.vectors @ self.query
        return np.array(
            [values[self.numbers == entity].max(initial=-2) for entity in entities], np.float32
        ).clip(-1.5) * np.isin(entities, self.numbers)

    def of_texts(self, entity: int) -> Any:
        """Similarities of an entity's texts; 0 where there is none."""
        values = (self.vectors @ self.query)[self.numbers == entity]
        return values if len(values) else np.zeros(1, np.float32)

    def order(self, allowed: Any) -> Any:
        """All allowed entities, the most alike first."""
        numbers = np.arange(self.num_entities) if allowed is None else np.flatnonzero(allowed)
        values = self.exact(numbers)
        order = np.lexsort((numbers, -values))
        return numbers[order], values[order]


@settings(max_examples=60, deadline=None)
@given(
    wish=st.sampled_from(WISHES),
    seed=st.integers(0, 1000),
    num_texts=st.integers(0, 300),
    num_entities=st.integers(1, 200),
    size=st.integers(1, 400),
    share=st.sampled_from([None, 0.0, 0.02, 0.5, 1.0]),
)
@example("flat", 0, 2, 3, 1, None)  # what no text stands for is nearer than what is unlike the query
@example("flat", 0, 2, 3, 2, None)
@example("hnsw", 0, 2, 3, 1, None)
def test_as_many_entities_come_as_are_allowed_in_order(
    wish: str,
    seed: int,
    num_texts: int,
    num_entities: int,
    size: int,
    share: float | None,
) -> None:
    case = Case(wish, seed, num_texts, num_entities)
    allowed = None if share is None else np.random.default_rng(seed).random(num_entities) < share
    found = case.searcher.search(case.query, size, allowed)
    entities, values = found.entities, found.similarities
    wanted, best = case.order(allowed)

    assert len(entities) == min(size, len(wanted))
    assert len(set(entities.tolist())) == len(entities)
    assert set(entities.tolist()) <= set(wanted.tolist())
    assert entities.dtype == np.int64
    assert values.dtype == np.float32
    assert (np.diff(values) <= 0).all()
    again_sorted = np.lexsort((entities, -values))
    assert (again_sorted == np.arange(len(entities))).all()
    if wish in UNCHANGED:
        for entity, value in zip(entities, values, strict=True):
            assert np.isclose(case.of_texts(entity), value, atol=1e-5).any()  # of a text that was looked at
    if wish == "flat":
        np.testing.assert_allclose(values, best[: len(values)], atol=1e-5)
        np.testing.assert_allclose(case.exact(entities), best[: len(values)], atol=1e-5)


@pytest.mark.parametrize("wish", WISHES)
def test_a_query_of_nothing_takes_the_first_entities(wish: str) -> None:
    case = Case(wish, 0, 50, 40)
    zero = np.zeros(D, np.float32)
    allowed = np.arange(40) % 3 == 1
    assert case.searcher.search(zero, 4).entities.tolist() == [0, 1, 2, 3]
    found = case.searcher.search(zero, 4, allowed)
    assert found.entities.tolist() == [1, 4, 7, 10]
    assert not found.similarities.any()


@pytest.mark.parametrize("wish", ["flat", "hnsw"])
def test_many_texts_of_one_entity_leave_room_for_the_others(wish: str) -> None:
    vectors = np.zeros((600, D), np.float32)
    vectors[:, 0] = 1
    vectors[500:, 1] = 1
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    numbers = np.concatenate([np.zeros(500, np.int64), np.arange(1, 101)])
    index = new_index(wish, wish, D, 600, 0)
    index.add_with_ids(vectors, numbers)
    searcher = VectorSearcher(index, 101, 64)
    found = searcher.search(np.eye(1, D, dtype=np.float32)[0], 5)
    assert found.entities.tolist() == [0, 1, 2, 3, 4]


@settings(max_examples=60, deadline=None)
@given(
    wish=st.sampled_from(WISHES),
    seed=st.integers(0, 1000),
    num_texts=st.integers(0, 300),
    num_entities=st.integers(1, 200),
    asked=st.lists(st.integers(0, 199), max_size=30),
)
def test_similarities_of_given_entities_are_those_of_a_search_of_everything(
    wish: str, seed: int, num_texts: int, num_entities: int, asked: list[int]
) -> None:
    case = Case(wish, seed, num_texts, num_entities)
    entities = np.array([number % num_entities for number in asked], np.int64)
    values = case.searcher.similarities(case.query, entities)
    assert values.shape == entities.shape
    assert values.dtype == np.float32
    everything = case.searcher.search(case.query, num_entities, effort=0)
    expected = dict(zip(everything.entities.tolist(), everything.similarities.tolist(), strict=True))
    np.testing.assert_allclose(values, [expected[number] for number in entities.tolist()], atol=1e-5)
    if wish in (*UNCHANGED, "hnsw"):
        np.testing.assert_allclose(values, case.exact(entities), atol=1e-5)
    assert not values[~np.isin(entities, case.numbers)].any()


def test_entities_that_are_not_there_are_refused() -> None:
    case = Case("flat", 0, 50, 40)
    for number in (-1, 40):
        with pytest.raises(ValueError, match=f"entity number: expected 0 <= number < 40, got {number}$"):
            case.searcher.similarities(case.query, np.array([3, number]))
