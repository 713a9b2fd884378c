"""Vectors that grow by many updates are trained again as they would be after a single one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("faiss")

from retrieval.index.manifest import VectorsEntry
from retrieval.index.reader import Index
from retrieval.vectors.faiss_index import num_cells
from retrieval.vectors.vector_maker import VectorOptions, carry_over_vectors
from retrieval.vectors.vector_search import VectorProposer
from tests.retrieval.vectors.test_making_vectors import MEMORY, ROWS, ancestry, made, published

pytestmark = pytest.mark.usefixtures("trigrams")


def grown(folder: Path, old: Index, lines: list[str]) -> Index:
    """The next version of an index."""

    def carry(new: Index, out: Path) -> tuple[VectorsEntry, Any]:
        return carry_over_vectors(old, new, ancestry(old, new), out, VectorOptions(), memory_bytes=MEMORY)

    return published(folder, lines, carry)


def test_small_updates_come_to_more_cells_as_a_large_one_does(tmp_path: Path) -> None:
    first = index = made(tmp_path / "first", ROWS[:60], "ivfpq")
    cells = []
    for size in (70, 100, 125, 160, 200, 240):
        before, index = index, grown(tmp_path / str(size), index, ROWS[:size])
        assert before.vectors is not None
        assert index.vectors is not None
        assert index.vectors.count < 2 * before.vectors.count
        named = int(index.vectors.factory.removeprefix("IVF").partition(",")[0])
        assert named >= num_cells(index.vectors.count)
        cells.append(named)
    assert first.vectors is not None
    assert (cells[0], cells[-1]) == (4, 8)
    shortlister = VectorProposer.open(index)
    (vector,) = shortlister.embed(["red mill"])
    assert len(shortlister.search(vector, 300, None).entities) == index.num_entities
