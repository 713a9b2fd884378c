"""Actors on the nodes of a Ray cluster: one worker each, and one actor that gathers progress."""

from __future__ import annotations

import json
import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from genret.retrieval.linking.documents.corpus import Shard, ShardFile
from genret.retrieval.linking.link_options import LinkJob
from genret.retrieval.linking.output.folder import LinkingRunError, OutputFolder, ShardRecord
from genret.retrieval.linking.run_progress import LinkCounts
from genret.retrieval.linking.runners.runner import Increments, OpenWorker, WorkerError
from genret.retrieval.linking.shard_worker import ShardWorker

SHARD_COLUMN = "shard"
OUTCOME_COLUMN = "outcome"
_REPORT_EVERY_S = 0.5

Outcome = ShardRecord | WorkerError


class ShardActor:
    """Opens a worker once and links the shards it is handed, one per call. Ray Data makes these.

    Shards and outcomes cross as JSON. Errors come back as outcomes: raised, they would reach the caller
    wrapped in Ray's own words, and Ray would write of each to the terminal.

    Args:
        job: The job of the run. Ray Data keeps actors by their arguments: all of them must be hashable.
        open_worker: Makes the worker.
        progress: The actor `ShardProgress` of the run.
        num_retries: How often a shard is tried again that was lost with its actor.
    """

    def __init__(self, job: LinkJob, open_worker: OpenWorker, progress: Any, num_retries: int) -> None:
        self._job = job
        self._progress = progress
        self._num_retries = num_retries
        self._worker: ShardWorker | WorkerError
        try:
            self._worker = open_worker(job)
        except Exception as error:  # raised where the run was started
            self._worker = WorkerError.of(error)

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        """Link the shards of a batch: one, as every block holds one."""
        outcomes = [text_of(self._outcome(shard_of(text))) for text in batch[SHARD_COLUMN]]
        return {OUTCOME_COLUMN: np.array(outcomes, dtype=object)}

    def _outcome(self, shard: Shard) -> Outcome:
        if isinstance(self._worker, WorkerError):
            return self._worker
        try:
            return self._linked(self._worker, shard)
        except Exception as error:  # raised where the run was started
            return WorkerError.of(error)

    def _linked(self, worker: ShardWorker, shard: Shard) -> ShardRecord:
        import ray

        num_tries = ray.get(self._progress.begin.remote(shard.number))
        if num_tries > 1:
            # The actor that had it is gone; it may have come as far as to the record.
            record = recorded(self._job, shard)
            if record is not None:
                return record
        if num_tries > self._num_retries + 1:
            raise LinkingRunError(
                f"shard {shard.number} ({shard.stretch}) was tried {num_tries - 1} times, and each time "
                "its worker died, as workers do that need more memory than there is; smaller shards may pass"
            )
        last: deque[Any] = deque(maxlen=1)
        increments = Increments(lambda counts: last.append(self._progress.add.remote(counts)))
        record = worker.run(shard, _Seldom(increments.report))
        increments.report(record.counts)
        ray.get(list(last))  # counted before the shard counts as done
        return record


def text_of(sent: Shard | Outcome) -> str:
    """Return a shard or an outcome as JSON, in ASCII: names of files may hold what is not Unicode."""
    return json.dumps(sent._asdict() if isinstance(sent, WorkerError) else asdict(sent))


def shard_of(text: str) -> Shard:
    """Read the text of a shard."""
    value = json.loads(text)
    files = (ShardFile(**{**file, "part": file["part"] and tuple(file["part"])}) for file in value["files"])
    return Shard(**{**value, "files": tuple(files)})


def outcome_of(text: str) -> Outcome:
    """Read the text of an outcome."""
    value = json.loads(text)
    return ShardRecord.from_json(value) if "shard" in value else WorkerError(**value)


def recorded(job: LinkJob, shard: Shard) -> ShardRecord | None:
    """Return the record of a shard that this run has finished; None where it has not."""
    return OutputFolder(Path(job.out)).finished(job.key, (shard,), job.output_format).get(shard.number)


class _Seldom:
    """Passes counts on, at most twice a second."""

    def __init__(self, report: Callable[[LinkCounts], None]) -> None:
        self._report = report
        self._next = time.monotonic() + _REPORT_EVERY_S

    def __call__(self, counts: LinkCounts) -> None:
        if time.monotonic() >= self._next:
            self._report(counts)
            self._next = time.monotonic() + _REPORT_EVERY_S


class ShardProgress:
    """Sums the counts of shards, and counts how often each was begun; one actor per run."""

    def __init__(self) -> None:
        self._counts = LinkCounts()
        self._num_tries: Counter[int] = Counter()

    def begin(self, shard: int) -> int:
        """Note that a shard is begun, and return how often it was, this time included."""
        self._num_tries[shard] += 1
        return self._num_tries[shard]

    def add(self, counts: LinkCounts) -> None:
        """Add a worker's increment."""
        self._counts.add(counts)

    def take(self) -> LinkCounts | None:
        """Return the increments since the last call; None before the first shard is begun."""
        if not self._num_tries:
            return None
        taken, self._counts = self._counts, LinkCounts()
        return taken
