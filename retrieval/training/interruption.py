"""Ctrl-C while training: the step under way ends, and a checkpoint is written to go on from.

An interrupt in the middle of a step would leave weights and optimiser half updated. So what would raise
KeyboardInterrupt is noted while the loop runs and heeded between two steps; who interrupts twice means at
once, and falls back to the last checkpoint.
"""

from __future__ import annotations

import shutil
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from transformers import TrainerCallback

from retrieval.training.budget import BUDGET_FILE

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class TrainingInterrupted(KeyboardInterrupt):
    """The run was stopped by the user between two steps, and a checkpoint of the last one was written.

    Args:
        step: Steps taken.
    """

    def __init__(self, step: int) -> None:
        super().__init__(f"interrupted at step {step}")
        self.step = step


class InterruptCallback(TrainerCallback):
    """Ends the run with a checkpoint after the step during which an interrupt came."""

    def __init__(self) -> None:
        self.requested = False

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Note the first interrupt in the block instead of raising it; the second is raised.

        Concerns the signals that would raise KeyboardInterrupt now, whoever has seen to that. Outside the
        main thread, which alone receives them, nothing is done.
        """
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        ours = [number for number in _SIGNALS if signal.getsignal(number) is signal.default_int_handler]
        for number in ours:
            signal.signal(number, self._note)
        try:
            yield
        finally:
            for number in ours:
                signal.signal(number, signal.default_int_handler)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Save and stop when an interrupt came."""
        if self.requested:
            control.should_save = True
            control.should_training_stop = True

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.requested:
            raise KeyboardInterrupt
        self.requested = True


def last_checkpoint(folder: Path) -> Path | None:
    """The newest complete checkpoint: a kill while saving leaves a folder without the budget's file."""
    complete = [file.parent for file in folder.glob(f"checkpoint-*/{BUDGET_FILE}")]
    return max(complete, key=checkpoint_step, default=None)


def checkpoint_step(checkpoint: Path) -> int:
    """Steps taken before a checkpoint was written."""
    return int(checkpoint.name.rsplit("-", 1)[1])


def remove_half_made(folder: Path) -> None:
    """Remove checkpoints that a kill left incomplete; they would count among those that are kept."""
    for checkpoint in folder.glob("checkpoint-*"):
        if not (checkpoint / BUDGET_FILE).is_file():
            shutil.rmtree(checkpoint)
