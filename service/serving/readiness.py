"""Liveness and readiness: what `grpc.health.v1` says, and whether requests are taken."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum

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
        self.servicer = health.aio.HealthServicer()
        self.state = State.WARMING
        self._services = tuple(services)

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
        """Refuse work before the server is warm.

        A draining server that still gets a request answers it: balancers need time to notice, and the
        transport itself refuses once the listener is closed.

        Raises:
            NotReadyError: the server is warming up.
        """
        if self.state is State.WARMING:
            raise NotReadyError(State.WARMING.value, _RETRY_AFTER_S)
