"""Output files: complete or not there, the same rows in both formats."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from retrieval.errors import InputError, SourceError
from retrieval.linking.writer import SCHEMA, LinkWriter, check_output

METADATA = {"index_digest": "abc", "options": '{"k": 5}'}
LINKED = {
    "id": "a",
    "mention": "Nile ü",
    "entity_id": "Q7",
    "title": "Nile",
    "surface": "Nile",
    "logprob": -1.5,
    "probability": 0.25,
    "candidates": [{"entity_id": "Q7", "title": "Nile", "logprob": -1.5, "score": -1.5}],
    "error": None,
    "mass": 0.75,
    "abstained": False,
    "score": -1.5,
    "certified": True,
}
NIL = {**dict.fromkeys(SCHEMA.names), "id": "2", "mention": "x", "candidates": []}


def read(file: Path) -> list[dict[str, Any]]:
    if file.suffix == ".parquet":
        return list(pq.read_table(file).to_pylist())
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]


def write(file: Path, *groups: Sequence[dict[str, Any]]) -> None:
    with LinkWriter(file, METADATA) as writer:
        for rows in groups:
            writer.write(rows)


@pytest.fixture(params=["out.parquet", "out.jsonl"])
def file(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return tmp_path / str(request.param)


@pytest.mark.parametrize("groups", [[], [[LINKED]], [[LINKED, NIL], [NIL]]])
def test_rows_come_back(file: Path, groups: list[list[dict[str, Any]]]) -> None:
    write(file, *groups)
    assert read(file) == [row for rows in groups for row in rows]
    assert os.listdir(file.parent) == [file.name]


def test_parquet_has_schema_and_metadata(tmp_path: Path) -> None:
    write(tmp_path / "out.parquet", [LINKED])
    schema = pq.read_schema(tmp_path / "out.parquet")
    assert schema.equals(SCHEMA)
    assert schema.metadata[b"genret.index_digest"] == b"abc"
    assert schema.metadata[b"genret.options"] == b'{"k": 5}'


@pytest.mark.parametrize("kind", [ValueError, KeyboardInterrupt, SystemExit])
def test_nothing_appears_when_the_block_fails(file: Path, kind: type[BaseException]) -> None:
    with pytest.raises(kind), LinkWriter(file, METADATA) as writer:  # noqa: PT012
        writer.write([LINKED])
        assert not file.exists()
        raise kind
    assert os.listdir(file.parent) == []


def test_old_output_stays_until_the_new_one_is_complete(file: Path) -> None:
    write(file, [LINKED])
    with pytest.raises(ValueError, match="later"), LinkWriter(file, METADATA) as writer:  # noqa: PT012
        writer.write([NIL])
        raise ValueError("later")
    assert read(file) == [LINKED]
    write(file, [NIL])
    assert read(file) == [NIL]


class FullDisk:
    """A sink on a disk without space."""

    def __init__(self, sink: Any) -> None:
        self._sink = sink

    def write(self, rows: object) -> None:
        raise OSError(28, "No space left on device")

    def close(self) -> None:
        self._sink.close()
        raise OSError(28, "No space left on device")


@pytest.mark.parametrize("rows", [[], [LINKED]])
def test_full_disk_is_an_error_that_names_the_output(
    file: Path, rows: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = LinkWriter(file, METADATA)
    monkeypatch.setattr(writer, "_sink", FullDisk(writer._sink))
    with pytest.raises(SourceError) as error, writer:  # noqa: PT012
        if rows:
            writer.write(rows)
    assert str(error.value) == f"{file}: cannot be written: No space left on device"
    assert os.listdir(file.parent) == []


@pytest.mark.parametrize("name", ["out.csv", "out", "out.parquet.gz", ".parquet"])
def test_other_endings_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(InputError, match=r"out: must end in \.parquet or \.jsonl, got '"):
        check_output(tmp_path / name)
    with pytest.raises(InputError):
        LinkWriter(tmp_path / name, METADATA)
    assert os.listdir(tmp_path) == []


def test_folders_are_checked(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="there is no folder"):
        check_output(tmp_path / "absent" / "out.jsonl")
    (tmp_path / "out.jsonl").mkdir()
    with pytest.raises(InputError, match="is a directory"):
        check_output(tmp_path / "out.jsonl")
