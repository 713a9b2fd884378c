"""Shows how far a command is: a display that moves on a terminal, a line every few seconds elsewhere."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Self, TextIO

if TYPE_CHECKING:
    from rich.progress import ProgressColumn, TaskID

_LINE_SECONDS = 5.0
_MEASURED_SECONDS = 1.0  # of a phase, before its speed says anything


class ProgressDisplay:
    """Shows one step of a command at a time on standard error. A context manager.

    Args:
        columns: Factory of the live display's columns (`rich.progress`), which may show the step's
            description and the field `note`.
        is_live: Whether the display moves; None: where standard error is a terminal.
        is_transient: Whether the live display leaves nothing behind.
        stream: Stream of the lines; None: standard error.
        clock: Monotonic clock in seconds; None: the system's.
        prefix: Text in front of every line; not shown on a live display.
    """

    def __init__(
        self,
        columns: Callable[[], list[ProgressColumn]] = lambda: _spinner_and_note(),
        *,
        is_live: bool | None = None,
        is_transient: bool = False,
        stream: TextIO | None = None,
        clock: Callable[[], float] | None = None,
        prefix: str = "",
    ) -> None:
        self.is_live = sys.stderr.isatty() if is_live is None else is_live
        self.clock = clock or time.monotonic
        self._stream = stream or sys.stderr
        self._prefix = prefix
        self._last = -math.inf
        self._task: TaskID | None = None
        if self.is_live:
            from rich.console import Console
            from rich.progress import Progress

            self._bars = Progress(*columns(), console=Console(stderr=True), transient=is_transient)

    def begin(self, name: str, total: float | None = None, note: str = "") -> None:
        """Begin a step of `total` units (None: unknown), after the end of the one before."""
        self._last = self.clock()
        if self.is_live:
            self._finish()
            self._task = self._bars.add_task(name, total=total, note=note)

    def show(
        self, text: str, done: float | None = None, total: float | None = None, is_last: bool = False
    ) -> None:
        """Show where the step is; elsewhere than on a live display, if the last line is old enough.

        Args:
            text: The line, or the field `note` of a live display.
            done: Units finished in all; None: as before.
            total: Units of work; None: as before.
            is_last: Whether the text is a line of its own in any case.
        """
        if self.is_live:
            if self._task is not None:
                self._bars.update(self._task, note=text, completed=done, total=total)
            if is_last:
                self.say(text)
        elif is_last or self.clock() - self._last >= _LINE_SECONDS:
            self._last = self.clock()
            self.say(text)

    def say(self, text: str) -> None:
        """Write a line that stays."""
        if self.is_live:
            self._bars.console.print(text, markup=False, highlight=False, soft_wrap=True)
        else:
            self._stream.write(f"{self._prefix}{text}\n")
            self._stream.flush()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Leave the terminal to a question in the block."""
        if self.is_live:
            self._bars.stop()
        yield
        if self.is_live:
            self._bars.start()

    def __enter__(self) -> Self:
        if self.is_live:
            self._bars.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self.is_live:
            if kind is None:
                self._finish()
            self._bars.stop()

    def _finish(self) -> None:
        if self._task is not None:
            total = self._bars.tasks[-1].total or 1
            self._bars.update(self._task, total=total, completed=total)


def _spinner_and_note() -> list[ProgressColumn]:
    from rich.progress import SpinnerColumn, TextColumn

    return [SpinnerColumn(), TextColumn("{task.fields[note]}", markup=False)]


class StepProgress:
    """Shows every step of a long piece of work; nothing without a display."""

    def __init__(self, display: ProgressDisplay | None = None) -> None:
        self._display = display
        self._name = ""
        self._total: int | None = None
        self._begun = 0.0
        self._first: tuple[int, float] | None = None  # units and time of the first look

    def phase(self, name: str, total: int | None = None) -> None:
        """Begin a phase of `total` units of work, None when unknown."""
        if self._display is not None:
            self._name, self._total, self._begun, self._first = name, total, self._display.clock(), None
            self._display.begin(name, total)
            if not self._display.is_live:
                self._display.say(f"{name} …")

    def advance(self, done: int, note: str, *, tells_left: bool = False) -> None:
        """Show that `done` units of the phase are finished in all, with a note in words.

        The time left is added, once it is known, unless the note tells it: then the caller knows better.
        """
        if self._display is None:
            return
        left = "" if tells_left else self._left(done, self._display.clock())
        if not self._display.is_live:
            share = f" {100 * done // self._total} %," if self._total else ""
            note = f"{self._name}:{share} {note}, {self._display.clock() - self._begun:.0f} s"
        self._display.show(note + left, done)

    def _left(self, done: int, now: float) -> str:
        """Return the time left; "" without a total, and before a second of work is measured.

        It is measured from the first look on: what an earlier run has done is there at once.
        """
        self._first = self._first or (done, now)
        units, seconds = done - self._first[0], now - self._first[1]
        if not self._total or units <= 0 or seconds < _MEASURED_SECONDS:
            return ""
        return f", about {duration(seconds * max(0, self._total - done) / units)} left in this step"

    def note(self, text: str) -> None:
        """Show a finding on a line of its own."""
        if self._display is not None:
            self._display.say(text)


class PhaseClock(StepProgress):
    """Passes everything on, and measures how long each phase took."""

    def __init__(self, progress: StepProgress) -> None:
        self._progress = progress
        self._running: tuple[str, float] | None = None
        self._seconds: dict[str, float] = {}

    def phase(self, name: str, total: int | None = None) -> None:
        """Begin a phase; the one before has ended."""
        self.seconds()
        self._running = name, time.monotonic()
        self._progress.phase(name, total)

    def advance(self, done: int, note: str, *, tells_left: bool = False) -> None:
        """Pass it on."""
        self._progress.advance(done, note, tells_left=tells_left)

    def note(self, text: str) -> None:
        """Pass it on."""
        self._progress.note(text)

    def seconds(self) -> dict[str, float]:
        """End the last phase and return the seconds of each, in their order."""
        if self._running is not None:
            name, begun = self._running
            self._seconds[name] = self._seconds.get(name, 0.0) + time.monotonic() - begun
            self._running = None
        return dict(self._seconds)


def duration(seconds: float) -> str:
    """Return a time in days, hours, minutes and seconds, to two units."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    if whole < 48 * 3600:
        return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
    return f"{whole / 86_400:,.1f} days"
