"""The reader of an index: its parts, look-up of ids, rows of entities, pages that processes share."""

from __future__ import annotations

import ctypes
import itertools
import re
import shutil
from itertools import pairwise
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from genret.decoding.trie.trie_kernels import TrieTables
from genret.index_builder.build import BuildSummary
from genret.retrieval.errors import IndexDirectoryError
from genret.retrieval.index import entities as entities_module
from genret.retrieval.index.entities import EntityTable, IdLookup, hash_strings
from genret.retrieval.index.layout import ENTITY_ID, TITLE
from genret.retrieval.index.owners import EntityRows
from genret.retrieval.index.reader import Index
from tests.checkpoints import make_index
from tests.fakes import recorded
from tests.index_fixtures import build, character_tokenizer
from tests.own_process import PROCESSES
from tests.table_retrievers import TOKENIZER as TINY

TOKENIZER = character_tokenizer("abcdefgh ")
LINES = ["title\taliases\tkind", "abc\tcab|bad\tx", "c\ta\t", "bcd\t\tz"]


@pytest.fixture
def summary(tmp_path: Path) -> BuildSummary:
    return build(tmp_path, LINES, TOKENIZER)


def test_attributes(summary: BuildSummary) -> None:
    with Index.open(summary.index) as index:
        assert index.path == summary.index / "versions" / summary.version
        assert index.version == index.digest == summary.version
        assert index.tokenizer_fingerprint == TOKENIZER.fingerprint
        assert index.end_token_id == TOKENIZER.token_id("</s>")
        assert (index.num_rows, index.num_entities, index.max_row_tokens) == (6, 3, 4)
        assert index.metadata_columns == ("kind",)
        assert index.metadata_column("kind").to_pylist() == ["x", "z", None]
        assert index.metadata_column("entity_id").to_pylist() == ["abc", "bcd", "c"]
        assert index.manifest == summary.manifest


def test_trie_is_zero_copy_and_read_only(summary: BuildSummary) -> None:
    with Index.open(summary.index) as index:
        for array in index.trie_arrays()[:4]:
            assert not array.flags.owndata
            assert not array.flags.writeable


def test_numbers_out_of_range_are_value_errors(summary: BuildSummary) -> None:
    with Index.open(summary.index) as index:
        calls: list[Any] = [index.row_token_ids, index.entities_of, index.surface]
        for call in (*calls, lambda rank: index.rows.token_ids_of(np.array([3, rank]))):
            for rank in (-1, index.num_rows, 2**40, -(2**40)):
                with pytest.raises(ValueError, match="rank: expected 0 <= rank < 6"):
                    call(rank)
        for number in (-1, 3):
            with pytest.raises(ValueError, match="entity number"):
                index.entity(number)
        with pytest.raises(ValueError, match="does not name entity 1"):
            index.surface(0, 1)
        with pytest.raises(ValueError, match=r"expected one of .*'kind'"):
            index.metadata_column("sort")
        assert index.entity_by_id("nobody") is None
        assert index.row_of([]) == -1


def test_closing(summary: BuildSummary) -> None:
    index = Index.open(summary.index)
    arrays = index.trie_arrays()
    before = np.array(arrays.token)
    index.close()
    index.close()
    for use in (
        index.trie_arrays,
        lambda: index.entity(0),
        lambda: index.entities_of(0),
        lambda: index.row_of([]),
    ):
        with pytest.raises(IndexDirectoryError, match="was closed"):
            use()
    shutil.rmtree(summary.index)
    assert np.array_equal(arrays.token, before)  # what was handed out outlives the reader and the files


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
    monkeypatch.setattr(entities_module, "hash_strings", lambda texts: np.zeros(len(texts), dtype=np.uint64))
    ids = [f"id {number}" for number in range(200)]
    found, is_sure = IdLookup(column(ids, 2)).find(pa.array(["id 7", "none"]))
    assert (found.tolist(), is_sure) == ([-1, -1], False)
    entities = table(ids)
    for _ in range(20):  # the table of entities passes over its ids where a hash says nothing
        assert entities.find(["id 7", "none", "id 7"]).tolist() == [7, -1, 7]


def test_few_ids_cost_no_pass_after_some(monkeypatch: pytest.MonkeyPatch) -> None:
    ids = [f"id {number}" for number in range(1000)]
    entities = table(ids)
    passes = recorded(monkeypatch, EntityTable, "numbers")
    for number in range(30):
        asked = [f"id {number}", "unknown", f"id {999 - number}", f"id {number}"]
        assert entities.find(asked).tolist() == [number, -1, 999 - number, number]
    assert len(passes) == entities_module._PASSES_BEFORE_LOOKUP
    assert entities.find(ids[::-1]).tolist() == list(range(999, -1, -1))  # many ids: one pass is less
    assert len(passes[-1][1]) == 1000
    assert entities.find([]).tolist() == []


LETTERS = "abcdefghij"
FACTS = ("Rss", "Private_Clean", "Private_Dirty", "Shared_Clean")


