"""Maps HTTP paths to methods of the API, and answers them; `service.gateway.streams` does RetrieveStream."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Literal

from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from starlette.requests import Request
from starlette.responses import Response

from genret.retrieval.errors import InputError
from genret.service.call import REQUEST_ID_KEY, Call, CallScope, enter
from genret.service.errors import NotReadyError
from genret.service.gateway.http_calls import (
    JSON_TYPE,
    attended,
    begin_call,
    error_response,
    read_message,
    with_deadline,
    write_message,
)
from genret.service.methods import METHODS, Method, Methods
from genret.service.observability.observations import CallObserver, ObservedCall
from genret.service.security.authority import PRINCIPAL, Authority, refuse_cross_site, refuse_foreign_host
from genret.service.security.bearer_tokens import METHOD_SCOPES, Scope
from genret.service.serving.readiness import State
from genret.service.wire.requests import index_of, queries_of

NDJSON_TYPE = "application/x-ndjson"


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One method of the API under its path, in which `{name}` stands for a field of the request.

    `has_body` tells whether the other fields come in a body.
    """

    verb: Literal["GET", "POST"]
    path: str
    method: str
    has_body: bool = True

    @property
    def row(self) -> Method:
        """The method's row of the table of methods."""
        return METHODS[self.method]

    @property
    def service(self) -> str:
        """Name of the method's service."""
        return str(self.row.service.name)

    @property
    def scope(self) -> Scope | None:
        """Scope that a token needs; None: no token is needed."""
        return METHOD_SCOPES[self.row.full_name]


# If two patterns fit a path, the first wins.
ENDPOINTS: tuple[Endpoint, ...] = (
    Endpoint("POST", "/v1/retrieve", "Retrieve"),
    Endpoint("POST", "/v1/batchRetrieve", "BatchRetrieve"),
    Endpoint("POST", "/v1/retrieveStream", "RetrieveStream"),
    Endpoint("POST", "/v1/link", "Link"),
    Endpoint("POST", "/v1/answer", "Answer"),
    Endpoint("POST", "/v1/score", "Score"),
    Endpoint("GET", "/v1/indexes", "ListIndexes", has_body=False),
    Endpoint("POST", "/v1/indexes/{name}:reload", "ReloadIndex"),
    Endpoint("GET", "/v1/indexes/{name}", "GetIndex", has_body=False),
)


Handler = Callable[[Request], Awaitable[Response]]

_HEADERS = {"cache-control": "no-store", "x-content-type-options": "nosniff"}


@dataclass(frozen=True, slots=True)
class Gate:
    """Checks that every request of the API passes; `max_bytes` limits a body, or a line of a stream.

    Without an authority everybody may call.
    """

    authority: Authority | None
    observer: CallObserver
    max_seconds: float
    max_bytes: int

    def authorize(self, request: Request, scope: Scope | None) -> None:
        """Check that the caller may do what needs `scope`; raises as `Authority.authorize` does."""
        if self.authority is None or scope is None:
            return
        refuse_cross_site(request.method, request.headers)
        if scope is Scope.ADMIN and self.authority.trusts_this_machine:
            refuse_foreign_host(request.headers)
        sent = request.headers.getlist("authorization")
        # Several are malformed: readers would disagree which one counts.
        header = None if not sent else sent[0] if len(sent) == 1 else ""
        PRINCIPAL.set(self.authority.authorize(header, scope))

    @asynccontextmanager
    async def admit(self, request: Request, endpoint: Endpoint) -> AsyncIterator[tuple[Call, ObservedCall]]:
        """Observe a call until the end of the block."""
        call = begin_call(request, self.max_seconds if endpoint.row.is_limited else math.inf)
        peer = request.client.host if request.client is not None else ""
        scope = CallScope(call.request_id, endpoint.method, peer)
        enter(scope)
        full_method = endpoint.row.full_name.removeprefix("/")
        with self.observer.observe(scope, full_method, dict(request.headers), "http") as observed:
            yield call, observed


def finished(response: Response, request_id: str) -> Response:
    """Return a reply with the headers of all replies."""
    response.headers.update({REQUEST_ID_KEY: request_id, **_HEADERS})
    return response


def refusal(error: BaseException, call: Call, observed: ObservedCall) -> Response:
    """Return the reply to a failed call, and note its status; a cancelled call is one that a drain ended."""
    if isinstance(error, asyncio.CancelledError):
        error = NotReadyError(State.DRAINING.value, retry_after_s=1.0)
    if not isinstance(error, Exception):
        raise error
    response, code = error_response(error, call.request_id)
    observed.code = code.name
    return finished(response, call.request_id)


def unary(endpoint: Endpoint, methods: Methods, gate: Gate) -> Handler:
    """Return the handler of a method with one message in and one out."""
    message_type = GetMessageClass(endpoint.row.descriptor.input_type)

    async def serve(request: Request) -> Response:
        async with gate.admit(request, endpoint) as (call, observed):
            try:
                call = with_deadline(call, request)
                gate.authorize(request, endpoint.scope)
                message = await _message_of(request, message_type(), endpoint, gate.max_bytes)
                if gate.observer.wants_queries:
                    observed.note_queries(queries_of(message))
                reply = await attended(request, methods.call(endpoint.row, message, call), call.deadline)
                observed.note_index(*index_of(reply))
                response = Response(await write_message(reply), media_type=JSON_TYPE)
            except (Exception, asyncio.CancelledError) as error:
                return refusal(error, call, observed)
            return finished(response, call.request_id)

    return serve


async def _message_of(request: Request, message: Message, endpoint: Endpoint, max_bytes: int) -> Message:
    if endpoint.has_body:
        in_path = bool(request.path_params)
        message = await read_message(request, message, max_bytes, may_be_empty=in_path)
    for name, value in request.path_params.items():
        if getattr(message, name):
            raise InputError(name, "stands in the path, and must not be in the body")
        setattr(message, name, value)
    return message
