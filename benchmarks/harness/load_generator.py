"""Load on a server: open loop, closed loop, and how every call ends.

Open loop means that calls are sent when they are due, whether or not earlier ones have been answered, and
that the time of a call counts from when it was due. A generator that waits for answers slows down with the
server and never sees its worst times.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
import time
from collections import Counter
from collections.abc import AsyncIterator, Coroutine, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from genret.retrieval.types import RetrieveRequest
from genret.service.client import AsyncRetrievalClient
from genret.service.errors import CallError
from harness.report import percentiles

SHARES = (50, 90, 99, 100)  # of the percentiles that are told


@dataclass(frozen=True, slots=True)
class Ended:
    """One call; times of the server are those of an answer, that of retrying is that of a refusal."""

    code: str  # "OK", or the name of its gRPC status
    seconds: float  # from when it was due to its end
    late_seconds: float = 0.0  # from when it was due until it was sent: the generator's own fault
    model_ms: float = 0.0  # of its batch on the device, searching vectors included
    num_steps: int = 0  # decode steps, of which each is a forward
    queue_ms: float = 0.0  # until its batch began
    server_ms: float = 0.0  # from its arrival at the server to the reply
    retry_after_s: float | None = None  # None where the server did not say


@dataclass(slots=True)
class Load:
    """Calls of one run."""

    seconds: float = 0.0
    calls: list[Ended] = field(default_factory=list)

    def codes(self) -> dict[str, int]:
        """Return how many calls ended with each code, the commonest first."""
        return dict(Counter(call.code for call in self.calls).most_common())

    def with_code(self, code: str) -> list[Ended]:
        """Return the calls that ended so."""
        return [call for call in self.calls if call.code == code]

    @property
    def per_second(self) -> float:
        """Answers per second."""
        return len(self.with_code("OK")) / self.seconds

    def milliseconds(self, code: str = "OK") -> dict[str, float]:
        """Return percentiles of how long calls with a code took."""
        return percentiles([call.seconds * 1000 for call in self.with_code(code)], *SHARES)


async def ask(client: AsyncRetrievalClient, request: RetrieveRequest, due: float) -> Ended:
    """Send one call, due at a time of `time.perf_counter()`, and return how it ended."""
    sent = time.perf_counter()
    try:
        reply = await client.retrieve(request)
    except CallError as error:
        ended = time.perf_counter()
        return Ended(error.code, ended - due, sent - due, retry_after_s=error.retry_after_s)
    ended = time.perf_counter()
    timings = reply.result.timings
    return Ended(
        "OK",
        ended - due,
        sent - due,
        model_ms=timings.prefill_ms + timings.decode_ms + timings.shortlist_ms + timings.score_ms,
        num_steps=reply.result.num_steps,
        queue_ms=reply.queue_ms,
        server_ms=reply.total_ms,
    )


async def closed_loop(
    client: AsyncRetrievalClient, requests: Sequence[RetrieveRequest], num_clients: int, seconds: float
) -> Load:
    """Let clients send one call after the other, each its next one when the last is answered.

    One that is refused waits as long as it is told.
    """
    load, started = Load(), time.perf_counter()

    async def one(place: int) -> None:
        mine = itertools.cycle(requests[place::num_clients] or requests)
        while time.perf_counter() < started + seconds:
            ended = await ask(client, next(mine), time.perf_counter())
            load.calls.append(ended)
            await asyncio.sleep(ended.retry_after_s or 0.0)

    await asyncio.gather(*(one(place) for place in range(num_clients)))
    load.seconds = time.perf_counter() - started
    return load


async def open_loop(
    client: AsyncRetrievalClient,
    requests: Sequence[RetrieveRequest],
    per_second: float,
    seconds: float,
    seed: int = 0,
) -> Load:
    """Send calls at the times of a Poisson process, and wait for the last answer."""
    load, started = Load(), time.perf_counter()
    waiting: set[asyncio.Task[None]] = set()
    sources = itertools.cycle(requests)

    async def one(due: float) -> None:
        load.calls.append(await ask(client, next(sources), due))

    for arrival in arrivals(per_second, seconds, seed):
        due = started + arrival
        await asyncio.sleep(max(0.0, due - time.perf_counter()))
        task = asyncio.create_task(one(due))
        waiting.add(task)
        task.add_done_callback(waiting.discard)
    load.seconds = max(seconds, time.perf_counter() - started)
    await asyncio.gather(*waiting)
    return load


def arrivals(per_second: float, seconds: float, seed: int) -> Iterator[float]:
    """Yield the arrival times of a Poisson process, seconds from its beginning."""
    rng, at = random.Random(seed), 0.0
    while (at := at + rng.expovariate(per_second)) < seconds:
        yield at


@contextlib.asynccontextmanager
async def beside(work: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """Let something that does not end run during the block."""
    task = asyncio.create_task(work)
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def probe_health(client: AsyncRetrievalClient, times_ms: list[float], every_s: float = 0.05) -> None:
    """Ask for the server's health again and again until cancelled, and note how long each answer took."""
    while True:
        started = time.perf_counter()
        await client.health()
        times_ms.append((time.perf_counter() - started) * 1000)
        await asyncio.sleep(every_s)
