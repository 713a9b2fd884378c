"""What runs on the nodes of a Ray cluster: one worker per actor, and one actor that gathers progress."""

from __future__ import annotations

import pickle
import time
import traceback
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np

from retrieval.errors import GenretError
from retrieval.linking.counts import LinkCounts
from retrieval.linking.documents.shard import Shard
from retrieval.linking.options import LinkJob
from retrieval.linking.output.layout import record_file
from retrieval.linking.output.record import ShardRecord, read_record
from retrieval.linking.run_error import LinkingRunError

SHARD_COLUMN = "shard"
OUTCOME_COLUMN = "outcome"
_REPORT_EVERY_S = 0.5


@dataclass(frozen=True, slots=True)
class Failure:
    """A worker's error, as it travels to the one who started the run.

    Attributes:
        error: It, where it can be sent; else one with the same text.
    """

    error: Exception


Outcome = ShardRecord | Failure


class ShardActor:
    """Opens a worker once and links the shards it is handed, one per call. Ray Data makes these.

    Errors come back as outcomes: raised, they would reach the caller wrapped in Ray's own words, and Ray
    would write of each to the terminal.

    Args:
        sent: The job and what opens a worker for it, pickled: Ray Data keeps actors by their arguments, which
            must be hashable.
        progress: The actor `Progress` of the run.
        num_retries: How often a shard is tried again that was lost with its actor.
    """

    def __init__(self, sent: bytes, progress: Any, num_retries: int) -> None:
        self._progress = progress
        self._num_retries = num_retries
        self._refusal: Exception | None = None
        make_worker: Callable[[LinkJob], Any]
        try:
            self._job, make_worker = pickle.loads(sent)
            self._worker = make_worker(self._job)
        except Exception as error:  # raised where the run was started
            self._refusal = sendable(error)

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        """Link the shards of a batch: one, as every block holds one."""
        outcomes = [self._outcome(pickle.loads(bytes(sent))) for sent in batch[SHARD_COLUMN]]
        packed = np.empty(len(outcomes), dtype=object)
        packed[:] = [pickle.dumps(outcome) for outcome in outcomes]
        return {OUTCOME_COLUMN: packed}

    def _outcome(self, shard: Shard) -> Outcome:
        try:
            return self._link(shard)
        except Exception as error:  # raised where the run was started
            return Failure(sendable(error))

    def _link(self, shard: Shard) -> ShardRecord:
        import ray

        if self._refusal is not None:
            raise self._refusal
        num_tries = ray.get(self._progress.begin.remote(shard.number))
        if num_tries > 1:
            # The actor that had it is gone; it may have come as far as to the record.
            record = recorded(self._job, shard)
            if record is not None:
                return record
        if num_tries > self._num_retries + 1:
            raise LinkingRunError(
                f"shard {shard.number} ({_described(shard)}) was tried {num_tries - 1} times, and each time "
                "its worker died, as workers do that need more memory than there is; smaller shards may pass"
            )
        return self._worker.run(shard, _Reports(self._progress))  # type: ignore[no-any-return]


def recorded(job: LinkJob, shard: Shard) -> ShardRecord | None:
    """Return the record of a shard that this run has finished; None where it has not."""
    out = Path(job.out)
    record = read_record(record_file(out, shard.number))
    if record is None or (record.key, record.digest) != (job.key, shard.digest):
        return None
    try:
        return record if (out / record.part).stat().st_size == record.num_bytes else None
    except FileNotFoundError:
        return None


def _described(shard: Shard) -> str:
    first = shard.files[0]
    return f"{first.source} from row {first.first_row}"


class _Reports:
    """Sends what was counted since the last time, at most twice a second."""

    def __init__(self, progress: Any) -> None:
        self._progress = progress
        self._sent = LinkCounts()
        self._next = time.monotonic() + _REPORT_EVERY_S

    def __call__(self, counts: LinkCounts) -> None:
        if time.monotonic() < self._next:
            return
        new = LinkCounts()
        for field in fields(LinkCounts):
            setattr(new, field.name, getattr(counts, field.name) - getattr(self._sent, field.name))
        self._progress.add.remote(new)  # not waited for: whether it arrives changes nothing
        self._sent = LinkCounts()
        self._sent.add(counts)
        self._next = time.monotonic() + _REPORT_EVERY_S


class Progress:
    """What unfinished shards have come to, and how often each was begun; one actor per run."""

    def __init__(self) -> None:
        self._counts = LinkCounts()
        self._num_tries: Counter[int] = Counter()

    def begin(self, shard: int) -> int:
        """Note that a shard is begun, and return how often it was, this time included."""
        self._num_tries[shard] += 1
        return self._num_tries[shard]

    def add(self, counts: LinkCounts) -> None:
        """Add what a worker counted since it last said so."""
        self._counts.add(counts)

    def take(self) -> LinkCounts:
        """Return what was counted since the last time."""
        taken, self._counts = self._counts, LinkCounts()
        return taken


def sendable(error: Exception) -> Exception:
    """Return the error if it survives the way to another process as it is, else one with its text.

    What is no `GenretError` is a bug, and takes its traceback along as a note.
    """
    if not isinstance(error, GenretError):
        error.add_note("in a worker:\n" + "".join(traceback.format_exception(error)))
    try:
        copy = pickle.loads(pickle.dumps(error))
    except Exception:  # an error with arguments of its own raises whatever its constructor does
        copy = None
    if type(copy) is type(error) and str(copy) == str(error):
        return error
    return GenretError(str(error)) if isinstance(error, GenretError) else RuntimeError(repr(error))
