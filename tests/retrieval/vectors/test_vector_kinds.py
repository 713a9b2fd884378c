"""Kinds of faiss indexes: chosen by rule or by factory string, trained, grown, searched with least effort."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("faiss")


from genret.retrieval.errors import GenretError, IndexFormatError, InputError
from genret.retrieval.index.manifest import VectorsEntry
from genret.retrieval.index.reader import Index, TextBatch
from genret.retrieval.progress import StepProgress
from genret.retrieval.vectors import vector_maker as carrying
from genret.retrieval.vectors.faiss_index import (
    FLAT_BELOW,
    MAX_CELLS,
    check_kind,
    efforts,
    kind_of,
    new_index,
    num_cells,
    num_subquantisers,
    open_vectors,
    sample_size,
    stored_kind,
    train,
)
from genret.retrieval.vectors.vector_maker import (
    TARGET_RECALL,
    VectorOptions,
    _taken_over,
    carry_over_vectors,
    choose_effort,
)
from genret.retrieval.vectors.vector_search import VectorProposer, VectorSearcher
from tests.index_fixtures import build
from tests.retrieval.vectors.test_making_vectors import HEAD, MEMORY, ROWS, TOKENIZER, ancestry, carried, made
from tests.vector_fixtures import with_vectors

pytestmark = pytest.mark.usefixtures("trigrams")


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


@pytest.mark.parametrize(
    ("dimensions", "parts"), [(8, 8), (128, 128), (192, 96), (256, 128), (768, 128), (257, 0), (1031, 0)]
)
def test_parts_of_a_vector(dimensions: int, parts: int) -> None:
    if parts:
        assert num_subquantisers(dimensions) == parts
    else:
        said = f"vector_dimensions: ivfpq needs a multiple of 8, got {dimensions}"
        with pytest.raises(InputError, match=said):
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


@pytest.mark.parametrize(
    ("options", "message"), [({"kind": ""}, "index"), ({"sample": 0}, "sample"), ({"seed": -1}, "seed")]
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


WIDTH = 16
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
    vectors = np.random.default_rng(0).standard_normal((NUM_TEXTS, WIDTH)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    index = new_index("factory", wish, WIDTH, NUM_TEXTS, 0)
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


@pytest.mark.parametrize(
    ("wish", "said"),
    [
        *((wish, "faiss makes no index of") for wish in ("nonsense", "IVF,", "PQ7x4fs")),
        *((wish, ".* keeps no ids beside its vectors") for wish in WITHOUT_IDS),
        ("HNSW16_PQ8", "'HNSW16_PQ8' does not compare by inner products"),
    ],
)
def test_factory_strings_that_are_refused(wish: str, said: str) -> None:
    with pytest.raises(InputError, match=f"^vector_index: {said}"):
        new_index("factory", wish, WIDTH, NUM_TEXTS, 0)
    if wish != "PQ7x4fs":  # which fits vectors of other dimensions
        with pytest.raises(InputError, match=said):
            check_kind(wish)


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
    with monkeypatch.context() as patch:
        patch.setattr(VectorSearcher, "refusal", lambda _: None)
        index = made(tmp_path / "index", ROWS[:40], "PQ8")
    with pytest.raises(GenretError, match=r"^vectors\.faiss: PQ8 cannot be searched: "):
        VectorProposer.open(index)


N, D = 3000, 32
ENTRY = VectorsEntry("encoder", "m", "", (), D, N, "ivfpq", "", 0, 0, 1.0, 0, 0)


class Numbered:
    """Texts "0", "1", … and vectors drawn at random; the query for a text lies `noise` beside it."""

    dimensions, fingerprint = D, "numbered"

    def __init__(self, count: int, noise: float) -> None:
        draw = np.random.default_rng(0)
        self.vectors = draw.standard_normal((N, D)).astype(np.float32)
        self.vectors /= np.linalg.norm(self.vectors, axis=1, keepdims=True)
        self.count = count
        self.beside = noise * draw.standard_normal((N, D)).astype(np.float32)

    def sample(self, size: int) -> TextBatch:
        numbers = np.arange(min(size, self.count))
        return TextBatch(numbers, [str(number) for number in numbers])

    def embed_queries(self, texts: list[str]) -> Any:
        numbers = [int(text) for text in texts]
        return self.vectors[numbers] + self.beside[numbers]

    embed_texts = embed_queries


def chosen(wish: str, count: int, noise: float) -> tuple[VectorsEntry, Any, Numbered]:
    numbered = Numbered(count, noise)
    index = new_index("ivfpq" if wish == "ivfpq" else "factory", wish, D, N, 0)
    train(index, numbered.vectors)
    index.add_with_ids(numbered.vectors, np.arange(N))
    texts: Any = numbered
    return choose_effort(ENTRY, index, texts, numbered, N, StepProgress()), index, numbered


@pytest.mark.parametrize("wish", ["ivfpq", "IVF32,Flat"])
@pytest.mark.parametrize("noise", [0.02, 0.1])
def test_the_effort_is_the_least_that_loses_one_known_item_in_a_hundred(wish: str, noise: float) -> None:
    entry, index, numbered = chosen(wish, 500, noise)
    searcher, queries = VectorSearcher(index, N), numbered.embed_queries(list(map(str, range(500))))

    def first(effort: int) -> Any:
        return np.array([searcher.search(query, 1, effort=effort).entities[0] for query in queries])

    known = first(0) == np.arange(500)
    assert entry.recall_queries == known.sum() > 300
    shares = {effort: (first(effort) == np.arange(500))[known].mean() for effort in efforts(index)}
    assert entry.effort == min(effort for effort, share in shares.items() if share >= TARGET_RECALL)
    assert entry.recall == pytest.approx(shares[entry.effort])
    assert entry.effort < index.nlist


def test_with_few_known_items_nothing_is_left_out() -> None:
    entry, index, _ = chosen("ivfpq", 90, 0)
    assert (entry.effort, entry.recall) == (index.nlist, 1)
    assert 0 < entry.recall_queries <= 90
    lost, index, _ = chosen("ivfpq", 500, 50)  # queries like nothing
    assert lost.effort == index.nlist
    assert lost.recall_queries < 100
    whole, _, _ = chosen("SQ8", 500, 0.1)  # everything is looked at, and nothing measured
    assert (whole.effort, whole.recall, whole.recall_queries) == (0, 1, 0)


@pytest.mark.parametrize("is_old", [True, False])
def test_an_update_of_an_old_version_chooses_the_effort_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_old: bool
) -> None:
    old = made(tmp_path / "old", ROWS, "ivfpq")
    monkeypatch.setattr(carrying, "_KNOWN_ITEMS_SINCE", old.manifest.format_version + is_old)
    monkeypatch.setattr(carrying, "choose_effort", lambda entry, *_: replace(entry, effort=77))
    (tmp_path / "out").mkdir()
    entry, _ = carry_over_vectors(old, old, ancestry(old, old), tmp_path / "out", "cpu", memory_bytes=MEMORY)
    assert (entry.effort == 77) == is_old


def test_lexical_vectors_are_read_and_not_opened(tmp_path: Path) -> None:
    summary = build(tmp_path, [HEAD, *ROWS[:9]], TOKENIZER, evidence=None)
    lexical = replace(ENTRY, method="lexical", source="")
    index = Index.open(with_vectors(summary, lexical))
    assert index.vectors == lexical
    message = (
        r"^vectors\.faiss: made by the method lexical, which this version no longer has; "
        r"make vectors anew with genret update INDEX --vectors encoder:MODEL$"
    )
    for asked in (VectorProposer.open, open_vectors):
        with pytest.raises(IndexFormatError, match=message):
            asked(index)
    with pytest.raises(IndexFormatError, match=message):
        carry_over_vectors(index, index, ancestry(index, index), tmp_path, "cpu", memory_bytes=MEMORY)


def test_small_updates_come_to_more_cells_as_a_large_one_does(tmp_path: Path) -> None:
    index = made(tmp_path / "first", ROWS[:60], "ivfpq")
    cells = []
    for size in (70, 100, 125, 160, 200, 240):
        before, index = index, carried(tmp_path / str(size), index, ROWS[:size])
        assert index.vectors.count < 2 * before.vectors.count
        named = int(index.vectors.factory.removeprefix("IVF").partition(",")[0])
        assert named >= num_cells(index.vectors.count)
        cells.append(named)
    assert (cells[0], cells[-1]) == (4, 8)
    shortlister = VectorProposer.open(index)
    (vector,) = shortlister.embed(["red mill"])
    assert len(shortlister.search(vector, 300, None).entities) == index.num_entities
