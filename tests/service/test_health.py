"""Health checks that are watched: who hears what, and who waits for whom."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from tests.service.asynchronous import asynchronous
from tests.service.fake_retriever import FakeRetriever
from tests.service.running_server import Running, running

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
UNKNOWN = health_pb2.HealthCheckResponse.SERVICE_UNKNOWN


def watch(s: Running, service: str = "genret.v1.RetrievalService") -> Any:
    stub: Any = health_pb2_grpc.HealthStub(s.channel)
    return stub.Watch(health_pb2.HealthCheckRequest(service=service), timeout=60)


async def next_status(watching: Any) -> int:
    status: int = (await asyncio.wait_for(watching.read(), 60)).status
    return status


@asynchronous
async def test_a_watcher_that_leaves_takes_no_other_with_it() -> None:
    async with running(FakeRetriever(), load=False) as s:
        leaving, staying, liveness = watch(s), watch(s), watch(s, "")
        assert [await next_status(w) for w in (leaving, staying, liveness)] == [
            NOT_SERVING,
            NOT_SERVING,
            SERVING,
        ]
        leaving.cancel()
        other = watch(s, "nobody.knows")  # behind the cancellation on the same connection
        assert await next_status(other) == UNKNOWN
        await s.server.load()
        assert await next_status(staying) == SERVING


@asynchronous
async def test_watchers_hear_of_a_drain_and_do_not_hold_it_up() -> None:
    async with running(FakeRetriever(), drain_seconds=600) as s:
        watching, liveness = watch(s), watch(s, "")
        assert await next_status(watching) == SERVING
        assert await next_status(liveness) == SERVING
        draining = asyncio.create_task(s.server.drain())
        assert await next_status(watching) == NOT_SERVING
        for w in (watching, liveness):
            with contextlib.suppress(grpc.aio.AioRpcError):
                assert await asyncio.wait_for(w.read(), 60) is grpc.aio.EOF
            assert await w.code() is grpc.StatusCode.UNAVAILABLE
        await asyncio.wait_for(draining, 60)
