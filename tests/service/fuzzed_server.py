"""Calls of any method with any bytes to a server in another thread, and what holds whatever was sent."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import grpc
from google.protobuf.descriptor import FieldDescriptor, MethodDescriptor
from google.protobuf.descriptor_pool import Default
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from google.rpc import status_pb2
from grpc_health.v1 import health
from grpc_reflection.v1alpha import reflection
from hypothesis import HealthCheck, Phase, settings

from genret.service.pb.genret.v1 import retrieval_service_pb2 as pb
from genret.service.serving.server import SERVICES as API
from genret.service.status import TABLE
from tests.service.fake_retriever import FakeRetriever, wait_until
from tests.service.running_server import Threaded, threaded

SERVICES = (*API, health.SERVICE_NAME, reflection.SERVICE_NAME)
CLIENT_DEADLINE_S = 90.0
_CODES = {code.value[0]: code for code in grpc.StatusCode}


@dataclass(frozen=True)
class Outcome:
    """The end of a call; `items` are the statuses inside its answers, one for each item that failed."""

    code: grpc.StatusCode
    text: str = ""
    items: list[grpc.StatusCode] = field(default_factory=list)
    num_answers: int = 0
    seconds: float = 0.0


def methods() -> list[MethodDescriptor]:
    services = (Default().FindServiceByName(name) for name in SERVICES)
    return [method for service in services for method in service.methods]


def path_of(method: MethodDescriptor) -> str:
    return f"/{method.containing_service.full_name}/{method.name}"


def call(
    channel: grpc.Channel,
    method: MethodDescriptor,
    raws: Sequence[bytes],
    *,
    cancel_after: int | None = None,
    timeout: float | None = CLIENT_DEADLINE_S,
    metadata: Sequence[tuple[str, str | bytes]] = (),
) -> Outcome:
    """Call a method of any kind with bytes; the asyncio API would report failed writes and no statuses.

    The client cancels after `cancel_after` answers; None: it reads all of them.
    """
    begun = time.monotonic()
    stream: Any = channel.stream_stream(path_of(method))
    answers = stream(iter(raws), timeout=timeout, metadata=metadata)
    items: list[grpc.StatusCode] = []
    answer_type = GetMessageClass(method.output_type)
    number = 0
    try:
        if cancel_after == 0:
            answers.cancel()
        for number, raw in enumerate(answers, start=1):
            items += [_CODES[status.code] for status in statuses(answer_type.FromString(raw))]
            if number == cancel_after:
                answers.cancel()
    except grpc.RpcError as error:
        code, text = error.code(), str(error.details())
        return Outcome(code, text, items, number, time.monotonic() - begun)
    return Outcome(grpc.StatusCode.OK, "", items, number, time.monotonic() - begun)


def statuses(message: Message) -> Iterator[Any]:
    """Yield every `google.rpc.Status` inside a message."""
    for kind, value in message.ListFields():
        if kind.type != FieldDescriptor.TYPE_MESSAGE or kind.message_type.GetOptions().map_entry:
            continue
        for item in value if kind.is_repeated else [value]:
            if isinstance(item, status_pb2.Status):
                yield item
            else:
                yield from statuses(item)


Code = grpc.StatusCode
METHODS = {method.name: method for method in methods()}
RETRIEVAL = [name for name, m in METHODS.items() if m.containing_service.name == "RetrievalService"]
# Not of a server that is up, asks for no token, and whose model and index are whole.
_FOREIGN = {Code.UNAVAILABLE, Code.FAILED_PRECONDITION, Code.DATA_LOSS}
_FOREIGN |= {Code.UNAUTHENTICATED, Code.PERMISSION_DENIED}
LEGAL = ({row.code for row in TABLE} | {Code.OK}) - _FOREIGN
# A query that takes longer is stopped by the server, long before the client gives up.
SERVER_LIMIT_S = 2.0
PHASES = [Phase.generate, Phase.shrink]
QUIET = settings(deadline=None, database=None, suppress_health_check=list(HealthCheck), phases=PHASES)
FACTOR = 20  # how many times as much the long tests try


def some(examples: int) -> settings:
    """The same examples every time."""
    return settings(QUIET, max_examples=examples, derandomize=True)


def many(examples: int) -> settings:
    """Others every time, and more of them."""
    return settings(QUIET, max_examples=examples * FACTOR, print_blob=True)


@dataclass(frozen=True)
class Fuzzed:
    """A server and a channel to it."""

    threaded: Threaded
    channel: grpc.Channel

    def send(self, name: str, *raws: bytes, **options: Any) -> Outcome:
        """Call a method; what must hold of every call is checked here, but its status."""
        outcome = call(self.channel, METHODS[name], raws, **options)
        alive = call(self.channel, METHODS["Check"], [b""])
        assert alive.code is Code.OK, alive
        return outcome

    def check(self, name: str, *raws: bytes, **options: Any) -> Outcome:
        """Call a method and wait for its end: in time, and by no fault of the server."""
        outcome = self.send(name, *raws, **options)
        assert outcome.code in LEGAL, outcome
        assert set(outcome.items) <= LEGAL, outcome
        assert outcome.seconds < CLIENT_DEADLINE_S - 5, outcome
        return outcome

    def check_idle(self) -> None:
        """A query is answered, and nothing is left of what was asked before."""
        query = pb.RetrieveRequest(query="which", k=1).SerializeToString()
        answer = call(self.channel, METHODS["Retrieve"], [query])
        assert (answer.code, answer.num_answers) == (Code.OK, 1), answer
        wait_until(lambda: not self.held())

    def held(self) -> list[str]:
        return held_for_requests(self.threaded.server)


def held_for_requests(server: Any) -> list[str]:
    """Say what a server holds for requests; nothing when there are none."""
    held = [
        f"{users} users of {index.description.name}" for index, users in server.engine.indexes._users.items()
    ]
    for lane in server.engine.lanes.all():
        counts = {
            "admitted": lane.admission.num_requests,
            "admitted tokens": lane.admission.num_tokens,
            "waiting": lane.num_waiting,
            "clients": lane.admission.num_clients,
        }
        held += [f"{number} {what} on {lane.device}" for what, number in counts.items() if number]
    schemas = {
        "compiling": server.engine.compiler.num_running,
        "waiting to compile": server.engine.compiler.num_waiting,
    }
    held += [f"{number} {what}" for what, number in schemas.items() if number]
    held += [f"{len(server.methods.streams)} streams"] if len(server.methods.streams) else []
    for family in server.metrics.in_flight.collect():
        held += [f"{s.value} in flight of {s.labels['method']}" for s in family.samples if s.value]
    return held


@contextmanager
def fuzzed(retrievers: Sequence[FakeRetriever] = (), **options: Any) -> Iterator[Fuzzed]:
    """Run a server, of fake retrievers or of real indexes."""
    alone = [("grpc.use_local_subchannel_pool", 1)]
    with (
        threaded(*retrievers, **{"max_request_seconds": SERVER_LIMIT_S, **options}) as started,
        grpc.insecure_channel(started.server.address, options=alone) as channel,
    ):
        yield Fuzzed(started, channel)
