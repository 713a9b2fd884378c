"""Batches requests continuously: those that come join what a device is doing, between two forwards.

Requests wait by client and call (`fair_shares`). Whenever a device's thread is about to run a forward, those
whose turn it is begin. Requests of one kind that begin together are a group, which decodes together; long
ones, as JSON documents and proofs, go alone. Groups run side by side, and their forwards are joined
(`decoding.side_by_side`), so nobody waits for another's end.

An idle device waits for company only if the last group had several requests: their clients send the next
ones at about the same time. It waits until as many have come, `max_delay_ms` at most; a single client never
waits.
"""

from __future__ import annotations

import asyncio
import logging
import math
import threading
import time
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from functools import partial

from genret.decoding.cancellation import CancelToken, reason_to_stop
from genret.decoding.errors import DeadlineExceededError, DecodingCancelledError
from genret.decoding.side_by_side import Ending, SharedForwardError, undivided
from genret.retrieval.answers.answer_types import AnswerRequest
from genret.retrieval.types import RetrieveRequest
from genret.service.configuration.server_config import BatchLimits, QueueLimits
from genret.service.errors import NoRoomError, NotReadyError, OverloadedError
from genret.service.serving.admission import Admission, Patience, done_tokens
from genret.service.serving.device_threads import DeviceThread, Work, as_exception
from genret.service.serving.fair_shares import Caller, CallShare, ClientShare, FairShares
from genret.service.serving.served import (
    SILENT,
    BatchCall,
    Outcome,
    QueueObserver,
    Request,
    Result,
    Stage,
)

_LOG = logging.getLogger(__name__)
_TOKEN_S = 1e-6
# Groups of one client that run side by side: so many at once, and one more for every forward that was waited
# for, twice as many at most.
_MOST_GROUPS = 3
_NOBODY = Caller()


@dataclass(frozen=True, slots=True)
class QueuedResult:
    """A result and its request's wait for its turn, milliseconds."""

    result: Result
    queue_ms: float


@dataclass(slots=True, eq=False)
class _Job:
    batch_call: BatchCall
    request: Request
    tokens: int
    share: int  # tokens it counts for in the queue
    cancel: CancelToken
    caller: Caller
    patience: Patience
    max_seconds: float
    arrived: float
    future: asyncio.Future[QueuedResult]
    client_share: ClientShare[_Job]
    call_share: CallShare[_Job]
    overdue: asyncio.Timeout | None = None
    begun: float | None = None
    claim_s: float = 0.0
    came: int = 0  # forwards that the device had run before

    @property
    def stage(self) -> Stage:
        return "queue" if self.begun is None else "running"

    @property
    def kind(self) -> Hashable:
        return self.batch_call, _kind(self.request)

    def is_late(self, now: float) -> bool:
        return self.cancel.deadline is not None and now >= self.cancel.deadline


def _kind(request: Request) -> Hashable:
    """Return what requests of one group have in common; one that may take long is alone."""
    if isinstance(request, RetrieveRequest):
        branches = 1 << (request.width - 1).bit_length()
        return object() if request.exact else (request.decoding, branches, request.explain)
    return object() if isinstance(request, AnswerRequest) else ()


@dataclass(slots=True, eq=False)
class _Group:
    """Requests that began together (a `side_by_side.Share`: what they take is counted to their clients)."""

    jobs: list[_Job]
    seconds: float = 0.0  # of the device that they have had

    @property
    def turn(self) -> tuple[float, float]:
        """The least time that one of its clients has had, and then its call."""
        return min((job.client_share.had, job.call_share.had) for job in self.jobs)

    def charge(self, seconds: float) -> None:
        """Count time, to each by its work."""
        self.seconds += seconds
        total = sum(job.share for job in self.jobs)
        for job in self.jobs:
            part = seconds * job.share / total
            for share in (job.client_share, job.call_share):
                share.charge(part)
            job.claim_s = max(0.0, job.claim_s - part)

    def reason_to_stop(self) -> DecodingCancelledError | None:
        """Return why nobody waits for any of them; None if somebody does."""
        reasons = (reason_to_stop(job.cancel) for job in self.jobs)
        first = next(reasons)
        return first if first and all(reasons) else None


