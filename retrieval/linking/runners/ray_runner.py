"""`RayRunner`: the shards of a run on the actors of a Ray cluster, handed out by Ray Data.

Every shard is a block of its own, so that shards are handed out one by one to whichever actor is free, and
one that was lost with its actor is done again alone. The records that `ShardWorker` writes say what is
finished; Ray keeps no account of it.
"""

from __future__ import annotations

import json
import os
import queue
import threading
import time
from collections import Counter, deque
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import KW_ONLY, asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from genret.retrieval.errors import InputError
from genret.retrieval.interruption import uninterrupted
from genret.retrieval.linking.documents.corpus import Shard, ShardFile
from genret.retrieval.linking.finding.find_options import STOP_WORD_LISTS
from genret.retrieval.linking.link_options import LinkJob
from genret.retrieval.linking.output.folder import LinkingRunError, OutputFolder, ShardRecord
from genret.retrieval.linking.run_progress import LinkCounts
from genret.retrieval.linking.runners.ray_cluster import (
    causes,
    check_nodes,
    choose_resources,
    connected,
    import_ray,
)
from genret.retrieval.linking.runners.runner import Messages, OpenWorker, WorkerError, linked
from genret.retrieval.linking.shard_worker import ShardWorker

SHARD_COLUMN = "shard"
OUTCOME_COLUMN = "outcome"
_REPORT_EVERY_S = 0.5
# Ray would try a shard whose actor died for ever: one that kills every worker would never let the run end.
DEFAULT_RETRIES = 3
# The next shard waits at the actor while one is linked: it is not begun, so nothing of it can be lost.
_SHARDS_AT_AN_ACTOR = 2
_STOP_SECONDS = 20.0

Outcome = ShardRecord | WorkerError


