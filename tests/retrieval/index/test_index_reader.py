"""The reader of an index: its parts, look-up of ids, rows of entities, pages that processes share."""

from __future__ import annotations

import itertools
import shutil
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from genret.decoding.trie.title_trie import TitleTrie
from genret.decoding.trie.trie_kernels import TrieTables
from genret.index_builder.build import BuildSummary
from genret.retrieval.errors import IndexDirectoryError
from genret.retrieval.index import entities as entities_module
from genret.retrieval.index.entities import EntityTable, IdLookup, hash_strings
from genret.retrieval.index.layout import ENTITY_ID, TITLE
from genret.retrieval.index.owners import EntityRows
from genret.retrieval.index.reader import Index
from tests.checkpoints import make_index
from tests.fakes import recorded, roots
from tests.index_fixtures import build, character_tokenizer
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


def test_trie_is_zero_copy_read_only_and_serves_the_decoder(summary: BuildSummary) -> None:
    with Index.open(summary.index) as index:
        arrays = index.trie_arrays()
        for array in arrays[:4]:
            assert not array.flags.owndata
            assert not array.flags.writeable
        tables = TrieTables.of(arrays, torch.device("cpu"))  # what every backend walks
        tensors = (tables.token, tables.child_begin, tables.row_begin, tables.tail_begin)
        for tensor, array in zip(tensors, arrays[:4], strict=True):
            assert tensor.data_ptr() == array.ctypes.data
        trie = TitleTrie(arrays, TOKENIZER.vocab_size)
        for rank in range(index.num_rows):
            states = roots(trie)
            for token in index.row_token_ids(rank):
                states = trie.advance(states, states.new_tensor([token]))
            assert trie.is_final(states).all()
            assert trie.row(states).tolist() == [rank]


def test_numbers_out_of_range_are_value_errors(summary: BuildSummary) -> None:
    with Index.open(summary.index) as index:
        for call in (index.row_token_ids, index.entities_of, index.surface):
            for rank in (-1, index.num_rows):
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


def test_columns_of_other_types_are_refused() -> None:
    with pytest.raises(ValueError, match="expected strings without nulls, got int64"):
        IdLookup(pa.chunked_array([pa.array([1, 2])]))
    with pytest.raises(ValueError, match="with 1"):
        IdLookup(pa.chunked_array([pa.array(["a", None])]))
    assert IdLookup(pa.chunked_array([], type=pa.string())).find(pa.array(["a"]))[0].tolist() == [-1]


LETTERS = "abcdefghij"
# Opens an index, reads all of what walks its trie, prints where the tensors are and what the operating system
# says about the mappings of the index, and stays alive until its standard input is closed.
READER = """
import ctypes, re, sys
import torch
from genret.decoding.trie.trie_kernels import TrieTables
from genret.retrieval.index.reader import Index

index = Index.open(sys.argv[1], verify_digests=False)
tables = TrieTables.of(index.trie_arrays(), torch.device("cpu"))
tensors = [tables.token, tables.child_begin, tables.row_begin, tables.tail_begin]
assert all(int(t.to(torch.int64).sum()) >= 0 for t in tensors)

def is_of_the_trie(line):
    return line.rstrip().endswith("trie.arrow")

lock = ctypes.CDLL(None).mlock
for line in open("/proc/self/maps"):
    if is_of_the_trie(line):
        # A system short of memory would take pages away, and read them again; not all users may prevent it.
        low, high = (int(end, 16) for end in line.split()[0].split("-"))
        lock(ctypes.c_void_p(low), ctypes.c_size_t(high - low))
facts = {"Rss": 0, "Private_Clean": 0, "Private_Dirty": 0, "Shared_Clean": 0}
ranges, inside = [], False
for line in open("/proc/self/smaps"):
    header = re.match(r"([0-9a-f]+)-([0-9a-f]+) ", line)
    if header:
        inside = is_of_the_trie(line)
        if inside:
            ranges.append((int(header[1], 16), int(header[2], 16)))
    elif inside and line.split(":")[0] in facts:
        facts[line.split(":")[0]] += int(line.split()[1])
mapped = all(any(low <= t.data_ptr() < high for low, high in ranges) for t in tensors)
print(mapped, facts["Rss"], facts["Private_Clean"], facts["Private_Dirty"], facts["Shared_Clean"], flush=True)
sys.stdin.read()
"""


@pytest.mark.skipif(not Path("/proc/self/smaps").exists(), reason="needs /proc")
def test_processes_share_the_pages_of_the_trie(tmp_path: Path) -> None:
    titles = ["".join(letters) for letters in itertools.product(LETTERS, repeat=4)]
    summary = build(tmp_path, ["title", *titles], character_tokenizer(LETTERS))
    size = (summary.index / "versions" / summary.version / "trie.arrow").stat().st_size // 1024
    readers: list[subprocess.Popen[str]] = []
    facts: list[list[str]] = []
    try:
        for _ in range(3):  # each looks while the ones before it are still there
            reader = subprocess.Popen(
                [sys.executable, "-c", READER, str(summary.index)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            readers.append(reader)
            facts.append(reader.stdout.readline().split())
    finally:
        for reader in readers:
            reader.communicate(timeout=60)
    for mapped, rss, _, private_dirty, _ in facts:
        assert mapped == "True"  # the tensors are the mapping: zero-copy
        assert int(rss) >= size  # and have been read as a whole
        assert int(private_dirty) == 0  # without a copy of a single page
    for _, rss, private_clean, _, shared_clean in facts[1:]:
        assert int(private_clean) == 0  # what the later ones see, the first one has in memory already
        assert int(shared_clean) == int(rss)


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
