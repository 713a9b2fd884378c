"""Connections end with a reply as the server goes, not between two of them."""

from __future__ import annotations

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.serving.readiness import Readiness, State


class Parting:
    """Tells clients of a server that drains to send their next request over another connection.

    A connection that is closed while it is idle may be closed just as a request comes: its client does not
    learn whether that was taken, and may not send it again.

    Args:
        app: What replies.
        readiness: Whether the server drains.
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
