"""A gRPC call as the methods see it."""

from __future__ import annotations

from typing import Any

from service.methods.call import REQUEST_ID_KEY, Call


def call_of(context: Any, max_seconds: float) -> Call:
    """Read id and deadline off a `grpc.aio.ServicerContext`."""
    sent = {key: value for key, value in context.invocation_metadata() or () if key == REQUEST_ID_KEY}
    return Call.begin(str(sent.get(REQUEST_ID_KEY, "")), context.time_remaining(), max_seconds)
