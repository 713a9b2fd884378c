"""Runs that are killed at any moment go on: no row is lost, none is there twice, little is done again."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from genret.retrieval.errors import InputError
from genret.retrieval.linking.output.folder import LinkingRunError
from tests.corpus_shards import store
from tests.linking_fakes import (
    DELAY_VARIABLE,
    ROOT,
    STAY_VARIABLE,
    begun,
    mentions_of,
    rows_of,
    run_command,
    run_words,
    wait_for,
)

NUM_DOCUMENTS = 60
NUM_SHARDS = 15
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", DELAY_VARIABLE: "0.02"}
pytestmark = [pytest.mark.fault, pytest.mark.timeout(1500)]


def write_documents(folder: Path, num: int = NUM_DOCUMENTS, **odd: str) -> Path:
    texts = [odd.get(f"d{i}", f"w{i} w{i}b ?n Xx" + " STAY" * (i == 40)) for i in range(num)]
    return store(folder, "lines", texts)


@pytest.fixture
def docs(tmp_path: Path) -> Path:
    return write_documents(tmp_path)


@pytest.fixture(scope="module")
def undisturbed(index: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    folder = tmp_path_factory.mktemp("undisturbed")
    run_words(write_documents(folder), folder / "out", index)
    return parts(folder / "out")


def parts(out: Path) -> dict[str, bytes]:
    """Rows of every part, without the name of the input's folder."""
    return {
        part.name: json.dumps([{**row, "source": Path(row["source"]).name} for row in rows_of(part)]).encode()
        for part in sorted(out.glob("part-*"))
    }


def start(docs: Path, out: Path, index: Path, workers: int, stays: bool = True) -> subprocess.Popen[bytes]:
    """Start a run and wait until it is past the imports; where it `stays` at a shard, it has no end."""
    process = subprocess.Popen(
        run_command(docs, out, index, workers),
        cwd=ROOT,
        env={**ENVIRONMENT, STAY_VARIABLE: ""} if stays else ENVIRONMENT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    assert process.stdout.readline() == b"READY\n"
    return process


def done_in(out: Path) -> int:
    """How many shards have a record."""
    return len(list(out.glob("_shards/0*.json")))


def workers_of(process: subprocess.Popen[bytes]) -> set[int]:
    """Return the live processes of a run but for its first: it has a process group of its own."""
    found = set()
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, group = stat.read_text().rpartition(")")[2].split()[:3]
        except (FileNotFoundError, ProcessLookupError):
            continue
        if int(group) == process.pid and state != "Z":
            found.add(int(stat.parent.name))
    return found - {process.pid}


def kill(process: subprocess.Popen[bytes]) -> None:
    """Kill the first process of a run, and wait until the others are gone with it."""
    process.kill()
    with process:
        process.wait()
    wait_for(lambda: not workers_of(process))


@pytest.mark.parametrize("workers", [1, 2])
def test_kills_at_random_moments_lose_and_double_nothing(
    workers: int, docs: Path, tmp_path: Path, index: Path, undisturbed: dict[str, bytes]
) -> None:
    """Ten kills each of the whole run, with one worker and with two: one run after the other goes on."""
    chance = random.Random(1000 + workers)
    out = tmp_path / "out"
    kills = 0
    while kills < 10:
        if (out / "_summary.json").exists():  # it was quicker than the kills: once more from the beginning
            check(out, undisturbed, workers, kills)
            out = tmp_path / f"out-{kills}"
        before = len(begun(out))
        process = start(docs, out, index, workers, stays=False)
        while kills % 4 and process.poll() is None and len(begun(out)) == before:
            time.sleep(0.005)  # three of four kills come while shards are linked, one before that
        time.sleep(chance.uniform(0.0, 0.3))
        kills += process.poll() is None
        kill(process)
    run_words(docs, out, index)
    check(out, undisturbed, workers, kills)


def check(out: Path, undisturbed: dict[str, bytes], workers: int, kills: int) -> None:
    assert parts(out) == undisturbed
    assert not list(out.rglob("*.tmp"))
    times = Counter(shard for shard, _ in begun(out))
    assert set(times) == set(range(NUM_SHARDS))
    again = sum(n - 1 for n in times.values())
    assert again <= workers * kills, times  # at most the one shard that every worker was at


@pytest.mark.parametrize("workers", [1, 2])
def test_a_kill_in_the_middle_costs_what_was_being_done(
    workers: int, docs: Path, tmp_path: Path, index: Path, undisturbed: dict[str, bytes]
) -> None:
    """The lock and the workers go with the process."""
    out = tmp_path / "out"
    process = start(docs, out, index, workers)
    wait_for(lambda: done_in(out) >= 5, process)
    with pytest.raises(LinkingRunError, match="another run is writing there"):
        run_words(docs, out, index)
    assert len(workers_of(process)) >= (0, 0, 2)[workers]
    kill(process)
    done = done_in(out)
    assert 5 <= done < NUM_SHARDS
    assert run_words(docs, out, index).num_resumed == done
    check(out, undisturbed, workers, 1)


@pytest.mark.parametrize("workers", [1, 2])
def test_ctrl_c_stops_soon_and_leaves_whole_shards(
    workers: int, docs: Path, tmp_path: Path, index: Path
) -> None:
    out = tmp_path / "out"
    process = start(docs, out, index, workers)
    wait_for(lambda: done_in(out) >= 3, process)
    os.killpg(process.pid, signal.SIGINT)
    with process:
        process.wait()
        message = process.stderr.read().decode()
    assert not (out / "_summary.json").exists()
    wait_for(lambda: not workers_of(process))
    assert not list(out.rglob("*.tmp"))
    assert message.count("KeyboardInterrupt") == 1, message
    assert run_words(docs, out, index).num_resumed >= 3


def test_a_file_that_cannot_grow_is_named_and_nothing_half_is_left(
    docs: Path, tmp_path: Path, index: Path
) -> None:
    command = run_command(docs, tmp_path / "out", index, 1)
    command[2] = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096));" + command[2]
    done = subprocess.run(command, cwd=ROOT, env=ENVIRONMENT, capture_output=True, text=True)
    assert done.returncode == 1
    message = done.stderr.strip().splitlines()[-1]
    assert message.startswith("genret.retrieval.errors.SourceError: ")
    assert "out/part-000000.parquet: cannot be written: " in message
    assert "File too large" in message
    assert not (tmp_path / "out").exists()


