"""Runs one replica: a server without listeners, whose methods Ray Serve calls. Imported where replicas run.

A call from Ray Serve's proxy passes the same interceptors as on a gRPC server.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple, NoReturn

import grpc
from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.message_factory import GetMessageClass
from grpc_health.v1 import health_pb2

from genret.retrieval.errors import GenretError
from genret.service.configuration.server_config import ServerConfig
from genret.service.methods import METHODS
from genret.service.observability.logs import configure as configure_logs
from genret.service.observability.tracing import start as start_tracing
from genret.service.ray_serve.deployment import REFUSAL
from genret.service.ray_serve.proxied_services import MethodRegistry
from genret.service.serving.heap import tune_process
from genret.service.serving.models import IndexOpener
from genret.service.serving.readiness import State
from genret.service.serving.server import Server
from genret.service.status import told
from genret.service.version import version


class GenretReplica:
    """Opens the indexes and answers calls as `genret serve` does; Ray Serve makes one per replica.

    Each has the models, queues, caches and limits of a whole server. Methods come from `METHODS`;
    ReloadIndex is refused, as it would reach one replica alone.
    """

    async def __init__(self, config: ServerConfig) -> None:  # type: ignore[misc]  # Serve awaits it
        tune_process()
        configure_logs(config.log)
        # Behind the proxy no caller is known to be on this machine.
        config = replace(config, host="0.0.0.0", insecure=True)
        try:
            tracing = start_tracing(config.tracing, version())
            self._server = Server.in_one_process(config, IndexOpener(config, told), tracing)
            await self._server.load()
        except GenretError as error:
            raise RuntimeError(f"{REFUSAL}{error}") from error
        registry = MethodRegistry()
        self._server.add_services(registry)
        self._calls = Dispatcher(registry.methods, self._server.interceptors, config.max_request_bytes)

    def check_health(self) -> None:
        """Raise RuntimeError unless this replica is ready; Ray then replaces it."""
        if self._server.readiness.state is not State.READY:
            raise RuntimeError(self._server.readiness.state.value)


def _proxied(method: MethodDescriptor) -> Callable[..., Any]:
    """Return the method of a replica that answers a method of the API, or of health checks."""
    name = f"/{method.containing_service.full_name}/{method.name}"
    empty = GetMessageClass(method.output_type)

    async def answer(self: GenretReplica, request: Any, grpc_context: Any) -> Any:
        return await self._calls.answer(name, request, grpc_context, empty)

    async def stream(self: GenretReplica, request: Any, grpc_context: Any) -> AsyncIterator[Any]:
        async for message in self._calls.stream(name, request, grpc_context):
            yield message

    return stream if method.server_streaming else answer


_HEALTH = health_pb2.DESCRIPTOR.services_by_name["Health"].methods_by_name
for _method in (*(row.descriptor for row in METHODS.values()), _HEALTH["Check"], _HEALTH["Watch"]):
    setattr(GenretReplica, _method.name, _proxied(_method))

RELOAD = METHODS["ReloadIndex"].full_name
_WHY_NO_RELOAD = (
    "behind a proxy a reload would reach one replica of several, and which one is not known; deploy again to "
    "serve the live version: replicas are then replaced one after another"
)


class _Details(NamedTuple):
    """Stands in for `grpc.HandlerCallDetails`."""

    method: str
    invocation_metadata: Sequence[tuple[str, Any]]


class Dispatcher:
    """Answers calls by the full name of their method, through gRPC's interceptors (the outermost first).

    Messages are limited to `max_request_bytes`; the proxy itself accepts any.
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
        """Answer a message's bytes; `empty` makes the message beside the status of a refused call."""
        call = ProxiedCall(context)
        try:
            handler = await self._handler(method, call)
            behaviour = handler.unary_unary or handler.stream_stream
            return await behaviour(await self._parsed(handler, request, call), call)
        except grpc.aio.AbortError:
            return empty()

    async def stream(self, method: str, requests: Any, context: Any) -> AsyncIterator[Any]:
        """Answer a stream of messages, or one message with several.

        A refused call raises grpc.aio.AbortError; Ray sends its status, without the trailers.
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
        """Return a message; malformed bytes are left to the interceptor that refuses them."""
        if len(raw) > self._max_request_bytes:
            # gRPC's own words, which clients look for.
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


_END = object()


class ProxiedCall:
    """Stands in for a `grpc.aio.ServicerContext`, over Ray's context of a call.

    The proxy takes back status and trailers only with an answer; an exception would lose the trailers, and
    with them the details of an error. So a refused call is answered with an empty message and its status.
    """

    def __init__(self, context: Any) -> None:
        self._context = context
        # At most one answer is in flight, so that a slow reader holds back its own stream.
        self._answers: asyncio.Queue[Any] = asyncio.Queue(maxsize=1)

    def invocation_metadata(self) -> list[tuple[str, Any]]:
        """Return the client's metadata."""
        return list(self._context.invocation_metadata())

    def time_remaining(self) -> float | None:
        """Return None: the proxy keeps the deadline, and cancels the call when it passes."""
        return None

    def peer(self) -> str:
        """Return the caller of the proxy."""
        return str(self._context.peer())

    def code(self) -> Any:
        """Return the status that was set, if any."""
        return self._context.code()

    def set_trailing_metadata(self, pairs: Iterable[tuple[str, str | bytes]]) -> None:
        """Set the metadata that follows the answer."""
        self._context.set_trailing_metadata(list(pairs))

    async def abort(
        self, code: grpc.StatusCode, details: str = "", trailing_metadata: Iterable[tuple[str, Any]] = ()
    ) -> NoReturn:
        """End the call with a status by raising grpc.aio.AbortError."""
        self._context.set_code(code)
        self._context.set_details(details)
        self.set_trailing_metadata(trailing_metadata)
        raise grpc.aio.AbortError

    async def write(self, message: Any) -> None:
        """Hand over one answer of a stream; returns when there is room for the next one."""
        await self._answers.put(message)

    async def end(self) -> None:
        """End `written`."""
        await self._answers.put(_END)

    async def written(self) -> Any:
        """Yield the answers until the end."""
        while (message := await self._answers.get()) is not _END:
            yield message
