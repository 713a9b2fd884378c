"""RetrieveStream over HTTP: one message a line in, one answer a line out, both at the same time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from genret.decoding.errors import DecodingCancelledError
from genret.retrieval.errors import InputError
from genret.service.call import Call
from genret.service.errors import MalformedMessageError
from genret.service.gateway.endpoints import NDJSON_TYPE, Endpoint, Gate, Handler, finished, refusal
from genret.service.gateway.http_calls import check_type, off_the_loop, write_message
from genret.service.methods import Methods
from genret.service.observability.observations import ObservedCall
from genret.service.wire.json import message_from_json
from genret.service.wire.requests import queries_of

# Bytes read of a body that is sent faster than it is answered.
_READ_AHEAD_BYTES = 256 * 1024
_BLANK_LINES = 256


def stream(endpoint: Endpoint, methods: Methods, gate: Gate) -> Handler:
    """Return the handler of a method with a stream of messages in and out."""

    async def serve(request: Request) -> Response:
        return _Exchange(endpoint, methods, gate, request)

    return serve


class _Exchange(Response):
    """A reply that is written while its request is read."""

    def __init__(self, endpoint: Endpoint, methods: Methods, gate: Gate, request: Request) -> None:
        super().__init__(media_type=NDJSON_TYPE)
        del self.headers["content-length"]
        self._endpoint = endpoint
        self._methods = methods
        self._gate = gate
        self._request = request
        self._begun = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with self._gate.admit(self._request, self._endpoint) as (call, observed):
            finished(self, call.request_id)
            try:
                self._gate.authorize(self._request, self._endpoint.scope)
                check_type(self._request, NDJSON_TYPE)
                await self._exchange(call, observed, send)
            except (Exception, asyncio.CancelledError) as error:
                reply = refusal(error, call, observed)
                if not self._begun:
                    await reply(scope, receive, send)
                    return
                # The status was sent: the reason is the last line, unlike answers without an id.
                await self._write(bytes(reply.body), send)
            await self._begin(send)
            await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _exchange(self, call: Call, observed: ObservedCall, send: Send) -> None:
        lines = _Lines(self._request, self._gate.max_bytes)
        wants_queries = self._gate.observer.wants_queries
        message_type = GetMessageClass(self._endpoint.row.descriptor.input_type)

        async def messages() -> AsyncIterator[Message]:
            async for number, line in lines:
                message = await off_the_loop(len(line), _parsed, line, message_type(), number)
                if wants_queries:
                    observed.note_queries(queries_of(message))
                yield message

        async def write(answer: Message) -> None:
            await self._write(await write_message(answer), send)

        working = asyncio.ensure_future(self._methods.call(self._endpoint.row, messages(), call, write))
        leaving = asyncio.create_task(lines.read_until_client_gone())
        try:
            await asyncio.wait({working, leaving}, return_when=asyncio.FIRST_COMPLETED)
            if not working.done():
                raise DecodingCancelledError("the client left")
            working.result()
        finally:
            working.cancel()
            leaving.cancel()
            await asyncio.gather(working, leaving, return_exceptions=True)

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
