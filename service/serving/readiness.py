"""Keeps a server's liveness and readiness: the answers of `grpc.health.v1`, and whether requests are taken.

Watchers of health checks do not hold up a drain; a server that shuts down waits until refused calls have
stopped coming.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from enum import Enum
from typing import Any

import grpc
from grpc_health.v1 import health, health_pb2

from genret.service.errors import NotReadyError


class State(Enum):
    """The states of a server's life."""

    WARMING = "the server is opening its indexes"
    READY = "the server is ready"
    DRAINING = "the server is shutting down"


class Readiness:
    """The server's state, reported to health checks and checked by every method.

    The empty service name is liveness: SERVING as long as the event loop turns. Every service of the API
    (`services`, full names) has readiness under its own name.
    """

    def __init__(self, services: Sequence[str]) -> None:
        self.servicer = HealthServicer()
        self.state = State.WARMING
        self._services = tuple(services)
        self._quiet: IdleWait | None = None  # None: requests are not refused yet

    async def announce(self, state: State) -> None:
        """Enter a state and notify watchers."""
        self.state = state
        ready = state is State.READY
        status = _Response.SERVING if ready else _Response.NOT_SERVING
        for service in self._services:
            await self.servicer.set(service, status)

    def check(self) -> None:
        """Raise NotReadyError before the server is warm, and shortly before its listeners close.

        Until then a draining server still answers: balancers need time to notice.
        """
        if self.state is State.WARMING:
            raise NotReadyError(State.WARMING.value)
        if self._quiet is not None:
            self._quiet.broken()
            raise NotReadyError

    async def refuse(self, hurry: asyncio.Event, is_busy: Callable[[], bool]) -> None:
        """Refuse all further calls; return when hardly any come, or at once when `hurry` is set.

        When gRPC stops, it resets calls that it has read and not handed over; their callers see CANCELLED,
        which must not be retried. Calls refused here see UNAVAILABLE and go elsewhere. While calls run
        (`is_busy`) their callers may send the next ones.
        """
        self._quiet = IdleWait(is_busy)
        await self._quiet.come(hurry)


_Response = health_pb2.HealthCheckResponse


class HealthServicer(health.aio.HealthServicer):  # type: ignore[misc]  # grpc is untyped
    """`grpc.health.v1.Health`.

    The library's own forgets all watchers of a service when one leaves, and its watches end only when they
    are cancelled, which would hold up a drain.
    """

    def __init__(self) -> None:
        super().__init__()
        self._changed = asyncio.Event()
        self._ended = False

    async def Watch(self, request: Any, context: Any) -> None:  # noqa: N802
        """Send the state of a service now, and whenever it changes."""
        last = None
        while True:
            changed = self._changed
            status = self._server_status.get(request.service, _Response.SERVICE_UNKNOWN)
            if status != last:
                await context.write(_Response(status=status))
                last = status
            if self._ended:  # after the news that it drains
                break
            await changed.wait()
        await context.abort(grpc.StatusCode.UNAVAILABLE, "the server is shutting down")

    async def List(self, request: Any, context: Any) -> Any:  # noqa: N802
        """Return the state of every service; a method that the library has of late."""
        states = {name: _Response(status=status) for name, status in self._server_status.items()}
        return health_pb2.HealthListResponse(statuses=states)

    def end_watches(self) -> None:
        """End all watches, present and future. Idempotent."""
        self._ended = True
        self._tell()

    async def _set(self, service: str, status: Any) -> None:
        self._server_status[service] = status
        self._tell()

    def _tell(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()


# Callers count as gone after so long without a call; the wait ends in any case after the second, seconds.
_QUIET_S, _MAX_S = 0.05, 1.0


class IdleWait:
    """Waits until refused calls stop coming, and nobody `is_busy`. The wait begins with its construction."""

    def __init__(self, is_busy: Callable[[], bool] = lambda: False) -> None:
        self._is_busy = is_busy
        self._begun = self._last = time.monotonic()

    def broken(self) -> None:
        """Note that a call came."""
        self._last = time.monotonic()

    async def come(self, sooner: asyncio.Event) -> None:
        """Return when hardly anything comes any more, at the latest after a second; at once if `sooner`."""
        while not sooner.is_set() and (left := self._left()) > 0:
            try:
                async with asyncio.timeout(left):
                    await sooner.wait()
            except TimeoutError:
                continue  # something may have come meanwhile

    def _left(self) -> float:
        if self._is_busy():
            self.broken()
        return min(self._last + _QUIET_S, self._begun + _MAX_S) - time.monotonic()