class DeviceQueue:
    """One device: all models on it share its thread, its queue and its admission.

    Lives on one event loop; the device's thread takes groups of requests off.
    """

    def __init__(
        self, device: str, limits: BatchLimits, queue: QueueLimits, observer: QueueObserver = SILENT
    ) -> None:
        self.device = device
        self.observer = observer
        self.admission = Admission(queue, limits)
        self._limits = limits
        self._lock = threading.Lock()  # held for what both threads use: shares, and what runs
        self._shares: FairShares[_Job] = FairShares()
        self._running: dict[int, _Job] = {}
        self._last_size = 0
        self._num_forwards = 0
        self._closed = False
        self._loop = asyncio.get_running_loop()
        self.thread = DeviceThread(device, limits.max_forward_ms / 1000, self._next_work)

    @property
    def num_waiting(self) -> int:
        """Requests that have not begun."""
        with self._lock:
            return self._shares.num_waiting

    async def submit(
        self,
        batch_call: BatchCall,
        request: Request,
        tokens: int,
        cancel: CancelToken,
        caller: Caller = _NOBODY,
        patience: Patience = Patience.NONE,
        max_seconds: float = math.inf,
    ) -> QueuedResult:
        """Queue one request and wait for its answer.

        Cancelling the awaiting task takes a waiting request out of the queue, and stops a running one before
        its next decode step. `batch_call` is a retriever's for requests of this kind, `tokens` the work of
        this one (`admission.estimate_tokens`). `cancel` has its deadline; it may take `max_seconds` once it
        has begun.

        Raises:
            OverloadedError: too much is waiting already, the deadline cannot be met, or the device's memory
                is full.
            DeadlineExceededError: the deadline passed.
            NotReadyError: the queue is closed.
            GenretError, DecodingError: the retriever's error for this request.
        """
        share = self.admission.share(request, tokens)
        job: _Job | None = None
        try:
            if self._closed:
                raise NotReadyError()
            cancel.check()
            self.admission.admit(caller, share, cancel.deadline or math.inf, patience)
            with self._lock:
                client = self._shares.client(caller.client, caller.weight)
                call = client.call(caller.call)
                job = _Job(
                    batch_call,
                    request,
                    tokens,
                    share,
                    cancel,
                    caller,
                    patience,
                    max_seconds,
                    time.monotonic(),
                    self._loop.create_future(),
                    client,
                    call,
                    came=self._num_forwards,
                )
                self._shares.add(client, call, job)
            # Not at once: the requests of a batch come one after the other, and are to begin together.
            self._loop.call_soon(self.thread.wake)
            answer = await self._outcome(job)
        except BaseException as error:
            self.observer.failed(error, cancel.deadline, "arrival" if job is None else job.stage)
            raise
        self.observer.answered(request, answer.result, answer.queue_ms / 1000, time.monotonic() - job.arrived)
        return answer

    async def _outcome(self, job: _Job) -> QueuedResult:
        """Wait for the answer of a request, to its deadline at most; then, or when cancelled, give it up."""
        overdue = asyncio.timeout_at(_finite(job.cancel.deadline))
        try:
            async with overdue:  # a device that hangs checks no deadline and keeps others from running
                job.overdue = overdue
                return await job.future
        except asyncio.CancelledError:
            job.cancel.cancel()
            self._give_up(job)
            raise
        except TimeoutError:
            if not overdue.expired():
                raise  # the retriever's own
            self._give_up(job)
            where = "in the queue" if job.begun is None else "during decoding"
            raise DeadlineExceededError(f"the deadline passed {where}") from None
        finally:
            job.overdue = None

    def check_room(self, caller: Caller) -> None:
        """Refuse, by NoRoomError, a request that wants an answer now if even the smallest would be."""
        try:
            self.admission.check(caller, 1)
        except NoRoomError as error:
            self.observer.failed(error, None, "arrival")
            raise

    async def close(self) -> None:
        """Fail what waits, ask what runs to stop, and wait for it. Idempotent."""
        self._closed = True
        with self._lock:
            waiting = self._shares.waiting()
            for job in waiting:
                self._shares.remove(job.client_share, job.call_share, job)
            running = list(self._running.values())
        for job in waiting:
            self._end(job, NotReadyError())
        for job in running:
            job.cancel.cancel()
            self._fail(job, NotReadyError())
        await asyncio.to_thread(self.thread.close)
        await asyncio.sleep(0)  # what the thread has told the loop at its end

    def _give_up(self, job: _Job) -> None:
        """Take a request without a waiter out of the queue; one that runs ends by itself."""
        with self._lock:
            waits = job.begun is None and job in job.call_share.waiting
            if waits:
                self._shares.remove(job.client_share, job.call_share, job)
                self._shares.tidy()
        if waits:
            self._release(job)
        if job.future.done() and not job.future.cancelled():
            job.future.exception()  # retrieved, though nobody waits for it

    def _next_work(self, is_idle: bool) -> Work | None:
        """Let the next group begin; None if none waits, or there is no room. On the device's thread."""
        now = time.monotonic()
        with self._lock:
            late = self._take_late(now)
            delay_s = self._delay_s(now) if is_idle else 0.0
            group = None if delay_s > 0 else self._take(now)
            self._num_forwards += group is None and not is_idle
        if late:
            self._loop.call_soon_threadsafe(self._drop, late)
        if delay_s > 0:
            self._loop.call_soon_threadsafe(self._loop.call_later, delay_s, self.thread.wake)
        if group is None:
            return None
        self._loop.call_soon_threadsafe(self._begun, group, now)
        return Work(partial(self._answer, group.jobs), group, partial(self._tell, group))

    def _delay_s(self, now: float) -> float:
        """Return how long an idle device may wait for company of those that wait; 0: none is expected."""
        waiting = self._shares.waiting()
        if not waiting or len(waiting) >= min(self._last_size, self._limits.max_size):
            return 0.0
        if sum(job.tokens for job in waiting) >= self._limits.max_tokens:
            return 0.0
        return min(job.arrived for job in waiting) + self._limits.max_delay_ms / 1000 - now

    def _take_late(self, now: float) -> list[_Job]:
        """Take requests out whose deadline has passed, or that nobody waits for."""
        late = [job for job in self._shares.waiting() if job.is_late(now) or job.cancel.cancelled]
        for job in late:
            self._shares.remove(job.client_share, job.call_share, job)
        return late

    def _take(self, now: float) -> _Group | None:
        """Take the next group off the queue: of one kind, in the order of shares, as far as there is room."""
        group: list[_Job] = []
        kind: Hashable = None
        least = self._shares.least_had
        for client, call in self._shares.turns():
            if client.num_running and client.had > least:
                continue  # beside others' requests new ones would take the client's part from those that run
            job = next((one for one in call.waiting if not group or one.kind == kind), None)
            if job is None or not self._has_room(job, group):
                continue
            kind = job.kind if not group else kind
            self._shares.remove(client, call, job)
            client.num_running += 1
            call.num_running += 1
            # Before anything has run no time is known: then tokens count.
            job.begun, job.claim_s = now, self.admission.speed.seconds(job.share, 1) or job.share * _TOKEN_S
            client.claim(job.claim_s)
            call.claim(job.claim_s)
            if job.max_seconds < math.inf:
                deadline = math.inf if job.cancel.deadline is None else job.cancel.deadline
                job.cancel.deadline = min(deadline, now + job.max_seconds)
            self._running[id(job)] = job
            group.append(job)
            if len(group) == self._limits.max_size:
                break
        self._shares.tidy()
        for client in {job.client_share for job in group}:
            client.num_groups += 1
        if group:
            self._last_size = len(group)
        return _Group(group) if group else None

    def _has_room(self, job: _Job, group: Sequence[_Job]) -> bool:
        """Whether a request may begin beside what runs.

        As much again is kept free for clients of which nothing runs, and half of it for calls: they need not
        wait for others' ends.
        """
        fold = 1.0 if job.call_share.num_running else 1.5 if job.client_share.num_running else 2.0
        running = len(self._running)
        most = _MOST_GROUPS + min(_MOST_GROUPS, self._num_forwards - job.came)
        if not group and fold < 2 and job.client_share.num_groups >= most:
            return False  # those that come meanwhile are one group then, which costs less than many
        if not group and fold < 2 and self._shares.num_waiting > self._limits.max_size - running:
            # A few would begin now, and a few when the others end: small groups cost more. A call of which
            # nothing runs comes after as many calls, and not after all requests of a stream.
            before = running if fold < 1.5 else len({id(one.call_share) for one in self._running.values()})
            if before > self._limits.max_size // 2:
                return False
        tokens = sum(min(one.tokens, self._limits.max_tokens) for one in self._running.values())
        if group and sum(one.tokens for one in group) + job.tokens > self._limits.max_tokens:
            return False
        return running < fold * self._limits.max_size and (
            tokens + min(job.tokens, self._limits.max_tokens) <= fold * self._limits.max_tokens
        )

    def _answer(self, jobs: Sequence[_Job]) -> Sequence[Outcome | Exception]:
        """Run a group; if it fails as a whole, run its requests one by one so that only the culprit fails."""
        requests, cancels = [job.request for job in jobs], [job.cancel for job in jobs]
        try:
            outcomes = jobs[0].batch_call(requests, cancels)
            if len(outcomes) != len(jobs):
                raise ValueError(f"the retriever gave {len(outcomes)} answers to {len(jobs)} requests")
            return outcomes
        except BaseException as raised:
            error = as_exception(raised)
            reasons = [reason_to_stop(job.cancel) for job in jobs]
            if isinstance(error, DecodingCancelledError) and all(reasons):
                return [reason or error for reason in reasons]
            if len(jobs) == 1 and not isinstance(error, SharedForwardError):
                return [_as_memory_error(error)]
            _LOG.warning("a batch of %d failed as a whole; trying its requests one by one", len(jobs))
        alone: list[Outcome | Exception] = []
        for job in jobs:
            with undivided():
                alone += self._answer([job])
        return alone

    def _tell(self, group: _Group, ended: Ending[Sequence[Outcome | Exception]]) -> None:
        with self._lock:
            for job in group.jobs:
                job.client_share.num_running -= 1
                job.call_share.num_running -= 1
                job.client_share.settle(job.claim_s)
                job.call_share.settle(job.claim_s)
                del self._running[id(job)]
            for client in {job.client_share for job in group.jobs}:
                client.num_groups -= 1
            self._shares.tidy()
        failure = ended.error or RuntimeError("the device's call returned nothing")
        outcomes = ended.value or [as_exception(failure)] * len(group.jobs)
        self._loop.call_soon_threadsafe(self._finish, group, outcomes)

    def _begun(self, group: _Group, now: float) -> None:
        """Note on the event loop that a group has begun."""
        self.observer.batch_formed(
            sum(job.tokens for job in group.jobs), [now - job.arrived for job in group.jobs]
        )
        for job in group.jobs:
            if job.overdue is not None and not job.overdue.expired():
                job.overdue.reschedule(_finite(job.cancel.deadline))

    def _finish(self, group: _Group, outcomes: Sequence[Outcome | Exception]) -> None:
        """Tell the waiters of a group its outcomes, and learn from them."""
        self.observer.batch_finished(outcomes, group.seconds)
        tokens = 0
        for job, outcome in zip(group.jobs, outcomes, strict=True):
            self._settle(job, outcome)
            if isinstance(outcome, Exception):
                tokens += job.share
            else:
                tokens += done_tokens(job.tokens, job.request, outcome)
                self.admission.costs.learn(job.request, outcome)
            self._release(job)
        # Instant failures and late cancellations say nothing of the device's speed.
        if not all(isinstance(outcome, Exception) for outcome in outcomes):
            self.admission.speed.observe(tokens, group.seconds)

    def _drop(self, late: Sequence[_Job]) -> None:
        for job in late:
            self._end(job, DeadlineExceededError("the deadline passed in the queue"))

    def _end(self, job: _Job, error: Exception) -> None:
        self._fail(job, error)
        self._release(job)

    def _release(self, job: _Job) -> None:
        self.admission.release(job.caller, job.share, job.patience)

    def _settle(self, job: _Job, outcome: Outcome | Exception) -> None:
        if isinstance(outcome, Exception):
            self._fail(job, outcome)
        elif not job.future.done():
            waited = (job.arrived if job.begun is None else job.begun) - job.arrived
            job.future.set_result(QueuedResult(outcome, queue_ms=waited * 1000))

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


class DeviceQueues:
    """The device queues of a server, made on demand. Lives on one event loop."""

    def __init__(
        self, batch: BatchLimits, queue: QueueLimits, observer_of: Callable[[str], QueueObserver]
    ) -> None:
        self._batch = batch
        self._queue = queue
        self._observer_of = observer_of
        self._lanes: dict[str, DeviceQueue] = {}

    def of(self, device: str) -> DeviceQueue:
        """Return the queue of a device."""
        if device not in self._lanes:
            self._lanes[device] = DeviceQueue(device, self._batch, self._queue, self._observer_of(device))
        return self._lanes[device]

    def all(self) -> list[DeviceQueue]:
        """Return all queues made so far."""
        return list(self._lanes.values())

    async def close(self) -> None:
        """Fail waiting requests, stop running ones, end the threads. Idempotent."""
        for lane in self.all():
            await lane.close()
