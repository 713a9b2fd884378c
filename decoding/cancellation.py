"""Cancels decoding cooperatively: decoders poll a token between steps, since a step cannot be interrupted."""

from __future__ import annotations

import threading
import time

from genret.decoding.errors import DeadlineExceededError, DecodingCancelledError


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
    """Return the error that should end the work, None to go on.

    It has neither traceback nor context: frames would keep the callers' session, with its keys and values,
    alive.
    """
    if cancel is None:
        return None
    try:
        cancel.check()
    except DecodingCancelledError as error:
        error.__context__ = None
        return error.with_traceback(None)
    return None
