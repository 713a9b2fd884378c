"""Tables of names on disk: shared, damaged, foreign, in the way."""

from __future__ import annotations

import json
import logging
import multiprocessing
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from filelock import FileLock

from genret.retrieval.errors import SourceError
from genret.retrieval.linking.finding import name_table
from genret.retrieval.linking.finding.find_options import FindOptions
from genret.retrieval.linking.finding.finder import open_finder
from genret.retrieval.linking.finding.name_table import NameTable, build_table, open_table
from tests.own_process import PROCESSES
from tests.retrieval.linking.finding.name_oracle import NameIndex

INDEX: Any = NameIndex(
    [["New York", "NY", "big apple"], ["York"], ["Straße"], ["¿Qué?"], ["york"]], digest="a" * 32
)


def content(table: NameTable) -> dict[str, object]:
    return {
        "names": {name: table.entities_of(table.names[name]).tolist() for name in table.names},
        "written": {name: int(table.written[table.names[name]]) for name in table.names},
        "evidence": {name: [a.item(table.names[name]) for a in evidence(table)] for name in table.names},
        "spellings": sorted(table.spellings),
        "shape": (table.max_chars, table.first_marks),
    }


def evidence(table: NameTable) -> list[np.ndarray]:
    return [table.small, table.weight, table.start, table.part]


def folders(cache: Path) -> list[Path]:
    return sorted(path for path in cache.iterdir() if not path.name.endswith(".lock"))


def test_a_table_is_made_once_and_mapped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = open_table(INDEX, tmp_path / "some" / "cache")
    monkeypatch.setattr(name_table, "build_table", lambda index: pytest.fail("made a second time"))
    second = open_table(INDEX, tmp_path / "some" / "cache")
    assert content(first) == content(second) == content(build_table(INDEX))
    assert isinstance(second.entities.base, np.memmap)
    assert not second.entities.flags.writeable
    (folder,) = folders(tmp_path / "some" / "cache")
    assert folder.name.startswith(f"names-{'a' * 32}-2-unicode")


def test_what_a_table_holds() -> None:
    table = build_table(INDEX)
    held = content(table)
    del held["evidence"]
    assert held == {
        "names": {"new york": [0], "ny": [0], "big apple": [0], "york": [1, 4], "strasse": [2], "¿qué?": [3]},
        "written": {"new york": 0, "ny": 0, "big apple": 3, "york": 3, "strasse": 0, "¿qué?": 0},
        "spellings": ["NY", "New York", "Straße", "York", "¿Qué?"],
        "shape": (9, "¿"),
    }


def test_every_index_has_a_table_of_its_own(tmp_path: Path) -> None:
    open_table(INDEX, tmp_path)
    paris: Any = NameIndex([["Paris"]], digest="b" * 32)
    other = open_table(paris, tmp_path)
    assert list(other.names) == ["paris"]
    assert len(folders(tmp_path)) == 2


def _change_byte(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)


def _change_entry(field: str, value: object) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        file = folder / "table.json"
        file.write_text(json.dumps({**json.loads(file.read_text()), field: value}))

    return change


DAMAGES: dict[str, Callable[[Path], object]] = {
    "no table.json": lambda folder: (folder / "table.json").unlink(),
    "table.json is no object": lambda folder: (folder / "table.json").write_bytes(b"[1]"),
    "table.json is no UTF-8": lambda folder: (folder / "table.json").write_bytes(b"\xff{}"),
    "another index": _change_entry("index_digest", "c" * 32),
    "another version": _change_entry("version", "0-unicode1.0"),
    "no length": _change_entry("max_chars", None),
    "no files": _change_entry("files", None),
    "an absent file": _change_entry("files", {}),
    "no trie": lambda folder: (folder / "names.marisa").unlink(),
    "a damaged trie": lambda folder: _change_byte(folder / "names.marisa"),
    "a cut array": lambda folder: os.truncate(folder / "offsets.npy", 100),
}


