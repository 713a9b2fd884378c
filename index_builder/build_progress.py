"""Progress of a build: a bar on a terminal, a log line every few seconds elsewhere, or nothing."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import Protocol, Self, TextIO

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn

_LOG_SECONDS = 5.0


class BuildProgress(Protocol):
    """Told about every step of a build."""

    def phase(self, name: str, total: int | None = None) -> None:
        """A phase begins; `total` units of work are expected, None when unknown."""

    def advance(self, done: int, note: str) -> None:
        """`done` units of the phase are finished in all; `note` says so in words."""

    def note(self, text: str) -> None:
        """Something worth a line of its own has been found out."""


class Silent:
    """Reports nothing."""

    def phase(self, name: str, total: int | None = None) -> None:
        """Nothing."""

    def advance(self, done: int, note: str) -> None:
        """Nothing."""

    def note(self, text: str) -> None:
        """Nothing."""


class LogLines:
    """A line when a phase begins, and one every few seconds.

    Args:
        stream: Where lines go; None: standard error.
        command: What lines begin with.
    """

    def __init__(self, stream: TextIO | None = None, command: str = "build-index") -> None:
        self._stream = stream or sys.stderr
        self._command = command
        self._name = ""
        self._total: int | None = None
        self._begun = self._next = time.monotonic()

    def phase(self, name: str, total: int | None = None) -> None:
        """Write a line."""
        self._name, self._total = name, total
        self._begun = time.monotonic()
        self._next = self._begun + _LOG_SECONDS
        self._write(f"{name} …")

    def advance(self, done: int, note: str) -> None:
        """Write a line if the last one is old enough."""
        now = time.monotonic()
        if now >= self._next:
            self._next = now + _LOG_SECONDS
            share = f" {100 * done // self._total} %," if self._total else ""
            self._write(f"{self._name}:{share} {note}, {now - self._begun:.0f} s")

    def note(self, text: str) -> None:
        """Write a line."""
        self._write(text)

    def _write(self, text: str) -> None:
        self._stream.write(f"{self._command}: {text}\n")
        self._stream.flush()


class PhaseClock:
    """Passes everything on, and notes how long each phase took.

    Args:
        progress: Where to.
    """

    def __init__(self, progress: BuildProgress) -> None:
        self._progress = progress
        self._name: str | None = None
        self._begun = time.monotonic()
        self._seconds: dict[str, float] = {}

    def phase(self, name: str, total: int | None = None) -> None:
        """A phase begins; the one before has ended."""
        self._stop()
        self._name = name
        self._progress.phase(name, total)

    def advance(self, done: int, note: str) -> None:
        """Pass it on."""
        self._progress.advance(done, note)

    def note(self, text: str) -> None:
        """Pass it on."""
        self._progress.note(text)

    def seconds(self) -> dict[str, float]:
        """End the last phase and return the seconds of each, in their order."""
        self._stop()
        return dict(self._seconds)

    def _stop(self) -> None:
        now = time.monotonic()
        if self._name is not None:
            self._seconds[self._name] = self._seconds.get(self._name, 0.0) + now - self._begun
        self._name, self._begun = None, now


class Bar:
    """A bar per phase on a terminal; a context manager."""

    def __init__(self) -> None:
        self._bars = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.fields[note]}"),
            TimeElapsedColumn(),
            console=Console(stderr=True),
        )
        self._task: TaskID | None = None

    def phase(self, name: str, total: int | None = None) -> None:
        """Finish the last bar and begin the next."""
        self._finish()
        self._task = self._bars.add_task(name, total=total, note="")

    def advance(self, done: int, note: str) -> None:
        """Move the bar."""
        if self._task is not None:
            self._bars.update(self._task, completed=done, note=note)

    def note(self, text: str) -> None:
        """Write a line above the bars."""
        self._bars.console.print(text, markup=False, highlight=False)

    def __enter__(self) -> Self:
        self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self._finish()
        self._bars.stop()

    def _finish(self) -> None:
        if self._task is not None:
            task = self._bars.tasks[-1]
            self._bars.update(self._task, total=task.total or 1, completed=task.total or 1)
