"""What a run on Ray is made of, without a cluster."""

from __future__ import annotations

import socket
import sys
from dataclasses import fields, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from genret.retrieval.errors import InputError
from genret.retrieval.linking.documents.corpus import Shard, ShardFile
from genret.retrieval.linking.finding.find_options import FindOptions
from genret.retrieval.linking.output.folder import ShardRecord, part_name, write_record
from genret.retrieval.linking.run_progress import LinkCounts
from genret.retrieval.linking.runners.ray_cluster import choose_resources, reason_not_joined, what_is_missing
from genret.retrieval.linking.runners.ray_runner import (
    RayRunner,
    ShardProgress,
    absolute_job,
    absolute_shard,
    outcome_of,
    recorded,
    shard_of,
    text_of,
)
from genret.retrieval.linking.runners.runner import WorkerError
from genret.service.main import cli
from tests.commands import refusal
from tests.retrieval.linking.cluster.fake_shard_worker import (
    FakeShardWorker,
    a_job,
    job_of,
    record_at,
    some_shards,
)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_workers": 0}, "workers: must be at least 1, got 0"),
        ({"num_cpus": 0.0}, "num_cpus: must be above 0, got 0"),
        ({"num_gpus": -1.0}, "num_gpus: must be at least 0, got -1"),
        ({"num_retries": -1}, "num_retries: must be at least 0, got -1"),
    ],
)
def test_numbers_out_of_range_are_named(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=f"^{message}$"):
        RayRunner(**arguments)


def test_nothing_to_do_starts_nothing(tmp_path: Path) -> None:
    assert list(RayRunner(address="nowhere:1").run(a_job(tmp_path), [])) == []


def test_a_node_says_what_it_does_not_see(tmp_path: Path) -> None:
    there, gone = tmp_path / "index", tmp_path / "gone"
    there.mkdir()
    probe = tmp_path / "._run.json.probe.1.tmp"
    probe.write_text("content")
    seen = {str(there): "the index"}
    assert what_is_missing(seen, str(probe), "content") is None
    assert what_is_missing(seen, None, "") is None
    assert what_is_missing({**seen, str(gone): "the input"}, str(probe), "content") == (
        f"does not see the input {gone}"
    )
    for other in (str(probe), str(tmp_path / "nowhere" / "probe.tmp")):
        assert "does not see the output folder" in what_is_missing(seen, other, "other content")
    assert sorted(path.name for path in tmp_path.iterdir()) == [probe.name, "index"]


def test_paths_are_made_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    job = a_job(tmp_path)
    worker = replace(job.worker, index="index", model="hub/name", cache_dir="cache")
    options = replace(job.options, find=FindOptions(stop_words="words.txt"))
    made = absolute_job(replace(job, out="out", worker=worker, options=options))
    assert made.options.find.stop_words == str(tmp_path / "words.txt")
    assert absolute_job(job).options == job.options  # a built-in list is no file
    assert (made.out, made.worker.index) == (str(tmp_path / "out"), str(tmp_path / "index"))
    assert (made.worker.model, made.worker.cache_dir) == ("hub/name", str(tmp_path / "cache"))
    shard = some_shards(tmp_path, 1)[0]
    relative = replace(shard, files=(replace(shard.files[0], path="docs.txt"),))
    assert absolute_shard(relative) == shard


def test_a_record_counts_for_its_shard_and_input(tmp_path: Path) -> None:
    job, (shard, other) = a_job(tmp_path), some_shards(tmp_path, 2)
    assert recorded(job, shard) is None
    part = tmp_path / "out" / part_name(0, job.output_format)
    part.write_text("rows")
    record = ShardRecord(0, job.key, shard.digest, part.name, 4, LinkCounts())
    write_record(record_at(tmp_path, 0), record)
    assert recorded(job, shard) == record
    assert recorded(job, other) is None
    assert recorded(job, replace(shard, digest="another input")) is None


def test_progress_counts_tries_and_gives_counts_once() -> None:
    progress = ShardProgress()
    assert progress.take() is None  # no worker is ready
    assert [progress.begin(3), progress.begin(3), progress.begin(4)] == [1, 2, 1]
    progress.add(LinkCounts(num_mentions=2))
    progress.add(LinkCounts(num_mentions=3, num_linked=1))
    assert progress.take() == LinkCounts(num_mentions=5, num_linked=1)
    assert progress.take() == LinkCounts()


