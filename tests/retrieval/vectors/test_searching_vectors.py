"""Searching vectors under filters and in threads: what comes is what a look at all of them gives."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

pytest.importorskip("faiss")

import faiss

from genret.index_builder.build_options import VectorBuildOptions
from genret.retrieval.index.reader import Index
from genret.retrieval.text import TextTokenizer
from genret.retrieval.vectors import vector_search as searching
from genret.retrieval.vectors.embedder import VectorMethod
from genret.retrieval.vectors.faiss_index import faiss_threads, kind_of, load_faiss, new_index, train
from genret.retrieval.vectors.vector_search import VectorProposer, VectorSearcher, num_parts, search_cells
from tests.checkpoints import END, make_checkpoint, make_index, train_tokenizer
from tests.fakes import recorded

WIDTH = 16
WISHES = ("flat", "hnsw", "ivfpq", "IVF4,Flat", "PCA8,IVF2,Flat", "SQ8")
UNCHANGED = ("flat", "IVF4,Flat")  # kinds that keep vectors as they are


class Case:
    """Vectors of entities, some without any, some with several, some equal, some all 0."""

    def __init__(self, wish: str, seed: int, num_texts: int, num_entities: int) -> None:
        random = np.random.default_rng(seed)
        vectors = random.standard_normal((num_texts, WIDTH)).astype(np.float32)
        if num_texts > 3:
            vectors[random.integers(num_texts)] = 0
            vectors[random.integers(num_texts)] = vectors[0]
        lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
        self.vectors = vectors / np.where(lengths, lengths, 1)
        self.numbers = np.sort(random.integers(num_entities, size=num_texts))
        self.num_entities = num_entities
        self.query = random.standard_normal(WIDTH).astype(np.float32)
        self.query /= np.linalg.norm(self.query)
        index: Any = new_index(kind_of(wish, num_texts), wish, WIDTH, num_texts, 0)
        train(index, self.vectors)
        index.add_with_ids(self.vectors, self.numbers)
        self.searcher = VectorSearcher(index, num_entities, 1 if "i" in wish.lower() else 0)

    def of_texts(self, entity: int) -> Any:
        """Similarities of an entity's texts; 0 where there is none."""
        values = (self.vectors @ self.query)[self.numbers == entity]
        return values if len(values) else np.zeros(1, np.float32)

    def exact(self, entities: Any) -> Any:
        """By hand: the most alike vector of each entity."""
        return np.array([self.of_texts(entity).max() for entity in entities], np.float32)

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
    wish: str, seed: int, num_texts: int, num_entities: int, size: int, share: float | None
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
    zero = np.zeros(WIDTH, np.float32)
    allowed = np.arange(40) % 3 == 1
    assert case.searcher.search(zero, 4).entities.tolist() == [0, 1, 2, 3]
    found = case.searcher.search(zero, 4, allowed)
    assert found.entities.tolist() == [1, 4, 7, 10]
    assert not found.similarities.any()
    assert not case.searcher.similarities(zero, np.arange(40)).any()
    for number in (-1, 40):
        with pytest.raises(ValueError, match=f"entity number: expected 0 <= number < 40, got {number}$"):
            case.searcher.similarities(case.query, np.array([3, number]))


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


D, N = 8, 2000


