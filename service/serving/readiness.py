"""Keeps a server's liveness and readiness: what `grpc.health.v1` says, and whether requests are taken.

Watchers of health checks hear of every change and do not hold up a drain; a server that goes waits until
calls that it refuses have stopped coming.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from enum import Enum
from typing import Any

import grpc
from grpc_health.v1 import health, health_pb2

from service.errors import NotReadyError

_RETRY_AFTER_S = 1.0


class State(Enum):
    """Where a server is in its life."""

    WARMING = "the server is opening its indexes"
    READY = "the server is ready"
    DRAINING = "the server is shutting down"


class Readiness:
    """The server's state, told to health checks and asked by every method.

    The empty service name is liveness: SERVING as long as the event loop turns. Every service of the API
    has readiness under its own name.

    Args:
        services: Full names of the services of the API.
    """

    def __init__(self, services: Sequence[str]) -> None:
        self.servicer = HealthServicer()
        self.state = State.WARMING
        self._services = tuple(services)
        self._quiet: IdleWait | None = None  # None: nothing is refused for being late

    async def announce(self, state: State) -> None:
        """Enter a state and tell those who watch."""
        self.state = state
        ready = state is State.READY
        status = (
            health_pb2.HealthCheckResponse.SERVING if ready else health_pb2.HealthCheckResponse.NOT_SERVING
        )
        for service in self._services:
            await self.servicer.set(service, status)

    def check(self) -> None:
        """Refuse work before the server is warm, and before its listeners close.

        A draining server that still gets a request answers it until then: balancers need time to notice.

        Raises:
            NotReadyError: the server is warming up, or about to close.
        """
        if self.state is State.WARMING:
            raise NotReadyError(State.WARMING.value, _RETRY_AFTER_S)
        if self._quiet is not None:
            self._quiet.broken()
            raise NotReadyError(State.DRAINING.value, _RETRY_AFTER_S)

    async def refuse(self, hurry: asyncio.Event) -> None:
        """Refuse all further calls, and return when hardly any come.

        When gRPC stops it resets calls that it has read and not yet handed over: their callers see CANCELLED,
        which nobody may try again. Refused here they see UNAVAILABLE, and go elsewhere.

        Args:
            hurry: When set, it returns at once.
        """
        self._quiet = IdleWait()
        await self._quiet.come(hurry)


_Response = health_pb2.HealthCheckResponse


class HealthServicer(health.aio.HealthServicer):  # type: ignore[misc]  # grpc is untyped
    """`grpc.health.v1.Health`.

    The library's own forgets all watchers of a service when one of them leaves, and its watches end only when
    they are cancelled: a server that drains would wait for them until its time is over.
    """

    def __init__(self) -> None:
        super().__init__()
        self._changed = asyncio.Event()
        self._ended = False

    async def Watch(self, request: Any, context: Any) -> None:  # noqa: N802
        """Tell the state of a service now, and whenever it changes."""
        last = None
        while True:
            changed = self._changed
            status = self._server_status.get(request.service, _Response.SERVICE_UNKNOWN)
            if status != last:
                await context.write(_Response(status=status))
                last = status
            if self._ended:  # behind the news that it drains
                break
            await changed.wait()
        await context.abort(grpc.StatusCode.UNAVAILABLE, "the server is shutting down")

    def end_watches(self) -> None:
        """End all watches, now and from now on. Idempotent."""
        self._ended = True
        self._tell()

    async def _set(self, service: str, status: Any) -> None:
        self._server_status[service] = status
        self._tell()

    def _tell(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()


# Nobody asks any more: nothing came for so long; or they ask again and again, whom nothing but the end stops.
_QUIET_S, _MAX_S = 0.05, 1.0


class IdleWait:
    """Waits for the end of what comes and is refused. The wait begins as this is made."""

    def __init__(self) -> None:
        self._begun = self._last = time.monotonic()

    def broken(self) -> None:
        """Note that something came."""
        self._last = time.monotonic()

    async def come(self, sooner: asyncio.Event) -> None:
        """Return when hardly anything comes any more, soon in any case.

        Args:
            sooner: When set, there is nothing to wait for.
        """
        while not sooner.is_set() and (left := self._left()) > 0:
            try:
                async with asyncio.timeout(left):
                    await sooner.wait()
            except TimeoutError:
                continue  # something may have come meanwhile

    def _left(self) -> float:
        return min(self._last + _QUIET_S, self._begun + _MAX_S) - time.monotonic()
