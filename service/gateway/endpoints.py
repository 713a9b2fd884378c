"""Maps paths of HTTP to methods of the API, and answers them: observed, authorised, read, run, written.

`service.gateway.streams` answers RetrieveStream.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Literal

from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from starlette.requests import Request
from starlette.responses import Response

from retrieval.errors import InputError
from service.call import REQUEST_ID_KEY, Call, CallScope, enter
from service.errors import NotReadyError
from service.gateway.http_calls import (
    JSON_TYPE,
    attended,
    begin_call,
    error_response,
    read_message,
    with_deadline,
    write_message,
)
from service.observability.observations import CallObserver, ObservedCall
from service.pb.genret.v1 import index_service_pb2 as index_pb
from service.pb.genret.v1 import retrieval_service_pb2 as pb
from service.security.authority import PRINCIPAL, Authority, refuse_cross_site, refuse_foreign_host
from service.security.bearer_tokens import METHOD_SCOPES, Scope
from service.serving.readiness import State
from service.wire.requests import index_of, queries_of

NDJSON_TYPE = "application/x-ndjson"
_SERVICES = {
    "RetrievalService": pb.DESCRIPTOR.services_by_name["RetrievalService"],
    "IndexService": index_pb.DESCRIPTOR.services_by_name["IndexService"],
}


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One method of the API under its path.

    Attributes:
        verb: HTTP's method.
        path: The path; `{name}` stands for the field `name` of the request.
        service: Name of the service.
        method: Name of its method.
        has_body: Whether the other fields of the request come in a body.
        is_stream: Whether bodies are streams of messages, one a line.
        is_limited: Whether the server's longest time of a call holds for it.
    """

    verb: Literal["GET", "POST"]
    path: str
    service: str
    method: str
    has_body: bool = True
    is_stream: bool = False
    is_limited: bool = True

    @property
    def descriptor(self) -> MethodDescriptor:
        """What the `.proto` says of the method."""
        return _SERVICES[self.service].methods_by_name[self.method]

    @property
    def full_name(self) -> str:
        """The method as gRPC spells it."""
        return f"/{_SERVICES[self.service].full_name}/{self.method}"

    @property
    def scope(self) -> Scope | None:
        """What a token must allow."""
        return METHOD_SCOPES[self.full_name]


# The order matters where two patterns fit one path: the first wins.
ENDPOINTS: tuple[Endpoint, ...] = (
    Endpoint("POST", "/v1/retrieve", "RetrievalService", "Retrieve"),
    Endpoint("POST", "/v1/batchRetrieve", "RetrievalService", "BatchRetrieve"),
    Endpoint(
        "POST", "/v1/retrieveStream", "RetrievalService", "RetrieveStream", is_stream=True, is_limited=False
    ),
    Endpoint("POST", "/v1/link", "RetrievalService", "Link"),
    Endpoint("POST", "/v1/answer", "RetrievalService", "Answer"),
    Endpoint("POST", "/v1/score", "RetrievalService", "Score"),
    Endpoint("GET", "/v1/indexes", "IndexService", "ListIndexes", has_body=False),
    Endpoint("POST", "/v1/indexes/{name}:reload", "IndexService", "ReloadIndex", is_limited=False),
    Endpoint("GET", "/v1/indexes/{name}", "IndexService", "GetIndex", has_body=False),
)


Method = Callable[[Any, Call], Awaitable[Message]]
Handler = Callable[[Request], Awaitable[Response]]

_HEADERS = {"cache-control": "no-store", "x-content-type-options": "nosniff"}


@dataclass(frozen=True, slots=True)
class Gate:
    """What every request of the API passes.

    Attributes:
        authority: Who may call; None: everybody.
        observer: What calls leave behind.
        max_seconds: Longest a call may take.
        max_bytes: Largest body that is read, or line of one, bytes.
    """

    authority: Authority | None
    observer: CallObserver
    max_seconds: float
    max_bytes: int

    def authorize(self, request: Request, scope: Scope | None) -> None:
        """Let through who may do what asks for `scope`.

        Raises:
            UnauthenticatedError, PermissionDeniedError: see `Authority.authorize`.
        """
        if self.authority is None or scope is None:
            return
        refuse_cross_site(request.method, request.headers)
        if scope is Scope.ADMIN and self.authority.trusts_this_machine:
            refuse_foreign_host(request.headers)
        sent = request.headers.getlist("authorization")
        # Several are malformed: which one counted would depend on who reads them.
        header = None if not sent else sent[0] if len(sent) == 1 else ""
        PRINCIPAL.set(self.authority.authorize(header, scope))

    @asynccontextmanager
    async def admit(self, request: Request, endpoint: Endpoint) -> AsyncIterator[tuple[Call, ObservedCall]]:
        """Observe a call from here to the end of the block."""
        call = begin_call(request, self.max_seconds if endpoint.is_limited else math.inf)
        peer = request.client.host if request.client is not None else ""
        scope = CallScope(call.request_id, endpoint.method, peer)
        enter(scope)
        full_method = endpoint.full_name.removeprefix("/")
        with self.observer.observe(scope, full_method, dict(request.headers), "http") as observed:
            yield call, observed


def finished(response: Response, request_id: str) -> Response:
    """Return a reply with the headers that all of them have."""
    response.headers.update({REQUEST_ID_KEY: request_id, **_HEADERS})
    return response


def refusal(error: BaseException, call: Call, observed: ObservedCall) -> Response:
    """Return the reply to a call that fails, and note its status.

    A cancelled call is one that the server, which stops, does not wait for any longer.
    """
    if isinstance(error, asyncio.CancelledError):
        error = NotReadyError(State.DRAINING.value, retry_after_s=1.0)
    if not isinstance(error, Exception):
        raise error
    response, code = error_response(error, call.request_id)
    observed.code = code.name
    return finished(response, call.request_id)


def unary(endpoint: Endpoint, method: Method, gate: Gate) -> Handler:
    """Return the handler of a method that takes one message and gives one."""
    message_type = GetMessageClass(endpoint.descriptor.input_type)

    async def serve(request: Request) -> Response:
        async with gate.admit(request, endpoint) as (call, observed):
            try:
                call = with_deadline(call, request)
                gate.authorize(request, endpoint.scope)
                message = await _message_of(request, message_type(), endpoint, gate.max_bytes)
                if gate.observer.wants_queries:
                    observed.note_queries(queries_of(message))
                reply = await attended(request, _run(method, message, call), call.deadline)
                observed.note_index(*index_of(reply))
                response = Response(await write_message(reply), media_type=JSON_TYPE)
            except (Exception, asyncio.CancelledError) as error:
                return refusal(error, call, observed)
            return finished(response, call.request_id)

    return serve


async def _message_of(request: Request, message: Message, endpoint: Endpoint, max_bytes: int) -> Message:
    """Return the message that path and body of a request make."""
    if endpoint.has_body:
        in_path = bool(request.path_params)
        message = await read_message(request, message, max_bytes, may_be_empty=in_path)
    for name, value in request.path_params.items():
        if getattr(message, name):
            raise InputError(name, "stands in the path, and must not be in the body")
        setattr(message, name, value)
    return message


async def _run(method: Method, message: Message, call: Call) -> Message:
    return await method(message, call)
