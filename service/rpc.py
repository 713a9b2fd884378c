"""Serves `genret.v1` over gRPC: the handlers of the methods, and the interceptors before them.

Calls are counted, timed, traced and logged. The caller is authenticated before the request is read. Bytes
that do not parse are refused with INVALID_ARGUMENT, where grpc.aio alone answers UNKNOWN with the parser's
text. A refused call gets status and details of `service.status.TABLE`, a bug ends as INTERNAL with the
request id and nothing else.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import aclosing
from functools import partial
from typing import Any, NoReturn, TypeAlias
from urllib.parse import unquote

import grpc
from google.protobuf.message_factory import GetMessageClass

from genret.retrieval.errors import GenretError, InputError
from genret.service.call import (
    DEADLINE_SLACK_S,
    PRIORITY_KEY,
    REQUEST_ID_KEY,
    Call,
    CallScope,
    current_scope,
    enter,
    sane_request_id,
)
from genret.service.errors import (
    MalformedMessageError,
    PermissionDeniedError,
    ServiceError,
    UnauthenticatedError,
)
from genret.service.methods import METHODS, Method, Methods
from genret.service.observability.metrics import UNKNOWN_METHOD
from genret.service.observability.observations import CallObserver
from genret.service.security.authority import Authority, enter_as
from genret.service.security.bearer_tokens import METHOD_SCOPES, Scope
from genret.service.serving.connections import OpenCalls
from genret.service.status import failure_of, logged_failure
from genret.service.wire.replies import index_of
from genret.service.wire.requests import check_fields, queries_of
from genret.service.wire.rpc_status import CODE_NAMES, DETAILS_KEY, failure_to_proto

Behaviour = Callable[..., Any]
Handler: TypeAlias = grpc.RpcMethodHandler
Continuation = Callable[[Any], Awaitable[Handler | None]]


def handlers(methods: Methods, max_seconds: float, max_items: int) -> dict[str, dict[str, Handler]]:
    """Return gRPC's handlers by service and method; limited methods may take `max_seconds`.

    A message of far more items than `max_items` is not parsed.
    """
    found: dict[str, dict[str, Handler]] = {}
    for method in METHODS.values():
        make = (
            grpc.stream_stream_rpc_method_handler if method.is_stream else grpc.unary_unary_rpc_method_handler
        )
        found.setdefault(method.service.full_name, {})[method.name] = make(
            _behaviour(methods, method, max_seconds if method.is_limited else math.inf),
            request_deserializer=partial(_parsed, GetMessageClass(method.descriptor.input_type), max_items),
            response_serializer=GetMessageClass(method.descriptor.output_type).SerializeToString,
        )
    return found


def _parsed(kind: Any, max_items: int, raw: bytes) -> Any:
    check_fields(raw, kind, max_items)
    return kind.FromString(raw)


def _behaviour(methods: Methods, method: Method, max_seconds: float) -> Behaviour:
    async def serve(request: Any, context: Any) -> Any:
        call = call_of(context, max_seconds)
        context.set_trailing_metadata(((REQUEST_ID_KEY, call.request_id),))
        try:
            if method.is_stream:
                return await methods.call(method, request, call, context.write)
            return await methods.call(method, request, call)
        except Exception as error:
            await refuse(context, error, call.request_id)

    return serve


def call_of(context: Any, max_seconds: float) -> Call:
    """Read id and deadline off a `grpc.aio.ServicerContext`; an observed call keeps its id."""
    scope = current_scope()
    sent = sent_request_id(context.invocation_metadata() or ()) if scope is None else scope.request_id
    return Call.begin(sent, context.time_remaining(), max_seconds)


def sent_request_id(metadata: Iterable[tuple[str, Any]]) -> str:
    """Return the request id that a client sent, unchecked; empty without one."""
    return str(dict(metadata).get(REQUEST_ID_KEY, ""))


async def refuse(context: Any, error: Exception, request_id: str) -> NoReturn:
    """End a call with the status of `error`: by AbortError or, if the client has gone, by CancelledError.

    A bug is logged under the request id, which is told to the caller unless empty.
    """
    failure = logged_failure(error, request_id)
    status = failure_to_proto(failure)
    trailers: list[tuple[str, str | bytes]] = [(DETAILS_KEY, status.SerializeToString())]
    if request_id:
        trailers.append((REQUEST_ID_KEY, request_id))
    try:
        await context.abort(failure.code, status.message, tuple(trailers))
    except grpc.aio.InternalError:
        # The client has gone, as at its deadline, and gRPC is about to cancel the call.
        raise asyncio.CancelledError from None
    raise AssertionError("abort returned")


class ObservationInterceptor(grpc.aio.ServerInterceptor):  # type: ignore[misc]  # grpc is untyped
    """Observes calls of all kinds, and refuses requests that do not parse, before their method gets them.

    Must be the first of a server's interceptors.
    """

    def __init__(self, observer: CallObserver, open_calls: OpenCalls) -> None:
        self._observer = observer
        self._open_calls = open_calls

    async def intercept_service(
        self, continuation: Continuation, handler_call_details: Any
    ) -> Handler | None:
        """Wrap the handler of one call."""
        metadata = handler_call_details.invocation_metadata or ()
        headers = {key: value for key, value in metadata if isinstance(value, str)}
        path = str(handler_call_details.method)
        # The client must not choose the label: unknown methods share one.
        name = path.rpartition("/")[2] if path in METHOD_SCOPES else UNKNOWN_METHOD
        priority = headers.get(PRIORITY_KEY, "")
        scope = CallScope(sane_request_id(sent_request_id(metadata)), name, priority=priority)
        enter(scope)  # in the task of the call, for the interceptors behind and the method
        full_method = path.removeprefix("/") if name != UNKNOWN_METHOD else UNKNOWN_METHOD
        try:
            handler = await continuation(handler_call_details)
        except Exception as error:
            handler = _failing(error)
        if handler is None:
            with self._observer.observe(scope, full_method, headers, "grpc"):
                scope.code = grpc.StatusCode.UNIMPLEMENTED.name
            return None
        kind = _kind(handler)
        behaviour = getattr(handler, kind)

        async def observed(request: Any, context: Any) -> Any:
            peer = str(context.peer())
            scope.peer = host_of(peer)
            observing = self._observer.observe(scope, full_method, headers, "grpc")
            with self._open_calls.running(peer), observing:
                take = partial(self._taken, scope)
                answering = _answered(behaviour, request, context, kind.startswith("stream_"), take)
                return await _ended(answering, context, scope)

        parse = handler.request_deserializer
        tolerant = None if parse is None else _tolerant(parse, path)
        return handler._replace(request_deserializer=tolerant, **{kind: observed})

    def _taken(self, scope: CallScope, request: Any) -> Any:
        """Return a request after noting its queries; raises the error of one that did not parse."""
        if isinstance(request, GenretError):
            raise request
        if self._observer.wants_queries:
            self._observer.note_queries(scope, queries_of(request))
        return request


def host_of(peer: str) -> str:
    """Return the address of a gRPC peer without its port: "ipv6:%5B::1%5D:123" is "::1"."""
    kind, _, address = unquote(peer).partition(":")
    if kind in ("ipv4", "ipv6"):
        return address.rpartition(":")[0].strip("[]")
    return kind  # "unix": a path does not identify the caller


def _failing(error: Exception) -> Handler:
    """Return a handler that raises an interceptor's error.

    gRPC's server passes every method a stream of messages; a handler that reads none fits all four kinds.
    """

    async def fail(requests: AsyncIterator[bytes], context: Any) -> None:
        raise error

    return grpc.stream_stream_rpc_method_handler(fail)


def _kind(handler: Handler) -> str:
    sides = {False: "unary", True: "stream"}
    return f"{sides[bool(handler.request_streaming)]}_{sides[bool(handler.response_streaming)]}"


def _tolerant(parse: Callable[[bytes], Any], method: str) -> Callable[[bytes], Any]:
    """Return a parser that returns the error instead of a message that does not parse."""

    def deserialize(raw: bytes) -> Any:
        try:
            return parse(raw)
        except InputError as error:
            return error
        except Exception:  # protobuf's backends raise different types for the same bytes
            return MalformedMessageError(f"the bytes are not a valid request of {method}")

    return deserialize


async def _answered(
    behaviour: Behaviour, request: Any, context: Any, streams: bool, take: Callable[[Any], Any]
) -> Any:
    """Run the behaviour of any kind of method: return its reply, or write its replies as they come.

    A method that `streams` gets an iterator of requests; `take` is called for each one.
    """
    answering = behaviour(_each(request, take) if streams else take(request), context)
    if not hasattr(answering, "__aiter__"):
        return await answering
    async with aclosing(answering):
        async for response in answering:
            await context.write(response)
    return None


async def _ended(running: Awaitable[Any], context: Any, scope: CallScope) -> Any:
    """Return the result of a call's behaviour, and note the status it ends with."""
    try:
        response = await running
    except asyncio.CancelledError:
        remaining = context.time_remaining()
        late = remaining is not None and remaining <= DEADLINE_SLACK_S
        scope.code = (grpc.StatusCode.DEADLINE_EXCEEDED if late else grpc.StatusCode.CANCELLED).name
        raise
    except grpc.aio.AbortError:
        scope.code = _code_name(context)
        raise
    except Exception as error:
        scope.code = failure_of(error, "").code.name
        await refuse(context, error, scope.request_id)
    scope.code = _code_name(context)
    scope.note_index(*index_of(response))
    return response


