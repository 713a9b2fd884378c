"""A clock that a test turns: deadlines pass when the test says so, and not because the machine is slow."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import pytest


class TurnedClock:
    """Stands in for `time.monotonic`, by which deadlines go and the timers of event loops.

    If `stopped`, only `forward` moves it and no timer fires by itself: wait with `until` of this class.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, stopped: bool = False) -> None:
        self._ahead = 0.0
        real, begun = time.monotonic, time.monotonic()
        monkeypatch.setattr(time, "monotonic", lambda: (begun if stopped else real()) + self._ahead)

    def forward(self, seconds: float) -> None:
        """Turn it forward, on the thread of the event loop whose timers are meant: it looks at them next."""
        self._ahead += seconds

    @staticmethod
    async def until(condition: Callable[[], bool]) -> None:
        """Wait in real time, whatever this clock shows."""
        while not condition():
            await asyncio.to_thread(time.sleep, 0.001)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> TurnedClock:
    return TurnedClock(monkeypatch)


@pytest.fixture
def stopped_clock(monkeypatch: pytest.MonkeyPatch) -> TurnedClock:
    return TurnedClock(monkeypatch, stopped=True)
