"""A run that ends before any one of its changes to the disk goes on: every such moment is tried."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from tests.index_fixtures import build, character_tokenizer
from tests.linking_fakes import begun, run_words

CHANGES = ("replace", "unlink", "mkdir", "rmdir", "write_bytes")
NUM_DOCUMENTS, PER_SHARD = 6, 2


class Crash(BaseException):
    """The process is gone: nothing handles this."""


@contextmanager
def crashing(monkeypatch: pytest.MonkeyPatch, below: Path, before: int) -> Iterator[list[str]]:
    """Let the change of this number below a folder, and every later one, not happen."""
    done: list[str] = []

    def patch(name: str) -> Any:
        original = getattr(Path, name)

        def change(self: Path, *arguments: Any, **settings: Any) -> Any:
            if not self.is_relative_to(below):
                return original(self, *arguments, **settings)
            if len(done) >= before:
                raise Crash(name)
            done.append(name)
            return original(self, *arguments, **settings)

        return change

    with monkeypatch.context() as patched:
        for name in CHANGES:
            patched.setattr(Path, name, patch(name))
        yield done


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("index"), ["title", "Paris"], character_tokenizer("Paris")).index


def rows(out: Path) -> list[tuple[str, str]]:
    files = sorted(out.glob("part-*")) if out.is_dir() else [out]
    read: list[dict[str, Any]] = []
    for file in files:
        if file.suffix == ".jsonl":
            read += [json.loads(line) for line in file.read_text().splitlines()]
        else:
            read += pq.read_table(file).to_pylist()
    return [(row["doc_id"], row["mention"]) for row in read]


@pytest.mark.fault
@pytest.mark.parametrize("name", ["out", "out.jsonl", "out.parquet"])
def test_a_run_goes_on_from_every_moment(
    name: str, tmp_path: Path, index: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    docs = tmp_path / "docs.jsonl"
    texts = [json.dumps({"id": f"d{i}", "text": f"w{i} w{i}b"}) + "\n" for i in range(NUM_DOCUMENTS)]
    docs.write_text("".join(texts))
    expected = [(f"d{i}", word) for i in range(NUM_DOCUMENTS) for word in (f"w{i}", f"w{i}b")]
    crashes = 0
    while True:
        folder = tmp_path / "here"
        folder.mkdir()
        out = folder / name
        parts = out if name == "out" else folder / f"{name}.parts"
        try:
            with crashing(monkeypatch, folder, crashes):
                run_words(docs, out, index, shard_documents=PER_SHARD)
        except Crash:
            crashes += 1
        else:
            break
        records = len(list(parts.glob("_shards/0*.json")))
        linked = len(begun(parts))
        if out.exists() and not out.is_dir():
            assert rows(out) == expected, crashes  # it is whole, or not there
        if out.is_file() and not (parts / "_summary.json").exists():  # but for the lock it was all done
            assert not parts.exists() or {file.name for file in parts.iterdir()} <= {".lock"}
            shutil.rmtree(folder)
            continue
        summary = run_words(docs, out, index, shard_documents=PER_SHARD)
        assert rows(out) == expected, crashes
        assert summary.counts.num_rows == len(expected)
        assert summary.num_resumed == records
        # No finished shard is done again, nor any when the one file is made.
        missing = 0 if summary.was_complete else summary.num_shards - records
        assert len(begun(parts)) - linked == missing
        assert not list(folder.rglob("*.tmp"))
        assert parts.exists() == (name == "out")
        shutil.rmtree(folder)
    assert crashes > 20
