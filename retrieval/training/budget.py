"""How long a run lasts: a number of steps, or minutes of wall time; and its learning-rate schedule.

Under a time budget the schedule follows the clock, so that the rate has fallen to zero when time is up,
however fast the machine is. Time already spent is stored in every checkpoint: a resumed run goes on with
what is left.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from transformers import TrainerCallback

BUDGET_FILE = "genret_budget.json"  # the last file of a checkpoint to be written
WARM_UP = 0.03  # share of the run


class Budget:
    """Progress of a run, from 0 to 1.

    Args:
        max_steps: Optimiser steps of the whole run.
        minutes: Wall time of the whole run, or None for no limit but `max_steps`.
        clock: Seconds, monotonic.
    """

    def __init__(
        self, max_steps: int, minutes: float | None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        if max_steps < 1:
            raise ValueError(f"max_steps must be >= 1, got {max_steps}")
        if minutes is not None and not 0 < minutes < math.inf:
            raise ValueError(f"minutes must be > 0 and finite, got {minutes}")
        self.max_steps = max_steps
        self.minutes = minutes
        self._clock = clock
        self._spent_s = 0.0
        self._started_s: float | None = None

    def start(self) -> None:
        """Start, or go on after `load`."""
        self._started_s = self._clock()

    def stop(self) -> None:
        """Stop: what follows is not counted."""
        self._spent_s, self._started_s = self.elapsed_s, None

    @property
    def elapsed_s(self) -> float:
        """Seconds spent, those before a resume included."""
        running = 0.0 if self._started_s is None else self._clock() - self._started_s
        return self._spent_s + running

    def progress(self, step: int) -> float:
        """Share of the run that is over after `step` steps, in [0, 1]."""
        share = step / self.max_steps
        if self.minutes is not None:
            share = max(share, self.elapsed_s / (60 * self.minutes))
        return min(1.0, share)

    def rate(self, step: int) -> float:
        """Factor of the learning rate: linear warm-up, then linear decay to zero."""
        share = self.progress(step)
        if share < WARM_UP:
            # A step counts from one: the first update must not be lost to a rate of zero.
            return min(1.0, max(share, 1 / self.max_steps) / WARM_UP)
        return (1.0 - share) / (1.0 - WARM_UP)

    def save(self, folder: Path) -> None:
        """Write the time spent beside a checkpoint."""
        (folder / BUDGET_FILE).write_text(json.dumps({"elapsed_s": self.elapsed_s}) + "\n", encoding="utf-8")

    def load(self, folder: Path) -> None:
        """Take over the time spent by the run that wrote this checkpoint."""
        self._spent_s = float(json.loads((folder / BUDGET_FILE).read_text(encoding="utf-8"))["elapsed_s"])


class BudgetCallback(TrainerCallback):
    """Starts and stops the clock, ends the run when the budget is spent, stores the time in checkpoints."""

    def __init__(self, budget: Budget) -> None:
        self._budget = budget

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Start the clock."""
        self._budget.start()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Stop when time is up, with a checkpoint: the measurements that follow may be interrupted."""
        if self._budget.progress(state.global_step) >= 1.0:
            control.should_training_stop = True
            control.should_save = True

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Stop the clock: the time of a run is told without that of the measurements."""
        self._budget.stop()

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Store the time spent in the checkpoint just written."""
        self._budget.save(Path(args.output_dir) / f"checkpoint-{state.global_step}")
