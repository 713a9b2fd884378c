"""Assembles one server in front of an engine: starts it, listens, reloads and drains.

Its listeners are gRPC, JSON over HTTP, and a monitoring port. `serve_until_signalled` runs it in a process.
"""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import grpc
from grpc_health.v1 import health, health_pb2_grpc

from genret.service.configuration.server_config import ServerConfig, TlsConfig, join_address
from genret.service.errors import BindError
from genret.service.gateway.http_app import make_app
from genret.service.gateway.http_server import HttpServer, listen
from genret.service.methods import METHODS, Methods
from genret.service.observability.metrics import CallMetrics, Metrics, ServerState, monitoring_app
from genret.service.observability.observations import CallObserver
from genret.service.observability.tracing import Tracing
from genret.service.reflection import add_reflection
from genret.service.rpc import AuthenticationInterceptor, ObservationInterceptor, handlers
from genret.service.security.authority import Authority, HostNames
from genret.service.security.tls import server_credentials
from genret.service.serving.connections import (
    ConnectionGuard,
    OpenCalls,
    core_limit,
    descriptor_limit,
    port_limit,
    raise_descriptor_limit,
)
from genret.service.serving.engine import Engine, EngineDoor
from genret.service.serving.readiness import Readiness, State
from genret.service.serving.served import Opener
from genret.service.version import version

_LOG = logging.getLogger(__name__)


class Server:
    """Serves an engine over gRPC, and over HTTP if configured. Lives on one event loop.

    With port 0, `port` of gRPC is known after `start`. `interceptors` are gRPC's, the outermost first.
    """

    def __init__(
        self, config: ServerConfig, engine: EngineDoor, metrics: CallMetrics, tracing: Tracing | None = None
    ) -> None:
        self._config = config
        self.engine = engine
        self.metrics = metrics
        metrics.expect_calls(METHODS)
        self.readiness = Readiness(SERVICES)
        metrics.registry.register(ServerState(version(), self.readiness, engine.processes))
        self._authority = authority = Authority.of(config)
        self.methods = Methods(engine.answers, self.readiness, config)
        self._calls = OpenCalls()
        self._guard = ConnectionGuard(config.connections, self._calls)
        self._guarding: asyncio.Task[None] | None = None
        observer = CallObserver(metrics, config.log, tracing)
        self.interceptors = [
            ObservationInterceptor(observer, self._calls),
            AuthenticationInterceptor(authority),
        ]
        self.port = config.port
        self._grpc: Any = None
        self.http: HttpServer | None = None
        self.monitoring: HttpServer | None = None
        hosts = HostNames.of(config)
        watched = monitoring_app(self.metrics, self.readiness, engine.other_metrics)
        if config.http.port is not None:
            app = make_app(self.methods, self.readiness, authority, observer, config, watched)
            named = None if authority.requires_tokens or config.tls.enabled else hosts
            self.http = HttpServer(
                app, config.http.host, config.http.port, config.tls, config.connections, named, "--http-port"
            )
        if config.metrics.port is not None:
            place = config.metrics.host, config.metrics.port
            self.monitoring = HttpServer(
                watched, *place, TlsConfig(), config.connections, hosts, "--metrics-port"
            )
        self._reloads: set[asyncio.Task[None]] = set()

    @classmethod
    def in_one_process(cls, config: ServerConfig, opener: Opener, tracing: Tracing | None = None) -> Server:
        """Return a server whose engine is in this process, too."""
        metrics = Metrics()
        return cls(config, Engine(config, opener, metrics), metrics, tracing)

    @property
    def address(self) -> str:
        """The gRPC address; with port 0 known after `start`."""
        return join_address(self._config.host, self.port)

    async def start(self) -> None:
        """Listen, and answer health checks; requests are refused until `load` is done.

        Raises BindError, or InputError for a certificate.
        """
        limits = self._config.connections
        if (most := port_limit(limits)) < limits.max:
            text = "the limit on open files, %d, suffices for %d connections of a port; connections.max is %d"
            _LOG.warning(text, descriptor_limit(), most, limits.max)
        await self.readiness.announce(State.WARMING)
        await self._listen()

    async def load(self) -> None:
        """Have the engine load, then become ready; after a GenretError the server stays not ready."""
        await self.engine.load(self._engine_changed)
        await self.readiness.announce(State.READY)

    async def _engine_changed(self, answers: bool) -> None:
        if not answers:
            self.metrics.engine_restarts.inc()
        if self.readiness.state is not State.DRAINING:
            await self.readiness.announce(State.READY if answers else State.WARMING)

    def hang_up(self) -> None:
        """Reload tokens and changed indexes, if the server is ready."""
        if self.readiness.state is not State.READY:
            _LOG.info("SIGHUP: %s, nothing is reloaded", self.readiness.state.value)
            return
        self._authority.reload()
        task = asyncio.get_running_loop().create_task(self.engine.reload_all())
        self._reloads.add(task)
        task.add_done_callback(self._reloads.discard)

    async def drain(self, hurry: asyncio.Event | None = None) -> None:
        """Stop without dropping accepted work. Idempotent.

        Readiness goes off first; requests are still taken for the lame-duck time; then the listeners close,
        and work in flight has the drain time to finish. Once `hurry` is set, it is cancelled at once.
        """
        if self.readiness.state is State.DRAINING:
            return
        hurry = hurry or asyncio.Event()
        await self.readiness.announce(State.DRAINING)
        if self._config.lame_duck_seconds:
            hurried = asyncio.create_task(hurry.wait())
            await asyncio.wait({hurried}, timeout=self._config.lame_duck_seconds)
            hurried.cancel()
        self.methods.stop_streams()
        await self.readiness.refuse(hurry, self._calls.are_running)
        self.readiness.servicer.end_watches()
        await self._stop_listening(hurry)
        if self._guarding is not None:
            self._guarding.cancel()
            await asyncio.gather(self._guarding, return_exceptions=True)
        await self.engine.close()
        await asyncio.gather(*self._reloads)
        if self.monitoring is not None:  # the last one: it reports the drain
            await self.monitoring.stop(None)

    async def _listen(self) -> None:
        self._grpc = grpc.aio.server(
            interceptors=self.interceptors,
            options=grpc_options(self._config),
        )
        self.add_services(self._grpc)
        try:
            if self._config.tls.enabled:
                credentials = server_credentials(self._config.tls)
                self.port = self._grpc.add_secure_port(self._config.address, credentials)
            else:
                self.port = self._grpc.add_insecure_port(self._config.address)
        except RuntimeError as error:
            raise _bind_failure(self._config.host, self._config.port) from error
        await self._grpc.start()
        self._guarding = asyncio.create_task(self._guard.run(self.port), name="genret-connections")
        for server in (self.http, self.monitoring):
            if server is not None:
                await server.start()

    def add_services(self, server: Any) -> None:
        """Add the API, health and reflection to a gRPC server or its stand-in."""
        limits = (self._config.max_request_seconds, self._config.max_batch_items)
        for service, found in handlers(self.methods, *limits).items():
            server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, found),))
            server.add_registered_method_handlers(service, found)
        health_pb2_grpc.add_HealthServicer_to_server(self.readiness.servicer, server)
        add_reflection((*SERVICES, health.SERVICE_NAME), server)

    async def _stop_listening(self, hurry: asyncio.Event) -> None:
        """Close the API's listeners; cancel work in flight after the drain time, or when `hurry` is set."""
        stopping = [self._grpc.stop] if self._grpc is not None else []
        if self.http is not None:
            stopping.append(self.http.stop)
        tasks = [asyncio.create_task(stop(self._config.drain_seconds)) for stop in stopping]
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


