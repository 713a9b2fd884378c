"""Everything a server listens with: gRPC, JSON over HTTP, and a port for those who watch."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import grpc
from grpc_health.v1 import health, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from service.configuration.config import ServerConfig, join_address
from service.configuration.sections import TlsConfig
from service.errors import BindError
from service.gateway.app import make_app
from service.gateway.http_server import HttpServer
from service.methods.indexes import IndexMethods
from service.methods.retrieval import RetrievalMethods
from service.observability.metrics import Metrics
from service.observability.monitoring_app import monitoring_app
from service.observability.tracing import Tracing
from service.pb.genret.v1 import index_service_pb2 as index_pb
from service.pb.genret.v1 import index_service_pb2_grpc as index_grpc
from service.pb.genret.v1 import retrieval_service_pb2 as pb
from service.pb.genret.v1 import retrieval_service_pb2_grpc as pb_grpc
from service.rpc.authentication import AuthenticationInterceptor
from service.rpc.malformed import MalformedMessageInterceptor
from service.rpc.observation import ObservationInterceptor
from service.rpc.servicers import IndexServicer, RetrievalServicer
from service.security.authority import Authority
from service.security.credentials import server_credentials
from service.serving.readiness import Readiness

_DESCRIPTORS = (
    pb.DESCRIPTOR.services_by_name["RetrievalService"],
    index_pb.DESCRIPTOR.services_by_name["IndexService"],
)
SERVICES = tuple(service.full_name for service in _DESCRIPTORS)
_MIN_PING_INTERVAL_MS = 5_000
# Bits of the compressions of gRPC that are accepted.
_IDENTITY, _GZIP = 1, 4
_MIN_CALLS_PER_CONNECTION = 1024
METHODS = tuple(method.name for service in _DESCRIPTORS for method in service.methods)


def max_calls_per_connection(config: ServerConfig) -> int:
    """Return how many calls one connection may have open; gRPC's clients hold back what is more.

    One that waits for nothing but its client, as an idle stream does, costs memory only, but without a limit
    that of a single connection has no end. More than the queue holds must come through: being refused says
    more than waiting.
    """
    return max(_MIN_CALLS_PER_CONNECTION, 2 * config.queue.max_requests)


class Listeners:
    """The transports of one server over the same methods. Used once.

    Args:
        config: Addresses, encryption and limits.
        retrieval: The methods of RetrievalService.
        indexes: The methods of IndexService.
        readiness: Answers health checks.
        authority: Who may call.
        metrics: Counts calls, and is shown.
        tracing: Where spans go; None: there are none.

    Attributes:
        interceptors: What stands before the methods of gRPC, the outermost first.
        port: Of gRPC; with port 0 known after `start`.
        http: The JSON over HTTP face, if it is served.
        monitoring: The port of its own for metrics, if there is one.
    """

    def __init__(
        self,
        config: ServerConfig,
        retrieval: RetrievalMethods,
        indexes: IndexMethods,
        readiness: Readiness,
        authority: Authority,
        metrics: Metrics,
        tracing: Tracing | None = None,
    ) -> None:
        self._config = config
        self._retrieval = retrieval
        self._indexes = indexes
        self._readiness = readiness
        self.interceptors = [
            ObservationInterceptor(metrics, config.log, tracing),
            AuthenticationInterceptor(authority),
            MalformedMessageInterceptor(),
        ]
        self._grpc: Any = None
        self.port = config.port
        self.http: HttpServer | None = None
        self.monitoring: HttpServer | None = None
        if config.http.port is not None:
            app = make_app(retrieval, indexes, readiness, authority, metrics, config, tracing)
            self.http = HttpServer(app, config.http.host, config.http.port, config.tls)
        if config.metrics.port is not None:
            watched = monitoring_app(metrics, readiness)
            self.monitoring = HttpServer(watched, config.metrics.host, config.metrics.port, TlsConfig())

    async def start(self) -> None:
        """Listen everywhere.

        Raises:
            BindError: an address cannot be listened on.
            InputError: a certificate cannot be used.
        """
        self._grpc = grpc.aio.server(
            interceptors=self.interceptors,
            options=[
                ("grpc.so_reuseport", 0),  # on by default: a second server would share the port silently
                ("grpc.max_receive_message_length", self._config.max_request_bytes),
                ("grpc.compression_enabled_algorithms_bitset", _accepted(self._config.accept_gzip)),
                ("grpc.max_concurrent_streams", max_calls_per_connection(self._config)),
                # Clients may look after their connection so often; by default one that does it more
                # often than every five minutes loses it.
                ("grpc.http2.min_ping_interval_without_data_ms", _MIN_PING_INTERVAL_MS),
            ],
        )
        self.add_services(self._grpc)
        try:
            if self._config.tls.enabled:
                credentials = server_credentials(self._config.tls)
                self.port = self._grpc.add_secure_port(self._config.address, credentials)
            else:
                self.port = self._grpc.add_insecure_port(self._config.address)
        except RuntimeError as error:
            raise BindError(_bind_failure(self._config.host, self._config.port)) from error
        await self._grpc.start()
        for server in (self.http, self.monitoring):
            if server is not None:
                await server.start()

    def add_services(self, server: Any) -> None:
        """Add the API, health and reflection to a server of gRPC, or to what stands in for one."""
        limit = self._config.max_request_seconds
        add_retrieval: Any = pb_grpc.add_RetrievalServiceServicer_to_server  # generated, so untyped
        add_index: Any = index_grpc.add_IndexServiceServicer_to_server
        add_retrieval(RetrievalServicer(self._retrieval, limit), server)
        add_index(IndexServicer(self._indexes, limit), server)
        health_pb2_grpc.add_HealthServicer_to_server(self._readiness.servicer, server)
        names = (*SERVICES, health.SERVICE_NAME, reflection.SERVICE_NAME)
        reflection.enable_server_reflection(names, server)

    async def stop(self, grace_seconds: float, hurry: asyncio.Event) -> None:
        """Close the listeners of the API, and wait for what is in flight; what takes longer is cancelled.

        Args:
            grace_seconds: How long it has.
            hurry: When set, it is cancelled at once.
        """
        stopping = [self._grpc.stop] if self._grpc is not None else []
        if self.http is not None:
            stopping.append(self.http.stop)
        tasks = [asyncio.create_task(stop(grace_seconds)) for stop in stopping]
        if not tasks:
            return
        hurrying = asyncio.create_task(self._hurry(stopping, hurry))
        await asyncio.gather(*tasks)
        hurrying.cancel()
        await asyncio.gather(hurrying, return_exceptions=True)

    @staticmethod
    async def _hurry(stopping: Sequence[Callable[..., Awaitable[None]]], hurry: asyncio.Event) -> None:
        await hurry.wait()
        await asyncio.gather(*(stop(None) for stop in stopping))

    async def stop_monitoring(self) -> None:
        """Close the port of those who watch: the last one, which tells of the drain."""
        if self.monitoring is not None:
            await self.monitoring.stop(None)


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


def _accepted(gzip: bool) -> int:
    return _IDENTITY | _GZIP if gzip else _IDENTITY
