"""A worker process of the local runner: shards come through a pipe, counts and records go back."""

from __future__ import annotations

import os
import threading
from contextlib import suppress
from multiprocessing import parent_process
from multiprocessing.connection import Connection, wait

from retrieval.linking.counts import LinkCounts
from retrieval.linking.options import LinkJob
from retrieval.linking.runners.messages import Failure, Increments
from retrieval.linking.runners.runner import OpenWorker

_ORPHANED = 4  # exit code of a worker whose coordinator is gone; nobody is left to read it


def work(connection: Connection, job: LinkJob, open_worker: OpenWorker) -> None:
    """Link the shards that come through a pipe until it is closed. Runs in a process of its own.

    Sends empty `LinkCounts` when everything is open, then increments, the `ShardRecord` of every shard, or a
    `Failure` and nothing more.
    """
    threading.Thread(target=_end_with_the_coordinator, daemon=True).start()
    threads = str(job.worker.num_threads or "")
    for name in ("OMP_NUM_THREADS", "RAYON_NUM_THREADS"):
        if threads:  # read when torch and the tokenizers are imported: several workers share the cores
            os.environ.setdefault(name, threads)
    try:
        worker = open_worker(job)
        try:
            connection.send(LinkCounts())
            while (shard := connection.recv()) is not None:
                increments = Increments(connection.send)
                record = worker.run(shard, increments.report)
                increments.report(record.counts)
                connection.send(record)
        finally:
            worker.close()
    except (EOFError, BrokenPipeError):  # the coordinator is gone
        return
    except Exception as error:
        with suppress(ConnectionError):  # it is gone, which a pipe says in several ways: nobody is to be told
            connection.send(Failure.of(error))


def _end_with_the_coordinator() -> None:
    """End this process at once when the one that started it ends, however that came about."""
    coordinator = parent_process()
    if coordinator is not None:
        wait([coordinator.sentinel])
        os._exit(_ORPHANED)
