"""An in-process server on a free port, in this event loop or another thread's, with a test's retrievers."""

from __future__ import annotations

import asyncio
import os
import socket
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import grpc
from google.rpc import error_details_pb2
from grpc_status import rpc_status

from genret.retrieval.retriever import Retriever
from genret.service.configuration.server_config import IndexSpec, ModelSpec, ServerConfig
from genret.service.observability.metrics import CallMetrics, EngineMetrics
from genret.service.pb.genret.v1 import index_service_pb2_grpc as index_grpc
from genret.service.pb.genret.v1 import retrieval_service_pb2 as pb
from genret.service.pb.genret.v1 import retrieval_service_pb2_grpc as pb_grpc
from genret.service.serving.engine import Engine
from genret.service.serving.engine_link import Frames
from genret.service.serving.engine_process import EngineProcess
from genret.service.serving.engine_worker import serve_engine
from genret.service.serving.models import IndexOpener, PinnedRetriever
from genret.service.serving.served import ServedIndex
from genret.service.serving.server import Server
from genret.service.status import told
from tests.service.asynchronous import in_a_thread
from tests.service.fake_retriever import FakeRetriever, served

T = TypeVar("T")
DETAIL_TYPES = (
    error_details_pb2.BadRequest,
    error_details_pb2.ResourceInfo,
    error_details_pb2.PreconditionFailure,
    error_details_pb2.ErrorInfo,
    error_details_pb2.RetryInfo,
)


@dataclass
class Running:
    server: Server
    channel: Any
    stub: Any
    opener: TableOpener

    @property
    def indexes(self) -> Any:
        return index_grpc.IndexServiceStub(self.channel)  # type: ignore[no-untyped-call]

    def retrieve(self, query: str = "hamlet", **fields: Any) -> Any:
        timeout = fields.pop("timeout", 60)
        return self.stub.Retrieve(pb.RetrieveRequest(query=query, **fields), timeout=timeout)

    def batch(self, *requests: pb.RetrieveRequest) -> Any:
        return self.stub.BatchRetrieve(pb.BatchRetrieveRequest(requests=requests), timeout=60)


def make_config(*names: str, **options: Any) -> ServerConfig:
    specs = tuple(IndexSpec(name, Path(name)) for name in names or ("fake",))
    return replace(ServerConfig(indexes=specs, port=0, drain_seconds=10), **options)


class TableOpener:
    """Opens what a test has put into a table by then, or raises it."""

    def __init__(self, table: Mapping[str, ServedIndex | Exception]) -> None:
        self.table: dict[str, ServedIndex | Exception] = dict(table)
        self.hold = threading.Event()
        self.hold.set()
        self.opened: list[ServedIndex] = []
        self.retired: list[ServedIndex] = []
        self.released: list[ServedIndex] = []

    def live_version(self, spec: IndexSpec) -> str:
        return self._look(spec).description.version

    def open(self, spec: IndexSpec) -> ServedIndex:
        self.opened.append(self._look(spec))
        if not self.hold.wait(60):
            raise TimeoutError("nobody let the opener go on")
        return self.opened[-1]

    def publish(self, opened: ServedIndex) -> Sequence[ServedIndex]:
        return [opened]

    def retire(self, served: ServedIndex) -> Callable[[], None]:
        self.retired.append(served)
        return partial(self.released.append, served)

    def finish(self) -> None:
        pass

    def _look(self, spec: IndexSpec) -> ServedIndex:
        found = self.table[spec.name]
        if isinstance(found, Exception):
            raise found
        return found


def opener_of(model: ModelSpec, **options: Any) -> IndexOpener:
    return IndexOpener(make_config(models=(model,), **options), told)


def open_all(opener: IndexOpener, *specs: IndexSpec) -> dict[str, ServedIndex]:
    """Open indexes as a server does; those that answer then, by name."""
    found: dict[str, ServedIndex] = {}
    for spec in specs:
        found |= {served.description.name: served for served in opener.publish(opener.open(spec))}
    opener.finish()
    return {spec.name: found[spec.name] for spec in specs}


