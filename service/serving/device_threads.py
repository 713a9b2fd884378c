"""The threads of devices, on which blocking calls run side by side.

With a model on the event loop itself a health check takes as long as a batch (measured: 1 s against 2 ms).
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import CancelledError
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ParamSpec, TypeVar

from genret.decoding.side_by_side import Ending, Scheduler
from genret.service.serving.fair_shares import TimeShare
from genret.service.serving.heap import give_back_memory

# How long a device has no work until memory that is kept for the next batch is given back, seconds.
_LONG_IDLE_S = 30.0

P = ParamSpec("P")
T = TypeVar("T")


def contained(call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Return the result of `call`; whatever it raises is raised `as_exception`."""
    try:
        return call(*args, **kwargs)
    except BaseException as error:
        told = as_exception(error)
        if told is error:
            raise
        raise told from error


def as_exception(error: BaseException) -> Exception:
    """Return an error as one of its call alone, which a future can hold: a RuntimeError where it is none.

    Three kinds are none: a panic in a Rust extension (tokenizers) is no `Exception`, a stray cancellation
    would hit the waiting task, and a future cannot hold a StopIteration.
    """
    if isinstance(error, Exception) and not isinstance(error, StopIteration | CancelledError):
        return error
    told = RuntimeError(f"the call ended with {type(error).__name__}: {error}")
    told.__cause__ = error
    return told


@dataclass(slots=True, eq=False)
class Work:
    """A call for a device's thread.

    `done` is told its end, on that thread. It begins when all of the work `behind` has ended.
    """

    call: Callable[[], Any]
    share: Any
    done: Callable[[Ending[Any]], None]
    behind: set[Work] = field(default_factory=set)


class DeviceThread:
    """The thread of a device. Calls run side by side on it: while one waits for a forward, others go on.

    Before every forward it takes all that `next_work` gives; None: there is no work, or no room. The argument
    tells whether the device is idle. `wake` tells that there may be more.
    """

    def __init__(self, device: str, max_forward_s: float, next_work: Callable[[bool], Work | None]) -> None:
        self.device = device
        self._scheduler = Scheduler(max_forward_s)
        self._next_work = next_work
        self._calls: deque[Work] = deque()
        self._running: set[Work] = set()
        self._may_have_work = threading.Event()
        self._is_closed = False
        self._had_call = False  # whether a call was the last that began
        self._thread = threading.Thread(target=self._loop, name=f"genret-{device}_0", daemon=True)
        self._thread.start()

    def wake(self) -> None:
        """Tell that there may be work. From any thread."""
        self._may_have_work.set()

    async def run(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run `call` beside what else runs, and return what it returns.

        Cancelling the awaiting task does not stop a call that has started: pass it a CancelToken.
        """
        return await self._run(partial(call, *args, **kwargs), set())

    async def run_after_all(self, call: Callable[[], T]) -> T:
        """Run `call` when everything that runs now has ended, and return what it returns."""
        return await self._run(call, self._running)

    async def _run(self, call: Callable[[], T], behind: set[Work]) -> T:
        if self._is_closed:
            raise RuntimeError("the device's thread has ended")
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()

        def done(outcome: Ending[T]) -> None:
            loop.call_soon_threadsafe(_settle, future, outcome)

        self._calls.append(Work(partial(contained, call), TimeShare(), done, behind))
        self.wake()
        return await future

    def close(self) -> None:
        """Wait for all calls that were given. Idempotent."""
        self._is_closed = True
        self.wake()
        self._thread.join()

    def _loop(self) -> None:
        while True:
            self._may_have_work.clear()
            while (work := self._take()) is not None:
                self._start(work)
            if not self._scheduler.is_idle:
                self._scheduler.run_once()
            elif self._is_closed and not self._calls:
                return
            elif not self._may_have_work.wait(_LONG_IDLE_S):
                give_back_memory()  # what the batches of a busy time took
                self._may_have_work.wait()

    def _take(self) -> Work | None:
        """Return what begins next: behind a call what `next_work` has, so that calls in a row stop nobody."""
        if self._had_call:
            work = self._next_work(self._scheduler.is_idle)
            self._had_call = False
            if work is not None:
                return work
        work = self._take_call()
        self._had_call = work is not None
        return work or self._next_work(self._scheduler.is_idle)

    def _take_call(self) -> Work | None:
        for work in self._calls:
            if work.behind is self._running:  # given by `run_after_all`: those of this moment
                work.behind = set(self._running)
            if not work.behind & self._running:
                self._calls.remove(work)
                return work
        return None

    def _start(self, work: Work) -> None:
        self._running.add(work)

        def done(outcome: Ending[Any]) -> None:
            self._running.discard(work)
            work.done(outcome)

        self._scheduler.start(work.call, work.share, done)


def _settle(future: asyncio.Future[T], outcome: Ending[T]) -> None:
    if future.done():
        return
    if outcome.error is not None:
        future.set_exception(outcome.error)
    else:
        future.set_result(outcome.value)  # type: ignore[arg-type]  # the call returned it
