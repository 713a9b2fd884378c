"""A server over fake retrievers with an HTTP listener on a free port, and its clients."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import httpx

from genret.service.configuration.server_config import HttpConfig
from genret.service.gateway.http_server import HttpServer
from tests.service.asynchronous import in_a_thread
from tests.service.fake_retriever import FakeRetriever
from tests.service.running_server import Running, running


@asynccontextmanager
async def connected(
    *retrievers: FakeRetriever, timeout: float = 60, **options: Any
) -> AsyncIterator[tuple[Running, HttpServer, httpx.AsyncClient]]:
    """The server, its listener, and a client of that; the options are those of `running`."""
    async with running(*(retrievers or (FakeRetriever(),)), **{"http": HttpConfig(port=0), **options}) as api:
        server = api.server.http
        base_url = f"http://{server.address}"
        async with httpx.AsyncClient(base_url=base_url, timeout=timeout, trust_env=False) as client:
            yield api, server, client


@asynccontextmanager
async def http_client(*retrievers: FakeRetriever, **options: Any) -> AsyncIterator[httpx.AsyncClient]:
    async with connected(*retrievers, **options) as (_, _, client):
        yield client


@asynccontextmanager
async def raw_connection(
    port: int, host: str = "127.0.0.1"
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """A connection on which a test says what it likes."""
    reader, writer = await asyncio.open_connection(host, port)
    try:
        yield reader, writer
    finally:
        writer.close()
        with contextlib.suppress(ConnectionError):  # the other side may have been quicker
            await writer.wait_closed()


@contextmanager
def client_in_a_thread(*retrievers: FakeRetriever, **options: Any) -> Iterator[httpx.Client]:
    """The client of a listener that runs beside a test that is no coroutine."""
    with (
        serving_in_a_thread(*retrievers, **options) as address,
        httpx.Client(base_url=address, timeout=60, trust_env=False) as found,
    ):
        yield found


@contextmanager
def serving_in_a_thread(*retrievers: FakeRetriever, **options: Any) -> Iterator[str]:
    """The address of a listener that runs beside a test that is no coroutine."""
    with in_a_thread(connected(*retrievers, **options)) as ((_, server, _), _):
        yield f"http://{server.address}"
