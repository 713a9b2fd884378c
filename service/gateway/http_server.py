"""Runs an HTTP server inside the server's event loop: uvicorn without its signals and its start-up.

When the server stops, connections end with a reply and not between two. Too large headers are refused even if
they came in one read: the parser's own limit only holds for headers that are not complete yet.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import Iterator
from typing import Any

import uvicorn
from h11 import LocalProtocolError
from starlette.datastructures import MutableHeaders
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from genret.service.configuration.server_config import TlsConfig, join_address
from genret.service.errors import BindError
from genret.service.security.tls import ssl_context
from genret.service.serving.readiness import Readiness, State

_MAX_HEADER_BYTES = 16 * 1024
# Longest time for the headers of a request, seconds.
_HEADER_SECONDS = 10.0
_KEEP_ALIVE_SECONDS = 15
# Connections or requests at once; the queue's own limits come long before.
_MAX_CONNECTIONS = 1024
_BACKLOG = 512
# uvicorn's unit.
_TICKS_PER_SECOND = 10
# Time for cancelled requests to send their reply, seconds.
_FAREWELL_SECONDS = 1.0
# Time for connections made while the listeners closed to send their request, seconds.
_LAST_REQUEST_SECONDS = 0.05


class HttpServer:
    """Serves an ASGI application on one address; port 0 picks a free one."""

    def __init__(self, app: Any, host: str, port: int, tls: TlsConfig) -> None:
        self._host = host
        self._tls = tls
        self.port = port
        config = uvicorn.Config(
            HeaderLimit(app, _MAX_HEADER_BYTES),
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
            limit_concurrency=_MAX_CONNECTIONS,
            backlog=_BACKLOG,
        )
        self._config = config
        self._uvicorn = _Uvicorn(config)
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
            raise BindError(f"cannot listen on {self.address}: {error.strerror or error}") from error
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

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.up = asyncio.Event()
        self._leaving = asyncio.Event()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.up.set()

    def leave(self) -> None:
        self.should_exit = True
        self._leaving.set()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Close the listeners before the connections: a new connection may still send its request."""
        loop = asyncio.get_running_loop()
        for listener in (listener for server in self.servers for listener in server.sockets):
            loop.remove_reader(listener)
        # When its server closes, asyncio forgets a connection that it has accepted and not set up: it would
        # stay open and never be answered.
        await asyncio.sleep(0)
        for server in self.servers:
            server.close()
        await asyncio.sleep(_LAST_REQUEST_SECONDS)
        await super().shutdown(sockets)

    async def main_loop(self) -> None:
        """Renew the date of replies once a second; uvicorn would check ten times whether to exit."""
        ticks = 0
        while not await self.on_tick(ticks):
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._leaving.wait(), timeout=1.0)
            ticks += _TICKS_PER_SECOND


class _Protocol(H11Protocol):
    """HTTP/1.1 with a limit on the time for a request's headers."""

    _patience: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._wait_for_headers()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._wait_for_headers()

    def send_400_response(self, msg: str) -> None:
        try:
            super().send_400_response(msg)
        except LocalProtocolError:  # a reply is out already, or on its way
            self.transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._stop_waiting()

    def _wait_for_headers(self) -> None:
        """Run the timer while no request is under way."""
        if self.cycle is not None and not self.cycle.response_complete:
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


# Bytes around a header: a colon, a blank and the end of the line.
_AROUND = 4


class HeaderLimit:
    """Answers a request whose path and headers exceed `max_bytes` with 431, and closes the connection."""

    def __init__(self, app: ASGIApp, max_bytes: int) -> None:
        self._app = app
        self._max_bytes = max_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] == "http" and _size(scope) > self._max_bytes:
            text = f"the headers are larger than {self._max_bytes} bytes\n"
            refusal = PlainTextResponse(text, status_code=431, headers={"connection": "close"})
            await refusal(scope, receive, send)
            return
        await self._app(scope, receive, send)


def _size(scope: Scope) -> int:
    headers = sum(len(name) + len(value) + _AROUND for name, value in scope["headers"])
    return headers + len(scope["raw_path"]) + len(scope["query_string"])
