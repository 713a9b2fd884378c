"""SIGTERM treated as Ctrl-C: one way to stop a command, and nothing half-done stays behind."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

INTERRUPTED = 130  # exit code of a command that was stopped by the user: 128 + SIGINT


_Handler = Callable[[int, FrameType | None], object] | signal.Handlers


@contextmanager
def handled(handler: _Handler | None, *numbers: signal.Signals) -> Iterator[None]:
    """Give signals a handler in the block; None: put theirs back behind it, whatever the block sets.

    Does nothing outside the main thread, which alone may set one.
    """
    in_main_thread = threading.current_thread() is threading.main_thread()
    before = {number: signal.getsignal(number) for number in numbers if in_main_thread}
    # A handler that was not set from Python is None and could not be set again.
    before = {number: found for number, found in before.items() if found is not None}
    try:
        if handler is not None:
            for number in before:
                signal.signal(number, handler)
        yield
    finally:
        for number, handler_before in before.items():
            signal.signal(number, handler_before)


@contextmanager
def sigterm_as_interrupt() -> Iterator[None]:
    """Let SIGTERM raise KeyboardInterrupt in the block. Does nothing outside the main thread."""
    with handled(signal.default_int_handler, signal.SIGTERM):
        yield


@contextmanager
def surely_interrupted() -> Iterator[None]:
    """Let Ctrl-C and SIGTERM end the block with KeyboardInterrupt, whatever the code in it makes of them.

    Compiled modules that are being imported turn it into another error, such as an AttributeError of a module
    that is half there; and a lock that a condition has let go and not yet taken again, into a RuntimeError.
    Does nothing outside the main thread.
    """
    came = False

    def interrupt(number: int, frame: FrameType | None) -> None:
        nonlocal came
        came = True
        signal.default_int_handler(number, frame)

    with handled(interrupt, signal.SIGINT, signal.SIGTERM):
        try:
            yield
        except Exception as error:
            if not came:
                raise
            interruption = KeyboardInterrupt()
            for note in getattr(error, "__notes__", ()):  # they say which work is kept
                interruption.add_note(note)
            raise interruption from error


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Hold Ctrl-C and SIGTERM back until the end of the block: a second Ctrl-C must not stop the tidying up.

    Does nothing outside the main thread.
    """
    came: list[int] = []
    try:
        with handled(lambda number, _: came.append(number), signal.SIGINT, signal.SIGTERM):
            yield
    finally:
        for delivered in dict.fromkeys(came):
            signal.raise_signal(delivered)
