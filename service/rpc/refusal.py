"""How a gRPC call ends that is not answered: the table's status with its details."""

from __future__ import annotations

from typing import Any, NoReturn

from service.methods.call import REQUEST_ID_KEY
from service.methods.failures import logged_failure
from service.wire.status import failure_to_proto

_DETAILS_KEY = "grpc-status-details-bin"


async def refuse(context: Any, error: Exception, request_id: str) -> NoReturn:
    """End a call with the status of `error`.

    Args:
        context: The call's `grpc.aio.ServicerContext`.
        error: Why there is no answer.
        request_id: Under which a bug is logged; told to the caller unless empty.

    Raises:
        grpc.aio.AbortError: always; it ends the call.
    """
    failure = logged_failure(error, request_id)
    status = failure_to_proto(failure)
    trailers: list[tuple[str, str | bytes]] = [(_DETAILS_KEY, status.SerializeToString())]
    if request_id:
        trailers.append((REQUEST_ID_KEY, request_id))
    await context.abort(failure.code, status.message, tuple(trailers))
    raise AssertionError("abort returned")
