"""Runs an HTTP server inside the server's event loop: uvicorn without its signals, start-up and accepting.

Connections are counted by their origin when they are accepted. For one too many the connection that has been
idle for longest is closed; if none is idle, the new one gets answers to probes only. When the server stops,
connections end with a reply and not between two. Too large headers are refused even if they came in one read:
the parser's own limit only holds for headers that are not complete yet.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import uvicorn
from h11 import LocalProtocolError
from starlette.datastructures import MutableHeaders
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.flow_control import CLOSE_HEADER
from uvicorn.protocols.http.h11_impl import H11Protocol

from genret.service.configuration.server_config import ConnectionLimits, TlsConfig, join_address
from genret.service.errors import BindError
from genret.service.security.authority import HostNames
from genret.service.security.tls import ssl_context
from genret.service.serving.connections import (
    EXHAUSTED,
    RareWarning,
    Reserve,
    descriptor_limit,
    origin_of,
    port_limit,
)
from genret.service.serving.readiness import Readiness, State

_MAX_HEADER_BYTES = 16 * 1024
# Longest time for the headers of a request, seconds.
_HEADER_SECONDS = 10.0
_KEEP_ALIVE_SECONDS = 15
_BACKLOG = 512
# Connections accepted before the event loop turns.
_ACCEPTED_AT_ONCE = 64
# Connections beyond the limits that probes may still make, of one origin and in all.
_FOR_PROBES = 64
# File descriptors held for them, and how long to wait if these are used up, too, seconds.
_SPARE_DESCRIPTORS = 8
_DESCRIPTORS_WAIT_S = 1.0
# Time for the handshake of TLS, seconds.
_HANDSHAKE_SECONDS = 10.0
PROBES = ("/livez", "/readyz")
# uvicorn's unit.
_TICKS_PER_SECOND = 10
# Time for cancelled requests to send their reply, seconds.
_FAREWELL_SECONDS = 1.0
# Time for connections made while the listeners closed to send their request, seconds.
_LAST_REQUEST_SECONDS = 0.05


class HttpServer:
    """Serves an ASGI application on one address; port 0 picks a free one.

    With `hosts`, requests that name another host are refused, probes excepted. A port in use is told with the
    option of the command, `port_option`, that takes another one.
    """

    def __init__(
        self,
        app: Any,
        host: str,
        port: int,
        tls: TlsConfig,
        limits: ConnectionLimits | None = None,
        hosts: HostNames | None = None,
        port_option: str = "",
    ) -> None:
        self._host = host
        self._tls = tls
        self.port = port
        config = uvicorn.Config(
            RequestCheck(app, hosts),
            http=_Protocol,
            ws="none",
            lifespan="off",
            log_config=None,
            log_level="error",  # not a warning for every malformed request
            access_log=False,
            proxy_headers=False,
            server_header=False,
            h11_max_incomplete_event_size=_MAX_HEADER_BYTES,
            timeout_keep_alive=_KEEP_ALIVE_SECONDS,
        )
        self._config = config
        self._port_option = port_option
        self._uvicorn = _Uvicorn(config, limits or ConnectionLimits())
        self._task: asyncio.Task[None] | None = None

    @property
    def address(self) -> str:
        """The listening address; with port 0 known after `start`."""
        return join_address(self._host, self.port)

    async def start(self) -> None:
        """Listen and answer; raises BindError, or InputError for a file of `tls`."""
        self._config.load()
        self._config.ssl = ssl_context(self._tls) if self._tls.enabled else None
        try:
            sockets = listen(self._host, self.port)
        except OSError as error:
            raise BindError(self.address, error, self._port_option) from error
        self.port = sockets[0].getsockname()[1]
        self._task = asyncio.create_task(self._uvicorn.serve(sockets), name="genret-http")
        up = asyncio.create_task(self._uvicorn.up.wait())
        await asyncio.wait({up, self._task}, return_when=asyncio.FIRST_COMPLETED)
        if self._task.done():
            up.cancel()
            self._task.result()

    async def stop(self, grace_seconds: float | None) -> None:
        """Close the listener, wait `grace_seconds` for requests in flight, then cancel them.

        Stopping again hurries.
        """
        if self._task is None:
            return
        self._uvicorn.leave()
        done, _ = await asyncio.wait({self._task}, timeout=grace_seconds or 0)
        if not done:
            await self._cancel()
        await asyncio.wait({self._task})
        self._task.result()

    async def _cancel(self) -> None:
        state = self._uvicorn.server_state
        tasks = set(state.tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=_FAREWELL_SECONDS)
        for connection in list(state.connections):
            connection.transport.abort()
        self._uvicorn.force_exit = True


def listen(host: str, port: int) -> list[socket.socket]:
    """Return listening sockets on every address of `host`, all on the same port; raises OSError."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    sockets: list[socket.socket] = []
    try:
        for family, address in dict.fromkeys((family, address) for family, _, _, _, address in found):
            both = family == socket.AF_INET6 and address[0] == "::"
            place: Any = (address[0], port, *address[2:])
            made = socket.create_server(place, family=family, backlog=_BACKLOG, dualstack_ipv6=both)
            sockets.append(made)
            port = made.getsockname()[1]
    except OSError as error:
        for opened in sockets:
            opened.close()
        # Without the address, which the caller names.
        raise OSError(error.errno, os.strerror(error.errno or 0)) from error
    return sockets


