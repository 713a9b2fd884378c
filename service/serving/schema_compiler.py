"""Compiles the schemas of requests on threads of its own, fairly, and out of the way of everything else.

A grammar is a graph over its model's vocabulary and its indexes: a process of its own would need both, and
would have to send the graph back. Threads share Python's lock instead, and so they give way. A compilation
sleeps after every few milliseconds of work: as long as the others that run may work, and seven times that
while a device has requests. Its limit is CPU time, so sleeping costs a schema nothing but patience.

A schema that is known never comes here.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import math
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Hashable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from genret.decoding.errors import DeadlineExceededError, DecodingCancelledError
from genret.decoding.grammar.compile_options import pausing
from genret.service.errors import NotReadyError, OverloadedError
from genret.service.serving.device_threads import contained
from genret.service.serving.served import SILENT, QueueObserver

_LOG = logging.getLogger(__name__)
# Compilations that take turns. A client has one of them at a time.
_NUM_THREADS = 4
MAX_WAITING = 256
MAX_WAITING_BYTES = 32 * 2**20
# A busy device leaves one part in so many of the interpreter to compilations.
_BUSY_PARTS = 8
# The collector of cycles runs after so long, though schemas are being compiled all the time.
_LONGEST_PAUSE_S = 30.0


@dataclass(slots=True, eq=False)
class _Job:
    """One schema that waits or is compiled, for all requests that ask for it meanwhile."""

    key: Hashable
    call: Callable[[], Any]
    num_bytes: int
    future: asyncio.Future[tuple[Any, float]]
    clients: list[str] = field(default_factory=list)  # those in whose queues it waits
    num_waiters: int = 0
    stop: threading.Event = field(default_factory=threading.Event)


class SchemaCompiler:
    """Queues compilations by client, and runs a few of them at a time. Lives on one event loop.

    `is_busy` tells whether devices have requests; it is called on the threads that compile.
    """

    def __init__(self, is_busy: Callable[[], bool] = lambda: False) -> None:
        self._is_busy = is_busy
        self._pool = ThreadPoolExecutor(_NUM_THREADS, thread_name_prefix="genret-schemas")
        self._jobs: dict[Hashable, _Job] = {}
        self._queues: dict[str, deque[_Job]] = {}  # the client whose turn is next comes first
        self._running: dict[str, asyncio.Task[None]] = {}
        self._quiet = _CollectorPause()
        self._mean_s = 1.0
        self._is_full = self._closed = False
        self.num_compiled = self.num_refused = self.num_abandoned = 0

    @property
    def num_waiting(self) -> int:
        """Schemas that wait."""
        return len(self._waiting())

    @property
    def num_running(self) -> int:
        """Schemas that are being compiled."""
        return len(self._running)

    async def compile(
        self,
        key: Hashable,
        call: Callable[[], Any],
        num_bytes: int,
        client: str,
        deadline: float = math.inf,
        observer: QueueObserver = SILENT,
    ) -> tuple[Any, float]:
        """Run `call` when it is the client's turn; requests of one `key` at one time share one run.

        It polls its budget (`decoding.grammar.compile_options`); the schema has `num_bytes`; `deadline` is as
        `time.monotonic()`, seconds. Returns what `call` returns, and its CPU time, milliseconds.

        Raises:
            OverloadedError: too many schemas wait; those of the client with the most are refused.
            DeadlineExceededError: the deadline passed.
            NotReadyError: the server shuts down.
            Exception: from `call`.
        """
        overdue = asyncio.timeout_at(None if deadline == math.inf else deadline)
        try:
            job = self._job(key, call, num_bytes, client)
            job.num_waiters += 1
            try:
                async with overdue:
                    return await asyncio.shield(job.future)
            finally:
                job.num_waiters -= 1
                self._leave(job)
        except BaseException as error:
            if isinstance(error, TimeoutError) and overdue.expired():
                late = DeadlineExceededError("the deadline passed before the schema was compiled")
                observer.failed(late, deadline, "queue")
                raise late from None
            observer.failed(error, deadline, "queue")
            raise

    async def settle(self) -> None:
        """Wait for the compilations that run now."""
        await asyncio.gather(*self._running.values())

    async def close(self) -> None:
        """Refuse what waits, stop what runs, and wait for the threads. Idempotent."""
        self._closed = True
        for job in list(self._jobs.values()):
            job.stop.set()
            self._forget(job)
            job.future.set_exception(NotReadyError())
            job.future.exception()  # retrieved, though nobody may wait for it
        await self.settle()
        await asyncio.to_thread(self._pool.shutdown)

    def _waiting(self) -> set[_Job]:
        return {job for queue in self._queues.values() for job in queue}

    def _job(self, key: Hashable, call: Callable[[], Any], num_bytes: int, client: str) -> _Job:
        """Return the job of a key, a new one if there is none, in the queue of the client."""
        if self._closed:
            raise NotReadyError()
        job = self._jobs.get(key)
        if job is None:
            self._make_room(num_bytes, client)
            future = asyncio.get_running_loop().create_future()
            job = self._jobs[key] = _Job(key, call, num_bytes, future)
        elif not job.clients or client in job.clients:  # it runs, or waits for this client's turn already
            return job
        job.clients.append(client)
        self._queues.setdefault(client, deque()).append(job)
        self._start()
        return job

    def _make_room(self, num_bytes: int, client: str) -> None:
        """Refuse the last schemas of the client with the largest part of the queue while it is full.

        Raises OverloadedError if that is the one who asks.
        """
        while True:
            waiting = self._waiting()
            held = sum(job.num_bytes for job in waiting)
            if len(waiting) < MAX_WAITING and held + num_bytes <= MAX_WAITING_BYTES:
                return
            parts = {
                name: sum(_part_of(job.num_bytes) for job in queue) for name, queue in self._queues.items()
            }
            mine = parts.get(client, 0.0) + _part_of(num_bytes)
            most = max(parts, key=parts.__getitem__, default=client)
            if not self._is_full:
                self._is_full = True
                _LOG.warning("%d schemas wait to be compiled, %d bytes: more are refused", len(waiting), held)
            self.num_refused += 1
            retry_s = max(1.0, len(waiting) * self._mean_s)
            full = OverloadedError("QUEUE_FULL", f"{len(waiting)} schemas wait to be compiled", retry_s)
            if parts.get(most, 0.0) <= mine:
                raise full
            last = self._queues[most][-1]
            self._forget(last)
            last.future.set_exception(full)

    def _start(self) -> None:
        """Start compilations while there are threads and clients without one, by turns."""
        while len(self._running) < _NUM_THREADS:
            client = next((name for name in self._queues if name not in self._running), None)
            if client is None:
                return
            job = self._queues[client][0]
            self._dequeue(job)
            if client in self._queues:  # the others are next
                self._queues[client] = self._queues.pop(client)
            self._running[client] = asyncio.get_running_loop().create_task(self._run(client, job))

    async def _run(self, client: str, job: _Job) -> None:
        begun = time.monotonic()
        loop = asyncio.get_running_loop()
        try:
            compiled = await loop.run_in_executor(self._pool, self._work, job)
        except Exception as error:
            if not job.future.done() and job.num_waiters:
                job.future.set_exception(error)
        else:
            if not job.future.done():
                job.future.set_result(compiled)
        self._mean_s += (time.monotonic() - begun - self._mean_s) / 8
        self.num_compiled += not job.stop.is_set()
        self._forget(job)
        del self._running[client]
        self._is_full = self._is_full and bool(self._queues)
        self._start()

    def _work(self, job: _Job) -> tuple[Any, float]:
        """Compile on a thread of the pool; DecodingCancelledError if nobody waits any more."""
        with self._quiet.held(), pausing(partial(self._pause, job)):
            begun = time.thread_time()
            while True:
                try:
                    compiled = contained(job.call)
                except DecodingCancelledError:
                    # Another spelling of the schema was being compiled, and its clients have gone.
                    if job.stop.is_set():
                        raise
                except Exception as error:
                    _forget_locals(error)
                    raise
                else:
                    return compiled, (time.thread_time() - begun) * 1e3

    def _pause(self, job: _Job, worked_s: float) -> None:
        parts = len(self._running) * (_BUSY_PARTS if self._is_busy() else 1)
        if job.stop.wait(worked_s * (parts - 1)):
            raise DecodingCancelledError("nobody waits for the schema any more")

    def _leave(self, job: _Job) -> None:
        """Give up a job for which nobody waits."""
        if not job.num_waiters and not job.future.done():
            self.num_abandoned += 1
            job.stop.set()
            self._forget(job)

    def _forget(self, job: _Job) -> None:
        self._dequeue(job)
        if self._jobs.get(job.key) is job:
            del self._jobs[job.key]

    def _dequeue(self, job: _Job) -> None:
        for client in job.clients:
            queue = self._queues[client]
            queue.remove(job)
            if not queue:
                del self._queues[client]
        job.clients.clear()


def _part_of(num_bytes: int) -> float:
    return 1 / MAX_WAITING + num_bytes / MAX_WAITING_BYTES


def _forget_locals(error: BaseException | None) -> None:
    """Free what the frames of an error hold, before it is handed on: parts of a grammar, some 70 MiB."""
    while error is not None:
        traceback.clear_frames(error.__traceback__)
        error = error.__cause__ or error.__context__


class _CollectorPause:
    """Keeps Python's collector of cycles from looking again and again at the parts of unfinished grammars.

    It holds Python's lock meanwhile: of schemas of 1 MB it looked at millions of objects, several times, and
    everything else stood still for up to 1.8 s (measured). When the last one is compiled, little is left to
    look at.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._num_held = 0
        self._was_enabled = False
        self._since = 0.0

    @contextmanager
    def held(self) -> Iterator[None]:
        """Pause it until the end of the block, and of all others; it runs now and then all the same."""
        with self._lock:
            if not self._num_held:
                self._was_enabled, self._since = gc.isenabled(), time.monotonic()
                gc.disable()
            self._num_held += 1
        try:
            yield
        finally:
            with self._lock:
                self._num_held -= 1
                is_due = time.monotonic() > self._since + _LONGEST_PAUSE_S
                if self._was_enabled and (is_due or not self._num_held):
                    gc.collect(1)
                    self._since = time.monotonic()
                if self._was_enabled and not self._num_held:
                    gc.enable()
