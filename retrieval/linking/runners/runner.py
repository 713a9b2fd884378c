"""Runners, their workers and the messages between them; `work` runs a worker in a process of its own.

Messages are increments of counts, records of shards, and errors in words. This module is light, for it is
what a worker process imports first.
"""

from __future__ import annotations

import os
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict
from multiprocessing import parent_process
from multiprocessing.connection import Connection, wait
from typing import TYPE_CHECKING, NamedTuple, Protocol

from genret.retrieval import errors
from genret.retrieval.errors import GenretError, InputError
from genret.retrieval.linking.documents.corpus import Shard
from genret.retrieval.linking.link_options import LinkJob
from genret.retrieval.linking.output.folder import LinkingRunError, ShardRecord
from genret.retrieval.linking.run_progress import LinkCounts

if TYPE_CHECKING:
    from genret.retrieval.linking.shard_worker import ShardWorker


OpenWorker = Callable[[LinkJob], "ShardWorker"]


class Runner(Protocol):
    """Links shards with `ShardWorker`, several at a time."""

    def run(self, job: LinkJob, shards: Sequence[Shard]) -> Iterator[ShardRecord | LinkCounts]:
        """Yield the record of every shard as it ends, in any order, and counts of unfinished ones in between.

        Closing the iterator stops the workers. `LinkCounts` are increments since the last ones and only for
        progress; a record's counts are the shard's whole.

        Raises:
            GenretError: a worker refused or failed; what is recorded stays.
        """


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

    Args:
        worker: The worker.
        shard: The shard.
        send: Gets what the counts have grown by since it was last called, if anything; at the end too.
        every: Least seconds between two calls before the end.
    """
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
        worker = open_worker(job)
        try:
            connection.send(LinkCounts())
            while (shard := connection.recv()) is not None:
                connection.send(linked(worker, shard, connection.send))
        finally:
            worker.close()
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
