"""Health checks whose watchers hear of every change, and do not hold up a drain."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
from grpc_health.v1 import health, health_pb2

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
