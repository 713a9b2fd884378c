"""An in-process server on an event loop of its own, for tests of what blocks.

One at a time: gRPC's asyncio shares what it polls among the event loops of a process, and says so.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from service.serving.server import Server
from tests.service.fake_retriever import FakeRetriever
from tests.service.running_server import TableOpener, running


@dataclass(frozen=True)
class Threaded:
    """A server that runs in another thread."""

    server: Server
    opener: TableOpener
    loop: asyncio.AbstractEventLoop

    def run(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        """Run a coroutine on the server's event loop and wait for it."""
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(60)


@contextmanager
def threaded(*retrievers: FakeRetriever, **options: Any) -> Iterator[Threaded]:
    """Run a server for as long as the body runs; see `running_server.running`."""
    started: list[Threaded] = []
    ready, stop = threading.Event(), asyncio.Event()
    loop = asyncio.new_event_loop()

    async def serve() -> None:
        async with running(*retrievers, **options) as api:
            started.append(Threaded(api.server, api.opener, loop))
            ready.set()
            await stop.wait()

    def run() -> None:
        try:
            loop.run_until_complete(serve())
        finally:
            loop.close()
            ready.set()

    thread = threading.Thread(target=run, name="test-server")
    thread.start()
    ready.wait(60)
    if not started:
        raise AssertionError("the server did not start; its thread says why")
    try:
        yield started[0]
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(60)
