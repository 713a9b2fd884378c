"""How a gRPC call ends that is not answered: the table's status with its details."""

from __future__ import annotations

import asyncio
from typing import Any, NoReturn

import grpc

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
        grpc.aio.AbortError: it ends the call.
        asyncio.CancelledError: the call has ended already.
    """
    failure = logged_failure(error, request_id)
    status = failure_to_proto(failure)
    trailers: list[tuple[str, str | bytes]] = [(_DETAILS_KEY, status.SerializeToString())]
    if request_id:
        trailers.append((REQUEST_ID_KEY, request_id))
    try:
        await context.abort(failure.code, status.message, tuple(trailers))
    except grpc.aio.InternalError:
        # The client has gone, as at its deadline, and gRPC is about to cancel the call: nobody is to be told.
        raise asyncio.CancelledError from None
    raise AssertionError("abort returned")
