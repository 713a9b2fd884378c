"""Shards on a Ray cluster: each linked once, whatever dies."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from genret.retrieval.defaults import sample_catalogue
from genret.retrieval.linking.documents.corpus import CorpusOptions
from genret.retrieval.linking.link_options import WorkerOptions
from genret.retrieval.linking.run import OutputOptions, link_corpus
from tests.linking_fakes import PATIENCE_S, wait_for
from tests.retrieval.linking.cluster.fake_shard_worker import (
    HERE,
    a_job,
    finished_in,
    parts_of,
    runs_of,
    script_environment,
)
from tests.sample_index import build_sample_index

pytest.importorskip("ray")
# Where there is nothing else to do it all takes half a minute.
pytestmark = [pytest.mark.ray, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def cluster() -> Iterator[tuple[str, dict[str, str]]]:
    """Yield the address of a cluster of this machine and the environment of its drivers."""
    folder = tempfile.mkdtemp(prefix="gr-")  # short: Ray's sockets are in it
    environment = script_environment(Path(folder))
    host = subprocess.Popen(
        [sys.executable, str(HERE / "ray_host.py"), folder],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=environment,
        text=True,
    )
    try:
        yield host.stdout.readline().strip(), environment
    finally:
        host.communicate(timeout=PATIENCE_S)
        shutil.rmtree(folder, ignore_errors=True)


def start(cluster: tuple[str, dict[str, str]], *runs: str) -> subprocess.Popen[str]:
    address, environment = cluster
    command = [sys.executable, str(HERE / "ray_driver.py"), address, *runs]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment, text=True
    )


def outcome(driver: subprocess.Popen[str]) -> list[dict[str, Any]]:
    out, error = driver.communicate(timeout=PATIENCE_S)
    assert driver.returncode == 0, error
    said = [json.loads(line) for line in out.splitlines() if line.startswith("{")]
    return [line for line in said if "left" not in line]


@pytest.fixture(scope="module")
def several(
    cluster: tuple[str, dict[str, str]], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, tuple[Path, dict[str, Any]]]:
    """Return folder and outcome of runs that one driver has made, by name."""
    cases: dict[str, tuple[int, dict[str, object]]] = {
        "plain": (6, {"seconds": 0.1, "workers": 2}),
        "refused": (3, {"refuse": "the index is another one"}),
        "failed": (4, {"fail_at": 1}),
        "deadly": (2, {"always_die_at": 1, "die_when_recorded": 0}),
        "gone": (2, {}),
    }
    arguments, folders = [], {}
    for name, (count, settings) in cases.items():
        folders[name] = tmp_path_factory.mktemp(name)
        a_job(folders[name], **settings)
        arguments += [str(folders[name]), str(count)]
    (folders["gone"] / "docs.txt").unlink()
    outcomes = outcome(start(cluster, *arguments))
    return {name: (folders[name], outcomes[i]) for i, name in enumerate(cases)}


Several = dict[str, tuple[Path, dict[str, Any]]]


def test_every_shard_is_linked_once_by_two_workers(several: Several) -> None:
    folder, done = several["plain"]
    assert sorted(done["shards"]) == list(range(6)) == runs_of(folder) == parts_of(folder)
    assert len({path.name.split("-")[2] for path in (folder / "out").glob("begun-*")}) == 2
    assert done["counted"] == 60  # ten mentions of each shard, told as they came


def test_a_refused_index_and_a_failed_shard_end_the_run_in_the_workers_words(several: Several) -> None:
    done = several["refused"][1]
    assert (done["error"], done["text"]) == ("IndexMismatchError", "the index is another one")
    folder, done = several["failed"]
    assert (done["error"], done["text"]) == ("SourceError", "docs.txt: shard 1 is broken")
    assert runs_of(folder).count(1) == 1


def test_a_shard_that_kills_its_workers_is_named_and_one_with_a_record_not_linked_again(
    several: Several,
) -> None:
    folder, done = several["deadly"]
    assert done["error"] == "LinkingRunError"
    assert "shard 1 (docs.txt from row 1) was tried 2 times" in done["text"]
    assert (runs_of(folder).count(1), runs_of(folder).count(0)) == (2, 1)


def test_an_input_that_a_node_does_not_see_is_refused_before_anything_is_linked(several: Several) -> None:
    folder, done = several["gone"]
    assert done["error"] == "SourceError"
    assert f"does not see the input {folder / 'docs.txt'}" in done["text"]
    assert "folders that all nodes share" in done["text"]
    assert runs_of(folder) == []


@pytest.mark.slow
def test_rows_are_those_of_a_run_in_one_process(cluster: tuple[str, dict[str, str]], tmp_path: Path) -> None:
    address, environment = cluster
    index, documents = build_sample_index(tmp_path / "index"), tmp_path / "docs.jsonl"
    titles = [line.split("\t")[1] for line in sample_catalogue().read_text("utf-8").splitlines()[1:41]]
    texts = [{"id": str(n), "text": f"A page about {title}, and more."} for n, title in enumerate(titles)]
    documents.write_text("".join(json.dumps(text) + "\n" for text in texts), encoding="utf-8")
    command = [sys.executable, "-m", "genret", "link", str(documents), "--index", str(index)]
    command += ["--out", str(tmp_path / "ray"), "--shard-documents", "10", "--device", "cpu"]
    command += ["--runner", "ray", "--workers", "2", "--ray-address", address]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.returncode == 0, done.stderr
    link_corpus(
        CorpusOptions((str(documents),), shard_documents=10),
        OutputOptions(str(tmp_path / "alone")),
        WorkerOptions(str(index), device="cpu"),
    )
    alone, ray = (
        pa.concat_tables(pq.read_table(part) for part in sorted((tmp_path / name).glob("part-*")))
        for name in ("alone", "ray")
    )
    numbers = ["logprob", "score", "probability", "candidates"]
    assert ray.num_rows >= 40
    assert ray.drop_columns(numbers) == alone.drop_columns(numbers)
    assert ray["logprob"].to_pylist() == pytest.approx(alone["logprob"].to_pylist(), abs=1e-4, nan_ok=True)


def busy_workers(folder: Path) -> list[int]:
    """Return the processes that are at a shard."""
    finished = set(parts_of(folder))
    begun = [path.name.split("-") for path in (folder / "out").glob("begun-*")]
    return [int(pid) for _, shard, pid, _ in begun if int(shard) not in finished]


@pytest.mark.fault
def test_a_killed_worker_loses_nothing(cluster: tuple[str, dict[str, str]], tmp_path: Path) -> None:
    a_job(tmp_path, seconds=0.5)
    driver = start(cluster, str(tmp_path), "8")
    busy = wait_for(lambda: len(parts_of(tmp_path)) >= 2 and busy_workers(tmp_path), driver)
    assert busy
    os.kill(busy[0], signal.SIGKILL)
    (done,) = outcome(driver)
    assert sorted(done["shards"]) == list(range(8)) == parts_of(tmp_path)
    assert len(runs_of(tmp_path)) <= 9  # one shard was begun again


@pytest.mark.fault
def test_a_killed_driver_is_followed_by_one_that_does_the_rest(
    cluster: tuple[str, dict[str, str]], tmp_path: Path
) -> None:
    a_job(tmp_path, seconds=0.4, seconds_before_record=0.1)  # killed behind a part, some have no record
    driver = start(cluster, str(tmp_path), "8")
    finished = wait_for(lambda: len(done := finished_in(tmp_path)) >= 3 and done, driver)
    driver.kill()
    driver.communicate()
    (done,) = outcome(start(cluster, str(tmp_path), "8"))
    assert parts_of(tmp_path) == finished_in(tmp_path) == list(range(8))
    assert finished
    assert not set(finished) & set(done["shards"])
    assert all(runs_of(tmp_path).count(shard) == 1 for shard in finished)
    assert len(runs_of(tmp_path)) <= 10  # at most one shard per worker was begun again


def test_an_interrupted_driver_ends_its_workers(cluster: tuple[str, dict[str, str]], tmp_path: Path) -> None:
    a_job(tmp_path, seconds=0.5)
    driver = start(cluster, str(tmp_path), "50")
    wait_for(lambda: len(busy_workers(tmp_path)) == 2, driver)
    driver.send_signal(signal.SIGINT)
    _, error = driver.communicate(timeout=PATIENCE_S)
    assert driver.returncode == -signal.SIGINT, error
    assert error.rstrip().endswith("KeyboardInterrupt")
    wait_for(lambda: not any(Path(f"/proc/{pid}").exists() for pid in busy_workers(tmp_path)))
    assert len(parts_of(tmp_path)) < 50
