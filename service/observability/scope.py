"""The call that the running code belongs to, carried by a context variable.

Set by whatever takes calls off a wire (the gRPC interceptor, the gateway); read by log formatters, by the
methods' `Call` for its id, and by what notes findings about the call. Tasks that a call starts inherit it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Protocol

Attribute = str | int | float


class CallSpan(Protocol):
    """The part of a trace's span that a call's scope needs; see `service.observability.tracing`."""

    def stage(self, name: str, begin_s: float, end_s: float, attributes: Mapping[str, Attribute]) -> None:
        """Add a finished child span.

        Args:
            name: Of the stage.
            begin_s: `time.monotonic()` at its begin, seconds.
            end_s: `time.monotonic()` at its end, seconds.
            attributes: What is known of it.
        """


@dataclass(slots=True, eq=False)
class CallScope:
    """What is known of a call while it runs.

    Attributes:
        request_id: Its id.
        method: Its method, as metrics call it.
        peer: The client's address without port; empty when unknown.
        index: Name of the index that answered; empty before, or with several.
        version: Version of that index.
        begun: `time.monotonic()` at arrival, seconds.
        answered: `time.monotonic()` when the last answer came back from a device; None before.
        num_answers: Answers that came back from devices.
        span: The call's span; None without tracing.
    """

    request_id: str
    method: str
    peer: str = ""
    index: str = ""
    version: str = ""
    begun: float = field(default_factory=time.monotonic)
    answered: float | None = None
    num_answers: int = 0
    span: CallSpan | None = None


_CURRENT: ContextVar[CallScope | None] = ContextVar("genret_call", default=None)


def enter(scope: CallScope) -> None:
    """Make `scope` that of the running task, to its end. For tasks that serve one call each."""
    _CURRENT.set(scope)


@contextmanager
def entered(scope: CallScope) -> Iterator[CallScope]:
    """Make `scope` that of the block."""
    token = _CURRENT.set(scope)
    try:
        yield scope
    finally:
        _CURRENT.reset(token)


def current_scope() -> CallScope | None:
    """Return the scope of the call that the running code belongs to; None outside of calls."""
    return _CURRENT.get()
