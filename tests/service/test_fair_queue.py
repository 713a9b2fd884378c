"""Work that waits for room: in order, within its share, until its deadline."""

from __future__ import annotations

import asyncio
import math
import time

import pytest

from decoding.errors import DeadlineExceededError
from service.configuration.server_config import BatchLimits, QueueLimits
from service.errors import OverloadedError
from service.serving.admission import Admission, FairQueue
from tests.service.asynchronous import asynchronous
from tests.service.running_server import until


class Queue:
    """A queue that patient work and calls share, without a device behind it."""

    def __init__(self, max_requests: int = 4, max_tokens: int = 1000) -> None:
        limits = QueueLimits(max_requests, max_tokens)
        self.admission = Admission(limits)
        self.fair_queue = FairQueue(self.admission, limits)
        self.order: list[str] = []

    async def work(self, name: str, done: asyncio.Event, tokens: int = 1, deadline: float = math.inf) -> None:
        async with self.fair_queue.room(tokens, deadline):
            self.admission.admit(tokens)
            self.order.append(name)
            try:
                await done.wait()
            finally:
                self.admission.release(tokens)


@asynchronous
async def test_it_takes_half_of_the_queue_and_the_rest_waits_in_order() -> None:
    queue, done = Queue(max_requests=4), asyncio.Event()
    tasks = [asyncio.create_task(queue.work(str(i), done)) for i in range(5)]
    await until(lambda: queue.fair_queue.num_waiting == 3)
    assert queue.order == ["0", "1"]
    assert queue.admission.num_requests == 2
    done.set()
    await asyncio.gather(*tasks)
    assert queue.order == ["0", "1", "2", "3", "4"]
    assert (queue.admission.num_requests, queue.fair_queue.num_waiting) == (0, 0)


@asynchronous
async def test_a_queue_full_of_calls_lets_it_in_as_soon_as_one_leaves() -> None:
    queue, done = Queue(max_requests=2), asyncio.Event()
    queue.admission.admit(1)
    queue.admission.admit(1)
    task = asyncio.create_task(queue.work("a", done))
    await until(lambda: queue.fair_queue.num_waiting == 1)
    queue.admission.release(1)
    await until(lambda: queue.order == ["a"])
    done.set()
    await task


@asynchronous
async def test_one_that_is_larger_than_the_share_is_let_in_alone() -> None:
    queue, done = Queue(max_tokens=100), asyncio.Event()
    tasks = [
        asyncio.create_task(queue.work("small", done, tokens=10)),
        asyncio.create_task(queue.work("large", done, tokens=80)),
        asyncio.create_task(queue.work("after", done, tokens=1)),
    ]
    await until(lambda: queue.fair_queue.num_waiting == 2)
    assert queue.order == ["small"], "nobody overtakes"
    done.set()
    await asyncio.gather(*tasks)
    assert queue.order == ["small", "large", "after"]


@asynchronous
async def test_the_deadline_passes_while_it_waits() -> None:
    queue, done = Queue(max_requests=1), asyncio.Event()
    first = asyncio.create_task(queue.work("first", done))
    await until(lambda: queue.order == ["first"])
    with pytest.raises(DeadlineExceededError, match="the deadline passed while the queue was full"):
        await queue.work("late", done, deadline=time.monotonic() + 0.02)
    assert queue.fair_queue.num_waiting == 0
    done.set()
    await first


@asynchronous
async def test_cancelling_the_first_lets_the_second_look() -> None:
    queue, done, hold = Queue(max_tokens=100), asyncio.Event(), asyncio.Event()
    running = asyncio.create_task(queue.work("running", hold, tokens=40))
    await until(lambda: queue.order == ["running"])
    large = asyncio.create_task(queue.work("large", done, tokens=40))
    small = asyncio.create_task(queue.work("small", done, tokens=1))
    await until(lambda: queue.fair_queue.num_waiting == 2)
    large.cancel()
    await until(lambda: queue.order == ["running", "small"])
    done.set()
    hold.set()
    await asyncio.gather(running, small)


@asynchronous
async def test_an_error_gives_the_share_back() -> None:
    queue = Queue(max_requests=2)
    for _ in range(3):
        with pytest.raises(ValueError, match="broken"):
            async with queue.fair_queue.room(1, math.inf):
                raise ValueError("broken")
    done = asyncio.Event()
    done.set()
    await queue.work("a", done)
    assert queue.order == ["a"]


@asynchronous
async def test_half_of_the_time_is_left_to_single_calls() -> None:
    limits = QueueLimits(max_wait_seconds=2)
    admission = Admission(limits, BatchLimits(max_tokens=50))
    fair_queue = FairQueue(admission, limits)
    admission.observe(100, seconds=1.0)
    async with fair_queue.room(60, math.inf):
        admission.admit(60)
        async with fair_queue.room(60, math.inf):
            admission.admit(60)
            with pytest.raises(DeadlineExceededError):  # a second of work is there
                async with fair_queue.room(60, time.monotonic() + 0.02):
                    raise AssertionError("there was room")
            admission.admit(60)  # and another one for single calls


@asynchronous
async def test_of_a_batch_no_more_waits_than_the_queue_may_hold() -> None:
    queue, done = Queue(max_requests=2), asyncio.Event()
    tasks = [asyncio.create_task(queue.work(str(i), done)) for i in range(3)]
    await until(lambda: queue.fair_queue.num_waiting == 2)
    with pytest.raises(OverloadedError, match="2 requests of batches wait for room, at most 2"):
        async with queue.fair_queue.room(1, math.inf, bounded=True):
            raise AssertionError("there was room")
    done.set()
    await asyncio.gather(*tasks)
