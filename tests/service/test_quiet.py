"""How long a server that stops waits for what it refuses to stop coming."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from service.serving.quiet import Quiet
from tests.service.asynchronous import asynchronous


async def taken(quiet: Quiet, sooner: asyncio.Event) -> float:
    """How long quiet took to come, seconds."""
    begun = time.monotonic()
    await asyncio.wait_for(quiet.come(sooner), 20)
    return time.monotonic() - begun


@asynchronous
async def test_where_nothing_comes_it_is_quiet_soon() -> None:
    assert 0.04 < await taken(Quiet(), asyncio.Event()) < 1.0


@asynchronous
async def test_what_never_ends_is_not_waited_for() -> None:
    quiet = Quiet()
    async with knocking_at(quiet):
        assert await taken(quiet, asyncio.Event()) > 0.9


@asynchronous
async def test_who_is_in_a_hurry_does_not_wait() -> None:
    quiet, hurry = Quiet(), asyncio.Event()
    async with knocking_at(quiet):
        waiting = asyncio.create_task(taken(quiet, hurry))
        await asyncio.sleep(0.1)
        assert not waiting.done()
        hurry.set()
        assert await waiting < 0.9
        assert await taken(Quiet(), hurry) < 0.9


@asynccontextmanager
async def knocking_at(quiet: Quiet) -> AsyncIterator[None]:
    """Break the quiet again and again."""

    async def knock() -> None:
        while True:
            quiet.broken()
            await asyncio.sleep(0)

    knocking = asyncio.create_task(knock())
    try:
        yield
    finally:
        knocking.cancel()