@pytest.mark.fault
@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_table_is_made_anew(damage: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    expected = content(open_table(INDEX, tmp_path))
    (folder,) = folders(tmp_path)
    DAMAGES[damage](folder)
    with caplog.at_level(logging.WARNING):
        assert content(open_table(INDEX, tmp_path)) == expected
    assert [str(folder) in record.getMessage() for record in caplog.records] != []
    assert "made anew" in caplog.text
    caplog.clear()
    assert content(open_table(INDEX, tmp_path)) == expected
    assert caplog.records == []
    assert folders(tmp_path) == [folder]


@pytest.mark.fault
@pytest.mark.parametrize("what", ["file", "folder", "link"])
def test_what_lies_in_the_place_of_a_table_is_replaced(what: str, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    open_table(INDEX, cache)
    (folder,) = folders(cache)
    folder.rename(tmp_path / "kept")
    if what == "file":
        folder.write_text("mine")
    elif what == "folder":
        folder.mkdir()
        (folder / "mine").write_text("mine")
    else:
        folder.symlink_to(tmp_path / "nowhere")
    assert content(open_table(INDEX, cache))["shape"] == (9, "¿")
    assert folders(cache) == [folder]


@pytest.mark.fault
def test_a_cache_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    with pytest.raises(SourceError, match=r"table of names: .*file"):
        open_finder(INDEX, FindOptions(), tmp_path / "file")


@pytest.mark.fault
def test_a_build_that_fails_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(index: object) -> NameTable:
        raise OSError(28, "No space left on device", "names.marisa")

    monkeypatch.setattr(name_table, "build_table", fail)
    with pytest.raises(SourceError, match=r"table of names: names\.marisa: No space left on device"):
        open_table(INDEX, tmp_path)
    assert folders(tmp_path) == []


@pytest.mark.fault
def test_a_faster_process_wins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # As on a file system without locks: while this process makes the table, another one publishes it.

    def build_beside_another(index: NameIndex) -> NameTable:
        monkeypatch.setattr(name_table, "build_table", build_table)
        monkeypatch.setattr(name_table, "FileLock", lambda path: multiprocessing.Lock())  # one of its own
        open_table(INDEX, tmp_path)
        return build_table(INDEX)

    monkeypatch.setattr(name_table, "build_table", build_beside_another)
    table = open_table(INDEX, tmp_path)
    assert content(table) == content(build_table(INDEX))
    assert len(folders(tmp_path)) == 1


@pytest.mark.fault
def test_what_killed_processes_left_is_removed_after_a_day(tmp_path: Path) -> None:
    open_table(INDEX, tmp_path / "first")
    (folder,) = folders(tmp_path / "first")
    cache = tmp_path / "cache"
    for name in ("old", "new"):
        (cache / f".{folder.name}-{name}").mkdir(parents=True)
    os.utime(cache / f".{folder.name}-old", (0, 0))
    open_table(INDEX, cache)
    assert {path.name for path in folders(cache)} == {f".{folder.name}-new", folder.name}


@pytest.mark.fault
def test_a_file_system_without_locks_will_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(lock: FileLock) -> None:
        raise NotImplementedError("FileSystem does not appear to support flock")

    monkeypatch.setattr(FileLock, "acquire", refuse)
    assert len(open_table(INDEX, tmp_path).names) == 6
    assert "cannot be locked" in caplog.text


def _open_in_process(cache: Path, barrier: object) -> None:
    index = NameIndex([[f"name {number}"] for number in range(20_000)], "d" * 32)
    barrier.wait()  # type: ignore[attr-defined]
    table = open_table(index, cache)  # type: ignore[arg-type]
    assert len(table.names) == 20_000
    assert table.entities_of(table.names["name 77"]).tolist() == [77]


def test_processes_that_start_at_once_share_one_table(tmp_path: Path) -> None:
    barrier = PROCESSES.Barrier(2)
    processes = [PROCESSES.Process(target=_open_in_process, args=(tmp_path, barrier)) for _ in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0, 0]
    assert len(folders(tmp_path)) == 1
