"""The server's life: bind, open and warm, serve, drain, stop."""

from __future__ import annotations

import asyncio
import gc
import logging
import signal
import socket
from collections.abc import Callable
from typing import Any

import grpc
from grpc_health.v1 import health, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from service.configuration.config import IndexSpec, ServerConfig, join_address
from service.errors import BindError
from service.methods.indexes import IndexMethods
from service.methods.retrieval import RetrievalMethods
from service.pb.genret.v1 import index_service_pb2 as index_pb
from service.pb.genret.v1 import index_service_pb2_grpc as index_grpc
from service.pb.genret.v1 import retrieval_service_pb2 as pb
from service.pb.genret.v1 import retrieval_service_pb2_grpc as pb_grpc
from service.rpc.malformed import MalformedMessageInterceptor
from service.rpc.servicers import IndexServicer, RetrievalServicer
from service.serving.executor import DeviceExecutor
from service.serving.lanes import Lanes
from service.serving.readiness import Readiness, State
from service.serving.served import IndexTable, ServedIndex

_LOG = logging.getLogger(__name__)
_SERVICES = (
    pb.DESCRIPTOR.services_by_name["RetrievalService"].full_name,
    index_pb.DESCRIPTOR.services_by_name["IndexService"].full_name,
)

Loader = Callable[[IndexSpec], ServedIndex]


class Server:
    """A gRPC server over one device.

    Args:
        config: Addresses and limits.
        loader: Opens one index; blocking, runs on the device's thread.
        device: Name of the device, for the thread's name.
        finish: What is to be done once every index is open, before the server is ready; blocking, too.
    """

    def __init__(
        self,
        config: ServerConfig,
        loader: Loader,
        device: str = "auto",
        finish: Callable[[], None] | None = None,
    ) -> None:
        self._config = config
        self._loader = loader
        self._finish = finish
        self._device = device
        self._loading = DeviceExecutor("loading")
        self._compiler = DeviceExecutor("schemas")
        self.lanes = Lanes(config.batch, config.queue)
        self._readiness = Readiness(_SERVICES)
        self._grpc: Any = None
        self.indexes = IndexTable()
        self.port = config.port

    @property
    def address(self) -> str:
        """Where the server listens; with port 0 known after `start`."""
        return join_address(self._config.host, self.port)

    async def start(self) -> None:
        """Listen. Health checks are answered from here on; requests are refused until `load` is done.

        Raises:
            BindError: the address cannot be listened on.
        """
        self._grpc = grpc.aio.server(
            interceptors=[MalformedMessageInterceptor()],
            options=[
                ("grpc.so_reuseport", 0),  # on by default: a second server would share the port silently
                ("grpc.max_receive_message_length", self._config.max_request_bytes),
            ],
        )
        self._add_services()
        await self._readiness.announce(State.WARMING)
        try:
            self.port = self._grpc.add_insecure_port(self._config.address)
        except RuntimeError as error:
            raise BindError(_bind_failure(self._config.host, self._config.port)) from error
        await self._grpc.start()

    def _add_services(self) -> None:
        limit = self._config.max_request_seconds
        add_retrieval: Any = pb_grpc.add_RetrievalServiceServicer_to_server  # generated, so untyped
        add_index: Any = index_grpc.add_IndexServiceServicer_to_server
        add_retrieval(
            RetrievalServicer(
                RetrievalMethods(self.indexes, self.lanes, self._readiness, self._config, self._compiler),
                limit,
            ),
            self._grpc,
        )
        add_index(IndexServicer(IndexMethods(self.indexes, self._readiness), limit), self._grpc)
        health_pb2_grpc.add_HealthServicer_to_server(self._readiness.servicer, self._grpc)
        names = (*_SERVICES, health.SERVICE_NAME, reflection.SERVICE_NAME)
        reflection.enable_server_reflection(names, self._grpc)

    async def load(self) -> None:
        """Open and warm every index, then become ready.

        Raises:
            GenretError: an index or the model cannot be used; the server stays up and not ready.
        """
        for spec in self._config.indexes:
            served = await self._loading.run(self._loader, spec)
            await self.lanes.of(served.description.device).executor.run(served.retriever.warm_up)
            self.indexes.put(served)
        if self._finish is not None:
            await self._loading.run(self._finish)
        # What was loaded lives as long as the server: collections need not look through it again and again,
        # which would hold up requests for some tenths of a second.
        gc.collect()
        gc.freeze()
        await self._readiness.announce(State.READY)

    async def drain(self, hurry: asyncio.Event | None = None) -> None:
        """Stop without dropping what was accepted.

        Readiness goes off first, requests are still taken for the lame-duck time, then the listener
        closes, and what is in flight has the drain time to finish. Draining again does nothing.

        Args:
            hurry: When set, what is in flight is cancelled at once.
        """
        if self._readiness.state is State.DRAINING:
            return
        await self._readiness.announce(State.DRAINING)
        hurried = asyncio.create_task((hurry or asyncio.Event()).wait())
        if self._config.lame_duck_seconds:
            await asyncio.wait({hurried}, timeout=self._config.lame_duck_seconds)
        if self._grpc is not None:
            stopping = asyncio.create_task(self._grpc.stop(self._config.drain_seconds))
            await asyncio.wait({hurried, stopping}, return_when=asyncio.FIRST_COMPLETED)
            if not stopping.done():
                await self._grpc.stop(None)
            await stopping
        hurried.cancel()
        await asyncio.gather(hurried, return_exceptions=True)
        await self.lanes.close()
        await asyncio.to_thread(self._loading.close)
        await asyncio.to_thread(self._compiler.close)


async def serve_until_signalled(server: Server, on_ready: Callable[[Server], None]) -> signal.Signals | None:
    """Run a server until SIGTERM or SIGINT, then drain it; a second signal cancels what is in flight.

    Returns:
        The signal that stopped the server before it was ready; None when it had been ready.

    Raises:
        BindError: the address cannot be listened on.
        GenretError: an index or the model cannot be used.
    """
    stop, hurry = asyncio.Event(), asyncio.Event()
    received: list[signal.Signals] = []

    def on_signal(number: signal.Signals) -> None:
        received.append(number)
        _LOG.info("%s: %s", number.name, "cancelling what is in flight" if stop.is_set() else "draining")
        (hurry if stop.is_set() else stop).set()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        # Not asyncio.run's own handling of SIGINT, which would cancel the drain as well.
        loop.add_signal_handler(number, on_signal, number)
    stopped = asyncio.create_task(stop.wait())
    try:
        await server.start()
        loading = asyncio.create_task(server.load())
        await asyncio.wait({loading, stopped}, return_when=asyncio.FIRST_COMPLETED)
        if loading.done():
            loading.result()
            on_ready(server)
            await stopped
            return None
        loading.cancel()
        return received[0]
    finally:
        stopped.cancel()
        await server.drain(hurry)


def _bind_failure(host: str, port: int) -> str:
    """Say why an address cannot be listened on; grpc itself says only that it cannot."""
    address = join_address(host, port)
    try:
        family, _, _, _, resolved = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(resolved)
            probe.listen()
    except OSError as error:
        return f"cannot listen on {address}: {error.strerror or error}"
    return f"cannot listen on {address}: gRPC refused the address"
