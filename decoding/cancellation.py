"""Cooperative cancellation: decoders poll one object between steps.

A decode step cannot be interrupted, so cancellation and deadlines act between steps.
"""

from __future__ import annotations

import threading
import time

from decoding.errors import DeadlineExceededError, DecodingCancelledError


class CancelToken:
    """A flag and an optional deadline, polled by the decoders before every step.

    Args:
        deadline: `time.monotonic()` value in seconds after which `check` raises, or None.
    """

    __slots__ = ("_event", "deadline")

    def __init__(self, deadline: float | None = None) -> None:
        self._event = threading.Event()
        self.deadline = deadline

    def cancel(self) -> None:
        """Ask the decoder to stop before its next step. Thread-safe, idempotent."""
        self._event.set()

    @property
    def cancelled(self) -> bool:
        """Whether `cancel` was called."""
        return self._event.is_set()

    def check(self) -> None:
        """Raise if the work should stop.

        Raises:
            DecodingCancelledError: `cancel` was called.
            DeadlineExceededError: the deadline has passed.
        """
        if self._event.is_set():
            raise DecodingCancelledError("decoding was cancelled by the caller")
        if self.deadline is not None and time.monotonic() >= self.deadline:
            raise DeadlineExceededError("the deadline passed during decoding")


def reason_to_stop(cancel: CancelToken | None) -> DecodingCancelledError | None:
    """Return why work is not to go on, for who answers many at once; None where it is.

    The error holds no frames: they would hold the callers', whose session holds keys and values.
    """
    if cancel is None:
        return None
    try:
        cancel.check()
    except DecodingCancelledError as error:
        return error.with_traceback(None)
    return None
