"""SIGTERM treated as Ctrl-C: one way to stop a command, and nothing half-done stays behind."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

INTERRUPTED = 130  # exit code of a command that was stopped by the user: 128 + SIGINT


@contextmanager
def sigterm_as_interrupt() -> Iterator[None]:
    """Let SIGTERM raise KeyboardInterrupt in the block. Does nothing outside the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread may set handlers
        return
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def surely_interrupted() -> Iterator[None]:
    """Let Ctrl-C and SIGTERM end the block with KeyboardInterrupt, whatever the code below makes of them.

    Compiled modules that are being imported make another error of it, such as an AttributeError of a module
    that is half there; and a lock that a condition has let go and not yet taken again, a RuntimeError. Does
    nothing outside the main thread.
    """
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread may set handlers, and only it is interrupted
        return
    came = False

    def interrupt(number: int, frame: FrameType | None) -> None:
        nonlocal came
        came = True
        signal.default_int_handler(number, frame)

    # A handler that was not set from Python is None and could not be set again.
    held = [number for number in (signal.SIGINT, signal.SIGTERM) if signal.getsignal(number) is not None]
    before = {number: signal.signal(number, interrupt) for number in held}
    try:
        yield
    except Exception as error:
        if not came:
            raise
        interruption = KeyboardInterrupt()
        for note in getattr(error, "__notes__", ()):  # what is kept is kept
            interruption.add_note(note)
        raise interruption from error
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Hold Ctrl-C and SIGTERM back until the end of the block: a second Ctrl-C must not stop the tidying up.

    What came is delivered then. Does nothing outside the main thread.
    """
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread may set handlers, and only it is interrupted
        return
    came: list[int] = []
    # A handler that was not set from Python is None and could not be set again.
    held = [number for number in (signal.SIGINT, signal.SIGTERM) if signal.getsignal(number) is not None]
    before = {number: signal.signal(number, lambda number, _: came.append(number)) for number in held}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        for delivered in dict.fromkeys(came):
            signal.raise_signal(delivered)
