"""What a lane tells whoever watches it. Serving knows no metrics, no logs' formats and no traces."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, Protocol, get_args

from service.serving.served import Outcome, Request, Result

Rejection = Literal["queue_full", "memory_full", "shutting_down"]
# Where a request was when it ended early: at the door, waiting, in a batch.
Stage = Literal["arrival", "queue", "running"]
REJECTIONS: tuple[Rejection, ...] = get_args(Rejection)
STAGES: tuple[Stage, ...] = get_args(Stage)


class QueueObserver(Protocol):
    """Is told what becomes of the requests of one device, on the event loop. May not raise or block."""

    def rejected(self, reason: Rejection) -> None:
        """A request was refused."""

    def cancelled(self, stage: Stage) -> None:
        """Whoever asked is gone."""

    def deadline_exceeded(self, stage: Stage) -> None:
        """A request's time was over; at arrival: is over, or would be before its turn."""

    def batch_formed(self, tokens: int, waits_s: Sequence[float]) -> None:
        """A batch goes to the device.

        Args:
            tokens: Its work.
            waits_s: How long each request has waited, seconds.
        """

    def batch_finished(self, outcomes: Sequence[Outcome | Exception], seconds: float) -> None:
        """A batch is back.

        Args:
            outcomes: One for each of its requests, waited for or not.
            seconds: How long the device was at it.
        """

    def answered(self, request: Request, result: Result, queued_s: float, seconds: float) -> None:
        """A request has its answer. Called in the context (`contextvars`) of the task that asked.

        Args:
            request: What was asked.
            result: The answer.
            queued_s: How long it waited for its batch, seconds.
            seconds: How long ago it was submitted.
        """


class SilentObserver:
    """Nobody watches."""

    def rejected(self, reason: Rejection) -> None:
        """Do nothing."""

    def cancelled(self, stage: Stage) -> None:
        """Do nothing."""

    def deadline_exceeded(self, stage: Stage) -> None:
        """Do nothing."""

    def batch_formed(self, tokens: int, waits_s: Sequence[float]) -> None:
        """Do nothing."""

    def batch_finished(self, outcomes: Sequence[Outcome | Exception], seconds: float) -> None:
        """Do nothing."""

    def answered(self, request: Request, result: Result, queued_s: float, seconds: float) -> None:
        """Do nothing."""


# Makes the observer of a device's lane.
ObserverOf = Callable[[str], QueueObserver]


def silent(device: str) -> QueueObserver:
    """Return an observer that does nothing."""
    return SilentObserver()
