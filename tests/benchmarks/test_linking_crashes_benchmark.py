"""The benchmark of killed runs, with the shipped model: it finds nothing lost, and would find what is."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

REPOSITORY = Path(__file__).resolve().parents[2]


@pytest.fixture
def script(benchmark_path: None) -> ModuleType:
    return importlib.import_module("linking_crashes")


def row(number: int, **changed: Any) -> dict[str, Any]:
    place = {"source": "d", "row": number, "start": 0, "end": 3}
    return {**place, "entity_id": "Q1", "logprob": -1.0, **changed}


def written(folder: Path, found: list[dict[str, Any]]) -> Path:
    folder.mkdir()
    pq.write_table(pa.Table.from_pylist(found), folder / "part-000000.parquet")
    return folder


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        ([row(1), row(2)], (0, 0, 0)),
        ([row(1), row(2, logprob=-1.00001)], (0, 0, 0)),
        ([row(1)], (1, 0, 0)),
        ([row(1), row(2), row(2)], (0, 1, 0)),
        ([row(1), row(1)], (1, 1, 0)),
        ([row(1), row(2, entity_id="Q2")], (0, 0, 1)),
        ([row(1), row(2, logprob=-2.0)], (0, 0, 1)),
        ([row(2), row(1)], (0, 0, 1)),
    ],
)
def test_what_is_lost_doubled_or_different_is_counted(
    script: ModuleType, found: list[dict[str, Any]], expected: tuple[int, int, int], tmp_path: Path
) -> None:
    counted = script.compare(written(tmp_path / "out", found), [row(1), row(2)])
    assert (counted["lost"], counted["doubled"], counted["different"]) == expected


def test_records_that_are_written_again_are_counted(script: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "_shards").mkdir()
    first, second = (tmp_path / "_shards" / f"00000{i}.json" for i in range(2))
    known: dict[Path, int] = {}
    first.write_text("{}")
    assert script.rewritten(tmp_path, known) == 0
    second.write_text("{}")
    assert script.rewritten(tmp_path, known) == 0
    os.utime(first, ns=(1, 1))
    assert script.rewritten(tmp_path, known) == 1


def test_shards_without_a_record_are_unfinished(script: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "_shards").mkdir()
    names = ("part-000000.parquet", "part-000001.parquet", ".part-000002.parquet.host.7.tmp")
    for name in (*names, "_shards/000000.json"):
        (tmp_path / name).write_text("")
    assert script.unfinished(tmp_path) == {"000001", "000002"}


@pytest.mark.slow
@pytest.mark.fault
def test_the_shipped_model_loses_and_doubles_nothing(tmp_path: Path) -> None:
    figures = tmp_path / "figures.json"
    size = ["--documents", "60", "--shard-documents", "3", "--kills", "4", "--workers", "2"]
    done = subprocess.run(
        [sys.executable, "benchmarks/linking_crashes.py", *size, "--json", str(figures)],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(figures.read_text())["figures"]
    assert (found["lost"], found["doubled"], found["different"], found["rewritten"]) == (0, 0, 0, 0)
    assert (found["num_rows"], len(found["kills"])) == (120, 4)
    assert found["most_redone"] <= 2
