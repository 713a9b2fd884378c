"""Progress of an evaluation on standard error: a live line on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import time
from collections.abc import Sequence

from retrieval.evaluation.runner import Progress, Task

_EVERY_S = 5.0


class Reporter:
    """Says what runs, how fast, and how long the whole will take.

    Args:
        tasks: All there are; those that are not begun are guessed to be as fast as their method was before,
            or as the mean of what ran.
    """

    def __init__(self, tasks: Sequence[Task]) -> None:
        from rich.console import Console

        self._console = Console(stderr=True)
        self._tasks = tasks
        self._speeds: dict[str, float] = {}  # queries per second, by method
        self._last = 0.0
        self._status = self._console.status("evaluating") if self._console.is_terminal else None

    def __enter__(self) -> Reporter:
        if self._status is not None:
            self._status.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._status is not None:
            self._status.stop()

    def report(self, progress: Progress) -> None:
        """Show where the evaluation is."""
        total = len(progress.task.labelled.queries)
        if progress.num_answered and progress.seconds > 0:
            self._speeds[progress.task.method.name] = progress.num_answered / progress.seconds
        is_done = progress.num_answered >= total
        if self._status is not None:
            self._status.update(self._line(progress, total))
            if is_done:
                self._say(self._line(progress, total))
            return
        now = time.monotonic()
        if is_done or now - self._last >= _EVERY_S:
            self._last = now
            self._say(self._line(progress, total))

    def say(self, text: str) -> None:
        """Print a line."""
        self._say(text)

    def _say(self, text: str) -> None:
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)

    def _line(self, progress: Progress, total: int) -> str:
        task = progress.task
        seed = "" if task.seed is None else f" (seed {task.seed})"
        text = f"{progress.number}/{progress.num_tasks} {task.labelled.name} {task.method.name}{seed}: "
        text += f"{progress.num_answered:,}/{total:,}"
        speed = self._speeds.get(task.method.name)
        if not progress.num_answered or not speed:
            return text
        text += f", {speed:,.1f}/s"
        left = (total - progress.num_answered) / speed + self._later(progress.number)
        return f"{text}, {_clock(left)} left" if left >= 1 else text

    def _later(self, number: int) -> float:
        """Return the seconds that the tasks behind one will take."""
        mean = len(self._speeds) / sum(1 / speed for speed in self._speeds.values())
        return sum(
            len(task.labelled.queries) / self._speeds.get(task.method.name, mean)
            for task in self._tasks[number:]
        )


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
