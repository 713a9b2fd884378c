"""Batches requests dynamically: many requests, one device, one batch at a time.

Requests wait in arrival order. The head decides which call of which retriever answers the next batch; every
waiting request of that call joins until the batch is full. While a batch runs the queue fills. An idle device
waits for companions only if the last batch had several requests: their clients send the next ones at about
the same time. It waits until as many have come, `max_delay_ms` at most; a single client never waits.

A `DeviceQueue` is a device with its thread (`DeviceExecutor`), its queue and its limits. The memory that a
batch frees is kept in the process's heap for the next one.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import logging
import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import CancelledError, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import ParamSpec, TypeVar

from genret.decoding.cancellation import CancelToken
from genret.decoding.errors import DeadlineExceededError
from genret.service.configuration.server_config import BatchLimits, QueueLimits
from genret.service.errors import NotReadyError, OverloadedError
from genret.service.serving.admission import Admission, FairQueue, done_tokens
from genret.service.serving.served import (
    SILENT,
    BatchCall,
    ObserverOf,
    Outcome,
    QueueObserver,
    Request,
    Result,
    Stage,
)

P = ParamSpec("P")
T = TypeVar("T")
_LOG = logging.getLogger(__name__)
# A client that gives up at its deadline says so a little before the server's own clock.
_DEADLINE_SLACK_S = 0.05


class DeviceExecutor:
    """Runs blocking model work, one call at a time, off the event loop.

    With the model on the loop itself a health check takes as long as a batch (measured: 1 s against 2 ms).
    `device` names the thread.
    """

    def __init__(self, device: str) -> None:
        self.device = device
        self._pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix=f"genret-{device}")

    async def run(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run `call` on the device's thread and return what it returns.

        Cancelling the awaiting task does not stop a call that has started: pass it a CancelToken.
        """
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._pool, partial(contained, call, *args, **kwargs))

    def close(self) -> None:
        """Drop calls that have not started and wait for the one that has. Idempotent."""
        self._pool.shutdown(wait=True, cancel_futures=True)


