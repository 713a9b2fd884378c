"""`genret deploy-ray` for real: two replicas on this machine say what `genret serve` says."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import socket
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest

from benchmarks.harness.processes import process_tree
from genret.retrieval.answers.answer_types import AnswerRequest
from genret.retrieval.types import Mention, RetrieveRequest
from genret.service.client import ClientOptions, RetrievalClient
from genret.service.errors import CallError
from genret.service.pb.genret.v1 import retrieval_service_pb2 as pb
from genret.service.pb.genret.v1.retrieval_service_pb2_grpc import RetrievalServiceStub
from tests.sample_index import build_sample_index
from tests.service.fake_retriever import wait_until
from tests.service.server_process import GenretProcess, ServerProcess

pytest.importorskip("ray.serve")
pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(600)]
PATIENCE_S = 240.0  # on a busy machine
_TICKS = os.sysconf("SC_CLK_TCK")
APPLICATION = ClientOptions(metadata=(("application", "genret"),))


def free_ports(count: int) -> list[int]:
    """Return ports that nobody has, below those that the system and Ray give out by themselves."""
    sockets: list[socket.socket] = []
    while len(sockets) < count:
        with suppress(OSError):
            sockets.append(socket.create_server(("127.0.0.1", random.randrange(20_000, 32_000))))
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


class Deployment(GenretProcess):
    """The process of `genret deploy-ray`, and a client of what it deploys."""

    def __init__(self, index: Path, home: str) -> None:
        self.port, http = free_ports(2)
        command = ["deploy-ray", f"sample={index}", "--insecure", "--num-replicas", "2", "--num-cpus", "0.1"]
        command += ["--port", str(self.port), "--http-proxy-port", str(http)]
        super().__init__(*command, HOME=home, RAY_TMPDIR=home)

    def stop(self) -> int:
        self.send(signal.SIGTERM)
        return self.exit_code()

    @contextmanager
    def stub(self) -> Iterator[RetrievalServiceStub]:
        with grpc.insecure_channel(f"127.0.0.1:{self.port}") as channel:
            yield RetrievalServiceStub(channel)

    def open(self) -> RetrievalClient:
        return RetrievalClient(f"127.0.0.1:{self.port}", APPLICATION)


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_sample_index(tmp_path_factory.mktemp("sample") / "index")


@pytest.fixture(scope="module")
def server(index: Path) -> Iterator[ServerProcess]:
    with ServerProcess(f"sample={index}") as server:
        yield server


@pytest.fixture(scope="module")
def deployment(index: Path, server: ServerProcess) -> Iterator[Deployment]:  # both start at the same time
    home = tempfile.mkdtemp(prefix="gr-")  # short: Ray's sockets are in it
    running = Deployment(index, home)
    try:
        running.said("ready: application 'genret', 2 replicas")
        yield running
    finally:
        running.stop()
        shutil.rmtree(home, ignore_errors=True)


@pytest.fixture(scope="module")
def direct(server: ServerProcess) -> Iterator[RetrievalClient]:
    with RetrievalClient(server.address()) as client:
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


def test_streams_go_through_the_proxy(client: RetrievalClient) -> None:
    queries = [f"title {number}" for number in range(20)]
    answered = list(client.retrieve_stream([RetrieveRequest(query, k=1) for query in queries]))
    assert sorted(request.query for request, _ in answered) == sorted(queries)
    assert not [reply for _, reply in answered if isinstance(reply, CallError)]


def test_health_is_that_of_a_replica(client: RetrievalClient) -> None:
    assert client.health() == "SERVING"


def slow(query: str) -> pb.RetrieveRequest:
    """Return a request that takes seconds."""
    return pb.RetrieveRequest(query=query, k=1000, beam_size=1000, exact=True, exact_budget=1_000_000)


@pytest.fixture(scope="module")
def slow_seconds(deployment: Deployment) -> float:
    """Return what the replicas compute for a slow request."""
    before = idle_seconds(deployment)
    with deployment.stub() as stub:
        stub.Retrieve(slow("as a whole"), metadata=APPLICATION.metadata, timeout=PATIENCE_S)
    return idle_seconds(deployment) - before


def seconds_of(deployment: Deployment) -> float:
    """Return the processor time of the replicas so far."""
    fields = [
        Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split() for pid in replicas(deployment)
    ]
    return sum(int(user) + int(system) for *_, user, system in (f[:13] for f in fields)) / _TICKS


def idle_seconds(deployment: Deployment) -> float:
    """Wait until the replicas do nothing, and return their processor time so far."""
    seen = [seconds_of(deployment)]

    def idle() -> bool:
        time.sleep(1.0)
        seen.append(seconds_of(deployment))
        return seen[-1] - seen[-2] < 0.2

    wait_until(idle, PATIENCE_S)
    return seen[-1]


def leave(stub: Any, how: str, seconds: float) -> None:
    """Begin a slow call, and give it up after some time."""
    wait = {"metadata": APPLICATION.metadata, "timeout": seconds if how == "late" else PATIENCE_S}
    if how == "stream":
        asked = iter([pb.RetrieveStreamRequest(id=query, request=slow(query)) for query in "abcd"])
        call = stub.RetrieveStream(asked, **wait)
    elif how == "batch":
        call = stub.BatchRetrieve.future(pb.BatchRetrieveRequest(requests=map(slow, "efgh")), **wait)
    else:
        call = stub.Retrieve.future(slow(how), **wait)
    if how != "late":
        time.sleep(seconds)
        assert call.cancel()
    with pytest.raises((grpc.RpcError, grpc.FutureCancelledError)):
        next(call) if how == "stream" else call.result()


@pytest.mark.parametrize("how", ["cancelled", "late", "stream", "batch"])
def test_a_call_that_is_given_up_is_decoded_no_further(
    how: str, deployment: Deployment, slow_seconds: float
) -> None:
    assert slow_seconds > 0.5
    before = idle_seconds(deployment)
    with deployment.stub() as stub:
        leave(stub, how, slow_seconds / 4)
    assert idle_seconds(deployment) - before < 0.7 * slow_seconds


@pytest.mark.fault
def test_a_killed_replica_is_replaced_and_calls_go_on(
    deployment: Deployment, client: RetrievalClient
) -> None:
    before = replicas(deployment)
    assert len(before) == 2
    os.kill(before[0], signal.SIGKILL)
    request, answers, end = RetrieveRequest("hamlet", k=1), [], time.monotonic() + PATIENCE_S
    while len(set(replicas(deployment)) - {before[0]}) < 2:
        assert time.monotonic() < end, "it was not replaced"
        answers.append(outcome(lambda: client.retrieve(request)))
    failed = [answer for answer in answers if isinstance(answer, tuple)]
    # Those that reached it before the proxy noticed; how many depends on how busy the machine is.
    assert len(failed) < len(answers) / 2, failed
    assert all(ranking(client.retrieve(request)) for _ in range(10))


def replicas(deployment: Deployment) -> list[int]:
    """Return the processes of the replicas, which are below that of the command."""
    found = []
    for pid in process_tree(deployment.pid):
        with suppress(OSError):  # it may have ended
            if b"ServeReplica:genret:" in Path(f"/proc/{pid}/cmdline").read_bytes():
                found.append(pid)
    return found


def test_sigterm_takes_it_off(deployment: Deployment) -> None:
    assert deployment.stop() == 0, deployment.lines
    assert deployment.said("stopped")
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", deployment.port)) != 0
