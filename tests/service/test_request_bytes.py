"""Bytes of requests in flight: refused, waited for, given back; messages refused before they grow."""

from __future__ import annotations

import asyncio

import grpc
import pytest

from genret.retrieval.errors import InputError
from genret.service.errors import OverloadedError
from genret.service.pb.genret.v1 import retrieval_service_pb2 as pb
from genret.service.serving.request_bytes import RequestBytes
from genret.service.wire.json import message_from_json, parsed_bytes
from genret.service.wire.requests import check_fields, held_bytes
from tests.service.fake_retriever import FakeRetriever
from tests.service.running_server import failure, running, until

IDS = [f"{number:030d}" for number in range(2000)]


def test_a_client_and_all_clients_have_their_limits() -> None:
    held = RequestBytes(100, 150)
    with held.hold("a", 60):
        with pytest.raises(
            OverloadedError, match="60 bytes of this client, at most 100; 60 in all, at most 150"
        ):
            held.hold("a", 50).__enter__()
        with held.hold("b", 90), pytest.raises(OverloadedError):
            held.hold("c", 1).__enter__()
        with held.hold("a", 40):
            assert held.held == 100
    with held.hold("a", 10**9):  # larger than the limit, alone
        assert held.held == 100
    assert held.held == 0


async def test_who_waits_comes_first_and_others_pass() -> None:
    held = RequestBytes(100, 200)
    order: list[str] = []

    async def ask(client: str, size: int) -> None:
        async with held.room(client, size):
            order.append(f"{client}{size}")

    with held.hold("a", 80):
        waiting = [asyncio.create_task(ask("a", size)) for size in (50, 5, 0)]
        gone = asyncio.create_task(ask("a", 60))
        await asyncio.sleep(0)
        await ask("b", 90)
        with pytest.raises(OverloadedError):  # as much waits as all clients may hold
            await ask("a", 90)
        gone.cancel()
        await asyncio.gather(gone, return_exceptions=True)
        assert order == ["b90"]
    await asyncio.gather(*waiting)
    assert order == ["b90", "a50", "a5", "a0"]
    assert held.held == 0


async def enter(held: RequestBytes, size: int) -> None:
    async with held.room("a", size):
        await asyncio.Event().wait()


async def test_a_turn_that_is_cancelled_lets_the_next_one_in() -> None:
    held = RequestBytes(100, 100)
    with held.hold("a", 60):
        large, small = (asyncio.create_task(enter(held, size)) for size in (50, 10))
        await asyncio.sleep(0)
        large.cancel()
        await asyncio.gather(large, return_exceptions=True)
        assert held.held == 70
        late = asyncio.create_task(enter(held, 40))
        await asyncio.sleep(0)
    late.cancel()  # between its turn and its start
    await asyncio.gather(late, return_exceptions=True)
    assert held.held == 10
    small.cancel()
    await asyncio.gather(small, return_exceptions=True)
    assert held.held == 0


async def test_a_stream_is_read_no_further_and_a_call_is_refused() -> None:
    fake = FakeRetriever(held=True)
    request = pb.RetrieveRequest(query="hamlet", deny_entity_ids=IDS)
    query = pb.RetrieveStreamRequest(id="a", request=request)
    async with running(fake, max_client_bytes=4 * held_bytes(query)) as api:
        call = api.stub.RetrieveStream(iter([query] * 30), timeout=60)
        held = api.server.methods.request_bytes
        await until(lambda: len(api.server.methods.streams) == 1)
        (stream,) = api.server.methods.streams
        await until(lambda: held.held == 4 * held_bytes(query) and len(stream._room) == 5)
        error, details = await failure(api.stub.Retrieve(request, timeout=60))
        assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert details["RetryInfo"].retry_delay.ToSeconds() == 1
        assert len(stream._room) == 5  # the fifth waits, no further one was read
        fake.hold.set()
        assert [answer.error.code async for answer in call] == [0] * 30
        assert held.held == 0


def test_a_message_of_too_many_items_is_not_parsed() -> None:
    few = pb.BatchRetrieveRequest(requests=[pb.RetrieveRequest(query="q", k=3)] * 3)
    check_fields(few.SerializeToString(), pb.BatchRetrieveRequest, 3)
    many = pb.BatchRetrieveRequest(requests=[pb.RetrieveRequest()] * 300).SerializeToString()
    with pytest.raises(InputError, match=r"^requests: at most 10, got more$"):
        check_fields(many, pb.BatchRetrieveRequest, 10)
    with pytest.raises(ValueError, match="varint"):
        check_fields(b"\xff" * 1000, pb.LinkRequest, 10)
    with pytest.raises(ValueError, match="wire type"):
        check_fields(b"\x0b" + many, pb.BatchRetrieveRequest, 10)
    check_fields(many, pb.RetrieveRequest, 1)


async def test_a_batch_of_nothing_is_refused_on_the_wire() -> None:
    async with running(FakeRetriever()) as api:
        error, details = await failure(api.batch(*[pb.RetrieveRequest()] * 100_000))
        assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert details["BadRequest"].field_violations[0].field == "requests"


def test_json_counts_by_its_values_and_items_are_limited() -> None:
    assert parsed_bytes(b'{"requests":[' + b"{}," * 1000 + b"{}]}") > 64 * 1000
    with pytest.raises(InputError, match=r"^requests: at most 2, got 3$"):
        message_from_json(b'{"requests":[{},{},{}]}', pb.BatchRetrieveRequest(), 2)
    assert (
        len(message_from_json(b'{"denyEntityIds":["a","b"]}', pb.RetrieveRequest(), 1).deny_entity_ids) == 2
    )