class _Uvicorn(uvicorn.Server):
    """uvicorn that leaves signals to the server and reports when it listens."""

    def __init__(self, config: uvicorn.Config, limits: ConnectionLimits) -> None:
        super().__init__(config)
        self.up = asyncio.Event()
        self._leaving = asyncio.Event()
        self._limits = limits

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        self.servers = []  # uvicorn's; the door takes their place
        make = partial(_Protocol, self.config, self.server_state, self.lifespan.state)
        self._door = Door(sockets or [], self._limits, make, self.config.ssl)
        self._door.open()
        self.started = True
        self.up.set()

    def leave(self) -> None:
        self.should_exit = True
        self._leaving.set()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Close the listeners before the connections: a new connection may still send its request."""
        self._door.close()
        await asyncio.sleep(_LAST_REQUEST_SECONDS)
        await super().shutdown(sockets)

    async def main_loop(self) -> None:
        """Renew the date of replies once a second; uvicorn would check ten times whether to exit."""
        ticks = 0
        while not await self.on_tick(ticks):
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._leaving.wait(), timeout=1.0)
            ticks += _TICKS_PER_SECOND


class Door:
    """Accepts the connections of one port; `make` returns the protocol of a new one."""

    def __init__(
        self,
        listeners: list[socket.socket],
        limits: ConnectionLimits,
        make: Callable[[Door], _Protocol],
        ssl: Any,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._listeners = listeners
        self._max = port_limit(limits)
        self._max_per_origin = min(limits.max_per_address, self._max)
        self.max_age_seconds = limits.max_age_seconds
        self._make = make
        self._ssl = ssl
        self._held: dict[_Protocol, None] = {}  # the one without a request for longest first
        self._counts: Counter[str] = Counter()  # by origin
        self._reserve = Reserve(_SPARE_DESCRIPTORS)
        self._warning = RareWarning()

    def open(self) -> None:
        """Begin to accept, or go on."""
        for listener in self._listeners:
            listener.setblocking(False)
            self._loop.add_reader(listener, self._accept, listener)

    def close(self) -> None:
        """Accept what has connected, and nothing more."""
        for listener in self._listeners:
            self._loop.remove_reader(listener)
            for _ in range(_BACKLOG // _ACCEPTED_AT_ONCE):
                if not self._accept(listener):
                    break
            listener.close()
        self._listeners = []
        self._reserve.close()

    def used(self, protocol: _Protocol) -> None:
        """Note that a connection has had a request."""
        if protocol in self._held:
            self._held[protocol] = self._held.pop(protocol)

    def release(self, protocol: _Protocol) -> None:
        """Forget a connection that has ended, or will now."""
        if protocol in self._held:
            del self._held[protocol]
            self._counts[protocol.origin] -= 1
            if not self._counts[protocol.origin]:
                del self._counts[protocol.origin]
        if self._listeners:
            self._reserve.fill()

    def _accept(self, listener: socket.socket) -> bool:
        """Accept some connections; return whether more may wait."""
        only_probes = False
        for _ in range(_ACCEPTED_AT_ONCE):
            try:
                connection, address = listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return False
            except OSError as error:
                if error.errno not in EXHAUSTED:
                    raise
                self._warning.log(
                    f"all {descriptor_limit():,} file descriptors are in use; port "
                    f"{listener.getsockname()[1]} answers probes only (raise the limit on open files)"
                )
                only_probes = True
                if not self._reserve.free():
                    self._loop.remove_reader(listener)
                    self._loop.call_later(_DESCRIPTORS_WAIT_S, self.open)
                    return False
                continue
            self._take(connection, origin_of(str(address[0])), only_probes)
            only_probes = False
        return True

    def _take(self, connection: socket.socket, origin: str, only_probes: bool) -> None:
        connection.setblocking(False)
        over = max(self._counts[origin] - self._max_per_origin, len(self._held) - self._max)
        if over >= 0 and not self._make_room(origin):
            only_probes = True
            if over >= _FOR_PROBES:
                connection.close()
                return
        protocol = self._make(self)
        protocol.origin, protocol.only_probes = origin, only_probes
        self._held[protocol] = None
        self._counts[origin] += 1
        timeout = None if self._ssl is None else _HANDSHAKE_SECONDS
        protocol.opening = self._loop.create_task(
            self._loop.connect_accepted_socket(
                lambda: protocol, connection, ssl=self._ssl, ssl_handshake_timeout=timeout
            )
        )
        protocol.opening.add_done_callback(partial(self._opened, protocol, connection))

    def _opened(self, protocol: _Protocol, connection: socket.socket, opening: asyncio.Task[Any]) -> None:
        if protocol.transport is None:
            connection.close()
            self.release(protocol)
        with contextlib.suppress(OSError, asyncio.CancelledError):  # no handshake: as common as scanners are
            opening.result()

    def _make_room(self, origin: str) -> bool:
        """Close an idle connection; return whether there was one."""
        if self._counts[origin] < self._max_per_origin:  # the port is full: who has the most gives one up
            origin = max(self._counts, key=self._counts.__getitem__)
        idle = next((held for held in self._held if held.origin == origin and held.is_idle), None)
        if idle is None:
            return False
        idle.drop()
        self.release(idle)
        self._warning.log(
            f"{origin}: closed an idle HTTP connection; at most {self._max_per_origin} of an address "
            f"and {self._max} in all are held (connections.max_per_address, connections.max)"
        )
        return True


class _Protocol(H11Protocol):
    """HTTP/1.1 with a limit on the time for a request's headers, and on the age of a connection."""

    origin = ""
    only_probes = False
    opening: asyncio.Task[Any] | None = None
    _patience: asyncio.TimerHandle | None = None

    def __init__(self, config: Any, server_state: Any, app_state: Any, door: Door) -> None:
        super().__init__(config, server_state, app_state)
        self._door = door
        self._begun = self.loop.time()
        self.app = self._serve

    @property
    def is_idle(self) -> bool:
        """Whether no request is under way."""
        return self.cycle is None or self.cycle.response_complete

    def drop(self) -> None:
        """Close the connection at once."""
        if self.transport is not None:
            self.transport.abort()
        elif self.opening is not None:
            self.opening.cancel()

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self.only_probes or self.loop.time() - self._begun > self._door.max_age_seconds:
            scope["headers"].append(CLOSE_HEADER)
        if self.only_probes and scope["path"] not in PROBES:
            refusal = PlainTextResponse(_TOO_MANY, status_code=503, headers={"retry-after": "1"})
            await refusal(scope, receive, send)
            return
        await self.config.loaded_app(scope, receive, send)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._wait_for_headers()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._wait_for_headers()

    def on_response_complete(self) -> None:
        self._door.used(self)
        super().on_response_complete()

    def send_400_response(self, msg: str) -> None:
        try:
            super().send_400_response(msg)
        except LocalProtocolError:  # a reply is out already, or on its way
            self.transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._stop_waiting()
        self._door.release(self)

    def _wait_for_headers(self) -> None:
        """Run the timer while no request is under way."""
        if not self.is_idle:
            self._stop_waiting()
        elif self._patience is None:
            self._patience = self.loop.call_later(_HEADER_SECONDS, self.transport.abort)

    def _stop_waiting(self) -> None:
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None


