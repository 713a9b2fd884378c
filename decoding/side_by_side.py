"""Runs calls side by side on one thread, so that their forwards can be joined.

A call works until it needs a forward; then it waits, and another goes on. When all wait, the forward of those
whose turn it is runs. Decoders know nothing of this: to them a session's step is a call that returns logits.
A running call is a greenlet, a second call stack of the same thread: nothing has to be locked, and torch's
threads exist once. A call must not wait for another one in any other way.
"""

from __future__ import annotations

import contextvars
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from greenlet import getcurrent, greenlet

from genret.decoding.errors import DecodingCancelledError

T = TypeVar("T")


class SharedForwardError(Exception):
    """A forward of several calls failed, through the fault of one of them; the cause says how.

    What a session has written is lost with it: its call must begin again, `undivided`.
    """


class Forward(Protocol):
    """A forward that a call needs."""

    def joins(self, other: object) -> bool:
        """Whether it can run together with another one."""

    def run_with(self, others: Sequence[Any]) -> Sequence[Any]:
        """Run it together with others that it joins; return the results of all, its own first."""


class Share(Protocol):
    """Part of the device's time that a client, or several, have had."""

    @property
    def turn(self) -> tuple[float, ...]:
        """Its place in the order: whose is smallest is next."""

    def charge(self, seconds: float) -> None:
        """Count time of the device, seconds."""

    def reason_to_stop(self) -> DecodingCancelledError | None:
        """Why nobody waits for the call any more; None if somebody does."""


@dataclass(slots=True, eq=False)
class Ending(Generic[T]):
    """The end of a call: what it returned, or what it raised."""

    value: T | None = None
    error: BaseException | None = None


class RunningCall(greenlet):  # type: ignore[misc]  # greenlet is untyped
    """A call that runs beside others on one thread.

    It waits for a forward of `num_rows` tokens: for `wanted`, or, if that is None, to run its own.
    """

    def __init__(
        self,
        call: Callable[[], object],
        share: Share,
        done: Callable[[Ending[Any]], None],
        scheduler: Scheduler,
    ) -> None:
        super().__init__(call)
        # A greenlet begins with an empty context: what is set around it would be missing.
        self.gr_context = contextvars.copy_context()
        self.share, self.done, self.scheduler = share, done, scheduler
        self.wanted: Forward | None = None
        self.num_rows = 0
        self.is_undivided = False
        self.was_passed = False  # by one behind it in the order, whose forward fitted where its own did not

    def wait(self, wanted: Forward | None, num_rows: int) -> Any:
        """Let others go on until it is this one's turn; return the result of the forward."""
        self.wanted, self.num_rows = wanted, num_rows
        with _own_mode():
            return self.parent.switch()

    def joins(self, other: RunningCall) -> bool:
        """Whether the forwards that two calls wait for can run together."""
        return self.wanted is not None and other.wanted is not None and self.wanted.joins(other.wanted)


@contextmanager
def _own_mode() -> Iterator[None]:
    """Leave whether gradients are computed, a mode of the thread, as it is before a switch to others."""
    import torch  # not above: a server's front process runs queues of none

    mode = torch.is_grad_enabled()
    try:
        yield
    finally:
        torch.set_grad_enabled(mode)


def current_call() -> RunningCall | None:
    """Return the call that is running, if it may be divided."""
    running = getcurrent()
    return running if isinstance(running, RunningCall) and not running.is_undivided else None


def max_rows() -> int | None:
    """Return the most tokens that the running call should compute in one forward, None without a bound."""
    running = current_call()
    return None if running is None else running.scheduler.max_rows


@contextmanager
def undivided() -> Iterator[None]:
    """Let no other call go on inside the block, as others may wait for its end."""
    running = current_call()
    if running is not None:
        running.is_undivided = True
    try:
        yield
    finally:
        if running is not None:
            running.is_undivided = False


# Tokens that take little longer than one: a forward of fewer is bound by reading the weights.
_FLAT = 32
_SMOOTHING = 0.2


