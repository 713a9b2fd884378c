"""Vectors of an index: made, opened, asked, taken over, refused where the manifest says otherwise."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

pytest.importorskip("faiss")

import faiss

from genret.retrieval.errors import EvidenceMissingError, IndexChecksumError, IndexFormatError, InputError
from genret.retrieval.index.layout import VECTORS_FILE
from genret.retrieval.index.manifest import VectorsEntry
from genret.retrieval.index.reader import Index
from genret.retrieval.vectors.embedder import open_embedder
from genret.retrieval.vectors.faiss_index import open_vectors
from genret.retrieval.vectors.vector_maker import VectorOptions, carry_over_vectors, make_vectors
from genret.retrieval.vectors.vector_search import VectorProposer
from tests.index_fixtures import build, character_tokenizer
from tests.trigram_encoder import TRIGRAMS, TrigramEncoder
from tests.vector_fixtures import with_vectors

pytestmark = pytest.mark.usefixtures("trigrams")

MEMORY = 64 << 20
HEAD = "entity_id\ttitle\taliases\tdescription"
KINDS = ("flat", "hnsw", "ivfpq", "IVF4,SQ8", "PCA16,IVF4,Flat")


def rows(count: int, seed: int) -> list[str]:
    draw = random.Random(seed)
    words = ["river", "north", "saint", "bridge", "castle", "upper", "red", "mill", "stone", "church"]
    lines = []
    for number in range(count):
        title = " ".join(draw.choices(words, k=draw.randint(1, 4))) + f" {draw.randrange(40)}"
        alias = draw.choice(["", "", draw.choice(words), f"{draw.choice(words)}|{title}"])
        lines.append(f"e{number}\t{title}\t{alias}\t{draw.choice(['', 'a ' + draw.choice(words)])}")
    return lines


ROWS = rows(240, 0)
TOKENIZER = character_tokenizer("".join(ROWS) + "abcdefghijklmnopqrstuvwxyz")


def plain(folder: Path, lines: list[str]) -> Index:
    folder.mkdir(parents=True, exist_ok=True)
    return Index.open(build(folder, [HEAD, *lines], TOKENIZER, evidence=None).index)


def carried(folder: Path, old: Index, lines: list[str]) -> Index:
    """The next version of an index, whose vectors are taken over."""

    def carry(new: Index, out: Path) -> tuple[VectorsEntry, Any]:
        return carry_over_vectors(old, new, ancestry(old, new), out, "cpu", memory_bytes=MEMORY)

    return published(folder, lines, carry)


def published(
    folder: Path, lines: list[str], make: Callable[[Index, Path], tuple[VectorsEntry, Any]]
) -> Index:
    """Build an index and put the vectors beside it that `make` writes."""
    folder.mkdir(parents=True)
    summary = build(folder, [HEAD, *lines], TOKENIZER, evidence=None)
    made = folder / "made"
    made.mkdir()
    with Index.open(summary.index) as index:
        entry, names = make(index, made)
    assert sorted(names) == sorted(file.name for file in made.iterdir())
    return Index.open(with_vectors(summary, entry, {name: (made / name).read_bytes() for name in names}))


def made(folder: Path, lines: list[str], kind: str) -> Index:
    def make(index: Index, out: Path) -> tuple[VectorsEntry, Any]:
        return make_vectors(index, TRIGRAMS, VectorOptions(kind), out, memory_bytes=MEMORY)

    return published(folder, lines, make)


@pytest.fixture(scope="module", params=KINDS)
def index(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, trigrams: object
) -> Index:
    return made(tmp_path_factory.mktemp("made") / "it", ROWS, request.param)


def test_titles_with_errors_are_proposed(index: Index) -> None:
    shortlister = VectorProposer.open(index)
    numbers = list(range(0, 240, 9))
    titles = [index.entity(number).title for number in numbers]
    vectors = shortlister.embed([title.replace("r", "", 1) for title in titles])
    lists = [shortlister.search(vector, 20, None) for vector in vectors]
    assert {len(found.entities) for found in lists} == {20}
    named = [{index.entity(number).title for number in found.entities.tolist()} for found in lists]
    assert sum(title in found for title, found in zip(titles, named, strict=True)) >= 25
    embedded = len(TrigramEncoder.embedded)
    for vector, found in zip(vectors, lists, strict=True):
        again = shortlister.similarities(vector, found.entities[::-1])
        np.testing.assert_allclose(found.similarities[::-1], again, atol=1e-6)
    assert len(TrigramEncoder.embedded) == embedded


def test_what_the_manifest_says(index: Index) -> None:
    entry = index.vectors
    assert entry.columns == ("description",)
    assert entry.count == open_vectors(index).ntotal
    assert 0.99 <= entry.recall <= 1
    if entry.kind == "flat":
        assert (entry.effort, entry.sample, entry.recall_queries) == (0, 0, 0)
    else:
        assert 50 < entry.recall_queries <= 500
        assert entry.effort >= 1


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_input_gives_the_same_bytes(kind: str, tmp_path: Path) -> None:
    source = plain(tmp_path / "plain", ROWS)
    files = []
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        make_vectors(source, TRIGRAMS, VectorOptions(kind), tmp_path / name, memory_bytes=MEMORY)
        files.append((tmp_path / name / VECTORS_FILE).read_bytes())
    assert files[0] == files[1]


@pytest.mark.parametrize("kind", KINDS)
def test_vectors_of_one_entity(kind: str, tmp_path: Path) -> None:
    index = made(tmp_path / "it", ["e1\tred mill\t\t"], kind)
    shortlister = VectorProposer.open(index)
    for vector in shortlister.embed(["red", "zzz"]):
        assert shortlister.search(vector, 3, None).entities.tolist() == [0]


def test_a_column_that_is_not_there_and_a_kind_that_faiss_refuses(tmp_path: Path) -> None:
    source = plain(tmp_path / "plain", ROWS[:5])
    with pytest.raises(InputError, match="vector_columns"):
        make_vectors(source, TRIGRAMS, VectorOptions(columns=("kind",)), tmp_path, memory_bytes=MEMORY)
    with pytest.raises(InputError, match="vector_index: faiss makes no index of 'IVFx'"):
        make_vectors(source, TRIGRAMS, VectorOptions(kind="IVFx"), tmp_path, memory_bytes=MEMORY)
    with pytest.raises(EvidenceMissingError, match="built without vectors"):
        VectorProposer.open(source)


def stored(index: Index) -> dict[str, list[float]]:
    """Similarities of every entity's vectors and some query, as the index has them, by id and text."""
    entry = index.vectors
    query = open_embedder(entry).embed_queries(["upper stone church river"])
    vectors = open_vectors(index, mapped=False)
    parameters = None
    if entry.kind not in ("flat", "hnsw"):
        parameters = faiss.SearchParametersIVF(nprobe=1000)
        if isinstance(vectors, faiss.IndexPreTransform):
            parameters = faiss.SearchParametersPreTransform(index_params=parameters)
    elif entry.kind == "hnsw":
        parameters = faiss.SearchParametersHNSW(efSearch=10_000)
    values, ids = vectors.search(query, vectors.ntotal, params=parameters)
    found: dict[str, list[float]] = {}
    for value, number in zip(values[0], ids[0], strict=True):
        if number >= 0:
            found.setdefault(index.entity(int(number)).entity_id, []).append(float(value))
    return found


