"""Bytes that are no message of the method's type are the caller's mistake: INVALID_ARGUMENT.

Left alone, grpc.aio answers them with UNKNOWN and the text of the parser's exception.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import grpc

from service.errors import MalformedMessageError
from service.rpc.call import call_of
from service.rpc.refusal import refuse


@dataclass(frozen=True, slots=True)
class _Malformed:
    """Stands in for a message that could not be parsed."""

    method: str


class MalformedMessageInterceptor(grpc.aio.ServerInterceptor):  # type: ignore[misc]  # grpc is untyped
    """Refuses requests that do not parse, before their method sees them."""

    async def intercept_service(
        self,
        continuation: Callable[[Any], Awaitable[grpc.RpcMethodHandler | None]],
        handler_call_details: Any,
    ) -> grpc.RpcMethodHandler | None:
        """Wrap the handler of one call."""
        handler = await continuation(handler_call_details)
        if handler is None or handler.request_deserializer is None:
            return handler
        method = str(handler_call_details.method)
        replaced: dict[str, Any] = {"request_deserializer": _tolerant(handler.request_deserializer, method)}
        for kind, wrap in _WRAPPERS.items():
            behaviour = getattr(handler, kind)
            if behaviour is not None:
                replaced[kind] = wrap(behaviour)
        return handler._replace(**replaced)


def _tolerant(parse: Callable[[bytes], Any], method: str) -> Callable[[bytes], Any]:
    def deserialize(raw: bytes) -> Any:
        try:
            return parse(raw)
        except Exception:  # protobuf's backends raise different types for the same bytes
            return _Malformed(method)

    return deserialize


def _error(message: _Malformed) -> MalformedMessageError:
    return MalformedMessageError(f"the bytes are not a valid request of {message.method}")


def _request_id(context: Any) -> str:
    return call_of(context, max_seconds=0.0).request_id


async def _refuse(message: _Malformed, context: Any) -> None:
    await refuse(context, _error(message), _request_id(context))


def _wrap_unary_unary(behaviour: Callable[..., Any]) -> Callable[..., Any]:
    async def call(request: Any, context: Any) -> Any:
        if isinstance(request, _Malformed):
            await _refuse(request, context)
        return await behaviour(request, context)

    return call


def _wrap_unary_stream(behaviour: Callable[..., Any]) -> Callable[..., Any]:
    async def call(request: Any, context: Any) -> Any:
        if isinstance(request, _Malformed):
            await _refuse(request, context)
        result = behaviour(request, context)
        if hasattr(result, "__aiter__"):
            async for response in result:
                await context.write(response)
        else:
            await result

    return call


def _wrap_stream_stream(behaviour: Callable[..., Any]) -> Callable[..., Any]:
    async def call(requests: AsyncIterator[Any], context: Any) -> Any:
        try:
            result = behaviour(_checked(requests), context)
            if hasattr(result, "__aiter__"):
                async for response in result:
                    await context.write(response)
            else:
                await result
        except MalformedMessageError as error:  # unless the method refuses it itself
            await refuse(context, error, _request_id(context))

    return call


async def _checked(requests: AsyncIterator[Any]) -> AsyncIterator[Any]:
    """Yield the requests of a stream up to the first that could not be parsed.

    Raises:
        MalformedMessageError: there is one.
    """
    async for request in requests:
        if isinstance(request, _Malformed):
            raise _error(request)
        yield request


_WRAPPERS = {
    "unary_unary": _wrap_unary_unary,
    "unary_stream": _wrap_unary_stream,
    "stream_stream": _wrap_stream_stream,
}
