"""Both clients given what they cannot use, and servers that refuse at once."""

from __future__ import annotations

import asyncio
import math
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2_grpc

from genret.retrieval.errors import InputError
from genret.retrieval.types import RetrieveRequest
from genret.service.client import CallError
from tests.service.asynchronous import asynchronous
from tests.service.either_client import KINDS, either_client
from tests.service.fake_retriever import FakeRetriever
from tests.service.running_server import overtaken, running

both = pytest.mark.parametrize("kind", KINDS)


@both
@asynchronous
async def test_no_time_left_is_not_the_default_of_a_minute(kind: str) -> None:
    async with running(FakeRetriever()) as s, either_client(kind, s.server.address) as client:
        for seconds in (0, 0.0, -1.0):
            with pytest.raises(CallError) as caught:
                await client.retrieve(RetrieveRequest("q"), timeout_s=seconds)
            assert caught.value.code == "DEADLINE_EXCEEDED"
        for none in ({}, {"timeout_s": None}, {"timeout_s": 1e300}, {"timeout_s": 10}):
            assert (await client.retrieve(RetrieveRequest("q"), **none)).result.candidates
            assert len(await client.stream([RetrieveRequest("q")], **none)) == 1


@both
@pytest.mark.parametrize("seconds", [math.nan, math.inf, "5", True])
@asynchronous
async def test_deadlines_that_are_none_are_refused(kind: str, seconds: Any) -> None:
    async with running(FakeRetriever()) as s, either_client(kind, s.server.address) as client:
        with pytest.raises(InputError, match="timeout_s: must be a finite number of seconds"):
            await client.retrieve(RetrieveRequest("q"), timeout_s=seconds)
        with pytest.raises(InputError, match="timeout_s: must be a finite number of seconds"):
            await client.stream([RetrieveRequest("q")], timeout_s=seconds)


@both
@pytest.mark.parametrize("bad", ["a text", None, 5], ids=["str", "None", "int"])
@asynchronous
async def test_what_is_no_query_is_told_behind_the_answers_before_it(kind: str, bad: Any) -> None:
    async with running(FakeRetriever()) as s, either_client(kind, s.server.address) as client:
        seen: list[Any] = []
        with pytest.raises(TypeError, match=f"a stream takes RetrieveRequest, got {type(bad).__name__}"):
            await client.stream([RetrieveRequest("a"), bad, RetrieveRequest("b")], seen)
        assert [request.query for request, _ in seen] == ["a"]
        not_iterable: Any = 5
        with pytest.raises(TypeError, match="not iterable"):
            await client.stream(not_iterable)


@both
@asynchronous
async def test_what_cannot_be_sent_is_told(kind: str) -> None:
    async with running(FakeRetriever()) as s, either_client(kind, s.server.address) as client:
        with pytest.raises(ValueError, match="surrogates"):
            await client.stream([RetrieveRequest("a")], index="half \ud800 of a pair")


class RefusingHealth(health_pb2_grpc.HealthServicer):  # type: ignore[misc]  # grpc is untyped
    """As proxies answer that have no server behind them: at once, every time."""

    def __init__(self) -> None:
        self.num_calls = 0

    async def Watch(self, request: Any, context: Any) -> None:
        self.num_calls += 1
        await context.abort(grpc.StatusCode.UNAVAILABLE, "no healthy upstream")


@both
@asynchronous
async def test_whoever_waits_for_a_server_does_not_besiege_it(kind: str) -> None:
    server = grpc.aio.server()
    port = server.add_insecure_port("127.0.0.1:0")
    refusing = RefusingHealth()
    add: Any = health_pb2_grpc.add_HealthServicer_to_server
    add(refusing, server)
    await server.start()
    try:
        async with either_client(kind, f"127.0.0.1:{port}") as client:

            async def wait(seconds: float) -> str:
                with pytest.raises(CallError) as caught:
                    await client.wait_until_ready(seconds)
                return caught.value.code

            code = await asyncio.wait_for(overtaken(wait, lambda: refusing.num_calls > 0, 1.0), 60)
    finally:
        await server.stop(None)
    assert code == "DEADLINE_EXCEEDED"
    assert 1 <= refusing.num_calls <= 50, "unhindered they are a thousand"