def ancestry(old: Index, new: Index) -> npt.NDArray[np.int64]:
    ids = [new.entity(number).entity_id for number in range(new.num_entities)]
    return old.entities.numbers(ids).astype(np.int64)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", [0, 1])
def test_taken_over_vectors_are_as_they_were(kind: str, seed: int, tmp_path: Path) -> None:
    old = made(tmp_path / "old", ROWS, kind)
    draw = random.Random(seed)
    lines = [line for line in ROWS if draw.random() < 0.8]
    changed = {line.partition("\t")[0] for line in lines if draw.random() < 0.1}
    lines = [
        line.replace("\t", "\tmill ", 1) if line.partition("\t")[0] in changed else line for line in lines
    ]
    lines += [f"n{line}" for line in rows(30, seed + 7)]
    draw.shuffle(lines)
    new = carried(tmp_path / "new", old, lines)
    before, after = old.vectors, new.vectors
    assert replace(before, count=after.count) == after
    was, now = stored(old), stored(new)
    same = {line.partition("\t")[0] for line in lines} & set(was) - changed
    assert len(same) > 100
    if kind != "hnsw":
        assert set(now) == {line.partition("\t")[0] for line in lines}
    for entity in same & set(now):
        np.testing.assert_allclose(sorted(was[entity]), sorted(now[entity]), atol=1e-5)
    shortlister = VectorProposer.open(new)
    titles = [new.entity(number).title for number in range(0, new.num_entities, 9)]
    lists = [shortlister.search(vector, 40, None) for vector in shortlister.embed(titles)]
    named = [{new.entity(number).title for number in found.entities.tolist()} for found in lists]
    assert sum(title in found for title, found in zip(titles, named, strict=True)) >= len(titles) - 1


