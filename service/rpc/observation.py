"""Every gRPC call is counted, timed, traced and, where asked for, logged: however it ends.

The outermost interceptor: it sees the refusals of those behind it. What escapes them all is a bug, and ends
here as INTERNAL with the request id and nothing else; left alone, grpc.aio would answer UNKNOWN with the text
of the exception.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from typing import Any
from urllib.parse import unquote

import grpc

from service.configuration.sections import LogConfig
from service.methods.call import sane_request_id
from service.observability.calls import CallObserver, ObservedCall
from service.observability.metrics import UNKNOWN_METHOD, Metrics
from service.observability.scope import CallScope, enter
from service.observability.tracing import Tracing
from service.rpc.call import sent_request_id
from service.rpc.refusal import refuse
from service.security.scopes import METHOD_SCOPES
from service.wire.logged import index_of, queries_of

_CODE_NAMES: dict[int, str] = {code.value[0]: code.name for code in grpc.StatusCode}
# A client that gives up at its deadline says so a little before the server's own clock does.
_DEADLINE_SLACK_S = 0.05

Behaviour = Callable[..., Any]


class ObservationInterceptor(grpc.aio.ServerInterceptor):  # type: ignore[misc]  # grpc is untyped
    """Observes calls of all kinds. To be the first of a server's interceptors.

    Args:
        metrics: Where to count.
        log: Whether calls are logged, and their queries.
        tracing: Where spans go; None: there are none.
    """

    def __init__(self, metrics: Metrics, log: LogConfig, tracing: Tracing | None = None) -> None:
        self._observer = CallObserver(metrics, log, tracing)

    async def intercept_service(
        self,
        continuation: Callable[[Any], Awaitable[grpc.RpcMethodHandler | None]],
        handler_call_details: Any,
    ) -> grpc.RpcMethodHandler | None:
        """Wrap the handler of one call."""
        metadata = handler_call_details.invocation_metadata or ()
        headers = {key: value for key, value in metadata if isinstance(value, str)}
        path = str(handler_call_details.method)
        # The label must not be the client's choice: whatever is not served shares one.
        name = path.rpartition("/")[2] if path in METHOD_SCOPES else UNKNOWN_METHOD
        scope = CallScope(sane_request_id(sent_request_id(metadata)), name)
        enter(scope)  # in the task of the call, for the interceptors behind and the method
        full_method = path.removeprefix("/") if name != UNKNOWN_METHOD else UNKNOWN_METHOD
        try:
            handler = await continuation(handler_call_details)
        except Exception as error:
            handler = _failing(error)
        if handler is None:
            with self._observer.observe(scope, full_method, headers, "grpc") as call:
                call.code = grpc.StatusCode.UNIMPLEMENTED.name
            return None
        return self._wrapped(handler, scope, full_method, headers)

    def _wrapped(
        self, handler: grpc.RpcMethodHandler, scope: CallScope, full_method: str, headers: dict[str, str]
    ) -> grpc.RpcMethodHandler:
        kind = _kind(handler)
        run = _answer_once if kind.endswith("_unary") else _answer_many
        behaviour = getattr(handler, kind)
        streams = kind.startswith("stream_")

        async def observed(request: Any, context: Any) -> Any:
            scope.peer = host_of(str(context.peer()))
            with self._observer.observe(scope, full_method, headers, "grpc") as call:
                if self._observer.wants_queries:
                    request = _noting(request, call) if streams else _noted(request, call)
                return await _ended(run(behaviour, request, context, call), context, call)

        return handler._replace(**{kind: observed})


def host_of(peer: str) -> str:
    """Return the address of a gRPC peer without its port: "ipv6:%5B::1%5D:123" is "::1"."""
    kind, _, address = unquote(peer).partition(":")
    if kind in ("ipv4", "ipv6"):
        return address.rpartition(":")[0].strip("[]")
    return kind  # "unix": a path says nothing of who calls


def _failing(error: Exception) -> grpc.RpcMethodHandler:
    """Return a handler that raises what an interceptor has raised.

    To gRPC's server every method is a stream of messages either way; one that reads none fits all four kinds.
    """

    async def fail(requests: AsyncIterator[bytes], context: Any) -> None:
        raise error

    return grpc.stream_stream_rpc_method_handler(fail)


def _kind(handler: grpc.RpcMethodHandler) -> str:
    sides = {False: "unary", True: "stream"}
    return f"{sides[bool(handler.request_streaming)]}_{sides[bool(handler.response_streaming)]}"


async def _answer_once(behaviour: Behaviour, request: Any, context: Any, call: ObservedCall) -> Any:
    response = await behaviour(request, context)
    call.note_index(*index_of(response))
    return response


async def _answer_many(behaviour: Behaviour, request: Any, context: Any, call: ObservedCall) -> None:
    responses = behaviour(request, context)
    if not hasattr(responses, "__aiter__"):
        await responses
        return
    async with aclosing(responses):
        async for response in responses:
            await context.write(response)


async def _ended(running: Awaitable[Any], context: Any, call: ObservedCall) -> Any:
    """Return what a call's behaviour returns, and note the status it ends with."""
    try:
        response = await running
    except asyncio.CancelledError:
        remaining = context.time_remaining()
        late = remaining is not None and remaining <= _DEADLINE_SLACK_S
        call.code = (grpc.StatusCode.DEADLINE_EXCEEDED if late else grpc.StatusCode.CANCELLED).name
        raise
    except grpc.aio.AbortError:
        call.code = _code_name(context)
        raise
    except Exception as error:
        call.code = grpc.StatusCode.INTERNAL.name
        await refuse(context, error, call.scope.request_id)
    call.code = _code_name(context)
    return response


def _code_name(context: Any) -> str:
    code = context.code() or 0  # None where nobody has set one
    return str(code.name) if isinstance(code, grpc.StatusCode) else _CODE_NAMES[code]


def _noted(request: Any, call: ObservedCall) -> Any:
    call.note_queries(queries_of(request))
    return request


async def _noting(requests: AsyncIterator[Any], call: ObservedCall) -> AsyncIterator[Any]:
    async for request in requests:
        yield _noted(request, call)
