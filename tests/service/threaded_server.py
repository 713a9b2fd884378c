"""An in-process server on an event loop of its own, for tests of what blocks.

One at a time: gRPC's asyncio shares what it polls among the event loops of a process, and says so.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from service.serving.server import Server
from tests.service.asynchronous import in_a_thread
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
    with in_a_thread(running(*retrievers, **options)) as (api, loop):
        yield Threaded(api.server, api.opener, loop)