def restamped(folder: Path, vectors: Any, entry: VectorsEntry) -> Index:
    """An index with a file of vectors of another, whose digest the manifest has."""
    folder.mkdir()
    summary = build(folder, [HEAD, *ROWS], TOKENIZER, evidence=None)
    data = vectors if isinstance(vectors, bytes) else faiss.serialize_index(vectors).tobytes()
    return Index.open(with_vectors(summary, entry, {VECTORS_FILE: data}))


def test_files_of_other_vectors_are_refused(index: Index, tmp_path: Path) -> None:
    other = faiss.IndexIDMap(faiss.IndexFlatIP(16))
    far = faiss.IndexIDMap(faiss.IndexFlatIP(64))
    entry = index.vectors
    far.add_with_ids(np.ones((entry.count, 64), np.float32), np.full(entry.count, 10**6))
    euclid = faiss.IndexIDMap(faiss.IndexFlatL2(64))
    euclid.add_with_ids(np.ones((entry.count, 64), np.float32), np.zeros(entry.count, np.int64))
    bare = faiss.IndexFlatIP(64)
    bare.add(np.ones((entry.count, 64), np.float32))
    flat = replace(entry, kind="flat")
    cases: list[tuple[Any, VectorsEntry, str]] = [
        (other, entry, "vectors of length: expected 64, got 16"),
        (far, flat, r"expected ids in \[0, 240\), got 1000000"),
        (euclid, flat, "metric: expected inner product, got another"),
        (bare, flat, "kind: expected flat, got factory"),
        (bare, replace(entry, kind="factory"), "expected entity numbers as ids, got none"),
        (b"nothing of faiss", entry, "expected an index of faiss, got"),
        (far, replace(flat, count=3), f"number of vectors: expected 3, got {entry.count}"),
    ]
    for at, (vectors, said, message) in enumerate(cases):
        foreign = restamped(tmp_path / str(at), vectors, said)
        with pytest.raises(IndexFormatError, match=f"{VECTORS_FILE}: {message}"):
            VectorProposer.open(foreign)


def test_damaged_files_are_refused_by_name(index: Index) -> None:
    file = index.evidence_path(VECTORS_FILE)
    data = file.read_bytes()
    draw = random.Random(0)
    try:
        for _ in range(10):
            at = draw.randrange(len(data))
            flipped = bytes([data[at] ^ (1 << draw.randrange(8))])
            for bad in (data[:at], data[:at] + flipped + data[at + 1 :]):
                file.write_bytes(bad)
                for checks in (True, False) if len(bad) < len(data) else (True,):
                    with (
                        Index.open(index.path, verify_digests=checks) as damaged,
                        pytest.raises(IndexChecksumError, match=VECTORS_FILE),
                    ):
                        VectorProposer.open(damaged)
    finally:
        file.write_bytes(data)
