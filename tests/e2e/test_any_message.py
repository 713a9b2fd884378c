"""Messages made of the descriptors, and bytes that are none, at every method that a server offers.

Whatever is sent, a call ends in time, with a status of the table that is not the server's fault, and leaves a
server that answers. One server has a fake retriever, the other a real model and a real index.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import pytest
from google.protobuf.message_factory import GetMessageClass
from grpc_reflection.v1alpha import reflection_pb2
from hypothesis import given, settings
from hypothesis import strategies as st

from genret.service.pb.genret.v1 import retrieval_service_pb2 as pb
from genret.service.reflection import V1
from tests.service.any_message import any_bytes, messages
from tests.service.fake_retriever import FakeRetriever
from tests.service.fuzzed_server import (
    CLIENT_DEADLINE_S,
    LEGAL,
    METHODS,
    RETRIEVAL,
    SERVICES,
    Code,
    Fuzzed,
    fuzzed,
    many,
    methods,
    path_of,
    some,
)

ENDLESS = {name for name, m in METHODS.items() if m.server_streaming and not m.client_streaming}
STREAMS = [name for name, m in METHODS.items() if m.client_streaming]
GARBAGE = b"\x0a\x0a\x01"  # a field of ten bytes, of which one is there
QUERY = pb.RetrieveRequest(query="a").SerializeToString()
# Which server is asked by which method; a model takes its time.
PLACES = [*(("fake", name) for name in METHODS), *(("model", name) for name in RETRIEVAL)]
at_every_place = pytest.mark.parametrize(("place", "name"), PLACES, indirect=["place"], scope="module")
at_the_fake = pytest.mark.parametrize("place", ["fake"], indirect=True, scope="module")
few_and_many = pytest.mark.parametrize("budget", [some, pytest.param(many, marks=pytest.mark.soak)])
Budget = Callable[[int], settings]
# How many examples, and how many messages in a stream of one.
SIZES = {"fake": (25, 40), "model": (20, 6)}


class Place(NamedTuple):
    server: Fuzzed
    examples: int
    most: int

    def in_a_stream(self, name: str, most: int) -> int:
        """Return how many messages a call has at most."""
        return min(most, self.most) if name in STREAMS else 1


@pytest.fixture(scope="module")
def place(request: pytest.FixtureRequest) -> Iterator[Place]:
    """The one server there is, and how much is asked of a method; in the end nothing is left of it."""
    if request.param == "fake":
        serving = fuzzed([FakeRetriever()], max_request_seconds=60)
    else:
        serving = fuzzed(indexes={"tiny": request.getfixturevalue("tiny")})
    with serving as found:
        yield Place(found, *SIZES[request.param])
        found.check_idle()


@pytest.fixture
def server(place: Place) -> Fuzzed:
    return place.server


@at_the_fake
def test_every_service_that_is_offered_is_tried(server: Fuzzed) -> None:
    request = reflection_pb2.ServerReflectionRequest(list_services="*").SerializeToString()
    method = METHODS["ServerReflectionInfo"]
    answers = server.channel.stream_stream(
        path_of(method), response_deserializer=GetMessageClass(method.output_type).FromString
    )(iter([request]), timeout=60)
    offered = {s.name for answer in answers for s in answer.list_services_response.service}
    assert offered == {*SERVICES, V1}  # reflection by another name
    assert len(METHODS) == len(methods()), "methods share a name"


def explore(place: Place, name: str, budget: settings) -> set[Code]:
    """Send examples to a method; return the statuses of calls and of items that were seen."""
    seen: set[Code] = set()
    at_once = 0 if name in ENDLESS else None
    kind, fewest = METHODS[name].input_type, int(name not in STREAMS)
    requests = st.lists(any_bytes(kind), min_size=fewest, max_size=place.in_a_stream(name, 8))

    @budget
    @given(requests)
    def send(raws: list[bytes]) -> None:
        outcome = place.server.check(name, *raws, cancel_after=at_once)
        seen.update([outcome.code, *outcome.items])

    send()
    place.server.check_idle()
    return seen


@at_every_place
@few_and_many
def test_messages_and_bytes_at_every_method(place: Place, name: str, budget: Budget) -> None:
    seen = explore(place, name, budget(place.examples))
    assert seen & {Code.OK, Code.CANCELLED}
    assert name in ENDLESS or Code.INVALID_ARGUMENT in seen


@at_every_place
@few_and_many
def test_calls_are_given_up(place: Place, name: str, budget: Budget) -> None:
    """Give calls up: at once, between two answers, by a deadline, or with garbage behind what is good."""

    @budget(place.examples // 2)
    @given(st.data())
    def send(data: st.DataObject) -> None:
        whole = messages(METHODS[name].input_type).map(lambda message: message.SerializeToString())
        raws = data.draw(st.lists(whole, min_size=1, max_size=place.in_a_stream(name, 40)))
        if data.draw(st.booleans()):
            raws.insert(data.draw(st.integers(0, len(raws))), GARBAGE)
        after = data.draw(st.none() | st.integers(0, 3))
        if name in ENDLESS:  # says one thing, and then waits for news
            after = 1 if after is None else min(after, 1)
        timeout = data.draw(st.sampled_from([20.0, 20.0, 0.1, 0.03, 0.02, 0.01, 0.003, 0.001, 0.0, -1.0]))
        outcome = place.server.send(name, *raws, cancel_after=after, timeout=timeout)
        assert outcome.code in LEGAL, outcome

    send()
    place.server.check_idle()


@at_the_fake
@pytest.mark.parametrize(
    ("name", "raw"), [*((name, GARBAGE) for name in METHODS), ("Retrieve", QUERY.replace(b"a", b"\xff"))]
)
def test_bytes_that_are_no_message_are_the_callers_mistake(server: Fuzzed, name: str, raw: bytes) -> None:
    assert server.check(name, raw).code is Code.INVALID_ARGUMENT


@at_the_fake
@pytest.mark.parametrize("name", STREAMS)
def test_a_stream_without_messages_ends_well(server: Fuzzed, name: str) -> None:
    assert server.check(name).code is Code.OK


@at_the_fake
def test_a_call_without_the_message_it_needs_costs_the_server_nothing(server: Fuzzed) -> None:
    """gRPC's asyncio server never ends it: it waits for the client's deadline, and nobody waits for it."""
    outcome = server.send("Retrieve", timeout=0.3)
    assert (outcome.code, outcome.num_answers) == (Code.DEADLINE_EXCEEDED, 0)
    server.check_idle()


OF_GRPC = ("grpc-timeout", "grpc-encoding", "grpc-accept-encoding")
OF_HTTP = ("authorization", "content-type", "host", "te", "user-agent", "x-forwarded-for", "x-request-id")
HEADERS = (*OF_GRPC, *OF_HTTP, "traceparent", "tracestate", "baggage")
TRACES = ("00-" + "0" * 32 + "-" + "0" * 16 + "-01", "00-" + "f" * 32 + "-" + "f" * 16 + "-ff")
DURATIONS = ("0", "0n", "1n", "-5S", "99999999H", "123456789S")
LONG = ("x" * 8000, "Bearer " + "x" * 8000)
OTHERS = ("", " ", "gzip", "none, such", "Bearer", "%00%ff%", "'; drop", "{}")
VALUES = (*OTHERS, *LONG, *DURATIONS, *TRACES)
_PRINTABLE = st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=200)


@at_the_fake
@few_and_many
def test_metadata(server: Fuzzed, budget: Budget) -> None:
    """Send a good query with all kinds of metadata and deadlines."""
    key = st.sampled_from(HEADERS) | st.from_regex(r"\A[a-z0-9_.-]{1,20}\Z")
    pairs = st.tuples(key, st.sampled_from(VALUES) | _PRINTABLE)
    binary = st.tuples(
        st.sampled_from(["x-request-id-bin", "grpc-trace-bin", "a-bin"]), st.binary(max_size=300)
    )

    @budget(100)
    @given(
        st.lists(pairs | binary, max_size=6).filter(
            # Of the answer alone; a client that sends it takes it for the server's.
            lambda found: not any(name in ("grpc-status", "grpc-message") for name, _ in found)
        ),
        st.sampled_from([*[CLIENT_DEADLINE_S] * 3, 0.0, -1.0, 1e-9, 1e9]),
    )
    def send(metadata: list[tuple[str, str | bytes]], timeout: float) -> None:
        outcome = server.send("Retrieve", QUERY, metadata=metadata, timeout=timeout)
        allowed = {Code.OK, Code.RESOURCE_EXHAUSTED}
        if timeout < 1:
            allowed.add(Code.DEADLINE_EXCEEDED)
        if ("grpc-encoding", "gzip") in metadata:  # what is compressed is not taken
            allowed.add(Code.UNIMPLEMENTED)
        assert outcome.code in allowed, outcome
        assert outcome.seconds < CLIENT_DEADLINE_S - 5, outcome

    send()
    server.check_idle()


@at_the_fake
def test_what_is_not_carried_is_refused_by_the_transport(server: Fuzzed) -> None:
    compressed = server.send("Retrieve", QUERY, metadata=[("grpc-encoding", "gzip")])
    too_long = server.check("Retrieve", QUERY, metadata=[("x-request-id", "x" * 20_000)])
    assert (compressed.code, too_long.code) == (Code.UNIMPLEMENTED, Code.RESOURCE_EXHAUSTED)