def contained(call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Return the result of `call`; whatever it raises becomes an error of that call alone.

    Three kinds would escape otherwise: a panic in a Rust extension (tokenizers) is no `Exception`, a stray
    cancellation would hit the waiting task, and a future cannot hold a StopIteration.

    Raises:
        RuntimeError: for one of these; it is the cause.
        Exception: any other error of `call`.
    """
    try:
        return call(*args, **kwargs)
    except (StopIteration, CancelledError) as error:
        raise _died_of(error) from error
    except Exception:
        raise
    except BaseException as error:
        raise _died_of(error) from error


def _died_of(error: BaseException) -> RuntimeError:
    return RuntimeError(f"the call ended with {type(error).__name__}: {error}")


@dataclass(frozen=True, slots=True)
class QueuedResult:
    """A result and its request's wait for the batch, milliseconds."""

    result: Result
    queue_ms: float


@dataclass(slots=True, eq=False)
class _Job:
    batch_call: BatchCall
    request: Request
    tokens: int
    share: int  # tokens it counts for in the queue
    cancel: CancelToken
    arrived: float
    future: asyncio.Future[QueuedResult]
    running: bool = False

    @property
    def stage(self) -> Stage:
        return "running" if self.running else "queue"

    @property
    def abandoned(self) -> bool:
        return self.future.done() or self.cancel.cancelled


class Batcher:
    """Collects requests into batches for one device. Lives on one event loop."""

    def __init__(
        self,
        executor: DeviceExecutor,
        limits: BatchLimits,
        admission: Admission,
        observer: QueueObserver = SILENT,
    ) -> None:
        self._executor = executor
        self._limits = limits
        self._admission = admission
        self._observer = observer
        self._queue: list[_Job] = []
        self._last_size = 0
        self._arrival = asyncio.Event()
        self._runner: asyncio.Task[None] | None = None
        self._closed = False

    @property
    def num_waiting(self) -> int:
        """Requests that have not started."""
        return len(self._queue)

    def start(self) -> None:
        """Start taking batches off the queue."""
        if self._runner is None:
            self._runner = asyncio.get_running_loop().create_task(self._run(), name="genret-batcher")

    async def submit(
        self,
        batch_call: BatchCall,
        request: Request,
        tokens: int,
        cancel: CancelToken,
        share: int | None = None,
    ) -> QueuedResult:
        """Queue one request and wait for its answer.

        Cancelling the awaiting task takes a waiting request out of the queue, and stops a running one before
        its next decode step.

        Args:
            batch_call: Call of a retriever that answers requests of this kind.
            request: The request.
            tokens: Its work, see `admission.estimate_tokens`.
            cancel: Polled by decoding; has the request's deadline.
            share: Tokens it counts for (`Admission.share`) if it has waited for room; None: it has not.

        Raises:
            OverloadedError: too much is waiting already, or the device's memory is full.
            DeadlineExceededError: the deadline passed, or cannot be met.
            NotReadyError: the batcher is closed.
            GenretError, DecodingError: the retriever's error for this request.
        """
        has_waited = share is not None
        if share is None:
            share = self._admission.share(request, tokens)
        self._let_in(share, cancel, has_waited)
        future: asyncio.Future[QueuedResult] = asyncio.get_running_loop().create_future()
        job = _Job(batch_call, request, tokens, share, cancel, time.monotonic(), future)
        self._queue.append(job)
        self._arrival.set()
        overdue = asyncio.timeout_at(_finite(cancel.deadline))
        try:
            async with overdue:  # a device that hangs checks no deadline and keeps others from running
                answer = await future
        except asyncio.CancelledError:
            cancel.cancel()
            self._give_up(job)
            raise
        except TimeoutError:
            if not overdue.expired():
                raise  # the retriever's own
            self._give_up(job)
            where = "during decoding" if job.running else "in the queue"
            raise DeadlineExceededError(f"the deadline passed {where}") from None
        self._observer.answered(
            request, answer.result, answer.queue_ms / 1000, time.monotonic() - job.arrived
        )
        return answer

    def _give_up(self, job: _Job) -> None:
        """Take a request without a waiter out of the queue; one that runs ends by itself."""
        if job in self._queue:
            self._queue.remove(job)
            self._admission.release(job.share)
        answered = job.future.done() and not job.future.cancelled()
        error = job.future.exception() if answered else None  # retrieved, though nobody waits for it
        if not isinstance(error, DeadlineExceededError | OverloadedError | NotReadyError):
            self._report_given_up(job)  # these errors were reported already

    async def close(self) -> None:
        """Fail what waits, ask what runs to stop, and wait for it. Idempotent."""
        self._closed = True
        for job in self._queue:
            self._observer.rejected("shutting_down")
            self._fail(job, NotReadyError())
            self._admission.release(job.share)
        self._queue.clear()
        runner, self._runner = self._runner, None
        if runner is not None:
            runner.cancel()
            await asyncio.gather(runner, return_exceptions=True)

    def _let_in(self, tokens: int, cancel: CancelToken, has_waited: bool) -> None:
        if self._closed:
            self._observer.rejected("shutting_down")
            raise NotReadyError()
        try:
            self._check_deadline(cancel)
            self._admission.admit(tokens, has_waited)
        except DeadlineExceededError:
            self._observer.deadline_exceeded("arrival")
            raise
        except OverloadedError:
            self._observer.rejected("queue_full")
            raise

    def _report_given_up(self, job: _Job) -> None:
        """Report a request whose client stopped waiting, at its deadline or before."""
        deadline, stage = job.cancel.deadline, job.stage
        if deadline is not None and time.monotonic() >= deadline - _DEADLINE_SLACK_S:
            self._observer.deadline_exceeded(stage)
        else:
            self._observer.cancelled(stage)

    def _check_deadline(self, cancel: CancelToken) -> None:
        cancel.check()
        if cancel.deadline is None:
            return
        wait = self._admission.expected_wait_s()
        left = cancel.deadline - time.monotonic()
        if wait > left:
            raise DeadlineExceededError(
                f"the deadline is in {left:.2f} s and the work ahead takes about {wait:.2f} s"
            )

    async def _run(self) -> None:
        while True:
            await self._arrival.wait()
            await self._wait_until_full()
            batch = self._take()
            if not self._queue:
                self._arrival.clear()
            if batch:
                await self._execute(batch)
            del batch  # while idle it would keep a replaced version of an index alive

    async def _wait_until_full(self) -> None:
        """Return when no companions for the next batch are expected, or its head has waited long enough."""
        while self._queue and not self._is_full() and len(self._queue) < self._last_size:
            left = self._queue[0].arrived + self._limits.max_delay_ms / 1000 - time.monotonic()
            if left <= 0:
                return
            self._arrival.clear()
            try:
                await asyncio.wait_for(self._arrival.wait(), timeout=left)
            except TimeoutError:
                self._arrival.set()
                return

    def _is_full(self) -> bool:
        return (
            len(self._queue) >= self._limits.max_size
            or sum(job.tokens for job in self._queue) >= self._limits.max_tokens
        )

    def _take(self) -> list[_Job]:
        """Take the next batch off the queue, and drop requests without a waiter."""
        batch: list[_Job] = []
        left: list[_Job] = []
        tokens = 0
        now = time.monotonic()
        for job in self._queue:
            if job.abandoned or (job.cancel.deadline is not None and now >= job.cancel.deadline):
                if not job.future.done():
                    self._observer.deadline_exceeded("queue")
                self._fail(job, DeadlineExceededError("the deadline passed in the queue"))
                self._admission.release(job.share)
            elif not batch or (
                # A title takes a few steps, a document hundreds: each kind has its own batches.
                job.batch_call == batch[0].batch_call
                and len(batch) < self._limits.max_size
                and tokens + job.tokens <= self._limits.max_tokens
            ):
                batch.append(job)
                job.running = True
                tokens += job.tokens
            else:
                left.append(job)
        self._queue = left
        if batch:
            self._last_size = len(batch)
        return batch

    async def _execute(self, batch: list[_Job]) -> None:
        started = time.monotonic()
        tokens = 0
        self._admission.begin(len(batch), sum(job.share for job in batch))
        self._observer.batch_formed(
            sum(job.tokens for job in batch), [started - job.arrived for job in batch]
        )
        try:
            outcomes = await self._answer(batch)
            self._observer.batch_finished(outcomes, time.monotonic() - started)
            for job, outcome in zip(batch, outcomes, strict=True):
                self._settle(job, outcome, started)
                if isinstance(outcome, Exception):
                    tokens += job.share
                else:
                    tokens += done_tokens(job.tokens, job.request, outcome)
                    self._admission.learn(job.request, outcome)
        except asyncio.CancelledError:
            for job in batch:  # closing: the thread stops before its next decode step
                job.cancel.cancel()
                if not job.future.done():
                    self._observer.rejected("shutting_down")
                self._fail(job, NotReadyError())
            raise
        finally:
            self._admission.end()
            for job in batch:
                self._admission.release(job.share)
        # Instant failures and late cancellations say nothing of the device's speed.
        if not all(isinstance(outcome, Exception) for outcome in outcomes):
            self._admission.observe(tokens, time.monotonic() - started)

    async def _answer(self, batch: Sequence[_Job]) -> Sequence[Outcome | Exception]:
        """Run a batch; if it fails as a whole, run its requests one by one so that only the culprit fails."""
        requests, cancels = [job.request for job in batch], [job.cancel for job in batch]
        try:
            outcomes = await self._executor.run(batch[0].batch_call, requests, cancels)
            if len(outcomes) != len(batch):
                raise ValueError(f"the retriever gave {len(outcomes)} answers to {len(batch)} requests")
            return outcomes
        except Exception as error:
            if len(batch) == 1:
                return [_as_memory_error(error)]
            _LOG.warning("a batch of %d failed as a whole; trying its requests one by one", len(batch))
        alone: list[Outcome | Exception] = []
        for job in batch:
            alone += await self._answer([job])
        return alone

    def _settle(self, job: _Job, outcome: Outcome | Exception, started: float) -> None:
        if job.future.done():
            return
        if isinstance(outcome, DeadlineExceededError):
            self._observer.deadline_exceeded("running")
        elif isinstance(outcome, OverloadedError):
            self._observer.rejected("memory_full")
        if isinstance(outcome, Exception):
            self._fail(job, outcome)
        else:
            job.future.set_result(QueuedResult(outcome, queue_ms=(started - job.arrived) * 1000))

    @staticmethod
    def _fail(job: _Job, error: Exception) -> None:
        if not job.future.done():
            job.future.set_exception(error)


def _finite(deadline: float | None) -> float | None:
    return None if deadline == math.inf else deadline


def _as_memory_error(error: Exception) -> Exception:
    """Turn the out-of-memory errors of Python and torch into "memory full"."""
    # torch.OutOfMemoryError by name: this module must not import torch.
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        full = OverloadedError("MEMORY_FULL", "the request does not fit into the device's memory", 5.0)
        full.__cause__ = error
        return full
    return error


class DeviceQueue:
    """One device: all models on it share its batches, its only thread, and its admission."""

    def __init__(self, device: str, batch: BatchLimits, queue: QueueLimits, observer: QueueObserver) -> None:
        self.device = device
        self.observer = observer
        self.executor = DeviceExecutor(device)
        self.admission = Admission(queue, batch)
        self.batcher = Batcher(self.executor, batch, self.admission, observer)
        self.fair_queue = FairQueue(self.admission, queue, observer)


class DeviceQueues:
    """The device queues of a server, made on demand. Lives on one event loop."""

    def __init__(
        self, batch: BatchLimits, queue: QueueLimits, observer_of: ObserverOf = lambda device: SILENT
    ) -> None:
        self._batch = batch
        self._queue = queue
        self._observer_of = observer_of
        self._lanes: dict[str, DeviceQueue] = {}

    def of(self, device: str) -> DeviceQueue:
        """Return the queue of a device."""
        lane = self._lanes.get(device)
        if lane is None:
            lane = self._lanes[device] = DeviceQueue(
                device, self._batch, self._queue, self._observer_of(device)
            )
            lane.batcher.start()
        return lane

    def all(self) -> list[DeviceQueue]:
        """Return all queues made so far."""
        return list(self._lanes.values())

    async def close(self) -> None:
        """Fail waiting requests, stop running ones, end the threads. Idempotent."""
        for lane in self.all():
            await lane.batcher.close()
            await asyncio.to_thread(lane.executor.close)


# A batch of 32 takes and frees some 40 MB. By default glibc gives them back to the system and gets them again
# as pages that must be zeroed, which is 4 % of a batch's time on a CPU.
_OPTIONS = {
    -1: 128 * 2**20,  # M_TRIM_THRESHOLD: bytes kept at the end of each thread's arena
    -2: 64 * 2**20,  # M_TOP_PAD: bytes by which an arena grows
    -3: 32 * 2**20,  # M_MMAP_THRESHOLD: larger allocations are not kept; glibc's own maximum
}
# An operator who sets one of these decides instead.
_VARIABLES = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES")


def keep_freed_memory(environ: Mapping[str, str] = os.environ) -> bool:
    """Have glibc keep some freed memory, unless the environment configures it; return whether it will."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None or any(name in environ for name in _VARIABLES):
        return False
    return all(mallopt(option, value) for option, value in _OPTIONS.items())


def give_back_memory() -> None:
    """Free unreachable objects and give kept memory back to the system, after work that took much once."""
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
