"""Liveness and readiness: what `grpc.health.v1` says, and whether requests are taken."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from enum import Enum

from grpc_health.v1 import health_pb2

from service.errors import NotReadyError
from service.serving.health import HealthServicer
from service.serving.quiet import Quiet

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
        self._quiet: Quiet | None = None  # None: nothing is refused for being late

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
        self._quiet = Quiet()
        await self._quiet.come(hurry)