class Scheduler:
    """Runs calls side by side on the thread that makes and uses it.

    Calls should compute no more than `max_rows` tokens in one forward, but for one token of each of many
    queries. The bound follows from the time that a forward may take, `max_forward_s`, and the time that
    tokens took of this thread before: what other programs take of its core is not the tokens' fault.
    """

    def __init__(self, max_forward_s: float, clock: Callable[[], float] = time.perf_counter) -> None:
        self._max_forward_s = max_forward_s
        self._clock = clock
        self._running: list[RunningCall] = []
        self._row_s: float | None = None  # of one token in a forward of many
        self.max_rows = 4 * _FLAT

    @property
    def is_idle(self) -> bool:
        """Whether no call is left."""
        return not self._running

    def start(self, call: Callable[[], T], share: Share, done: Callable[[Ending[T]], None]) -> None:
        """Run a call until it needs a forward or ends; `done`, which may not raise, is told its end."""
        running = RunningCall(call, share, done, self)
        self._running.append(running)
        self._go_on(running, None)

    def run_once(self) -> None:
        """Run one forward, for the calls whose turn it is, and let them go on to their next.

        Calls that nobody waits for get none: they end with the reason.
        """
        for running in list(self._running):
            if (reason := running.share.reason_to_stop()) is not None:
                self._go_on(running, reason)
                reason.__traceback__ = None  # its frames hold the call's keys and values
        if not self._running:
            return
        turn = self._next_turn()
        begun, worked = self._clock(), time.thread_time()
        results = self._run(turn)
        spent, rows = self._clock() - begun, sum(running.num_rows for running in turn)
        if turn[0].wanted is not None:
            self._learn(rows, time.thread_time() - worked)
        for running, result in zip(turn, results, strict=True):
            running.share.charge(spent * running.num_rows / rows)
            self._go_on(running, result)

    def _learn(self, rows: int, seconds: float) -> None:
        """Follow the time of a token in forwards of many."""
        if rows < _FLAT:
            return
        row_s = seconds / rows
        self._row_s = row_s if self._row_s is None else self._row_s + _SMOOTHING * (row_s - self._row_s)
        self.max_rows = max(_FLAT, int(self._max_forward_s / self._row_s))

    def _go_on(self, running: RunningCall, result: Any) -> None:
        """Let a call go on with the result of its forward, or the error of it."""
        begun = self._clock()
        try:
            with _own_mode():
                if isinstance(result, Exception):
                    value = running.throw(result)
                else:
                    value = running.switch(*(() if result is None else (result,)))
            ending: Ending[Any] = Ending(value)
        except BaseException as error:  # of the call: it is told to whom it concerns
            ending = Ending(error=error)
        running.share.charge(self._clock() - begun)
        if running.dead:
            self._running.remove(running)
            running.done(ending)

    def _next_turn(self) -> list[RunningCall]:
        """Choose calls that run together, within the bound; the share of the first has had least.

        A call that does not fit, or runs on another model, may be passed by those behind it once. A second
        time could be always: while small calls of its client fit beside others' the client has its part, and
        the large one is never first.
        """
        waiting = sorted(self._running, key=lambda running: running.share.turn)
        first = waiting[0]
        # A small pass is not held up by far larger ones: all together have what each would have had.
        room = min(self.max_rows, max(_FLAT, first.num_rows * len(waiting))) - first.num_rows
        turn = [first]
        for running in waiting[1:]:
            if first.joins(running) and running.num_rows <= room:
                turn.append(running)
                room -= running.num_rows
            elif running.was_passed:
                break
        for running in waiting[: waiting.index(turn[-1]) + 1]:
            running.was_passed = running not in turn
        return turn

    def _run(self, turn: Sequence[RunningCall]) -> list[Any]:
        """Run the forwards of a turn; return a result or an error for each."""
        first, *others = (running.wanted for running in turn)
        if first is None:
            return [None]  # it runs its own
        try:
            return list(first.run_with(others))
        except Exception as error:
            return [error] if not others else [_shared(error) for _ in turn]


def _shared(error: Exception) -> SharedForwardError:
    failure = SharedForwardError("a forward that several calls shared has failed")
    failure.__cause__ = error
    return failure
