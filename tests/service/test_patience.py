"""Work of batches and streams waits for room, and leaves some to single calls."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Callable

import pytest

from decoding.errors import DeadlineExceededError
from service.configuration.config import QueueLimits
from service.errors import OverloadedError
from service.serving.admission import Admission
from service.serving.patience import Patience


class Desk:
    """An admission with patient work in front of it."""

    def __init__(self, **limits: float) -> None:
        self.limits = QueueLimits(**limits)  # type: ignore[arg-type]
        self.admission = Admission(self.limits)
        self.patience = Patience(self.admission, self.limits)
        self.done = asyncio.Event()
        self.running: list[str] = []

    async def work(self, name: str, tokens: int, deadline: float = math.inf, bounded: bool = False) -> None:
        async with self.patience.room(tokens, deadline, bounded):
            self.admission.admit(tokens)
            self.running.append(name)
            await self.done.wait()
            self.admission.release(tokens)

    def start(self, name: str, tokens: int = 1, **options: float) -> asyncio.Task[None]:
        return asyncio.create_task(self.work(name, tokens, **options))  # type: ignore[arg-type]


def run(scenario: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(asyncio.wait_for(scenario(), 10))


async def settle() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


def test_half_of_the_room_is_left_to_single_calls() -> None:
    async def scenario() -> None:
        desk = Desk(max_requests=8)
        tasks = [desk.start(str(i)) for i in range(10)]
        await settle()
        assert desk.running == ["0", "1", "2", "3"]
        desk.admission.admit(1)
        desk.admission.release(1)
        desk.done.set()
        await asyncio.gather(*tasks)
        assert desk.running == [str(i) for i in range(10)], "first come, first served"
        assert desk.admission.num_requests == 0

    run(scenario)


def test_half_of_the_time_is_left_to_single_calls() -> None:
    async def scenario() -> None:
        desk = Desk(max_wait_seconds=2)
        desk.admission.observe(100, seconds=1.0)
        tasks = [desk.start(str(i), 60) for i in range(4)]
        await settle()
        assert desk.running == ["0", "1"], "a second of work is there: the others wait"
        desk.admission.admit(60)
        desk.admission.release(60)
        desk.done.set()
        await asyncio.gather(*tasks)
        assert len(desk.running) == 4

    run(scenario)


def test_a_stream_waits_until_its_deadline_and_a_batch_is_refused_where_too_much_waits() -> None:
    async def scenario() -> None:
        desk = Desk(max_requests=2)
        running = desk.start("running")
        waiting = [desk.start(f"waiting {i}", bounded=True) for i in range(2)]
        await settle()
        assert desk.patience.num_waiting == 2
        with pytest.raises(OverloadedError, match="2 requests of batches wait for room, at most 2"):
            await desk.work("one too many", 1, bounded=True)
        with pytest.raises(DeadlineExceededError):
            await desk.work("of a stream", 1, deadline=time.monotonic() + 0.05)
        desk.done.set()
        await asyncio.gather(running, *waiting)
        assert desk.patience.num_waiting == 0

    run(scenario)


def test_what_is_cancelled_while_it_waits_gives_its_place_away() -> None:
    async def scenario() -> None:
        desk = Desk(max_requests=2)
        running, gone, last = desk.start("running"), desk.start("gone"), desk.start("last")
        await settle()
        gone.cancel()
        await asyncio.gather(gone, return_exceptions=True)
        desk.done.set()
        await asyncio.gather(running, last)
        assert desk.running == ["running", "last"]

    run(scenario)
