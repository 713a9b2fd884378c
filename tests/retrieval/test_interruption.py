"""Signals that end a command, and signals that wait."""

from __future__ import annotations

import signal
import threading

import pytest

from genret.retrieval.interruption import sigterm_as_interrupt, uninterrupted


def test_sigterm_is_an_interrupt_inside_the_block_alone() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(KeyboardInterrupt), sigterm_as_interrupt():
        signal.raise_signal(signal.SIGTERM)
    assert signal.getsignal(signal.SIGTERM) is before


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_waits_for_the_end_of_the_block(number: signal.Signals) -> None:
    done = []

    def work() -> None:
        with uninterrupted():
            signal.raise_signal(number)
            signal.raise_signal(number)
            done.append("everything")

    with sigterm_as_interrupt():
        before = signal.getsignal(number)
        with pytest.raises(KeyboardInterrupt):
            work()
        assert signal.getsignal(number) is before
    assert done == ["everything"]


def test_an_error_inside_is_not_lost_to_a_signal() -> None:
    def work() -> None:
        with uninterrupted():
            signal.raise_signal(signal.SIGINT)
            raise ValueError("inside")

    with pytest.raises(KeyboardInterrupt) as caught:
        work()
    assert isinstance(caught.value.__context__, ValueError)


def test_nothing_waits_without_a_signal_or_outside_the_main_thread() -> None:
    seen = []

    def other() -> None:
        with uninterrupted(), sigterm_as_interrupt():
            seen.append(signal.getsignal(signal.SIGINT))

    before = signal.getsignal(signal.SIGINT)
    thread = threading.Thread(target=other)
    thread.start()
    thread.join()
    with uninterrupted():
        seen.append(signal.getsignal(signal.SIGINT))
    assert seen[0] is before
    assert seen[1] is not before
    assert signal.getsignal(signal.SIGINT) is before