class ConnectionCloser:
    """Tells clients of a draining server to send their next request over another connection.

    A connection that is closed while idle may be closed just as a request comes: its client does not learn
    whether that was taken, and may not send it again.
    """

    def __init__(self, app: ASGIApp, readiness: Readiness) -> None:
        self._app = app
        self._readiness = readiness

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""

        async def part(message: Message) -> None:
            if message["type"] == "http.response.start" and self._readiness.state is State.DRAINING:
                MutableHeaders(scope=message)["connection"] = "close"
            await send(message)

        await self._app(scope, receive, part)


_TOO_MANY = "too many connections: only /livez and /readyz are answered on this one\n"
# Longest part of a wrong host that a reply repeats.
_SHOWN = 200
# Bytes around a header: a colon, a blank and the end of the line.
_AROUND = 4


class RequestCheck:
    """Refuses requests that no handler should see, and closes their connection.

    These are a path and headers of more than 16 KiB (431), a body with two lengths (400), and a host that is
    none of `hosts` (421).
    """

    def __init__(self, app: ASGIApp, hosts: HostNames | None) -> None:
        self._app = app
        self._hosts = hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        refused = self._refusal(scope) if scope["type"] == "http" else None
        if refused is None:
            await self._app(scope, receive, send)
            return
        status, text = refused
        refusal = PlainTextResponse(f"{text}\n", status_code=status, headers={"connection": "close"})
        await refusal(scope, receive, send)

    def _refusal(self, scope: Scope) -> tuple[int, str] | None:
        if _size(scope) > _MAX_HEADER_BYTES:
            return 431, f"the headers are larger than {_MAX_HEADER_BYTES} bytes"
        headers = dict(scope["headers"])
        if b"content-length" in headers and b"transfer-encoding" in headers:
            # Proxies may believe the other one, and take the end of the body for a request (smuggling).
            return 400, "the body has both Content-Length and Transfer-Encoding; send one of them"
        host = headers.get(b"host", b"").decode("latin-1")
        if self._hosts is None or scope["path"] in PROBES or self._hosts.allow(host):
            return None
        return 421, (
            f"the request is for the host {host[:_SHOWN]!r}; a port without both tokens and TLS answers to "
            "addresses, to names without a dot, and to names of server.allowed_hosts "
            "(--allowed-hosts NAME; '*' allows any)"
        )


def _size(scope: Scope) -> int:
    headers = sum(len(name) + len(value) + _AROUND for name, value in scope["headers"])
    return headers + len(scope["raw_path"]) + len(scope["query_string"])