def test_a_worker_that_is_killed_ends_the_run_with_what_to_do(tmp_path: Path, index: Path) -> None:
    docs = write_documents(tmp_path, 24, d17="DIE")
    with pytest.raises(LinkingRunError) as error:
        run_words(docs, tmp_path / "out", index, workers=2)
    assert str(error.value).startswith("a worker died (SIGKILL) as it linked shard 4 (")
    assert "d.jsonl from row 17); the system kills a process so when memory runs out" in str(error.value)
    (note,) = error.value.__notes__
    assert note.startswith(f"{done_in(tmp_path / 'out')} of 6 shards are done and kept in ")
    assert note.endswith("the same command goes on from there")
    assert not list((tmp_path / "out").rglob("*.tmp"))


def test_errors_of_workers_keep_their_kind_and_words(tmp_path: Path, index: Path) -> None:
    docs = write_documents(tmp_path, 24, d17="REFUSE")
    with pytest.raises(InputError) as error:
        run_words(docs, tmp_path / "out", index, workers=2)
    assert str(error.value) == "filter: does not fit the index"


CHANGES = ("replace", "unlink", "mkdir", "rmdir", "write_bytes")
NUM_TEXTS, PER_SHARD = 6, 2


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


@pytest.mark.parametrize("name", ["out", "out.jsonl", "out.parquet"])
def test_a_run_goes_on_from_every_moment(
    name: str, tmp_path: Path, index: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    docs = store(tmp_path, "lines", [f"w{i} w{i}b" for i in range(NUM_TEXTS)])
    expected = [(f"d{i}", word) for i in range(NUM_TEXTS) for word in (f"w{i}", f"w{i}b")]
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
        records = done_in(parts)
        linked = len(begun(parts))
        if out.exists() and not out.is_dir():
            assert mentions_of(out) == expected, crashes  # it is whole, or not there
        if out.is_file() and not (parts / "_summary.json").exists():  # but for the lock it was all done
            assert not parts.exists() or {file.name for file in parts.iterdir()} <= {".lock"}
            shutil.rmtree(folder)
            continue
        summary = run_words(docs, out, index, shard_documents=PER_SHARD)
        assert mentions_of(out) == expected, crashes
        assert summary.counts.num_rows == len(expected)
        assert summary.num_resumed == records
        # No finished shard is done again, nor any when the one file is made.
        missing = 0 if summary.was_complete else summary.num_shards - records
        assert len(begun(parts)) - linked == missing
        assert not list(folder.rglob("*.tmp"))
        assert parts.exists() == (name == "out")
        shutil.rmtree(folder)
    assert crashes > 20
