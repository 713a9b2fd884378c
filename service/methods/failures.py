"""What an error becomes on the wire; a bug is logged, and only its request id is told."""

from __future__ import annotations

import logging

from grpc import StatusCode

from service.status import Failure, failure_of
from service.wire.status import WireStatus, failure_to_proto

_LOG = logging.getLogger(__name__)


def failure_status(error: Exception, request_id: str) -> WireStatus:
    """Return the wire's status for `error`; a bug is logged with its traceback under the request id."""
    return failure_to_proto(logged_failure(error, request_id))


def logged_failure(error: Exception, request_id: str) -> Failure:
    """Return the table's failure for `error`; a bug is logged with its traceback under the request id."""
    failure = failure_of(error, request_id)
    if failure.code is StatusCode.INTERNAL:
        _LOG.error("request %s failed", request_id, exc_info=error)
    return failure
