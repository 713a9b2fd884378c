"""Messages made of the descriptors, and bytes that are none, at every method that a server offers.

Whatever is sent, a call ends in time, with a status of the table that is not the server's fault, and leaves a
server that answers. The retriever is a fake one; `test_any_message_real` has a model.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from google.protobuf.message_factory import GetMessageClass
from grpc_reflection.v1alpha import reflection_pb2
from hypothesis import given, settings
from hypothesis import strategies as st

from genret.service.pb.genret.v1 import retrieval_service_pb2 as pb
from tests.service.any_message import any_bytes, messages
from tests.service.fake_retriever import FakeRetriever
from tests.service.fuzzed_server import (
    CLIENT_DEADLINE_S,
    LEGAL,
    METHODS,
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
GARBAGE = b"\x0a\x0a\x01"
QUERY = pb.RetrieveStreamRequest(id="a", request=pb.RetrieveRequest(query="a")).SerializeToString()


@pytest.fixture(scope="module")
def server() -> Iterator[Fuzzed]:
    with fuzzed([FakeRetriever()], max_request_seconds=60) as found:
        yield found
        found.check_idle()


def test_every_service_that_is_offered_is_tried(server: Fuzzed) -> None:
    request = reflection_pb2.ServerReflectionRequest(list_services="*").SerializeToString()
    method = METHODS["ServerReflectionInfo"]
    answers = server.channel.stream_stream(
        path_of(method), response_deserializer=GetMessageClass(method.output_type).FromString
    )(iter([request]), timeout=60)
    offered = {s.name for answer in answers for s in answer.list_services_response.service}
    assert offered == set(SERVICES)
    assert len(METHODS) == len(methods()), "methods share a name"


def explore(server: Fuzzed, name: str, budget: settings) -> set[Code]:
    """Send examples to a method; return the statuses of calls and of items that were seen."""
    seen: set[Code] = set()
    at_once = 0 if name in ENDLESS else None

    @budget
    @given(st.data())
    def send(data: st.DataObject) -> None:
        kind = METHODS[name].input_type
        if METHODS[name].client_streaming:
            raws = data.draw(st.lists(any_bytes(kind), max_size=8))
        else:
            raws = [data.draw(any_bytes(kind))]
        outcome = server.check(name, *raws, cancel_after=at_once)
        seen.update([outcome.code, *outcome.items])

    send()
    server.check_idle()
    return seen


@pytest.mark.parametrize("name", METHODS)
def test_some_messages_and_bytes_at_every_method(server: Fuzzed, name: str) -> None:
    seen = explore(server, name, some(25))
    assert seen & {Code.OK, Code.CANCELLED}
    assert name in ENDLESS or Code.INVALID_ARGUMENT in seen


@pytest.mark.soak
@pytest.mark.parametrize("name", METHODS)
def test_many_messages_and_bytes_at_every_method(server: Fuzzed, name: str) -> None:
    explore(server, name, many(25))


def give_up(server: Fuzzed, name: str, budget: settings) -> None:
    """Give calls up: at once, between two answers, by a deadline, or with garbage behind what is good."""

    @budget
    @given(st.data())
    def send(data: st.DataObject) -> None:
        kind = METHODS[name].input_type
        whole = messages(kind).map(lambda message: message.SerializeToString())
        raws = data.draw(st.lists(whole, min_size=1, max_size=40 if name in STREAMS else 1))
        if data.draw(st.booleans()):
            raws.insert(data.draw(st.integers(0, len(raws))), GARBAGE)
        after = data.draw(st.none() | st.integers(0, 3))
        if after is None and name in ENDLESS:
            after = 1
        timeout = data.draw(st.sampled_from([20.0, 20.0, 0.02, 0.001, 0.0, -1.0]))
        outcome = server.send(name, *raws, cancel_after=after, timeout=timeout)
        assert outcome.code in LEGAL, outcome

    send()
    server.check_idle()


@pytest.mark.parametrize("name", METHODS)
def test_some_calls_are_given_up(server: Fuzzed, name: str) -> None:
    give_up(server, name, some(12))


@pytest.mark.soak
@pytest.mark.parametrize("name", METHODS)
def test_many_calls_are_given_up(server: Fuzzed, name: str) -> None:
    give_up(server, name, many(12))


def test_what_a_stream_has_read_before_garbage_is_answered(server: Fuzzed) -> None:
    outcome = server.check("RetrieveStream", QUERY, QUERY, GARBAGE, QUERY)
    assert (outcome.code, outcome.num_answers) == (Code.INVALID_ARGUMENT, 2)


@pytest.mark.parametrize("name", STREAMS)
def test_a_stream_without_messages_ends_well(server: Fuzzed, name: str) -> None:
    assert server.check(name).code is Code.OK


def test_a_call_without_the_message_it_needs_costs_the_server_nothing(server: Fuzzed) -> None:
    """gRPC's asyncio server never ends it: it waits for the client's deadline, and nobody waits for it."""
    outcome = server.send("Retrieve", timeout=0.3)
    assert (outcome.code, outcome.num_answers) == (Code.DEADLINE_EXCEEDED, 0)
    server.check_idle()


HEADERS = (
    "x-request-id",
    "authorization",
    "grpc-timeout",
    "grpc-encoding",
    "grpc-accept-encoding",
    "content-type",
    "te",
    "traceparent",
    "tracestate",
    "baggage",
    "user-agent",
    "host",
    "x-forwarded-for",
)
VALUES = (
    "",
    " ",
    "0",
    "0n",
    "1n",
    "-5S",
    "99999999H",
    "123456789S",
    "gzip",
    "none, such",
    "Bearer",
    "Bearer " + "x" * 8000,
    "x" * 8000,
    "00-" + "0" * 32 + "-" + "0" * 16 + "-01",
    "00-" + "f" * 32 + "-" + "f" * 16 + "-ff",
    "%00%ff%",
    "'; drop",
    "{}",
)
_PRINTABLE = st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=200)


def decorate(server: Fuzzed, budget: settings) -> None:
    """Send a good query with all kinds of metadata and deadlines."""
    query = pb.RetrieveRequest(query="a").SerializeToString()
    key = st.sampled_from(HEADERS) | st.from_regex(r"\A[a-z0-9_.-]{1,20}\Z")
    pairs = st.tuples(key, st.sampled_from(VALUES) | _PRINTABLE)
    binary = st.tuples(
        st.sampled_from(["x-request-id-bin", "grpc-trace-bin", "a-bin"]), st.binary(max_size=300)
    )

    @budget
    @given(
        st.lists(pairs | binary, max_size=6).filter(
            # Of the answer alone; a client that sends it takes it for the server's.
            lambda found: not any(name in ("grpc-status", "grpc-message") for name, _ in found)
        ),
        st.sampled_from([*[CLIENT_DEADLINE_S] * 3, 0.0, -1.0, 1e-9, 1e9]),
    )
    def send(metadata: list[tuple[str, str | bytes]], timeout: float) -> None:
        outcome = server.send("Retrieve", query, metadata=metadata, timeout=timeout)
        allowed = {Code.OK, Code.RESOURCE_EXHAUSTED}
        if timeout < 1:
            allowed.add(Code.DEADLINE_EXCEEDED)
        if ("grpc-encoding", "gzip") in metadata:  # what is compressed is not taken
            allowed.add(Code.UNIMPLEMENTED)
        assert outcome.code in allowed, outcome
        assert outcome.seconds < CLIENT_DEADLINE_S - 5, outcome

    send()
    server.check_idle()


def test_some_metadata(server: Fuzzed) -> None:
    decorate(server, some(100))


@pytest.mark.soak
def test_much_metadata(server: Fuzzed) -> None:
    decorate(server, many(100))


def test_a_message_that_says_it_is_compressed_is_refused_by_the_transport(server: Fuzzed) -> None:
    query = pb.RetrieveRequest(query="a").SerializeToString()
    outcome = server.send("Retrieve", query, metadata=[("grpc-encoding", "gzip")])
    assert outcome.code is Code.UNIMPLEMENTED


def test_metadata_beyond_what_is_carried_is_refused_by_the_transport(server: Fuzzed) -> None:
    query = pb.RetrieveRequest(query="a").SerializeToString()
    outcome = server.check("Retrieve", query, metadata=[("x-request-id", "x" * 20_000)])
    assert outcome.code is Code.RESOURCE_EXHAUSTED
