"""Reads one HTTP request as a call of the API and writes its reply; notices a client that leaves.

Holds the table of HTTP statuses of failures, and makes their bodies.
"""

from __future__ import annotations

import asyncio
import math
import re
import time
from collections.abc import Callable, Coroutine, Mapping
from contextlib import ExitStack
from dataclasses import replace
from typing import Any, NamedTuple, ParamSpec, TypeVar

from google.protobuf.message import Message
from grpc import StatusCode
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from genret.decoding.errors import DeadlineExceededError, DecodingCancelledError
from genret.retrieval.errors import InputError
from genret.service.call import REQUEST_ID_KEY, Call, client_address
from genret.service.errors import OverloadedError
from genret.service.serving.request_bytes import RequestBytes
from genret.service.status import Failure, logged_failure
from genret.service.wire.json import (
    json_bytes,
    message_to_dict,
    message_to_json,
    parsed_bytes,
)
from genret.service.wire.rpc_status import failure_to_proto

TIMEOUT_KEY = "x-request-timeout-seconds"
JSON_TYPE = "application/json"
# Larger JSON is read and written off the event loop: a megabyte takes some tens of milliseconds.
_INLINE_BYTES = 32 * 1024
# Longest time for a client to send its body, seconds.
_BODY_SECONDS = 30.0
# How long the rest of a refused body is read and dropped, so that the client reads the reply, seconds.
_DISCARD_SECONDS = 2.0
# As in JSON; Python's float() accepts more.
_NUMBER = re.compile(r"[0-9]+(\.[0-9]+)?([eE][+-]?[0-9]{1,3})?", re.ASCII)
_NOTHING = b"{}"
P = ParamSpec("P")
R = TypeVar("R")


def begin_call(request: Request, max_seconds: float) -> Call:
    """Return the call a request begins, before its own deadline is read."""
    return Call.begin(request.headers.get(REQUEST_ID_KEY, ""), None, max_seconds)


def with_deadline(call: Call, request: Request) -> Call:
    """Return the call with the deadline of the client's header; InputError if that is no positive number."""
    sent = request.headers.get(TIMEOUT_KEY)
    if sent is None:
        return call
    seconds = float(sent) if _NUMBER.fullmatch(sent) else 0.0
    if not (math.isfinite(seconds) and seconds > 0):
        raise InputError(TIMEOUT_KEY, f"must be a number of seconds above 0, got {sent[:100]!r}")
    return replace(call, deadline=min(call.deadline, call.arrived + seconds))


class BodyLimits(NamedTuple):
    """Limits of bodies: bytes of one, or of a line of a stream; items of a message; bytes of all together."""

    max_bytes: int
    max_items: int
    held: RequestBytes


async def read_body(
    request: Request, read: Callable[[bytes, int], R], limits: BodyLimits, may_be_empty: bool
) -> R:
    """Return what `read` makes of the body of a request and the most items of a list in it.

    No body is an empty object if it `may_be_empty`.

    Raises:
        OverloadedError: the bodies that are read take too much memory.
        HttpError: the body is too large, too slow, or not declared as JSON.
        DecodingCancelledError: the client left.
        Exception: of `read`.
    """
    length = request.headers.get("content-length", "0")
    if may_be_empty and length == "0" and "transfer-encoding" not in request.headers:
        return read(_NOTHING, limits.max_items)
    check_type(request, JSON_TYPE)
    try:
        async with asyncio.timeout(_BODY_SECONDS):
            body = await _received(request, limits)
    except TimeoutError:
        text = f"the body did not arrive within {_BODY_SECONDS:.0f} s"
        raise HttpError(408, StatusCode.DEADLINE_EXCEEDED, text, {"connection": "close"}) from None
    except ClientDisconnect:
        raise DecodingCancelledError("the client left") from None
    if not body and may_be_empty:
        return read(_NOTHING, limits.max_items)
    with limits.held.hold(client_address(), parsed_bytes(body)):
        return await off_the_loop(len(body), read, body, limits.max_items)


async def write_message(message: Message, write: Callable[[Any], bytes] = message_to_json) -> bytes:
    """Return a message as the body of a reply."""
    return await off_the_loop(message.ByteSize(), write, message)


