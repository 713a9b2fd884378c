"""Runners, the messages between them and their workers, and the runners of this machine.

Messages are increments of counts, records of shards, and errors in words. This module is light, for it is
what a worker process imports first (`work`).
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Collection, Generator, Sequence
from contextlib import closing, suppress
from dataclasses import asdict, dataclass
from multiprocessing import parent_process, resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from typing import TYPE_CHECKING, Any, NamedTuple

from genret.retrieval import errors
from genret.retrieval.errors import GenretError, InputError
from genret.retrieval.linking.documents.corpus import Shard
from genret.retrieval.linking.link_options import LinkJob
from genret.retrieval.linking.output.folder import LinkingRunError, ShardRecord
from genret.retrieval.linking.run_progress import LinkCounts

if TYPE_CHECKING:
    from genret.retrieval.linking.shard_worker import ShardWorker


OpenWorker = Callable[[LinkJob], "ShardWorker"]
# What every runner yields: the record of every shard as it ends, in any order, and in between increments of
# the counts, of unfinished shards too, which are only for progress: a record's counts are the shard's whole.
# Closing the iterator stops the workers. A worker's GenretError is raised; what is recorded stays.
Messages = Generator[ShardRecord | LinkCounts, None, None]


class WorkerError(NamedTuple):
    """An error of a worker in words: exceptions of several arguments do not survive being sent."""

    kind: str | None  # name of the class, for errors that are meant for a user; None: a defect
    text: str  # the message; of a defect, with the traceback
    field: str = ""  # field of an `InputError`

    @classmethod
    def of(cls, error: Exception) -> WorkerError:
        """Put an error into words."""
        if isinstance(error, InputError):
            return cls("InputError", error.message, error.field)
        if isinstance(error, GenretError):
            return cls(type(error).__name__, str(error))
        return cls(None, "".join(traceback.format_exception(error)))

    def error(self) -> Exception:
        """Return the error to raise where the run was started."""
        if self.kind is None:
            return RuntimeError(f"a worker failed:\n{self.text}")
        if self.kind == "InputError":
            return InputError(self.field, self.text)
        named = {LinkingRunError.__name__: LinkingRunError, **vars(errors)}
        kind: type[GenretError] = named.get(self.kind, GenretError)
        # The text is whole already: the class's own constructor would put it together once more.
        return kind.__new__(kind, self.text)


def linked(
    worker: ShardWorker, shard: Shard, send: Callable[[LinkCounts], None], every: float = 0.0
) -> ShardRecord:
    """Link a shard and return its record.

    `send` gets zeros at the start, from which the run's rates count; then what the counts have grown by, if
    anything, at the end and not sooner than `every` seconds after the last time.
    """
    send(LinkCounts())
    sent: dict[str, int] = {}
    due = time.monotonic() + every

    def report(counts: LinkCounts) -> None:
        nonlocal sent, due
        if time.monotonic() < due:
            return
        now = asdict(counts)
        grown = {name: n - sent.get(name, 0) for name, n in now.items()}
        sent, due = now, time.monotonic() + every
        if any(grown.values()):
            send(LinkCounts(**grown))

    record = worker.run(shard, report)
    due = 0.0
    report(record.counts)
    return record


_STOP_SECONDS = 1.0  # until a worker that was asked to end is made to
_OUT_OF_MEMORY = "; the system kills a process so when memory runs out: fewer --workers need less"
_ORPHANED = 4  # exit code of a worker whose coordinator is gone; nobody is left to read it


def work(connection: Connection, job: LinkJob, open_worker: OpenWorker) -> None:
    """Link the shards that come through a pipe until it is closed. Runs in a process of its own.

    Sends empty `LinkCounts` when everything is open, then increments, the `ShardRecord` of every shard, or a
    `WorkerError` and nothing more.
    """
    threading.Thread(target=_end_with_the_coordinator, daemon=True).start()
    if job.worker.num_threads:
        for name in ("OMP_NUM_THREADS", "RAYON_NUM_THREADS"):  # read when torch and tokenizers are imported
            os.environ.setdefault(name, str(job.worker.num_threads))
    try:
        with closing(open_worker(job)) as worker:
            connection.send(LinkCounts())
            while (shard := connection.recv()) is not None:
                connection.send(linked(worker, shard, connection.send))
    except (EOFError, BrokenPipeError):  # the coordinator is gone
        return
    except Exception as error:
        with suppress(ConnectionError):  # it is gone, which a pipe says in several ways: nobody is to be told
            connection.send(WorkerError.of(error))


def _end_with_the_coordinator() -> None:
    """End this process at once when the one that started it ends."""
    coordinator = parent_process()
    if coordinator is not None:
        wait([coordinator.sentinel])
        os._exit(_ORPHANED)


def link_here(
    job: LinkJob, shards: Sequence[Shard], open_worker: OpenWorker, report: Callable[[LinkCounts], None]
) -> Messages:
    """Link shards in this process, one after the other; `report` gets increments of the counts."""
    with closing(open_worker(job)) as worker:
        yield LinkCounts()
        for shard in shards:
            yield linked(worker, shard, report)


def link_in_processes(
    job: LinkJob, shards: Sequence[Shard], open_worker: OpenWorker, num_workers: int
) -> Messages:
    """Link shards in several processes of this machine, each with an index and a model of its own.

    Every process has a pipe of its own, so that one that is killed breaks no queue of the others, and gets
    one shard at a time. The processes end with this one, however that ends. A dead worker is a
    `LinkingRunError`. `open_worker` is sent to the processes.
    """
    waiting = deque(shards)
    workers: dict[Connection, _Process] = {}
    try:
        for _ in range(num_workers):
            process = _Process.start(job, open_worker)
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
