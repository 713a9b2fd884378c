"""Converts errors between the service's values and `google.rpc.Status` with its details."""

from __future__ import annotations

from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import DecodeError, Message
from google.rpc import error_details_pb2, status_pb2
from grpc import StatusCode

from genret.service.errors import CallError
from genret.service.status import (
    DOMAIN,
    Detail,
    Failure,
    FieldViolation,
    Precondition,
    Reason,
    ResourceInfo,
    RetryAfter,
)

# Errors travel in HTTP/2 trailers, and a message may quote what was sent. Some clients refuse trailers from
# 8 KiB on, and a text takes up to four times its bytes: escaped as %XX, and repeated in details.
_MAX_TEXT_CHARS = 500
_MAX_TEXT_BYTES = 800
_ELLIPSIS = "…"
_CODE_NAMES = {code.value[0]: code.name for code in StatusCode}


def failure_to_proto(failure: Failure) -> status_pb2.Status:
    """Return `google.rpc.Status` with the failure's details."""
    status = status_pb2.Status(code=failure.code.value[0], message=_clip(failure.message))
    for detail in failure.details:
        status.details.add().Pack(_detail_to_proto(detail))
    return status


def error_from_status(status: status_pb2.Status, request_id: str = "") -> CallError:
    """Return the client's error for a server's status and the id of the call in the server's log."""
    retry = error_details_pb2.RetryInfo()
    info = error_details_pb2.ErrorInfo()
    bad = error_details_pb2.BadRequest()
    for packed in status.details:
        for detail in (retry, info, bad):
            packed.Unpack(detail)  # leaves `detail` unchanged if the type differs
    return CallError(
        _CODE_NAMES.get(status.code, "UNKNOWN"),
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


def _detail_to_proto(detail: Detail) -> Message:
    match detail:
        case FieldViolation():
            violation = error_details_pb2.BadRequest.FieldViolation(
                field=_clip(detail.field), description=_clip(detail.description)
            )
            return error_details_pb2.BadRequest(field_violations=[violation])
        case ResourceInfo():
            return error_details_pb2.ResourceInfo(
                resource_type=detail.resource_type,
                resource_name=_clip(detail.name),
                description=_clip(detail.description),
            )
        case Precondition():
            failed = error_details_pb2.PreconditionFailure.Violation(
                type=detail.kind, subject=detail.subject, description=_clip(detail.description)
            )
            return error_details_pb2.PreconditionFailure(violations=[failed])
        case Reason():
            return error_details_pb2.ErrorInfo(
                reason=detail.reason, domain=DOMAIN, metadata=dict(detail.metadata)
            )
        case RetryAfter():
            delay = Duration()
            delay.FromNanoseconds(int(detail.seconds * 1e9))
            return error_details_pb2.RetryInfo(retry_delay=delay)


def _clip(text: str) -> str:
    encoded = text.encode(errors="replace")
    if len(text) <= _MAX_TEXT_CHARS and len(encoded) <= _MAX_TEXT_BYTES:
        return encoded.decode()
    head = text[: _MAX_TEXT_CHARS - 1].encode(errors="replace")
    return head[: _MAX_TEXT_BYTES - len(_ELLIPSIS.encode())].decode(errors="ignore") + _ELLIPSIS
