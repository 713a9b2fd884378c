"""A search shared out among threads finds what faiss finds alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from retrieval.vectors import vector_search as searching
from retrieval.vectors.faiss_index import load_faiss, new_index, train
from retrieval.vectors.vector_search import VECTORS_PER_THREAD, VectorSearcher, num_parts, search_cells

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


def test_few_vectors_are_not_shared_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(searching, "_num_threads", lambda: 3)
    assert [num_parts(n * VECTORS_PER_THREAD) for n in (0, 1, 2, 3, 9)] == [1, 1, 2, 3, 3]
    assert num_parts(2 * VECTORS_PER_THREAD - 1) == 1


def test_a_searcher_shares_out_what_is_large(index: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    query = np.random.default_rng(5).standard_normal(D).astype(np.float32)
    searcher = VectorSearcher(index, 700, int(index.nlist))
    alone = searcher.search(query, 50)
    calls = []

    def counted(*given: Any) -> Any:
        calls.append(given[-1])
        return search_cells(*given)

    monkeypatch.setattr(searching, "VECTORS_PER_THREAD", 500)
    monkeypatch.setattr(searching, "_num_threads", lambda: 2)
    monkeypatch.setattr(searching, "search_cells", counted)
    shared = searcher.search(query, 50)
    assert calls
    assert set(calls) == {2}
    assert shared.entities.tolist() == alone.entities.tolist()
    assert shared.similarities == pytest.approx(alone.similarities, abs=1e-5)
