"""Maps HTTP paths to methods of the API, and answers them.

RetrieveStream takes one message a line and gives one answer a line, both at the same time.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Literal, NamedTuple

from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Send
from starlette.types import Scope as AsgiScope

from genret.retrieval.errors import InputError
from genret.service.call import PRIORITY_KEY, REQUEST_ID_KEY, Call, CallScope, client_address, enter
from genret.service.errors import MalformedMessageError, NotReadyError
from genret.service.gateway.chat_completions import CHAT, COMPLETIONS, MODELS, ONE_MODEL
from genret.service.gateway.forms import Form, MethodCall
from genret.service.gateway.http_calls import (
    BodyLimits,
    attended,
    begin_call,
    check_type,
    error_body,
    error_response,
    off_the_loop,
    read_body,
    until_gone,
    with_deadline,
    write_message,
)
from genret.service.gateway.rerank import RERANK, RERANK_2
from genret.service.methods import METHODS, Method, Methods
from genret.service.observability.observations import CallObserver
from genret.service.security.authority import Authority, enter_as, refuse_cross_site, refuse_foreign_host
from genret.service.security.bearer_tokens import METHOD_SCOPES, Scope
from genret.service.wire.json import message_from_json, message_to_json, parsed_bytes
from genret.service.wire.replies import index_of
from genret.service.wire.requests import queries_of

NDJSON_TYPE = "application/x-ndjson"


class Endpoint(NamedTuple):
    """One method of the API under its path, in which `{name}` stands for a field of the request.

    `has_body` tells whether the other fields come in a body. A `form` says how bodies are written,
    and may have another method answer, of the same scope.
    """

    verb: Literal["GET", "POST"]
    path: str
    method: str
    has_body: bool = True
    form: Form | None = None

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
    Endpoint("POST", "/v1/complete", "Complete"),
    Endpoint("GET", "/v1/indexes", "ListIndexes", has_body=False),
    Endpoint("POST", "/v1/indexes/{name}:reload", "ReloadIndex"),
    Endpoint("GET", "/v1/indexes/{name}", "GetIndex", has_body=False),
)
# What other vendors' clients speak.
FORM_ENDPOINTS: tuple[Endpoint, ...] = (
    Endpoint("POST", "/v1/rerank", "Score", form=RERANK),
    Endpoint("POST", "/v2/rerank", "Score", form=RERANK_2),
    Endpoint("POST", "/v1/chat/completions", "Answer", form=CHAT),
    Endpoint("POST", "/v1/completions", "Answer", form=COMPLETIONS),
    Endpoint("GET", "/v1/models", "ListIndexes", has_body=False, form=MODELS),
    Endpoint("GET", "/v1/models/{name}", "GetIndex", has_body=False, form=ONE_MODEL),
)


Handler = Callable[[Request], Awaitable[Response]]

_HEADERS = {"cache-control": "no-store", "x-content-type-options": "nosniff"}


class Gate(NamedTuple):
    """The methods of the API, and what every request passes before them: checks, limits of its body."""

    methods: Methods
    authority: Authority
    observer: CallObserver
    max_seconds: float
    limits: BodyLimits

    def authorize(self, request: Request, scope: Scope | None) -> None:
        """Check that the caller may do what needs `scope`; raises as `Authority.authorize` does."""
        if scope is None:
            return
        refuse_cross_site(request.method, request.headers)
        if scope is Scope.ADMIN and self.authority.trusts_this_machine:
            refuse_foreign_host(request.headers)
        sent = request.headers.getlist("authorization")
        # Several are malformed: readers would disagree which one counts.
        header = None if not sent else sent[0] if len(sent) == 1 else ""
        enter_as(self.authority.authorize(header, scope))

    @asynccontextmanager
    async def admit(self, request: Request, endpoint: Endpoint) -> AsyncIterator[tuple[Call, CallScope]]:
        """Observe a call until the end of the block."""
        call = begin_call(request, self.max_seconds if endpoint.row.is_limited else math.inf)
        peer = request.client.host if request.client is not None else ""
        priority = request.headers.get(PRIORITY_KEY, "")
        scope = CallScope(call.request_id, endpoint.method, peer, priority)
        enter(scope)
        full_method = endpoint.row.full_name.removeprefix("/")
        with self.observer.observe(scope, full_method, dict(request.headers), "http"):
            yield call, scope


def finished(response: Response, request_id: str) -> Response:
    """Return a reply with the headers of all replies."""
    response.headers.update({REQUEST_ID_KEY: request_id, **_HEADERS})
    return response


def refusal(error: BaseException, call: Call, scope: CallScope, form: Form | None = None) -> Response:
    """Return the reply to a failed call, and note its status; a cancelled call is one that a drain ended."""
    if isinstance(error, asyncio.CancelledError):
        error = NotReadyError()
    if not isinstance(error, Exception):
        raise error
    body = error_body if form is None else form.refuse
    response, code = error_response(error, call.request_id, body)
    scope.code = code.name
    return finished(response, call.request_id)


def unary(endpoint: Endpoint, gate: Gate) -> Handler:
    """Return the handler of a method with one message in and one out."""

    async def serve(request: Request) -> Response:
        async with gate.admit(request, endpoint) as (call, scope):
            try:
                call = with_deadline(call, request)
                gate.authorize(request, endpoint.scope)
                asked = await _asked(request, endpoint, gate.limits)
                scope.method = asked.method
                if gate.observer.wants_queries:
                    gate.observer.note_queries(scope, queries_of(asked.message))
                answering = gate.methods.call(METHODS[asked.method], asked.message, call)
                reply = await attended(until_gone(request), answering, call.deadline)
                scope.note_index(*index_of(reply))
                body = await write_message(reply, asked.write)
                response = Response(body, media_type=asked.media_type)
            except (Exception, asyncio.CancelledError) as error:
                return refusal(error, call, scope, endpoint.form)
            return finished(response, call.request_id)

    return serve


async def _asked(request: Request, endpoint: Endpoint, limits: BodyLimits) -> MethodCall:
    message, form = GetMessageClass(endpoint.row.descriptor.input_type)(), endpoint.form

    def read(body: bytes, max_items: int) -> MethodCall:
        if form is not None:
            return form.asked(body, max_items)
        return MethodCall(message_from_json(body, message, max_items), endpoint.method)

    if endpoint.has_body:
        asked = await read_body(request, read, limits, may_be_empty=bool(request.path_params))
    else:
        asked = MethodCall(message, endpoint.method, message_to_json if form is None else form.write)
    for name, value in request.path_params.items():
        if getattr(asked.message, name):
            raise InputError(name, "stands in the path, and must not be in the body")
        setattr(asked.message, name, value)
    return asked


# Bytes read of a body that is sent faster than it is answered.
_READ_AHEAD_BYTES = 256 * 1024
_BLANK_LINES = 256


def stream(endpoint: Endpoint, gate: Gate) -> Handler:
    """Return the handler of a method with a stream of messages in and out."""

    async def serve(request: Request) -> Response:
        return _Exchange(endpoint, gate, request)

    return serve


class _Exchange(Response):
    """A reply that is written while its request is read."""

    def __init__(self, endpoint: Endpoint, gate: Gate, request: Request) -> None:
        super().__init__(media_type=NDJSON_TYPE)
        del self.headers["content-length"]
        self._endpoint = endpoint
        self._gate = gate
        self._request = request
        self._begun = False

    async def __call__(self, scope: AsgiScope, receive: Receive, send: Send) -> None:
        async with self._gate.admit(self._request, self._endpoint) as (call, called):
            finished(self, call.request_id)
            try:
                self._gate.authorize(self._request, self._endpoint.scope)
                check_type(self._request, NDJSON_TYPE)
                await self._exchange(call, called, send)
            except (Exception, asyncio.CancelledError) as error:
                reply = refusal(error, call, called)
                if not self._begun:
                    await reply(scope, receive, send)
                    return
                # The status was sent: the reason is the last line, unlike answers without an id.
                await self._write(bytes(reply.body), send)
            await self._begin(send)
            await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _exchange(self, call: Call, scope: CallScope, send: Send) -> None:
        lines, held = _Lines(self._request, self._gate.limits.max_bytes), self._gate.limits.held
        wants_queries = self._gate.observer.wants_queries
        message_type = GetMessageClass(self._endpoint.row.descriptor.input_type)

        async def messages() -> AsyncIterator[Message]:
            async for number, line in lines:
                async with held.room(client_address(), parsed_bytes(line)):
                    message = await off_the_loop(len(line), _parsed, line, message_type(), number)
                del line
                if wants_queries:
                    self._gate.observer.note_queries(scope, queries_of(message))
                yield message

        async def write(answer: Message) -> None:
            await self._write(await write_message(answer), send)

        answering = self._gate.methods.call(self._endpoint.row, messages(), call, write)
        await attended(lines.read_until_client_gone(), answering)

    async def _begin(self, send: Send) -> None:
        if not self._begun:
            self._begun = True
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})

    async def _write(self, line: bytes, send: Send) -> None:
        await self._begin(send)
        await send({"type": "http.response.body", "body": line + b"\n", "more_body": True})


class _Lines:
    """The lines of a body as they come, numbered from 1, without blank ones; `max_bytes` limits each."""

    def __init__(self, request: Request, max_bytes: int) -> None:
        self._request = request
        self._max_bytes = max_bytes
        self._held = bytearray()
        self._is_whole = False
        self._news = asyncio.Event()
        self._wanted = asyncio.Event()

    async def read_until_client_gone(self) -> None:
        """Read the body, some of it ahead, and return when the client has left.

        A disconnect is only seen after the whole body: while a long body waits for its reader, it is not.
        """
        while (event := await self._request.receive())["type"] != "http.disconnect":
            self._held += event.get("body", b"")
            self._is_whole = not event.get("more_body", False)
            self._news.set()
            if len(self._held) > _READ_AHEAD_BYTES and not self._is_whole:
                self._wanted.clear()
                await self._wanted.wait()

    async def __aiter__(self) -> AsyncIterator[tuple[int, bytes]]:
        number = 1
        seen = 0  # bytes of the line without an end of line
        while True:
            end = self._held.find(b"\n", seen)
            if end < 0 and not self._is_whole:
                seen = len(self._held)
                self._check_length(seen, number)
                self._news.clear()
                self._wanted.set()
                await self._news.wait()
                continue
            size = len(self._held) if end < 0 else end
            self._check_length(size, number)
            line = bytes(self._held[:size])
            del self._held[: size + 1]
            if line.strip():
                yield number, line
            elif number % _BLANK_LINES == 0:
                await asyncio.sleep(0)  # let other tasks run
            if end < 0:
                return
            number, seen = number + 1, 0

    def _check_length(self, size: int, number: int) -> None:
        if size > self._max_bytes:
            raise MalformedMessageError(f"line {number} is longer than {self._max_bytes} bytes")


def _parsed(line: bytes, message: Message, number: int) -> Message:
    try:
        return message_from_json(line, message)
    except MalformedMessageError as error:
        raise MalformedMessageError(f"line {number}: {error}") from None
    except InputError as error:
        raise InputError(error.field, f"{error.message} (line {number})") from None
