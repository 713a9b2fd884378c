"""`genret deploy-ray` for real: two replicas on this machine say what `genret serve` says."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from retrieval.answers.types import AnswerRequest
from retrieval.types import Mention, RetrieveRequest
from service.client import ClientOptions, RetrievalClient
from service.errors import CallError
from tests.service.server_process import ENVIRONMENT, GENRET, ROOT, ServerProcess

pytest.importorskip("ray.serve")
pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(300)]
PATIENCE_S = 150.0
APPLICATION = ClientOptions(metadata=(("application", "genret"),))


def free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


class Deployment:
    """The process of `genret deploy-ray`, and a client of what it deploys."""

    def __init__(self, index: Path, home: Path) -> None:
        self.port, http = free_ports(2)
        command = [*GENRET, "deploy-ray", f"sample={index}", "--insecure", "--num-replicas", "2"]
        command += ["--num-cpus", "0.1", "--port", str(self.port), "--http-proxy-port", str(http)]
        environment = {**ENVIRONMENT, "HOME": str(home), "RAY_TMPDIR": str(home)}
        self.process = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env=environment, text=True
        )
        self.lines: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        with self.process.stderr as stream:
            self.lines += stream

    def said(self, text: str) -> bool:
        return any(text in line for line in self.lines)

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(PATIENCE_S)
        self._reader.join(PATIENCE_S)
        return code

    def open(self) -> RetrievalClient:
        return RetrievalClient(f"127.0.0.1:{self.port}", APPLICATION)


def wait_until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < end, "nothing happened"
        time.sleep(0.1)


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("sample") / "index"
    command = [*GENRET, "build", str(ROOT / "data" / "catalogue.tsv"), "--out", str(out)]
    subprocess.run(command, check=True, capture_output=True, env=ENVIRONMENT)
    return out


@pytest.fixture(scope="module")
def deployment(index: Path) -> Iterator[Deployment]:
    home = tempfile.mkdtemp(prefix="gr-")  # short: Ray's sockets are in it
    running = Deployment(index, Path(home))
    try:
        wait_until(lambda: running.said("ready: ") or running.process.poll() is not None)
        assert running.said("ready: application 'genret', 2 replicas"), running.lines
        yield running
    finally:
        if running.process.poll() is None:
            running.process.send_signal(signal.SIGTERM)
            running.process.wait(PATIENCE_S)
        shutil.rmtree(home, ignore_errors=True)


@pytest.fixture(scope="module")
def direct(index: Path) -> Iterator[RetrievalClient]:
    with ServerProcess(f"sample={index}") as server, RetrievalClient(server.address()) as client:
        yield client


@pytest.fixture
def client(deployment: Deployment) -> Iterator[RetrievalClient]:
    with deployment.open() as opened:
        yield opened


def outcome(ask: Callable[[], Any]) -> Any:
    try:
        return ask()
    except CallError as error:
        details = (error.reason, error.field_violations, error.retry_after_s, error.request_id)
        return error.code, str(error), details


def ranking(reply: Any) -> list[tuple[str, float]]:
    return [(c.entity_id, pytest.approx(c.logprob, abs=1e-4)) for c in reply.result.candidates]


def test_answers_are_those_of_a_server(client: RetrievalClient, direct: RetrievalClient) -> None:
    for query in ("who wrote hamlet", "the capital of france"):
        request = RetrieveRequest(query, k=5)
        assert ranking(client.retrieve(request)) == ranking(direct.retrieve(request)) != []
    mentions = [Mention("Paris", "the city of ", ""), Mention("Hamlet", "the play ", " by him")]
    ours, theirs = (c.link(mentions, k=2) for c in (client, direct))
    assert [ranking(one) for one in ours] == [ranking(one) for one in theirs]
    schema = {
        "type": "object",
        "properties": {"title": {"type": "string", "x-genret-index": "titles"}},
        "required": ["title"],
    }
    question = AnswerRequest("who wrote hamlet", json.dumps(schema))
    ours, theirs = (c.answer(question).result for c in (client, direct))
    assert (ours.text, ours.entities) == (theirs.text, theirs.entities)
    ours, theirs = ([replace(i, loaded_at=0.0) for i in c.list_indexes()] for c in (client, direct))
    assert ours == theirs


REFUSED: dict[str, Callable[[RetrievalClient], Any]] = {
    "index": lambda c: c.retrieve(RetrieveRequest("x"), index="nowhere", request_id="mine"),
    "filter": lambda c: c.retrieve(RetrieveRequest("x", filter="nothing = 3"), request_id="mine"),
    "long": lambda c: c.retrieve(RetrieveRequest("word " * 5000), request_id="mine"),
    "batch": lambda c: c.retrieve_batch([RetrieveRequest("x")] * 257, request_id="mine"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refusals_are_those_of_a_server(case: str, client: RetrievalClient, direct: RetrievalClient) -> None:
    ours, theirs = (outcome(lambda c=c: REFUSED[case](c)) for c in (client, direct))  # type: ignore[misc]
    assert ours == theirs
    assert ours[0] in ("NOT_FOUND", "INVALID_ARGUMENT")


def test_a_message_above_the_limit_is_told_apart_from_an_overload(client: RetrievalClient) -> None:
    with pytest.raises(CallError) as caught:
        client.retrieve(RetrieveRequest("x" * 5_000_000))
    assert (caught.value.code, caught.value.reason) == ("RESOURCE_EXHAUSTED", "MESSAGE_TOO_LARGE")


def test_streams_go_through_the_proxy(client: RetrievalClient) -> None:
    queries = [f"title {number}" for number in range(20)]
    answered = list(client.retrieve_stream([RetrieveRequest(query, k=1) for query in queries]))
    assert sorted(request.query for request, _ in answered) == sorted(queries)
    assert not [reply for _, reply in answered if isinstance(reply, CallError)]


def test_health_is_that_of_a_replica(client: RetrievalClient) -> None:
    assert client.health() == "SERVING"


def test_a_deadline_ends_the_call(client: RetrievalClient) -> None:
    with pytest.raises(CallError) as caught:
        client.retrieve(RetrieveRequest("hamlet"), timeout_s=0.001)
    assert caught.value.code == "DEADLINE_EXCEEDED"


@pytest.mark.fault
def test_a_killed_replica_is_replaced_and_calls_go_on(
    deployment: Deployment, client: RetrievalClient
) -> None:
    before = replicas(deployment)
    assert len(before) == 2
    os.kill(before[0], signal.SIGKILL)
    request, failed, end = RetrieveRequest("hamlet", k=1), 0, time.monotonic() + PATIENCE_S
    while len(set(replicas(deployment)) - {before[0]}) < 2:
        assert time.monotonic() < end, "it was not replaced"
        failed += isinstance(outcome(lambda: client.retrieve(request)), tuple)
    assert failed <= 1  # what ran on it, at most
    assert ranking(client.retrieve(request))


def replicas(deployment: Deployment) -> list[int]:
    """Return the processes of the replicas, which are below that of the command."""
    listed = subprocess.run(["ps", "-eo", "pid,ppid,args"], capture_output=True, text=True, check=True).stdout
    rows = [line.split(None, 2) for line in listed.splitlines()[1:]]
    parents = {int(pid): int(parent) for pid, parent, *_ in rows}

    def ours(pid: int) -> bool:
        while pid in parents and pid != deployment.process.pid:
            pid = parents[pid]
        return pid == deployment.process.pid

    return [int(pid) for pid, _, *args in rows if "ServeReplica:genret:" in "".join(args) and ours(int(pid))]


def test_sigterm_takes_it_off(deployment: Deployment) -> None:
    assert deployment.stop() == 0, deployment.lines
    assert deployment.said("stopped")
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", deployment.port)) != 0
