"""Readiness: watchers of health checks, and the wait for refused calls to stop."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from genret.service.serving.readiness import IdleWait
from tests.service.fake_retriever import FakeRetriever
from tests.service.running_server import Running, running
from tests.service.turned_clock import TurnedClock

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
UNKNOWN = health_pb2.HealthCheckResponse.SERVICE_UNKNOWN


def watch(s: Running, service: str = "genret.v1.RetrievalService") -> Any:
    stub: Any = health_pb2_grpc.HealthStub(s.channel)
    return stub.Watch(health_pb2.HealthCheckRequest(service=service), timeout=60)


async def next_status(watching: Any) -> int:
    return (await asyncio.wait_for(watching.read(), 60)).status


async def test_a_watcher_that_leaves_takes_no_other_with_it() -> None:
    fake = FakeRetriever()
    async with running(fake, load=False) as s:
        leaving, staying, liveness = watch(s), watch(s), watch(s, "")
        seen = [await next_status(w) for w in (leaving, staying, liveness)]
        assert seen == [NOT_SERVING, NOT_SERVING, SERVING]
        leaving.cancel()
        other = watch(s, "nobody.knows")  # behind the cancellation on the same connection
        assert await next_status(other) == UNKNOWN
        await s.server.load()
        assert await next_status(staying) == SERVING
        assert fake.num_warm_ups == 1


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


async def pass_by(clock: TurnedClock, seconds: float) -> None:
    """Turn the clock forward, and let whoever waited for that go on."""
    clock.forward(seconds)
    for _ in range(10):
        await asyncio.sleep(0)


def coming(quiet: IdleWait, hurry: asyncio.Event | None = None) -> asyncio.Task[None]:
    return asyncio.create_task(quiet.come(hurry or asyncio.Event()))


@pytest.mark.parametrize("comes", [False, True])
async def test_it_is_quiet_soon_after_the_last_that_comes(stopped_clock: TurnedClock, comes: bool) -> None:
    quiet = IdleWait()
    waiting = coming(quiet)
    await pass_by(stopped_clock, 0.04)
    if comes:
        quiet.broken()
        await pass_by(stopped_clock, 0.04)
    assert not waiting.done()
    await pass_by(stopped_clock, 0.02)
    assert waiting.done()


async def test_what_never_ends_is_not_waited_for(stopped_clock: TurnedClock) -> None:
    quiet = IdleWait()
    waiting = coming(quiet)
    for _ in range(24):
        await pass_by(stopped_clock, 0.04)
        assert not waiting.done()
        quiet.broken()
    await pass_by(stopped_clock, 0.05)
    assert waiting.done()


async def test_who_is_in_a_hurry_does_not_wait(stopped_clock: TurnedClock) -> None:
    hurry = asyncio.Event()
    waiting = coming(IdleWait(), hurry)
    await pass_by(stopped_clock, 0.04)
    assert not waiting.done()
    hurry.set()
    await pass_by(stopped_clock, 0)
    assert waiting.done()
    another = coming(IdleWait(), hurry)
    await pass_by(stopped_clock, 0)
    assert another.done()
