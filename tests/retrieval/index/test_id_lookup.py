"""Ids by hash against a dict and against a pass over the column, hashes that collide among them."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from retrieval.index import entities as entities_module
from retrieval.index import entities as id_lookup
from retrieval.index.entities import EntityTable, IdLookup, hash_strings
from retrieval.index.layout import ENTITY_ID, TITLE

# Lengths on both sides of eight bytes, characters of one to four bytes, and ends of zero bytes.
IDS = st.lists(st.text(st.sampled_from("ab\0é€😀Q1"), max_size=20), unique=True, max_size=40)


def column(ids: list[str], num_chunks: int) -> pa.ChunkedArray:
    cuts = np.linspace(0, len(ids), num_chunks + 1).astype(int).tolist()
    chunks = [pa.array(ids[begin:end], type=pa.string()) for begin, end in pairwise(cuts)]
    return pa.chunked_array(chunks, type=pa.string())


def table(ids: list[str]) -> EntityTable:
    batch = pa.table({ENTITY_ID: pa.array(ids, type=pa.string()), TITLE: pa.array(ids, type=pa.string())})
    return EntityTable(batch, (), "entities.arrow")


@settings(deadline=None)
@given(ids=IDS, asked=IDS, num_chunks=st.integers(1, 4))
def test_places_are_those_of_a_dict(ids: list[str], asked: list[str], num_chunks: int) -> None:
    places = {text: number for number, text in enumerate(ids)}
    wanted = [*asked, *ids[::2], *asked]
    found, is_sure = IdLookup(column(ids, num_chunks)).find(pa.array(wanted, type=pa.string()))
    assert is_sure
    assert found.tolist() == [places.get(text, -1) for text in wanted]


@settings(deadline=None)
@given(texts=IDS, begin=st.integers(0, 5))
def test_a_hash_depends_on_the_text_alone(texts: list[str], begin: int) -> None:
    together = hash_strings(pa.array(texts, type=pa.string()).slice(begin))
    alone = [int(hash_strings(pa.array([text], type=pa.string()))[0]) for text in texts[begin:]]
    assert together.tolist() == alone
    assert len(set(alone)) == len(alone)


def test_a_hundred_thousand_ids_have_hashes_of_their_own() -> None:
    ids = [f"Q{number}" for number in range(50_000)] + [f"wd:Q{number}xyzt" for number in range(50_000)]
    hashes = hash_strings(pa.array(ids))
    assert len(np.unique(hashes)) == len(ids)
    assert len(np.unique(hashes >> np.uint64(40))) > 99_000  # the high bits alone tell nearly all apart


def test_ids_with_one_hash_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(id_lookup, "hash_strings", lambda texts: np.zeros(len(texts), dtype=np.uint64))
    ids = [f"id {number}" for number in range(200)]
    found, is_sure = IdLookup(column(ids, 2)).find(pa.array(["id 7", "none"]))
    assert (found.tolist(), is_sure) == ([-1, -1], False)
    entities = table(ids)
    for _ in range(20):  # the table of entities passes over its ids where a hash says nothing
        assert entities.find(["id 7", "none", "id 7"]).tolist() == [7, -1, 7]


def test_few_ids_cost_no_pass_after_some(monkeypatch: pytest.MonkeyPatch) -> None:
    ids = [f"id {number}" for number in range(1000)]
    entities = table(ids)
    passes: list[int] = []
    numbers = EntityTable.numbers

    def counted(self: EntityTable, wanted: pa.Array) -> np.ndarray:
        passes.append(len(wanted))
        return numbers(self, wanted)

    monkeypatch.setattr(EntityTable, "numbers", counted)
    for number in range(30):
        asked = [f"id {number}", "unknown", f"id {999 - number}", f"id {number}"]
        assert entities.find(asked).tolist() == [number, -1, 999 - number, number]
    assert len(passes) == entities_module._PASSES_BEFORE_LOOKUP
    assert entities.find(ids[::-1]).tolist() == list(range(999, -1, -1))  # many ids: one pass is less
    assert passes[-1] == 1000
    assert entities.find([]).tolist() == []


def test_columns_of_other_types_are_refused() -> None:
    with pytest.raises(ValueError, match="expected strings without nulls, got int64"):
        IdLookup(pa.chunked_array([pa.array([1, 2])]))
    with pytest.raises(ValueError, match="with 1"):
        IdLookup(pa.chunked_array([pa.array(["a", None])]))
    assert IdLookup(pa.chunked_array([], type=pa.string())).find(pa.array(["a"]))[0].tolist() == [-1]
