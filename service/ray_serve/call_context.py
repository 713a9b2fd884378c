"""A call that came through Ray Serve's proxy, as servicers and interceptors see calls."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any, NoReturn

import grpc

_END = object()


class ProxiedCall:
    """Stands in for a `grpc.aio.ServicerContext`.

    The proxy hands over the metadata of a call and takes back its status and trailers with an answer; an
    exception would lose the trailers, and with them what an error says for programs. So a refused call is
    answered with an empty message and its status, of which gRPC sends the status alone.

    Args:
        context: Ray's context of the call, a `RayServegRPCContext`.
    """

    def __init__(self, context: Any) -> None:
        self._context = context
        # One answer is on its way while the next is made, so that a slow reader holds back its own stream.
        self._answers: asyncio.Queue[Any] = asyncio.Queue(maxsize=1)

    def invocation_metadata(self) -> list[tuple[str, Any]]:
        """Return what the client sent beside the message."""
        return list(self._context.invocation_metadata())

    def time_remaining(self) -> float | None:
        """Return None: the proxy keeps the deadline, and cancels the call when it passes."""
        return None

    def peer(self) -> str:
        """Return who called the proxy."""
        return str(self._context.peer())

    def code(self) -> Any:
        """Return the status that was set, if any."""
        return self._context.code()

    def set_trailing_metadata(self, pairs: Iterable[tuple[str, str | bytes]]) -> None:
        """Set what is sent behind the answer."""
        self._context.set_trailing_metadata(list(pairs))

    async def abort(
        self, code: grpc.StatusCode, details: str = "", trailing_metadata: Iterable[tuple[str, Any]] = ()
    ) -> NoReturn:
        """End the call with a status.

        Raises:
            grpc.aio.AbortError: always.
        """
        self._context.set_code(code)
        self._context.set_details(details)
        self.set_trailing_metadata(trailing_metadata)
        raise grpc.aio.AbortError

    async def write(self, message: Any) -> None:
        """Hand over one answer of a stream; returns when there is room for the next one."""
        await self._answers.put(message)

    async def end(self) -> None:
        """Let `written` end."""
        await self._answers.put(_END)

    async def written(self) -> Any:
        """Yield what is written, until the end."""
        while (message := await self._answers.get()) is not _END:
            yield message