@pytest.fixture(scope="module", params=["ivfpq", "IVF16,Flat", "IVF16,SQ8"])
def index(request: pytest.FixtureRequest) -> Any:
    vectors = np.random.default_rng(0).standard_normal((N, D)).astype(np.float32)
    kind = request.param if request.param == "ivfpq" else "factory"
    made = new_index(kind, request.param, D, N, 0)
    train(made, vectors)
    made.add_with_ids(vectors, np.arange(N) % 700)
    return made


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 99),
    k=st.integers(1, 60),
    effort=st.integers(1, 16),
    parts=st.integers(1, 4),
    share=st.none() | st.floats(0, 1),
)
def test_threads_find_what_one_finds(
    index: Any, seed: int, k: int, effort: int, parts: int, share: float | None
) -> None:
    faiss = load_faiss()
    draw = np.random.default_rng(seed)
    query = draw.standard_normal((1, D)).astype(np.float32)
    selector = None
    if share is not None:
        selector = faiss.IDSelectorBitmap(np.packbits(draw.random(700) < share, bitorder="little"))
    effort = min(effort, index.nlist)
    parameters = faiss.SearchParametersIVF(sel=selector, nprobe=effort)
    values, ids = index.search(query, k, params=parameters)
    found_values, found_ids = search_cells(index, query, k, effort, selector, min(parts, effort))
    assert found_values.shape == found_ids.shape == (1, k)
    assert np.array_equal(found_ids < 0, ids < 0)
    there = ids >= 0
    assert found_values[there] == pytest.approx(values[there], abs=1e-5)
    # Of equally near ones at the end of the list any may be missing.
    surely = there & (values > values[there].min(initial=np.inf) + 1e-5)
    assert sorted(ids[surely].tolist()) == sorted(found_ids[surely].tolist())


def test_a_searcher_shares_out_what_is_large(index: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    query = np.random.default_rng(5).standard_normal(D).astype(np.float32)
    searcher = VectorSearcher(index, 700, int(index.nlist))
    alone = searcher.search(query, 50)
    monkeypatch.setattr(searching, "VECTORS_PER_THREAD", 500)
    monkeypatch.setattr(searching, "_num_threads", lambda: 3)
    assert [num_parts(n * 500) for n in (0, 1, 2, 3, 9)] == [1, 1, 2, 3, 3]
    assert num_parts(999) == 1
    monkeypatch.setattr(searching, "_num_threads", lambda: 2)
    calls = recorded(monkeypatch, searching, "search_cells")
    shared = searcher.search(query, 50)
    assert {given[-1] for given in calls} == {2}
    assert shared.entities.tolist() == alone.entities.tolist()
    assert shared.similarities == pytest.approx(alone.similarities, abs=1e-5)


_ASKED_BESIDE_A_MODEL = """
import sys
import torch
from genret.retrieval.index.reader import Index
from genret.retrieval.vectors.vector_search import VectorProposer

torch.set_num_threads(3)
with Index.open(sys.argv[1]) as index:
    shortlister = VectorProposer.open(index)
    shortlister.search(shortlister.embed(["a river"])[0], 2, None)
print(torch.get_num_threads())
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    tokenizer = TextTokenizer(train_tokenizer(), END, "tiny")
    encoder = make_checkpoint(tmp_path_factory.mktemp("encoder"))
    wish = VectorBuildOptions(VectorMethod("encoder", str(encoder)))
    return make_index(tmp_path_factory.mktemp("index"), tokenizer, vectors=wish, evidence=None)


def in_a_thread_with_three(ask: object) -> int:
    """Return how many threads faiss has after something was asked, in a thread of its own."""

    def run() -> int:
        faiss.omp_set_num_threads(3)
        assert callable(ask)
        ask()
        return int(faiss.omp_get_max_threads())

    with ThreadPoolExecutor(1) as pool:
        return pool.submit(run).result()


def test_a_search_leaves_the_threads_as_they_were(folder: Path) -> None:
    with Index.open(folder) as index:
        shortlister = VectorProposer.open(index)
        (vector,) = shortlister.embed(["a river"])
        assert in_a_thread_with_three(lambda: shortlister.search(vector, 2, None)) == 3

    def fail_with_two() -> None:
        with faiss_threads(2):
            assert faiss.omp_get_max_threads() == 2
            raise ValueError("no")

    def fail() -> None:
        with pytest.raises(ValueError, match="no"):
            fail_with_two()

    assert in_a_thread_with_three(fail) == 3


def test_a_model_keeps_its_threads(folder: Path) -> None:
    command = [sys.executable, "-c", _ASKED_BESIDE_A_MODEL, str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=1200)
    assert done.stdout.strip() == "3"
