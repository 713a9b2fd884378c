"""Converts errors between the service's values and `google.rpc.Status` with its details."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeVar

from google.protobuf.message import DecodeError, Message
from google.rpc import error_details_pb2, status_pb2
from grpc import StatusCode

from genret.service.errors import CallError
from genret.service.status import Failure, logged_failure

M = TypeVar("M", bound=Message)

# Errors travel in HTTP/2 trailers, and a message may quote what was sent. Some clients refuse trailers from
# 8 KiB on, and a text takes up to four times its bytes: escaped as %XX, and repeated in details.
_MAX_TEXT_CHARS = 500
_MAX_TEXT_BYTES = 800
_ELLIPSIS = "…"
DETAILS_KEY = "grpc-status-details-bin"  # of the trailer
CODE_NAMES: dict[int, str] = {code.value[0]: code.name for code in StatusCode}


def failure_to_proto(failure: Failure) -> status_pb2.Status:
    """Return `google.rpc.Status` with the failure's details."""
    status = status_pb2.Status(code=failure.code.value[0], message=_clip(failure.message))
    for detail in failure.details:
        status.details.add().Pack(getattr(error_details_pb2, detail.message)(**_clipped(detail.fields)))
    return status


async def outcome(result: M, request_id: str, ask: Callable[..., Awaitable[Any]], *arguments: Any) -> M:
    """Fill the message `result` with the reply of `ask`, or with the status of the error that it raises."""
    filled: Any = result
    try:
        filled.response.CopyFrom(await ask(*arguments))
    except Exception as error:
        filled.error.CopyFrom(failure_to_proto(logged_failure(error, request_id)))
    return result


def error_from_status(status: status_pb2.Status, request_id: str = "") -> CallError:
    """Return the client's error for a server's status and the id of the call in the server's log."""
    retry = error_details_pb2.RetryInfo()
    info = error_details_pb2.ErrorInfo()
    bad = error_details_pb2.BadRequest()
    for packed in status.details:
        for detail in (retry, info, bad):
            packed.Unpack(detail)  # leaves `detail` unchanged if the type differs
    return CallError(
        CODE_NAMES.get(status.code, "UNKNOWN"),
        status.message,
        retry.retry_delay.ToNanoseconds() / 1e9 if retry.HasField("retry_delay") else None,
        reason=info.reason,
        field_violations=tuple((found.field, found.description) for found in bad.field_violations),
        request_id=request_id,
    )


def status_from_bytes(raw: bytes) -> status_pb2.Status | None:
    """Parse the `grpc-status-details-bin` trailer; None when it is not a status."""
    try:
        return status_pb2.Status.FromString(raw)
    except DecodeError:
        return None


def _clipped(value: Any) -> Any:
    """Return a field's value with its texts clipped."""
    if isinstance(value, Mapping):
        return {name: _clipped(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_clipped(item) for item in value]
    return _clip(value) if isinstance(value, str) else value


def _clip(text: str) -> str:
    encoded = text.encode(errors="replace")
    if len(text) <= _MAX_TEXT_CHARS and len(encoded) <= _MAX_TEXT_BYTES:
        return encoded.decode()
    head = text[: _MAX_TEXT_CHARS - 1].encode(errors="replace")
    return head[: _MAX_TEXT_BYTES - len(_ELLIPSIS.encode())].decode(errors="ignore") + _ELLIPSIS