SERVICES = tuple(dict.fromkeys(str(method.service.full_name) for method in METHODS.values()))
# Bits of gRPC's compressions.
_IDENTITY, _GZIP = 1, 4
# Time for a new connection to say that it speaks HTTP/2, TLS included, milliseconds.
_HANDSHAKE_MS = 10_000
# How often a client that is silent is asked whether it is still there, and for how long, milliseconds.
_KEEPALIVE_MS, _KEEPALIVE_TIMEOUT_MS = 60_000, 20_000
_MIN_CALLS_PER_CONNECTION = 1024


def grpc_options(config: ServerConfig) -> list[tuple[str, int]]:
    """Return the arguments of gRPC's core."""
    limits = config.connections
    return [
        ("grpc.so_reuseport", 0),  # on by default: a second server would share the port silently
        ("grpc.max_receive_message_length", config.max_request_bytes),
        ("grpc.compression_enabled_algorithms_bitset", _IDENTITY | config.accept_gzip * _GZIP),
        # Clients hold back further ones. An idle stream only costs memory, but without a limit one connection
        # could take all of it. More than the queue holds must come through: a refusal tells more than a wait.
        ("grpc.max_concurrent_streams", max(_MIN_CALLS_PER_CONNECTION, 2 * config.queue.max_requests)),
        ("grpc.max_allowed_incoming_connections", core_limit(limits)),
        # With strikes, each ping too many adds 2 to 3 KB to the error of a connection that stays open for
        # as long as pings come. Without them they are answered, and `ConnectionGuard` ends a flood.
        ("grpc.http2.max_ping_strikes", 0),
        # By default gRPC reads ahead more the faster a client sends: 30 MB of a stream that waits.
        ("grpc.http2.bdp_probe", 0),
        ("grpc.server_handshake_timeout_ms", _HANDSHAKE_MS),
        ("grpc.keepalive_time_ms", _KEEPALIVE_MS),
        ("grpc.keepalive_timeout_ms", _KEEPALIVE_TIMEOUT_MS),
        ("grpc.http2.ping_timeout_ms", _KEEPALIVE_TIMEOUT_MS),
        ("grpc.max_connection_idle_ms", round(limits.max_idle_seconds * 1000)),
        ("grpc.max_connection_age_ms", round(limits.max_age_seconds * 1000)),
    ]


def _bind_failure(host: str, port: int) -> BindError:
    """Return why an address cannot be listened on; grpc itself gives no reason."""
    reason = OSError("gRPC refused the address")
    try:
        for probe in listen(host, port):
            probe.close()
    except OSError as error:
        reason = error
    return BindError(join_address(host, port), reason, "--port")


async def serve_until_signalled(server: Server, on_ready: Callable[[Server], None]) -> signal.Signals | None:
    """Run a server until SIGTERM or SIGINT, then drain it; a second signal cancels work in flight.

    SIGHUP reloads tokens and indexes. Errors are those of `Server.start` and `Server.load`. Returns the
    signal that stopped the server before it was ready; None if it had been ready.
    """
    raise_descriptor_limit()
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
    loop.add_signal_handler(signal.SIGHUP, server.hang_up)
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