def _code_name(context: Any) -> str:
    code = context.code() or 0  # None if it was not set
    return str(code.name) if isinstance(code, grpc.StatusCode) else CODE_NAMES[code]


async def _each(requests: AsyncIterator[Any], take: Callable[[Any], Any]) -> AsyncIterator[Any]:
    async for request in requests:
        yield take(request)


_LOG = logging.getLogger(__name__)
_HEADER = "authorization"


class AuthenticationInterceptor(grpc.aio.ServerInterceptor):  # type: ignore[misc]  # grpc is untyped
    """Refuses calls whose method needs more rights than the caller has."""

    def __init__(self, authority: Authority) -> None:
        self._authority = authority

    async def intercept_service(
        self, continuation: Continuation, handler_call_details: Any
    ) -> Handler | None:
        """Let one call through, or answer it with its refusal."""
        method = str(handler_call_details.method)
        try:
            known = self._admit(method, handler_call_details.invocation_metadata or ())
        except (UnauthenticatedError, PermissionDeniedError) as error:
            return _refusing(method, error)
        handler = await continuation(handler_call_details)
        if handler is not None and not known:
            return _refusing(method, PermissionDeniedError(f"no scope allows {method}"))
        return handler

    def _admit(self, method: str, metadata: Sequence[tuple[str, Any]]) -> bool:
        """Check the caller; return whether scopes are known for the method."""
        known = method in METHOD_SCOPES or not self._authority.requires_tokens
        # Unknown callers do not learn which other methods there are.
        scope = METHOD_SCOPES.get(method, Scope.READ)
        if scope is not None:
            enter_as(self._authority.authorize(_authorization(metadata), scope))
        return known


def _authorization(metadata: Sequence[tuple[str, Any]]) -> str | None:
    values = [value for key, value in metadata if key == _HEADER]
    if not values:
        return None
    # Several are malformed, like bytes that are no text: readers would disagree which one counts.
    return values[0] if len(values) == 1 and isinstance(values[0], str) else ""


def _refusing(method: str, error: ServiceError) -> Handler:
    """Return a handler that ends a call of any kind without reading its request; see `_failing`."""

    async def end(requests: AsyncIterator[bytes], context: Any) -> None:
        request_id = call_of(context, max_seconds=0.0).request_id
        _LOG.info("%s refused to %s: %s", method, context.peer(), error, extra={"request_id": request_id})
        await refuse(context, error, request_id)

    return grpc.stream_stream_rpc_method_handler(end)
