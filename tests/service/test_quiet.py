"""How long a server that stops waits for what it refuses to stop coming."""

from __future__ import annotations

import asyncio

import pytest

from service.serving.readiness import IdleWait
from tests.service.asynchronous import asynchronous
from tests.service.turned_clock import TurnedClock


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> TurnedClock:
    return TurnedClock(monkeypatch, stopped=True)


async def pass_by(clock: TurnedClock, seconds: float) -> None:
    """Turn the clock forward, and let whoever waited for that go on."""
    clock.forward(seconds)
    for _ in range(10):
        await asyncio.sleep(0)


def coming(quiet: IdleWait, hurry: asyncio.Event | None = None) -> asyncio.Task[None]:
    return asyncio.create_task(quiet.come(hurry or asyncio.Event()))


@asynchronous
async def test_where_nothing_comes_it_is_quiet_soon(clock: TurnedClock) -> None:
    waiting = coming(IdleWait())
    await pass_by(clock, 0.04)
    assert not waiting.done()
    await pass_by(clock, 0.02)
    assert waiting.done()


@asynchronous
async def test_what_comes_is_waited_out(clock: TurnedClock) -> None:
    quiet = IdleWait()
    waiting = coming(quiet)
    await pass_by(clock, 0.04)
    quiet.broken()
    await pass_by(clock, 0.04)
    assert not waiting.done()
    await pass_by(clock, 0.02)
    assert waiting.done()


@asynchronous
async def test_what_never_ends_is_not_waited_for(clock: TurnedClock) -> None:
    quiet = IdleWait()
    waiting = coming(quiet)
    for _ in range(24):
        await pass_by(clock, 0.04)
        assert not waiting.done()
        quiet.broken()
    await pass_by(clock, 0.05)
    assert waiting.done()


@asynchronous
async def test_who_is_in_a_hurry_does_not_wait(clock: TurnedClock) -> None:
    hurry = asyncio.Event()
    waiting = coming(IdleWait(), hurry)
    await pass_by(clock, 0.04)
    assert not waiting.done()
    hurry.set()
    await pass_by(clock, 0)
    assert waiting.done()
    another = coming(IdleWait(), hurry)
    await pass_by(clock, 0)
    assert another.done()
