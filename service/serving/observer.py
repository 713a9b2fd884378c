"""The interface by which a device queue reports. Serving knows no metrics, logs' formats or traces."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, get_args

from genret.service.serving.served import Outcome, Request, Result

Rejection = Literal["queue_full", "memory_full", "shutting_down"]
# Where a request was when it ended early: not yet accepted, waiting, in a batch.
Stage = Literal["arrival", "queue", "running"]
REJECTIONS: tuple[Rejection, ...] = get_args(Rejection)
STAGES: tuple[Stage, ...] = get_args(Stage)


class QueueObserver:
    """Base of observers of one device's requests; ignores everything.

    Its methods are called on the event loop. They may not raise or block.
    """

    def rejected(self, reason: Rejection) -> None:
        """Called for a request that was refused."""

    def cancelled(self, stage: Stage) -> None:
        """Called for a request whose client is gone."""

    def deadline_exceeded(self, stage: Stage) -> None:
        """Called for a passed deadline; at arrival also for one that would pass before its turn."""

    def batch_formed(self, tokens: int, waits_s: Sequence[float]) -> None:
        """Called for a batch of `tokens` work whose requests have waited so long, seconds."""

    def batch_finished(self, outcomes: Sequence[Outcome | Exception], seconds: float) -> None:
        """Called with the outcomes of all requests of a batch and the time on the device, seconds."""

    def answered(self, request: Request, result: Result, queued_s: float, seconds: float) -> None:
        """Called for an answer, in the context (`contextvars`) of the task that asked.

        It waited `queued_s` for its batch, and was submitted `seconds` ago.
        """


SILENT = QueueObserver()
# Makes the observer of a device's queue.
ObserverOf = Callable[[str], QueueObserver]
