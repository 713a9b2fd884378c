"""A gRPC call as the methods see it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from service.methods.call import REQUEST_ID_KEY, Call
from service.observability.scope import current_scope


def call_of(context: Any, max_seconds: float) -> Call:
    """Read id and deadline off a `grpc.aio.ServicerContext`.

    Where the call is observed, its id is the one it is observed under.
    """
    scope = current_scope()
    sent = sent_request_id(context.invocation_metadata() or ()) if scope is None else scope.request_id
    return Call.begin(sent, context.time_remaining(), max_seconds)


def sent_request_id(metadata: Iterable[tuple[str, Any]]) -> str:
    """Return the request id a client sent, whatever it is; empty when it sent none."""
    return str(dict(metadata).get(REQUEST_ID_KEY, ""))
