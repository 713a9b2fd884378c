"""How a call ends that is not answered: the table's status with its details, and a log line for bugs."""

from __future__ import annotations

import logging
from typing import Any, NoReturn

from grpc import StatusCode

from service.rpc.call import REQUEST_ID_KEY
from service.wire.status import WireStatus, failure_to_proto
from service.status import Failure, failure_of

_LOG = logging.getLogger(__name__)
_DETAILS_KEY = "grpc-status-details-bin"


def failure_status(error: Exception, request_id: str) -> WireStatus:
    """Return the wire's status for `error`; a bug is logged with its traceback under the request id."""
    return failure_to_proto(_logged_failure(error, request_id))


async def refuse(context: Any, error: Exception, request_id: str) -> NoReturn:
    """End a call with the status of `error`.

    Args:
        context: The call's `grpc.aio.ServicerContext`.
        error: Why there is no answer.
        request_id: Under which a bug is logged; told to the caller unless empty.

    Raises:
        grpc.aio.AbortError: always; it ends the call.
    """
    failure = _logged_failure(error, request_id)
    status = failure_to_proto(failure)
    trailers: list[tuple[str, str | bytes]] = [(_DETAILS_KEY, status.SerializeToString())]
    if request_id:
        trailers.append((REQUEST_ID_KEY, request_id))
    await context.abort(failure.code, status.message, tuple(trailers))
    raise AssertionError("abort returned")


def _logged_failure(error: Exception, request_id: str) -> Failure:
    failure = failure_of(error, request_id)
    if failure.code is StatusCode.INTERNAL:
        _LOG.error("request %s failed", request_id, exc_info=error)
    return failure