def trie_mappings() -> list[str]:
    """What the operating system says about each mapping of a trie in this process."""
    mappings = re.split(r"^(?=[0-9a-f]+-[0-9a-f]+ )", Path("/proc/self/smaps").read_text(), flags=re.M)
    return [one for one in mappings if one.partition("\n")[0].endswith("trie.arrow")]


def ranges_of(mappings: list[str]) -> list[list[int]]:
    return [[int(end, 16) for end in one.split()[0].split("-")] for one in mappings]


def read_and_stay(index: Path, told: Connection) -> None:
    """Read all of what walks a trie, tell where it is and what its mappings take, and stay until answered."""
    with Index.open(index, verify_digests=False) as opened:
        tables = TrieTables.of(opened.trie_arrays(), torch.device("cpu"))
        tensors = [tables.token, tables.child_begin, tables.row_begin, tables.tail_begin]
        assert all(int(tensor.to(torch.int64).sum()) >= 0 for tensor in tensors)
        for low, high in ranges_of(trie_mappings()):
            # A system short of memory would take pages away, and read them again; not all may prevent it.
            ctypes.CDLL(None).mlock(ctypes.c_void_p(low), ctypes.c_size_t(high - low))
        mine = trie_mappings()
        ranges = ranges_of(mine)
        facts = {name: sum(map(int, re.findall(rf"^{name}: +(\d+)", "".join(mine), re.M))) for name in FACTS}
        is_mapped = all(any(low <= t.data_ptr() < high for low, high in ranges) for t in tensors)
        told.send((is_mapped, facts))
        told.recv()


@pytest.mark.skipif(not Path("/proc/self/smaps").exists(), reason="needs /proc")
def test_processes_share_the_pages_of_the_trie(tmp_path: Path) -> None:
    titles = ["".join(letters) for letters in itertools.product(LETTERS, repeat=4)]
    summary = build(tmp_path, ["title", *titles], character_tokenizer(LETTERS), evidence=None)
    size = (summary.index / "versions" / summary.version / "trie.arrow").stat().st_size // 1024
    pipes = [PROCESSES.Pipe() for _ in range(3)]
    facts: list[dict[str, int]] = []
    try:
        for ours, theirs in pipes:  # each looks while the ones before it are still there
            PROCESSES.Process(target=read_and_stay, args=(summary.index, theirs)).start()
            theirs.close()
            is_mapped, told = ours.recv()
            assert is_mapped  # the tensors are the mapping: zero-copy
            assert told["Rss"] >= size  # and have been read as a whole
            assert told["Private_Dirty"] == 0  # without a copy of a single page
            facts.append(told)
    finally:
        for ours, _ in pipes[: len(facts)]:
            ours.send(None)
    for told in facts[1:]:
        assert told["Private_Clean"] == 0  # what the later ones see, the first one has in memory already
        assert told["Shared_Clean"] == told["Rss"]


MANY = "|".join(f"a river {n}" for n in range(40))
CATALOGUES = {
    "one form each": "title\nNile\nParis\nBerlin\n",
    "aliases": f"title\taliases\nNile\t{MANY}\nParis\tNile|Lutetia\nNile delta\tNile\nAa\tZz|Mm\n",
}


@pytest.fixture(scope="module", params=list(CATALOGUES))
def index(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Index:
    folder = tmp_path_factory.mktemp("rows")
    return Index.open(make_index(folder, TINY, CATALOGUES[request.param]))


def postings(index: Index) -> dict[int, dict[int, str]]:
    """Entity -> its ranks, with the text of each."""
    found: dict[int, dict[int, str]] = {number: {} for number in range(index.num_entities)}
    for rank in range(index.num_rows):
        for number in index.entities_of(rank):
            found[number][rank] = index.surface(rank, number)
    return found


def test_every_row_of_an_entity_its_title_first(index: Index) -> None:
    rows = EntityRows(index)
    for number, ranks in postings(index).items():
        mine = rows.of(number)
        assert sorted(mine) == sorted(ranks)
        assert ranks[mine[0]] == index.entity(number).title


@settings(max_examples=50, deadline=None)
@given(data=st.data(), most=st.integers(0, 60))
def test_what_is_cut_is_cut_evenly(index: Index, data: st.DataObject, most: int) -> None:
    entities = data.draw(st.permutations(range(index.num_entities)).flatmap(lambda p: st.just(p)))
    entities = entities[: data.draw(st.integers(0, len(entities)))]
    rows = EntityRows(index)
    whole = [rows.of(number) for number in entities]
    found, is_whole = rows.of_all(entities, most)
    assert is_whole == (found == whole)
    assert is_whole == (sum(map(len, whole)) <= max(most, len(entities)))
    longest = max(map(len, found), default=0)
    for mine, everything in zip(found, whole, strict=True):
        assert mine == everything[:longest]  # the same cut for all, and the title is kept
        assert mine
    if not is_whole:
        assert sum(map(len, found)) <= max(most, len(entities))
        assert longest == 1 or sum(min(len(e), longest + 1) for e in whole) > most
