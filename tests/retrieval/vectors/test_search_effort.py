"""The search effort is the least that keeps known items first, and old vectors get one by this rule."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("faiss")

from retrieval.errors import IndexFormatError
from retrieval.index.entity_texts import TextBatch
from retrieval.index.manifest import VectorsEntry
from retrieval.index.reader import Index
from retrieval.vectors import vector_maker as carrying
from retrieval.vectors.faiss_index import efforts, new_index, open_vectors, train
from retrieval.vectors.vector_maker import TARGET_RECALL, VectorOptions, carry_over_vectors, choose_effort
from retrieval.vectors.vector_search import VectorProposer, VectorSearcher
from tests.index_fixtures import build
from tests.retrieval.vectors.test_making_vectors import HEAD, MEMORY, ROWS, TOKENIZER, ancestry, made
from tests.vector_fixtures import with_vectors

pytestmark = pytest.mark.usefixtures("trigrams")

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
    return choose_effort(ENTRY, index, texts, numbered, N), index, numbered


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


def test_where_everything_is_looked_at_nothing_is_measured() -> None:
    entry, _, _ = chosen("SQ8", 500, 0.1)
    assert (entry.effort, entry.recall, entry.recall_queries) == (0, 1, 0)


@pytest.mark.parametrize("is_old", [True, False])
def test_an_update_of_an_old_version_chooses_the_effort_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_old: bool
) -> None:
    old = made(tmp_path / "old", ROWS, "ivfpq")
    monkeypatch.setattr(carrying, "_KNOWN_ITEMS_SINCE", old.manifest.format_version + is_old)
    monkeypatch.setattr(carrying, "choose_effort", lambda entry, *_: replace(entry, effort=77))
    (tmp_path / "out").mkdir()
    entry, _ = carry_over_vectors(
        old, old, ancestry(old, old), tmp_path / "out", VectorOptions(), memory_bytes=MEMORY
    )
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
        carry_over_vectors(
            index, index, ancestry(index, index), tmp_path, VectorOptions(), memory_bytes=MEMORY
        )
