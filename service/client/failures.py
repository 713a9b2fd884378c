"""What gRPC says of a call that failed, as the client's own error."""

from __future__ import annotations

from typing import Any

from service.errors import MESSAGE_TOO_LARGE, CallError
from service.wire.status import error_from_status, status_from_bytes

_DETAILS_KEY = "grpc-status-details-bin"
# What gRPC's asyncio says of a stream that the server ended while a message was on its way; the server's own
# status is lost then.
_SEND_FAILED = "Internal error from Core"
# How both sides of gRPC begin what they say about a message above a limit, on the way in and on the way out.
_TOO_LARGE = ("message larger than max", "message exceeds")


def failed_call(error: Any, address: str, timeout_s: float | None, request_id: str) -> CallError:
    """Return the error of a call.

    Args:
        error: A `grpc.RpcError` of a call, or a `grpc.aio.AioRpcError`.
        address: What was called.
        timeout_s: The call's deadline, seconds; None: it had none.
        request_id: Name of the call in the server's log.
    """
    for key, value in error.trailing_metadata() or ():
        status = status_from_bytes(value) if key == _DETAILS_KEY else None
        if status is not None:
            return error_from_status(status, request_id)
    code, details = error.code().name, str(error.details() or error.code().name)
    reason = ""
    if code == "INTERNAL" and details.startswith(_SEND_FAILED):
        # Why is told to whoever tries again.
        code, message = "UNAVAILABLE", f"{address} ended the stream while queries were being sent"
    elif code == "UNAVAILABLE":
        # grpc puts the reason last, behind the addresses it tried, in a list with brackets.
        message = f"no server answers at {address}: {details.rsplit(': ', 1)[-1].rstrip(']')}"
    elif code == "DEADLINE_EXCEEDED" and timeout_s is not None:
        message = f"no answer from {address} within {timeout_s:g} s"
    else:
        message = f"{address}: {details}"
        # Without ErrorInfo it is gRPC itself that is exhausted.
        if code == "RESOURCE_EXHAUSTED" and any(words in details.lower() for words in _TOO_LARGE):
            reason = MESSAGE_TOO_LARGE
    return CallError(code, message, reason=reason, request_id=request_id)
