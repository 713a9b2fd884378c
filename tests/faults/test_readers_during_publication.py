"""Readers in other processes while versions come and go."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path

import pytest
import torch

from genret.decoding.trie.title_trie import TitleTrie
from genret.retrieval.errors import GenretError, IndexDirectoryError, IndexFormatError
from genret.retrieval.index import reader as reader_module
from genret.retrieval.index.reader import Index
from genret.retrieval.index.small_files import digest_bytes
from genret.retrieval.index.verification import verify
from genret.retrieval.index.versions import list_versions
from tests.fakes import recorded
from tests.fuzz.rich_index import TOKENIZER, lines
from tests.index_fixtures import build
from tests.own_process import PROCESSES


def titles_by_trie(index: Index) -> list[str]:
    """Return the text of every row, found by walking the trie from its root."""
    trie = TitleTrie(index.trie_arrays(), index.vocab_size)
    states = trie.start(torch.zeros(1, dtype=torch.long))
    found: list[str] = []
    while len(states):
        final = trie.is_final(states)
        found += [index.surface(rank) for rank in trie.row(states[final]).tolist()]
        states = trie.children(states[~final]).next_state
    return sorted(found)


def digest(index: Index) -> str:
    """Return a digest of all that three ways of reading give, which must agree."""
    by_rank = sorted(index.surface(rank) for rank in range(index.num_rows))
    if titles_by_trie(index) != by_rank:
        raise AssertionError("the trie and the rows disagree")
    rows = [index.row_token_ids(rank) for rank in range(index.num_rows)]
    if [index.row_of(row) for row in rows] != list(range(index.num_rows)):
        raise AssertionError("a row is not found by its tokens")
    entities = [index.entity(number) for number in range(index.num_entities)]
    return digest_bytes(repr((by_rank, rows, entities)).encode())


def _read_on_demand(index: Path, pipe: Connection) -> None:
    """Hold a version open; read everything again whenever it is asked for."""
    with Index.open(index) as opened:
        pipe.send(opened.version)
        while pipe.recv():
            pipe.send((opened.version, digest(opened)))


class Reader:
    """A process that holds one version open."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe
        self.version = pipe.recv()

    def read(self) -> str:
        """Let it read everything; return the digest of that."""
        self._pipe.send(True)
        version, found = self._pipe.recv()
        assert version == self.version
        return str(found)


@contextmanager
def child(reads: Callable[[Path, Connection], None], index: Path) -> Iterator[Connection]:
    """Run a process that reads an index, and that a word over the pipe ends."""
    pipe, theirs = PROCESSES.Pipe()
    process = PROCESSES.Process(target=reads, args=(index, theirs), daemon=True)
    process.start()
    theirs.close()
    yield pipe
    pipe.send(False)
    process.join(60)
    assert process.exitcode == 0


@contextmanager
def reader(index: Path) -> Iterator[Reader]:
    with child(_read_on_demand, index) as pipe:
        yield Reader(pipe)


def digest_of(index: Path) -> str:
    with Index.open(index) as opened:
        return digest(opened)


def test_a_reader_keeps_its_version_while_two_are_published_and_it_is_removed(tmp_path: Path) -> None:
    first = build(tmp_path, lines(20), TOKENIZER)
    before = digest_of(first.index)
    with reader(first.index) as held:
        assert held.version == first.version
        assert held.read() == before
        second = build(tmp_path, lines(30), TOKENIZER)
        assert held.read() == before
        with reader(first.index) as newer:
            assert newer.version == second.version
            third = build(tmp_path, lines(40), TOKENIZER, keep_versions=0)
            assert list_versions(first.index) == [third.version]
            assert not (first.index / "versions" / first.version).exists()
            assert held.read() == before
            assert newer.read() not in (before, digest_of(first.index))
        with reader(first.index) as newest:
            assert newest.version == third.version
            assert newest.read() == digest_of(first.index) != before
        assert held.read() == before


def _open_on_and_on(index: Path, pipe: Connection) -> None:
    seen: set[str] = set()
    error = ""
    pipe.send("ready")
    while not error and not pipe.poll():
        try:
            with Index.open(index) as opened:
                if opened.version not in seen:
                    seen.add(opened.version)
                    pipe.send(opened.version)
                if opened.num_entities != len(opened.entities.column("title")):
                    error = "the entities are not those of the version"
                opened.surface(opened.num_rows - 1)
            report = verify(index)
            if not report.ok:
                error = f"verify: {report.problems}"
        except GenretError as failure:
            error = f"{type(failure).__name__}: {failure}"
    pipe.send(f"the end: {error}")


def test_opening_in_a_loop_never_meets_a_broken_index(tmp_path: Path) -> None:
    index = build(tmp_path, lines(20), TOKENIZER).index
    published: list[str] = []
    seen: list[str] = []
    with child(_open_on_and_on, index) as pipe:
        assert pipe.recv() == "ready"
        # The reader must have run during the publications, however seldom it was its turn.
        while len(published) < 24 or len({*seen} & {*published}) < 3:
            number = len(published) + 1
            published.append(build(tmp_path, lines(20 + number % 7), TOKENIZER, keep_versions=0).version)
            while pipe.poll():
                seen.append(pipe.recv())
                assert not seen[-1].startswith("the end")
    while not (said := pipe.recv()).startswith("the end"):
        pass
    assert said == "the end: "


def test_opening_starts_again_when_the_version_is_removed_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build(tmp_path, lines(20), TOKENIZER)
    real = reader_module.read_manifest
    attempts: list[str] = []

    def publishes_first(folder: Path) -> object:
        attempts.append(folder.name)
        if len(attempts) < 4:
            build(tmp_path, lines(20 + len(attempts)), TOKENIZER, keep_versions=0)
        return real(folder)

    monkeypatch.setattr(reader_module, "read_manifest", publishes_first)
    with Index.open(tmp_path / "it.index") as opened:
        assert opened.num_entities == 23
    assert attempts[-1] == list_versions(tmp_path / "it.index")[0]


def test_opening_gives_up_when_every_version_is_removed_under_its_hands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build(tmp_path, ["b"], TOKENIZER)
    attempts = 0

    def always_late(folder: Path) -> object:
        nonlocal attempts
        attempts += 1
        build(tmp_path, ["a" * attempts], TOKENIZER, keep_versions=0)
        raise IndexFormatError("this version is gone")

    monkeypatch.setattr(reader_module, "read_manifest", always_late)
    with pytest.raises(IndexFormatError, match="this version is gone"):
        Index.open(tmp_path / "it.index")
    assert attempts == 20


def test_a_broken_version_is_tried_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    summary = build(tmp_path, ["a"], TOKENIZER)
    (summary.index / "versions" / summary.version / "trie.arrow").unlink()
    calls = recorded(monkeypatch, reader_module, "read_manifest")
    with pytest.raises(IndexDirectoryError, match=r"trie\.arrow"):
        Index.open(summary.index)
    assert len(calls) == 1