async def off_the_loop(size: int, work: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """Return the result of `work`, in a thread if it handles many bytes (`size`)."""
    if size > _INLINE_BYTES:
        return await asyncio.to_thread(work, *args, **kwargs)
    return work(*args, **kwargs)


async def attended(
    leaving: Coroutine[Any, Any, None], work: Coroutine[Any, Any, R], deadline: float = math.inf
) -> R:
    """Wait for `work` until `deadline` (`time.monotonic()`, seconds), while the client waits for it.

    `leaving` returns when the client has left.

    Raises:
        DecodingCancelledError: the client left.
        DeadlineExceededError: the deadline passed.
    """
    tasks = (asyncio.create_task(work), asyncio.create_task(leaving))
    working, gone = tasks
    try:
        left = None if math.isinf(deadline) else max(0.0, deadline - time.monotonic())
        await asyncio.wait(tasks, timeout=left, return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return working.result()
        if gone.done():
            raise DecodingCancelledError("the client left")
        raise DeadlineExceededError("the deadline passed")
    finally:
        working.cancel()
        gone.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def until_gone(request: Request) -> None:
    """Return when the client of a request, whose body has been read, has left."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def _received(request: Request, limits: BodyLimits) -> bytes:
    announced = request.headers.get("content-length", "")
    too_large = announced.isdigit() and int(announced) > limits.max_bytes
    chunks: list[bytes] = []
    size = 0
    with ExitStack() as holding:
        if not too_large:
            async for chunk in request.stream():
                size += len(chunk)
                if size > limits.max_bytes:
                    too_large = True
                    break
                try:
                    holding.enter_context(limits.held.hold(client_address(), len(chunk)))
                except OverloadedError:
                    chunks.clear()
                    await _discard(request)
                    raise
                chunks.append(chunk)
    if too_large:
        await _discard(request)
        text = f"the body is larger than {limits.max_bytes} bytes"
        raise HttpError(413, StatusCode.INVALID_ARGUMENT, text, {"connection": "close"})
    return b"".join(chunks)


async def _discard(request: Request) -> None:
    """Read the rest of a body for a while: a client that is cut off while sending sees no reply."""
    try:
        async with asyncio.timeout(_DISCARD_SECONDS):
            while (await request.receive()).get("more_body", False):
                pass
    except TimeoutError:
        return


def check_type(request: Request, expected: str) -> None:
    """Raise HttpError unless the body is declared to be of the expected type, UTF-8 and not compressed."""
    given = request.headers.get("content-type", "none")
    kind, _, parameters = given.partition(";")
    name, _, charset = parameters.strip().lower().partition("=")
    is_utf8 = not name or (name == "charset" and charset.strip('"') == "utf-8")
    if kind.strip().lower() != expected or not is_utf8:
        text = f"the content-type must be {expected}, in UTF-8, got {given[:100]}"
        raise HttpError(415, StatusCode.INVALID_ARGUMENT, text)
    if request.headers.get("content-encoding", "identity").lower() != "identity":
        raise HttpError(415, StatusCode.INVALID_ARGUMENT, "the body must not be compressed")


# The mapping of google.rpc.Code; 499 is nginx's "client closed request".
HTTP_STATUS: dict[StatusCode, int] = {
    StatusCode.CANCELLED: 499,
    StatusCode.INVALID_ARGUMENT: 400,
    StatusCode.FAILED_PRECONDITION: 400,
    StatusCode.UNAUTHENTICATED: 401,
    StatusCode.PERMISSION_DENIED: 403,
    StatusCode.NOT_FOUND: 404,
    StatusCode.RESOURCE_EXHAUSTED: 429,
    StatusCode.INTERNAL: 500,
    StatusCode.DATA_LOSS: 500,
    StatusCode.UNIMPLEMENTED: 501,
    StatusCode.UNAVAILABLE: 503,
    StatusCode.DEADLINE_EXCEEDED: 504,
}


class HttpError(Exception):
    """A request that HTTP itself refuses, before any method is called; `code` is the status in its body."""

    def __init__(
        self, http_status: int, code: StatusCode, message: str, headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(message)
        self.http_status = http_status
        self.code = code
        self.message = message
        self.headers = dict(headers or {})


def error_body(told: dict[str, Any]) -> dict[str, Any]:
    """Return the body that tells a failure, where an endpoint has no form of its own."""
    return {"error": told}


def error_response(
    error: Exception, request_id: str, body: Callable[[dict[str, Any]], dict[str, Any]] = error_body
) -> tuple[Response, StatusCode]:
    """Return the reply to a failed request, and the failure's status in gRPC; a bug is logged."""
    if isinstance(error, HttpError):
        failure, http_status, headers = Failure(error.code, error.message), error.http_status, error.headers
    else:
        failure, headers = logged_failure(error, request_id), {}
        http_status = HTTP_STATUS.get(failure.code, 500)
    if failure.code is StatusCode.UNAUTHENTICATED:
        headers["www-authenticate"] = 'Bearer realm="genret"'
    for detail in failure.details:
        if delay := detail.fields.get("retry_delay"):
            # Whole seconds in HTTP.
            headers["retry-after"] = str(max(1, delay["seconds"] + (delay["nanos"] > 0)))
    status = message_to_dict(failure_to_proto(failure), defaults=False)
    told = {
        "code": http_status,
        "status": failure.code.name,
        "message": status.get("message", ""),
        "details": status.get("details", []),
    }
    return Response(json_bytes(body(told)), http_status, headers, media_type=JSON_TYPE), failure.code
