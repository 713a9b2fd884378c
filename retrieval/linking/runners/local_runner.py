"""Runners of this machine: in this process, or in several."""

from __future__ import annotations

import multiprocessing
import signal
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from typing import Any

from genret.retrieval.linking.documents.corpus import Shard
from genret.retrieval.linking.link_options import LinkJob
from genret.retrieval.linking.output.folder import LinkingRunError, ShardRecord
from genret.retrieval.linking.run_progress import LinkCounts
from genret.retrieval.linking.runners.runner import OpenWorker, WorkerError, linked, work

_STOP_SECONDS = 1.0  # until a worker that was asked to end is made to
_OUT_OF_MEMORY = "; the system kills a process so when memory runs out: fewer --workers need less"


@dataclass(frozen=True, slots=True)
class InProcessRunner:
    """Links shards in this process, one after the other; `report` gets increments of the counts."""

    report: Callable[[LinkCounts], None]
    open_worker: OpenWorker

    def run(self, job: LinkJob, shards: Sequence[Shard]) -> Iterator[ShardRecord | LinkCounts]:
        """Yield the record of every shard, in order. See `Runner.run`."""
        worker = self.open_worker(job)
        try:
            yield LinkCounts()
            for shard in shards:
                yield linked(worker, shard, self.report)
        finally:
            worker.close()


@dataclass(frozen=True, slots=True)
class LocalRunner:
    """Links shards in several processes of this machine, each with an index and a model of its own.

    Every process has a pipe of its own, so that one that is killed breaks no queue of the others, and gets
    one shard at a time. The processes end with this one, however that ends.
    """

    num_workers: int  # processes; no more are started than there are shards
    open_worker: OpenWorker  # makes the worker, in its process; a function or class that can be sent there

    def run(self, job: LinkJob, shards: Sequence[Shard]) -> Iterator[ShardRecord | LinkCounts]:
        """Yield records and increments of counts as they come; see `Runner.run`. A dead worker is a
        `LinkingRunError`.
        """
        waiting = deque(shards)
        workers: dict[Connection, _Process] = {}
        try:
            for _ in range(min(self.num_workers, len(shards))):
                process = _Process.start(job, self.open_worker)
                workers[process.connection] = process
            while workers:
                for connection in wait(list(workers)):
                    assert isinstance(connection, Connection)
                    message = workers[connection].receive()
                    if isinstance(message, ShardRecord | LinkCounts):
                        yield message
                    if workers[connection].is_free and not workers[connection].hand_out(waiting):
                        workers.pop(connection).join()
        finally:
            _stop(workers.values())


@dataclass(slots=True)
class _Process:
    """A worker process, its pipe (which ends with it) and the shard it is linking, if any."""

    process: SpawnProcess
    connection: Connection
    shard: Shard | None = None
    is_free: bool = False

    @classmethod
    def start(cls, job: LinkJob, open_worker: OpenWorker) -> _Process:
        """Start a process that gets no Ctrl-C: only this process decides what that stops."""
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        process = context.Process(target=work, args=(theirs, job, open_worker), daemon=True)
        # The mask is inherited, so that the process never has a moment in which it would be interrupted. The
        # first process would start the tracker besides, which takes SIGINT out of the mask.
        resource_tracker.ensure_running()
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        theirs.close()
        return cls(process, ours)

    def receive(self) -> Any:
        """Return the next message; raise a failure, or `LinkingRunError` where the process is gone."""
        try:
            message = self.connection.recv()
        except (EOFError, ConnectionResetError):
            raise self._death() from None
        if isinstance(message, WorkerError):
            raise message.error()
        if isinstance(message, ShardRecord) or (self.shard is None and not self.is_free):
            self.shard, self.is_free = None, True
        return message

    def hand_out(self, waiting: deque[Shard]) -> bool:
        """Send the next shard, or None as the word that it may go; return whether there was one."""
        self.is_free = False
        self.shard = waiting.popleft() if waiting else None
        try:
            self.connection.send(self.shard)
        except BrokenPipeError:
            raise self._death() from None
        return self.shard is not None

    def join(self) -> None:
        self.process.join(_STOP_SECONDS)
        _stop([self])

    def _death(self) -> LinkingRunError:
        self.process.join(_STOP_SECONDS)
        code = self.process.exitcode
        how = f"exit code {code}" if code is None or code >= 0 else signal.Signals(-code).name
        doing = "as it opened the index and the model"
        if self.shard is not None:
            doing = f"as it linked shard {self.shard.number} ({self.shard.stretch})"
        hint = _OUT_OF_MEMORY if code == -signal.SIGKILL else ""
        return LinkingRunError(f"a worker died ({how}) {doing}{hint}")


def _stop(workers: Collection[_Process]) -> None:
    """End processes at once; what they have recorded stays."""
    processes = [worker.process for worker in workers]
    for process in processes:
        process.terminate()
    for process in processes:
        process.join(_STOP_SECONDS)
        if process.is_alive():
            process.kill()
            process.join()
    for worker in workers:
        worker.connection.close()
