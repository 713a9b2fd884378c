"""The HTTP face over fake retrievers, on a free port of its own."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Any, cast

import httpx
from starlette.applications import Starlette

from genret.service.configuration.server_config import TlsConfig
from genret.service.gateway.http_app import make_app
from genret.service.gateway.http_server import HttpServer
from genret.service.methods import Methods
from genret.service.observability.metrics import Metrics
from genret.service.serving.batching import Batcher, DeviceExecutor, DeviceQueues
from genret.service.serving.readiness import Readiness, State
from genret.service.serving.reload import Reloaded, Reloader
from genret.service.serving.served import IndexTable, ServedIndex
from tests.service.asynchronous import in_a_thread
from tests.service.fake_retriever import FakeRetriever, served
from tests.service.running_server import make_config


class FakeReloader:
    """Finds a version `v0` that was served before, and that `v1` of now came after."""

    def __init__(self, indexes: IndexTable) -> None:
        self._indexes = indexes
        self.hold = asyncio.Event()
        self.hold.set()

    async def reload(self, name: str, force: bool = False) -> Reloaded:
        description = self._indexes.resolve(name).description
        await self.hold.wait()
        return Reloaded(description, "v0", reloaded=force)


@dataclass
class Gateway:
    app: Starlette
    lanes: DeviceQueues
    readiness: Readiness
    methods: Methods
    reloader: FakeReloader

    @property
    def batcher(self) -> Batcher:
        return self.lanes.of("cpu").batcher


@asynccontextmanager
async def gateway(
    *retrievers: FakeRetriever,
    authority: Any = None,
    metrics: Metrics | None = None,
    state: State = State.READY,
    indexes: Mapping[str, ServedIndex] | None = None,
    **options: Any,
) -> AsyncIterator[Gateway]:
    """The application alone, for a transport without sockets."""
    table = IndexTable()
    if indexes is None:
        indexes = {f"fake{i or ''}": served(r, f"fake{i or ''}") for i, r in enumerate(retrievers)}
    for index in indexes.values():
        table.put(index)
    config = make_config(*indexes, **options)
    lanes, compiler = DeviceQueues(config.batch, config.queue), DeviceExecutor("schemas")
    readiness = Readiness(())
    await readiness.announce(state)
    reloader = FakeReloader(table)
    methods = Methods(table, lanes, readiness, cast("Reloader", reloader), config, compiler)
    app = make_app(methods, readiness, authority, metrics or Metrics(), config)
    try:
        yield Gateway(app, lanes, readiness, methods, reloader)
    finally:
        for retriever in retrievers:
            retriever.hold.set()
        await lanes.close()
        compiler.close()


@asynccontextmanager
async def listening(
    app: Starlette, tls: TlsConfig | None = None, host: str = "127.0.0.1"
) -> AsyncIterator[HttpServer]:
    server = HttpServer(app, host, 0, tls or TlsConfig())
    await server.start()
    try:
        yield server
    finally:
        await server.stop(5)


@asynccontextmanager
async def connected(
    *retrievers: FakeRetriever, timeout: float = 60, **options: Any
) -> AsyncIterator[tuple[Gateway, HttpServer, httpx.AsyncClient]]:
    """The application, a real listener before it, and its client."""
    async with (
        gateway(*(retrievers or (FakeRetriever(),)), **options) as face,
        listening(face.app) as server,
        httpx.AsyncClient(base_url=f"http://{server.address}", timeout=timeout, trust_env=False) as client,
    ):
        yield face, server, client


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