class ShardActor:
    """Opens a worker once and links the shards it is handed, one per call. Ray Data makes these.

    Shards and outcomes cross as JSON. Errors come back as outcomes: raised, they would reach the caller
    wrapped in Ray's own words, and Ray would write of each to the terminal.

    Ray Data keeps actors by their arguments: all of them must be hashable. `progress` is the actor
    `ShardProgress` of the run; a shard that was lost with its actor is tried again `num_retries` times.
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
        record = linked(
            worker, shard, lambda counts: last.append(self._progress.add.remote(counts)), _REPORT_EVERY_S
        )
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


@dataclass(frozen=True)
class RayRunner:
    """Links shards on a Ray cluster. A number that is out of range is an `InputError`."""

    num_workers: int | None = None  # actors; None: as many as the cluster has room for
    # The cluster, as `ray.init` takes it ("auto", "host:6379", "ray://host:10001"); None: the one in
    # RAY_ADDRESS, else one is started on this machine for the run.
    address: str | None = None
    _: KW_ONLY
    num_cpus: float | None = None  # CPUs of an actor, as Ray counts them; None: a worker's number of threads
    # GPUs of an actor; None: one, where the cluster has any and the worker's device is not "cpu".
    num_gpus: float | None = None
    num_retries: int = DEFAULT_RETRIES  # how often a shard is tried again whose actor died
    runtime_env: Mapping[str, Any] | None = None  # brought to nodes where genret is not installed
    open_worker: OpenWorker = ShardWorker  # makes a worker; must be importable on the nodes

    def __post_init__(self) -> None:
        if self.num_workers is not None and self.num_workers < 1:
            raise InputError("workers", f"must be at least 1, got {self.num_workers}")
        if self.num_cpus is not None and self.num_cpus <= 0:
            raise InputError("num_cpus", f"must be above 0, got {self.num_cpus:g}")
        for name, value in (("num_gpus", self.num_gpus), ("num_retries", self.num_retries)):
            if value is not None and value < 0:
                raise InputError(name, f"must be at least 0, got {value:g}")

    def run(self, job: LinkJob, shards: Sequence[Shard]) -> Messages:
        """Yield the record of every shard as it ends, in any order, and counts in between (`Messages`).

        Closing the iterator ends the actors, and leaves the cluster unless the process was connected before.
        """
        if not shards:
            return
        ray = import_ray()
        num_cpus = self.num_cpus or job.worker.num_threads or 1
        job, shards = absolute_job(job), [absolute_shard(shard) for shard in shards]
        # A cluster that is started here has room for the workers asked for.
        room = (self.num_workers or max(1, int((os.cpu_count() or 1) // num_cpus))) * num_cpus
        with connected(ray, self.address, room, self.runtime_env):
            check_nodes(ray, _needed(job, shards), Path(job.out))
            wants_gpu = job.worker.device != "cpu"
            num_workers, num_gpus = choose_resources(
                ray, self.num_workers, num_cpus, self.num_gpus, wants_gpu
            )
            progress = ray.remote(num_cpus=0, max_restarts=-1, max_task_retries=-1)(ShardProgress).remote()
            actors = {
                "compute": ray.data.ActorPoolStrategy(
                    size=min(num_workers, len(shards)), max_tasks_in_flight_per_actor=_SHARDS_AT_AN_ACTOR
                ),
                "num_cpus": num_cpus,
                "num_gpus": num_gpus or None,  # actors that die are started again: Ray Data's default
            }
            blocks = self._dataset(ray, job, shards, progress, actors)
            with closing(_streamed(ray, blocks, progress)) as results:  # ended here, not when it is collected
                yield from _checked(results, shards)

    def _dataset(
        self, ray: Any, job: LinkJob, shards: Sequence[Shard], progress: Any, actors: Mapping[str, Any]
    ) -> Any:
        import pyarrow as pa

        tables = [pa.table({SHARD_COLUMN: [text_of(shard)]}) for shard in shards]
        linked = ray.data.from_blocks(tables).map_batches(
            ShardActor,
            fn_constructor_args=(job, self.open_worker, progress, self.num_retries),
            batch_size=1,
            batch_format="numpy",
            **actors,
        )
        linked.context.enable_progress_bars = False
        linked.context.print_on_execution_start = False
        linked.context.custom_execution_callback_classes = [StopOnRequest]
        return linked


class StopOnRequest:
    """Ends the execution of a dataset from another thread: Ray Data asks at every step of its loop.

    A class and not an object, as Ray makes the object; it sends the class along to the nodes, by name.
    `requested` is set to end what this process executes.
    """

    requested = threading.Event()

    def before_execution_starts(self, *_: Any) -> None:
        """Nothing."""

    after_execution_succeeds = after_execution_fails = before_execution_starts

    def on_execution_step(self, executor: Any) -> None:
        """Raise `InterruptedError` if an end was requested."""
        if self.requested.is_set():
            raise InterruptedError("the run was stopped")


def absolute_job(job: LinkJob) -> LinkJob:
    """Return the job with absolute paths: workers run in folders of their own."""
    worker, find = job.worker, job.options.find
    model = worker.model
    if find.stop_words not in STOP_WORD_LISTS:
        find = replace(find, stop_words=os.path.abspath(find.stop_words))
    return replace(
        job,
        out=os.path.abspath(job.out),
        options=replace(job.options, find=find),
        corpus=replace(job.corpus, inputs=tuple(os.path.abspath(path) for path in job.corpus.inputs)),
        worker=replace(
            worker,
            index=os.path.abspath(worker.index),
            model=os.path.abspath(model) if model is not None and os.path.exists(model) else model,
            cache_dir=None if worker.cache_dir is None else os.path.abspath(worker.cache_dir),
        ),
    )


def absolute_shard(shard: Shard) -> Shard:
    """Return the shard with absolute paths."""
    files = tuple(replace(file, path=os.path.abspath(file.path)) for file in shard.files)
    return replace(shard, files=files)


def _needed(job: LinkJob, shards: Sequence[Shard]) -> dict[str, str]:
    """Return the paths that workers read, and the noun for each."""
    needed = {job.worker.index: "the index"}
    if job.worker.model is not None and os.path.isabs(job.worker.model):
        needed[job.worker.model] = "the model"
    if job.options.find.stop_words not in STOP_WORD_LISTS:
        needed[job.options.find.stop_words] = "the stop words"
    needed.update({file.path: "the input" for shard in shards for file in shard.files})
    return needed


def _streamed(ray: Any, blocks: Any, progress: Any) -> Generator[Outcome | LinkCounts, None, None]:
    """Yield outcomes as blocks come, with counts in between and at the end."""
    results: queue.Queue[Outcome | BaseException | None] = queue.Queue()
    StopOnRequest.requested.clear()
    reader = threading.Thread(target=_read, args=(blocks, results), name="ray-outcomes", daemon=True)
    reader.start()
    next_counts = time.monotonic() + _REPORT_EVERY_S
    try:
        while True:
            if time.monotonic() >= next_counts:
                yield from _counted(ray, progress)
                next_counts = time.monotonic() + _REPORT_EVERY_S
            try:
                result = results.get(timeout=max(0.0, next_counts - time.monotonic()))
            except queue.Empty:
                continue
            if result is None:
                yield from _counted(ray, progress)
                return
            if isinstance(result, BaseException):
                raise _said(ray, result) from result
            yield result
    finally:
        StopOnRequest.requested.set()
        with uninterrupted():
            reader.join(_STOP_SECONDS)  # Ray's core must not be taken down under its threads


def _counted(ray: Any, progress: Any) -> Iterator[LinkCounts]:
    """Yield the counts since the last time; nothing before a worker is at a shard."""
    try:
        counts = ray.get(progress.take.remote())
    except ray.exceptions.RayError as error:
        raise _said(ray, error) from error
    if counts is not None:
        yield counts


def _read(blocks: Any, results: queue.Queue[Outcome | BaseException | None]) -> None:
    """Read the blocks as they are ready, up to the first failure.

    In a thread, as waiting for the next one cannot be interrupted. Left early, the iterator ends the actors.
    """
    try:
        for block in blocks.iter_batches(batch_size=None, batch_format="numpy", prefetch_batches=0):
            outcomes = [outcome_of(text) for text in block[OUTCOME_COLUMN]]
            for outcome in outcomes:
                results.put(outcome)
            if any(isinstance(outcome, WorkerError) for outcome in outcomes):
                return
        results.put(None)
    except BaseException as error:  # raised where the results are read
        results.put(error)


def _said(ray: Any, error: BaseException) -> BaseException:
    """Return the error to raise for one of Ray's: one line where it tells of no defect."""
    known = ray.exceptions
    seen = list(causes(error))
    for one in seen:
        if isinstance(one, known.RayActorError | known.OutOfMemoryError):
            return LinkingRunError(f"workers died: {' '.join(str(one).split())}")
    for one in seen:
        if isinstance(one, known.RayError) and not isinstance(one, known.RayTaskError):
            return LinkingRunError(f"the Ray cluster cannot go on: {' '.join(str(one).split())}")
    return error


def _checked(
    results: Iterator[Outcome | LinkCounts], shards: Sequence[Shard]
) -> Iterator[ShardRecord | LinkCounts]:
    """Yield results; raise a worker's error, or `LinkingRunError` for a shard without an outcome."""
    left = {shard.number for shard in shards}
    for result in results:
        if isinstance(result, WorkerError):
            raise result.error()
        if isinstance(result, ShardRecord):
            left.discard(result.shard)
        yield result
    if left:
        raise LinkingRunError(
            f"Ray ended without an outcome for {len(left)} shards, the first of them {min(left)}"
        )
