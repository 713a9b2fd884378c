"""One HTTP request as a call of the API: its headers, its body, its reply, and a client that may leave."""

from __future__ import annotations

import asyncio
import math
import re
import time
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any, ParamSpec, TypeVar

from google.protobuf.message import Message
from grpc import StatusCode
from starlette.requests import ClientDisconnect, Request

from decoding.errors import DeadlineExceededError, DecodingCancelledError
from retrieval.errors import InputError
from service.gateway.errors import HttpError
from service.methods.call import REQUEST_ID_KEY, Call
from service.wire.json import message_from_json, message_to_json

TIMEOUT_KEY = "x-request-timeout-seconds"
JSON_TYPE = "application/json"
# Above this, JSON is read and written off the event loop: a megabyte takes some tens of milliseconds.
_INLINE_BYTES = 32 * 1024
# How long a client may take to send a body that is announced, seconds.
_BODY_SECONDS = 30.0
# How long the rest of a refused body is read and thrown away, so that the client sees why, seconds.
_DISCARD_SECONDS = 2.0
# As in JSON; Python's own reading takes more.
_NUMBER = re.compile(r"[0-9]+(\.[0-9]+)?([eE][+-]?[0-9]{1,3})?", re.ASCII)
M = TypeVar("M", bound=Message)
P = ParamSpec("P")
R = TypeVar("R")


def begin_call(request: Request, max_seconds: float) -> Call:
    """Return the call a request begins, before its own deadline is looked at."""
    return Call.begin(request.headers.get(REQUEST_ID_KEY, ""), None, max_seconds)


def with_deadline(call: Call, request: Request) -> Call:
    """Return the call with the deadline the client asks for.

    Raises:
        InputError: the header is no positive number.
    """
    sent = request.headers.get(TIMEOUT_KEY)
    if sent is None:
        return call
    seconds = float(sent) if _NUMBER.fullmatch(sent) else 0.0
    if not (math.isfinite(seconds) and seconds > 0):
        raise InputError(TIMEOUT_KEY, f"must be a number of seconds above 0, got {sent[:100]!r}")
    return replace(call, deadline=min(call.deadline, call.arrived + seconds))


async def read_message(request: Request, message: M, max_bytes: int, may_be_empty: bool) -> M:
    """Fill a message from the body of a request.

    Args:
        request: Whose body is read.
        message: An empty message of the type that is expected.
        max_bytes: Largest body that is read.
        may_be_empty: Whether no body at all means a message without fields.

    Raises:
        HttpError: the body is too large, too slow, or not declared as JSON.
        MalformedMessageError, InputError: see `message_from_json`.
        DecodingCancelledError: the client left.
    """
    if may_be_empty and not _has_body(request):
        return message
    check_type(request, JSON_TYPE)
    try:
        async with asyncio.timeout(_BODY_SECONDS):
            body = await _read_body(request, max_bytes)
    except TimeoutError:
        text = f"the body did not arrive within {_BODY_SECONDS:.0f} s"
        raise HttpError(408, StatusCode.DEADLINE_EXCEEDED, text, {"connection": "close"}) from None
    except ClientDisconnect:
        raise DecodingCancelledError("the client left") from None
    if not body and may_be_empty:
        return message
    return await off_the_loop(len(body), message_from_json, body, message)


async def write_message(message: Message) -> bytes:
    """Return the body of a reply."""
    return await off_the_loop(message.ByteSize(), message_to_json, message)


async def off_the_loop(size: int, work: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """Return what `work` returns, which takes time in proportion to `size` bytes.

    What is small is done at once, the rest in a thread: the event loop is everybody's.
    """
    if size > _INLINE_BYTES:
        return await asyncio.to_thread(work, *args, **kwargs)
    return work(*args, **kwargs)


async def attended(request: Request, work: Coroutine[Any, Any, R], deadline: float) -> R:
    """Wait for `work`, as long as there is somebody who waits for it.

    Args:
        request: Whose body has been read.
        work: Cancelled when the client leaves or the time is over.
        deadline: `time.monotonic()` after which the answer is worth nothing, seconds.

    Raises:
        DecodingCancelledError: the client left.
        DeadlineExceededError: the time is over.
    """
    working = asyncio.create_task(work)
    leaving = asyncio.create_task(until_gone(request))
    try:
        await asyncio.wait(
            {working, leaving},
            timeout=None if math.isinf(deadline) else max(0.0, deadline - time.monotonic()),
            return_when=asyncio.FIRST_COMPLETED,
        )
        if working.done():
            return working.result()
        if leaving.done():
            raise DecodingCancelledError("the client left")
        raise DeadlineExceededError("the deadline passed")
    finally:
        working.cancel()
        leaving.cancel()
        await asyncio.gather(working, leaving, return_exceptions=True)


async def until_gone(request: Request) -> None:
    """Return when the client of a request, whose body has been read, has left."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _has_body(request: Request) -> bool:
    return "transfer-encoding" in request.headers or request.headers.get("content-length", "0") != "0"


async def _read_body(request: Request, max_bytes: int) -> bytes:
    announced = request.headers.get("content-length", "")
    too_large = announced.isdigit() and int(announced) > max_bytes
    chunks: list[bytes] = []
    size = 0
    if not too_large:
        async for chunk in request.stream():
            size += len(chunk)
            if size > max_bytes:
                too_large = True
                break
            chunks.append(chunk)
    if too_large:
        await _discard(request)
        text = f"the body is larger than {max_bytes} bytes"
        raise HttpError(413, StatusCode.INVALID_ARGUMENT, text, {"connection": "close"})
    return b"".join(chunks)


async def _discard(request: Request) -> None:
    """Read what is left of a body, for a while: who is cut off while sending sees no reply."""
    try:
        async with asyncio.timeout(_DISCARD_SECONDS):
            while (await request.receive()).get("more_body", False):
                pass
    except TimeoutError:
        return


def check_type(request: Request, expected: str) -> None:
    """Refuse a body that is not declared to be of the expected type, in UTF-8 and not compressed.

    Raises:
        HttpError: it is not.
    """
    kind, _, parameters = request.headers.get("content-type", "").partition(";")
    name, _, charset = parameters.strip().lower().partition("=")
    is_utf8 = not name or (name == "charset" and charset.strip('"') == "utf-8")
    if kind.strip().lower() != expected or not is_utf8:
        raise HttpError(415, StatusCode.INVALID_ARGUMENT, f"the content-type must be {expected}, in UTF-8")
    if request.headers.get("content-encoding", "identity").lower() != "identity":
        raise HttpError(415, StatusCode.INVALID_ARGUMENT, "the body must not be compressed")
