"""The one table of statuses for HTTP: what a failure is there, and what its body says."""

from __future__ import annotations

import math
from collections.abc import Mapping

from grpc import StatusCode
from starlette.responses import Response

from service.methods.failures import logged_failure
from service.status import Failure, RetryAfter
from service.wire.json import json_bytes, message_to_dict
from service.wire.status import failure_to_proto

# As google.rpc.Code maps them; 499 is nginx's "client closed request".
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
    """A request that HTTP itself refuses, before any method is asked.

    Args:
        http_status: Status of the reply.
        code: What the failure is called in its body.
        message: Why.
        headers: Further headers of the reply.
    """

    def __init__(
        self, http_status: int, code: StatusCode, message: str, headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(message)
        self.http_status = http_status
        self.code = code
        self.message = message
        self.headers = dict(headers or {})


def code_of(error: Exception, request_id: str) -> tuple[Failure, int, dict[str, str]]:
    """Return the failure of `error`, its HTTP status and further headers; a bug is logged."""
    if isinstance(error, HttpError):
        return Failure(error.code, error.message), error.http_status, error.headers
    failure = logged_failure(error, request_id)
    headers: dict[str, str] = {}
    if failure.code is StatusCode.UNAUTHENTICATED:
        headers["www-authenticate"] = 'Bearer realm="genret"'
    for detail in failure.details:
        if isinstance(detail, RetryAfter):
            headers["retry-after"] = str(max(1, math.ceil(detail.seconds)))  # whole seconds in HTTP
    return failure, HTTP_STATUS.get(failure.code, 500), headers


def failure_body(failure: Failure, http_status: int) -> bytes:
    """Return the body of a reply that fails."""
    status = message_to_dict(failure_to_proto(failure), defaults=False)
    error = {
        "code": http_status,
        "status": failure.code.name,
        "message": status.get("message", ""),
        "details": status.get("details", []),
    }
    return json_bytes({"error": error})


def error_response(error: Exception, request_id: str) -> tuple[Response, StatusCode]:
    """Return the reply to a request that fails, and the status its failure has in gRPC."""
    failure, http_status, headers = code_of(error, request_id)
    body = failure_body(failure, http_status)
    return Response(body, http_status, headers, media_type="application/json"), failure.code