class LocalWorker:
    """An engine's process that is none: it answers over a socket, on the same event loop."""

    def __init__(self, config: ServerConfig, opener: TableOpener) -> None:
        self.link, theirs = socket.socketpair()
        self.engine = Engine(config, opener, EngineMetrics())
        self.was_lost = False
        self.pid = os.getpid()
        self._ended = threading.Event()
        self._frames: Frames | None = None
        self._task = asyncio.get_running_loop().create_task(self._run(theirs))
        self._task.add_done_callback(lambda task: self._ended.set())

    async def _run(self, theirs: socket.socket) -> None:
        self._frames = await Frames.over(theirs)
        await self._frames.receive()
        await serve_engine(self._frames, lambda: self.engine, self._lost)

    def _lost(self) -> None:
        self.was_lost = True

    def end(self, seconds: float) -> int | None:
        return 0 if self._ended.wait(seconds) else None

    def kill(self) -> None:
        """End it as SIGKILL does: without a word."""
        self._task.cancel()
        if self._frames is not None:
            self._frames.close()


@asynccontextmanager
async def running(
    *retrievers: FakeRetriever,
    load: bool = True,
    indexes: dict[str, ServedIndex] | None = None,
    two_processes: bool = False,
    **options: Any,
) -> AsyncIterator[Running]:
    table = indexes or {f"fake{i or ''}": served(r, f"fake{i or ''}") for i, r in enumerate(retrievers)}
    opener, config = TableOpener(table), make_config(*table, **options)
    if two_processes:
        worker: Any = LocalWorker(config, opener)
        server = Server(config, EngineProcess(config, worker), CallMetrics())
    else:
        server = Server.in_one_process(config, opener)
    async with started(server, opener, load) as api:
        try:
            yield api
        finally:
            for retriever in retrievers:
                retriever.hold.set()
            opener.hold.set()


@asynccontextmanager
async def started(server: Server, opener: Any, load: bool = True) -> AsyncIterator[Running]:
    await server.start()
    try:
        if load:
            await server.load()
        async with grpc.aio.insecure_channel(server.address) as channel:
            yield Running(server, channel, pb_grpc.RetrievalServiceStub(channel), opener)
    finally:
        await server.drain()


async def failure(call: Awaitable[Any]) -> tuple[grpc.aio.AioRpcError, dict[str, Any]]:
    """Await a call that must fail; return its error and its details by type name."""
    try:
        answer = await call
    except grpc.aio.AioRpcError as error:
        return error, unpack(rpc_status.from_call(error))
    raise AssertionError(f"the call succeeded: {answer}")


async def failure_code(call: Awaitable[Any]) -> grpc.StatusCode:
    error, _ = await failure(call)
    return error.code()


def unpack(status: Any) -> dict[str, Any]:
    details = {}
    for packed in status.details if status is not None else ():
        for kind in DETAIL_TYPES:
            message = kind()
            if packed.Unpack(message):
                details[kind.__name__] = message
    return details


async def overtaken(
    ask: Callable[[float], Awaitable[T]], reached: Callable[[], bool], seconds: float = 0.3
) -> T:
    """Call `ask` with longer and longer deadlines, until one passes after the call has `reached` its aim."""
    while True:
        ended = await ask(seconds)
        if reached():
            return ended
        seconds *= 2


async def until(condition: Callable[[], bool], seconds: float = 60.0) -> None:
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.002)


def retriever_of(served: ServedIndex) -> Retriever:
    """The library's retriever behind a real index."""
    assert isinstance(served.retriever, PinnedRetriever)
    return served.retriever.retriever


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
    """Run a server in another thread; one at a time: gRPC's asyncio shares its polling among event loops."""
    with in_a_thread(running(*retrievers, **options)) as (api, loop):
        yield Threaded(api.server, api.opener, loop)