@pytest.mark.parametrize(
    ("there", "asked", "chosen", "told"),
    [
        ({"CPU": 8}, (None, 2.0, None, True), (4, 0.0), ""),
        ({"CPU": 8, "GPU": 2}, (None, 1.0, None, True), (2, 1.0), ""),
        ({"CPU": 8, "GPU": 2}, (None, 1.0, None, False), (8, 0.0), ""),
        ({"CPU": 8, "GPU": 2}, (None, 1.0, 0.5, True), (4, 0.5), ""),
        ({"CPU": 8}, (3, 1.0, None, True), (3, 0.0), ""),
        ({"CPU": 2}, (5, 1.0, None, False), (5, 0.0), "of 5 workers 2 fit: the cluster has 2 CPUs and 0"),
        ({}, (None, 1.0, None, True), (1, 0.0), "of 1 workers 0 fit: the cluster has 0 CPUs and 0 GPUs"),
    ],
    ids=["cpus", "gpus", "gpus that are not wanted", "halves of gpus", "asked for", "fewer", "nothing yet"],
)
def test_workers_are_as_many_as_fit(
    there: dict[str, float], asked: Any, chosen: Any, told: str, caplog: pytest.LogCaptureFixture
) -> None:
    assert choose_resources(SimpleNamespace(cluster_resources=lambda: there), *asked) == chosen
    assert (told in caplog.text, bool(caplog.text)) == (True, bool(told))


def test_a_missing_token_is_told_from_other_reasons() -> None:
    error = ConnectionError("Failed to connect to Ray cluster at h:1")
    assert reason_not_joined(error) == "Failed to connect to Ray cluster at h:1"
    error.__cause__ = RuntimeError("AuthenticationError: InvalidAuthToken")
    assert "RAY_AUTH_MODE=token" in reason_not_joined(error)


@pytest.mark.parametrize("scheme", ["", "ray://"])
def test_an_address_where_nobody_listens_is_refused_at_once(scheme: str, tmp_path: Path) -> None:
    pytest.importorskip("ray")
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    address = f"{scheme}127.0.0.1:{port}"
    told = f"^ray_address: no Ray cluster can be used at '{address}': Connection refused$"
    with pytest.raises(InputError, match=told):
        list(RayRunner(1, address).run(a_job(tmp_path), some_shards(tmp_path, 1)))


def test_without_ray_its_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    said = refusal(cli, "deploy-ray", "x=/x", "--insecure", code=1)
    assert "generative-retrieval[ray]" in said


TEXTS = st.text() | st.binary().map(lambda name: name.decode("utf-8", "surrogateescape"))
NUMBERS = st.integers(min_value=-1, max_value=2**70)
COUNTS = st.builds(LinkCounts, *[NUMBERS] * len(fields(LinkCounts)))
LISTS = st.lists(TEXTS, max_size=3).map(tuple)
SECONDS = st.floats(allow_nan=False)
RECORDS = st.builds(ShardRecord, NUMBERS, TEXTS, TEXTS, TEXTS, NUMBERS, COUNTS, LISTS, SECONDS, TEXTS, TEXTS)
FILES = st.builds(
    ShardFile,
    *(TEXTS, TEXTS, NUMBERS, NUMBERS, NUMBERS),
    st.none() | st.tuples(NUMBERS, NUMBERS),
    *(NUMBERS, TEXTS),
)
SHARDS = st.builds(Shard, NUMBERS, st.lists(FILES, max_size=3).map(tuple), NUMBERS, TEXTS)
FAILURES = st.builds(WorkerError, st.none() | TEXTS, TEXTS, TEXTS)


@given(SHARDS | RECORDS | FAILURES)
def test_values_arrive_as_they_were_sent(sent: Shard | ShardRecord | WorkerError) -> None:
    (text,) = pa.table({"column": np.array([text_of(sent)], dtype=object)})["column"].to_numpy()
    back = shard_of(text) if isinstance(sent, Shard) else outcome_of(text)
    assert (type(back), back) == (type(sent), sent)


def test_ray_data_can_tell_jobs_apart(tmp_path: Path) -> None:
    arguments = (job_of(tmp_path), FakeShardWorker)
    assert hash(arguments) == hash((job_of(tmp_path), FakeShardWorker))  # it keeps actors by their arguments
