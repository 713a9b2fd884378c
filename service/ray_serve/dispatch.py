"""From the name of a method to its answer, through the same interceptors as on a gRPC server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import grpc

from service.ray_serve.call_context import ProxiedCall

RELOAD = "/genret.v1.IndexService/ReloadIndex"
_WHY_NO_RELOAD = (
    "behind a proxy a reload would reach one replica of several, and which one is not known; deploy again to "
    "serve the live version: replicas are then replaced one after another"
)


@dataclass(frozen=True, slots=True)
class _Details:
    """What interceptors learn of a call; stands in for `grpc.HandlerCallDetails`."""

    method: str
    invocation_metadata: Sequence[tuple[str, Any]]


class Dispatcher:
    """Answers calls by the method's name.

    Args:
        handlers: Methods by their full names, "/genret.v1.RetrievalService/Retrieve".
        interceptors: What stands before them, the outermost first.
        max_request_bytes: Largest message accepted, bytes; the proxy itself accepts any.
    """

    def __init__(
        self,
        handlers: Mapping[str, grpc.RpcMethodHandler],
        interceptors: Sequence[Any],
        max_request_bytes: int,
    ) -> None:
        refusing = handlers[RELOAD]._replace(unary_unary=_refuse_reload)
        self._handlers = {**handlers, RELOAD: refusing}
        self._interceptors = tuple(interceptors)
        self._max_request_bytes = max_request_bytes

    async def answer(self, method: str, request: Any, context: Any, empty: Callable[[], Any]) -> Any:
        """Answer one message with one.

        Args:
            method: Its full name.
            request: The message's bytes.
            context: Ray's context of the call.
            empty: Makes the message that goes with the status of a refused call.
        """
        call = ProxiedCall(context)
        try:
            handler = await self._handler(method, call)
            behaviour = handler.unary_unary or handler.stream_stream
            return await behaviour(await self._parsed(handler, request, call), call)
        except grpc.aio.AbortError:
            return empty()

    async def stream(self, method: str, requests: Any, context: Any) -> AsyncIterator[Any]:
        """Answer a stream of messages, or one message with several.

        Raises:
            grpc.aio.AbortError: the call was refused; Ray sends its status, without the trailers.
        """
        call = ProxiedCall(context)
        running = asyncio.create_task(self._run_stream(method, requests, call))
        try:
            async for message in call.written():
                yield message
            await running
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)

    async def _run_stream(self, method: str, requests: Any, call: ProxiedCall) -> None:
        try:
            handler = await self._handler(method, call)
            if handler.unary_stream is not None:
                await handler.unary_stream(await self._parsed(handler, requests, call), call)
            else:
                await handler.stream_stream(self._each_parsed(handler, requests, call), call)
        finally:
            await call.end()

    async def _handler(self, method: str, call: ProxiedCall) -> grpc.RpcMethodHandler:
        """Return the method's handler as the interceptors leave it."""

        async def innermost(details: Any) -> grpc.RpcMethodHandler | None:
            return self._handlers.get(details.method)

        following: Callable[[Any], Awaitable[grpc.RpcMethodHandler | None]] = innermost
        for interceptor in reversed(self._interceptors):
            following = partial(interceptor.intercept_service, following)
        handler = await following(_Details(method, call.invocation_metadata()))
        if handler is None:
            await call.abort(grpc.StatusCode.UNIMPLEMENTED, f"there is no method {method} here")
        return handler

    async def _parsed(self, handler: grpc.RpcMethodHandler, raw: bytes, call: ProxiedCall) -> Any:
        """Return a message; what is none stays for the interceptor that refuses it."""
        if len(raw) > self._max_request_bytes:
            # In gRPC's own words, by which clients know it.
            await call.abort(
                grpc.StatusCode.RESOURCE_EXHAUSTED,
                f"SERVER: Received message larger than max ({len(raw)} vs. {self._max_request_bytes})",
            )
        return raw if handler.request_deserializer is None else handler.request_deserializer(raw)

    async def _each_parsed(
        self, handler: grpc.RpcMethodHandler, requests: AsyncIterator[bytes], call: ProxiedCall
    ) -> AsyncIterator[Any]:
        async for raw in requests:
            yield await self._parsed(handler, raw, call)


async def _refuse_reload(request: Any, call: Any) -> Any:
    await call.abort(grpc.StatusCode.UNIMPLEMENTED, _WHY_NO_RELOAD)
