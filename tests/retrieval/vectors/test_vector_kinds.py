"""Kinds of indexes by rule, and sizes that hold for any number of vectors."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("faiss")

from retrieval.errors import InputError
from retrieval.index.manifest import VectorsEntry
from retrieval.vectors.faiss_index import (
    FLAT_BELOW,
    MAX_CELLS,
    efforts,
    kind_of,
    new_index,
    num_cells,
    num_subquantisers,
    sample_size,
    stored_kind,
    train,
)
from retrieval.vectors.vector_maker import VectorOptions, _taken_over
from retrieval.vectors.vector_search import VectorSearcher


@pytest.mark.parametrize(
    ("wish", "count", "kind"),
    [
        ("auto", 0, "flat"),
        ("auto", FLAT_BELOW - 1, "flat"),
        ("auto", FLAT_BELOW, "ivfpq"),
        ("hnsw", 1, "hnsw"),
        ("ivfpq", 1, "ivfpq"),
        ("flat", 10**9, "flat"),
        ("IVF4,Flat", 1, "factory"),
    ],
)
def test_the_rule(wish: str, count: int, kind: str) -> None:
    assert kind_of(wish, count) == kind


@given(st.integers(0, 10**9))
def test_cells_are_a_power_of_two_near_half_the_root(count: int) -> None:
    cells = num_cells(count)
    assert cells & (cells - 1) == 0
    assert 1 <= cells <= MAX_CELLS
    assert cells * cells * 4 <= max(count, 4)
    assert cells == MAX_CELLS or 16 * cells * cells > count
    assert sample_size(count) <= min(count, 1 << 17)


@pytest.mark.parametrize(("dimensions", "parts"), [(8, 8), (128, 128), (192, 96), (256, 128), (768, 128)])
def test_parts_of_a_vector(dimensions: int, parts: int) -> None:
    assert num_subquantisers(dimensions) == parts


@pytest.mark.parametrize("dimensions", [257, 1031])
def test_dimensions_that_cannot_be_divided_are_refused(dimensions: int) -> None:
    with pytest.raises(InputError, match=f"vector_dimensions: ivfpq needs a multiple of 8, got {dimensions}"):
        num_subquantisers(dimensions)


@settings(max_examples=20, deadline=None)
@given(wish=st.sampled_from(["flat", "hnsw", "ivfpq", "IVF16,PQ4x4fs"]), count=st.integers(0, 300))
def test_few_vectors_train_whatever_it_is(wish: str, count: int) -> None:
    vectors = np.random.default_rng(count).standard_normal((count, 8)).astype(np.float32)
    index = new_index(kind_of(wish, count), wish, 8, count, 0)
    train(index, vectors)
    index.add_with_ids(vectors, np.arange(count))
    assert index.is_trained
    assert index.ntotal == count
    if kind_of(wish, count) != "factory":
        assert stored_kind(index) == wish
    choices = efforts(index)
    assert choices == sorted(set(choices))
    if wish == "ivfpq":
        assert choices[-1] == index.nlist


@pytest.mark.parametrize("text", ["nonsense", "IVF,", "PQ7x4fs"])
def test_factory_strings_that_faiss_refuses(text: str) -> None:
    with pytest.raises(InputError, match="vector_index: faiss makes no index of"):
        new_index("factory", text, 8, 10, 0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kind": ""}, "kind"),
        ({"sample": 0}, "sample"),
        ({"seed": -1}, "seed"),
    ],
)
def test_options_out_of_bounds(options: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        VectorOptions(**options)  # type: ignore[arg-type]


@pytest.mark.parametrize("wish", ["flat", "hnsw", "ivfpq", "IVF4,SQ8", "IVF2,PQ4x4fsr"])
def test_what_is_added_behind_a_removal_is_as_if_nothing_had_been_removed(wish: str) -> None:
    draw = np.random.default_rng(0)
    vectors = draw.standard_normal((300, 8)).astype(np.float32)
    index = new_index(kind_of(wish, 300), wish, 8, 300, 0)
    train(index, vectors)
    index.add_with_ids(vectors, np.arange(300))
    everybody = np.arange(300)
    before = VectorSearcher(index, 300).similarities(vectors[0], everybody)
    goes = draw.random(300) < 0.4
    entry = VectorsEntry("encoder", "m", "", (), 8, 300, kind_of(wish, 300), wish, 0, 0, 1.0, 0, 0)
    index = _taken_over(index, entry, np.where(goes, -1, everybody), 300)
    index.add_with_ids(vectors[goes], everybody[goes])
    after = VectorSearcher(index, 300).similarities(vectors[0], everybody)
    np.testing.assert_allclose(before, after, atol=1e-5)
