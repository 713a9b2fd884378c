"""Links a corpus with as many workers as wanted: `link_corpus`, as `genret link` does."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from genret.retrieval.arguments import check_least, not_among
from genret.retrieval.durable import appearing
from genret.retrieval.errors import InputError, SourceError
from genret.retrieval.index.small_files import digest_file
from genret.retrieval.interruption import uninterrupted
from genret.retrieval.linking.documents.corpus import CorpusOptions, Shard
from genret.retrieval.linking.link_options import LinkJob, LinkOptions, WorkerOptions
from genret.retrieval.linking.output.folder import LinkingRunError, OutputFolder, OutputTarget, ShardRecord
from genret.retrieval.linking.output.part_files import check_parts, merge_parts
from genret.retrieval.linking.run_plan import RunPlan, check_target, plan_run
from genret.retrieval.linking.run_progress import LinkCounts, LinkDisplay, Progress, counted
from genret.retrieval.linking.runners.runner import Messages, OpenWorker, link_here, link_in_processes
from genret.retrieval.linking.shard_worker import ShardWorker, part_metadata, too_many_bad
from genret.retrieval.tables import Shown


@dataclass(frozen=True, slots=True)
class OutputOptions:
    """The output of a run, and the limits at which the run gives up."""

    out: str  # a folder; or a name that ends in .parquet or .jsonl: a single file, made in the end
    output_format: str | None = None  # "parquet" or "jsonl" for the parts of a folder; None: Parquet
    max_bad_rows: int = 0  # most lines that may be no documents; they are left out
    max_failed: int | None = None  # most mentions that may end by an error; None: any number
    overwrite: bool = False  # whether an existing output of another run is replaced
    keep_parts: bool = False  # whether the folder of a single file's parts stays

    def __post_init__(self) -> None:
        check_least(self, max_bad_rows=0, max_failed=0)


def link_corpus(
    corpus: CorpusOptions,
    output: OutputOptions,
    worker: WorkerOptions,
    options: LinkOptions | None = None,
    runner: RunnerOptions | None = None,
    display: LinkDisplay | None = None,
) -> LinkSummary:
    """Link the mentions of a corpus, and go on where an earlier run of the same was cut short.

    The output has a row of `output.part_files.SCHEMA` per mention, in the order of the documents. It is
    written shard by shard; a shard whose record is there is never done again. A run that was killed goes on
    with the same call, and ends with the rows of a run that was not. With several workers the calling script
    needs `if __name__ == "__main__":`, as they are processes. Without a runner, this process links; without a
    display, no progress is shown.

    Raises:
        LinkingRunError: the folder holds something else or another run, another process writes there, or a
            worker died.
        GenretError: inputs, index or checkpoint cannot be used, or the output cannot be written; notes of the
            error say what is kept.
    """
    started = time.monotonic()
    display = display or LinkDisplay()
    runner = runner or RunnerOptions(num_workers=1)
    target = OutputTarget.of(output.out, output.output_format)
    check_target(target, corpus.inputs, output.overwrite)
    if runner.name == "ray":
        from genret.retrieval.linking.runners.ray_cluster import import_ray

        import_ray()  # refused before any work is done where Ray is missing
    with OutputFolder(target.folder).locked() as folder:
        limits = output.max_bad_rows, output.overwrite
        plan = plan_run(target, corpus, options or LinkOptions(), worker, *limits, display.planning)
        counts = plan.done_counts()
        if not plan.is_complete:
            with _kept(folder, plan):
                counts = _link(folder, plan, output, runner, display)
                _complete(folder, plan, counts, time.monotonic() - started)
        if target.file is not None and not output.keep_parts:
            with uninterrupted():  # the file is there, and nobody is to hear of less
                folder.clear()
    return LinkSummary(
        out=str(target.name),
        counts=counts,
        num_shards=len(plan.corpus.shards),
        num_resumed=len(plan.done),
        seconds=time.monotonic() - started,
        was_complete=plan.is_complete,
        index_digest=plan.job.index_digest,
        model_fingerprint=plan.job.model_fingerprint,
        key=plan.job.key,
    )


def plan_corpus_run(
    corpus: CorpusOptions,
    output: OutputOptions,
    worker: WorkerOptions,
    options: LinkOptions | None = None,
) -> RunPlan:
    """Return what `link_corpus` would do, with its arguments and errors; links and writes nothing."""
    target = OutputTarget.of(output.out, output.output_format)
    check_target(target, corpus.inputs, output.overwrite)
    limits = output.max_bad_rows, output.overwrite
    return plan_run(target, corpus, options or LinkOptions(), worker, *limits)


@contextmanager
def _kept(folder: OutputFolder, plan: RunPlan) -> Iterator[None]:
    """When the block fails, note what is kept, and leave nothing of a run that has finished no shard."""
    try:
        yield
    except (Exception, KeyboardInterrupt) as error:
        with uninterrupted():
            done = folder.finished(plan.job.key, plan.corpus.shards, plan.target.output_format)
            if not done:
                folder.clear()
                if isinstance(error, KeyboardInterrupt):
                    error.add_note(f"{plan.target.name}: no shard was finished, nothing is kept")
                raise
            folder.tidy(done)  # workers that were stopped leave files half written
        error.add_note(
            f"{len(done):,} of {counted(len(plan.corpus.shards), 'shard')} are done and kept in "
            f"{plan.target.folder}: the same command goes on from there"
        )
        raise


def _link(
    folder: OutputFolder, plan: RunPlan, output: OutputOptions, runner: RunnerOptions, display: LinkDisplay
) -> LinkCounts:
    if output.overwrite and not plan.done:
        folder.clear()
    folder.tidy(plan.done)
    folder.begin(plan.identity)
    num_parts = sum(shard.num_documents for shard in plan.corpus.shards)
    progress = Progress(
        plan.corpus.num_documents,
        num_shards=len(plan.corpus.shards),
        done_shards=len(plan.done),
        resumed=plan.done_counts(),
        recorded=plan.done_counts(),
        is_split=num_parts != plan.corpus.num_documents,
        resumed_shards=len(plan.done),
    )
    _check_limits(progress.recorded, list(plan.done.values()), output)

    def report(counts: LinkCounts) -> None:
        progress.begun = progress.begun or time.monotonic()
        progress.reported.add(counts)
        display.show(progress)

    job, missing = plan.job, plan.missing
    if not missing:
        return progress.recorded
    if runner.name == "local":  # the same files have been verified to see which index it is
        job = replace(job, worker=replace(job.worker, verify_digests=False))
    messages = run_shards(runner, job, missing, report)
    try:
        for message in messages:
            if isinstance(message, LinkCounts):
                report(message)
            else:
                progress.recorded.add(message.counts)
                progress.done_shards += 1
                for complaint in message.complaints:
                    display.warn(complaint)
                display.show(progress)
                _check_limits(progress.recorded, [message], output)
    finally:
        with uninterrupted():
            messages.close()  # stops the workers
    return progress.recorded


def _check_limits(counts: LinkCounts, records: list[ShardRecord], output: OutputOptions) -> None:
    if counts.num_bad_documents > output.max_bad_rows:
        example = next(
            (record.first_bad for record in reversed(records) if record.first_bad), "bad documents"
        )
        raise SourceError(too_many_bad(example, counts.num_bad_documents, output.max_bad_rows))
    if output.max_failed is not None and counts.num_failed > output.max_failed:
        told = [text for record in records for text in record.complaints if text != record.first_bad]
        example = told[-1] if told else "mentions failed"
        raise LinkingRunError(
            f"{example} ({counted(counts.num_failed, 'mention')} failed, {output.max_failed} allowed; "
            "allow more with --max-failed)"
        )


def _complete(folder: OutputFolder, plan: RunPlan, counts: LinkCounts, seconds: float) -> None:
    """Write the totals, and the single file where one is wanted."""
    done = folder.finished(plan.job.key, plan.corpus.shards, plan.target.output_format)
    records = [done[shard.number] for shard in plan.corpus.shards if shard.number in done]
    if len(records) != len(plan.corpus.shards):
        missing = next(shard.number for shard in plan.corpus.shards if shard.number not in done)
        raise LinkingRunError(
            f"{plan.target.folder}: shard {missing} is gone although it was written; the same command does it"
        )
    summary = {
        **asdict(counts),
        "key": plan.job.key,
        "num_shards": len(records),
        "seconds": round(seconds, 3),
        "worker_seconds": round(sum(record.seconds for record in records), 3),
        "index_digest": plan.job.index_digest,
        "model_fingerprint": plan.job.model_fingerprint,
        "parts": {record.part: record.part_digest for record in records},
    }
    file = plan.target.file
    if file is None:
        folder.complete(summary)
        return
    parts = {plan.target.folder / record.part: record.part_digest for record in records}
    check_parts(parts)
    with appearing(file) as staging:
        merge_parts(staging, plan.target.output_format, part_metadata(plan.job), list(parts), file)
        # Before the file appears: a run that is killed in between finds none such, and merges again.
        folder.complete({**summary, "file": file.name, "file_digest": digest_file(staging)})


RUNNERS = ("local", "ray")
_GPU_DEVICES = ("/dev/nvidiactl", "/dev/kfd")


@dataclass(frozen=True, slots=True)
class RunnerOptions:
    """Kind and number of workers."""

    name: str = "local"  # "local": processes of this machine; "ray": actors of a Ray cluster
    # None: one per core this process may use, or one where a GPU computes. One local worker is this process.
    num_workers: int | None = None
    address: str | None = None  # address of the Ray cluster; None: one is started on this machine
    open_worker: OpenWorker = ShardWorker  # makes a worker, where it works: it must be importable there

    def __post_init__(self) -> None:
        if self.name not in RUNNERS:
            raise not_among("runner", self.name, RUNNERS)
        if self.num_workers is not None and self.num_workers < 1:
            raise InputError("workers", f"must be at least 1, got {self.num_workers}")
        if self.address is not None and self.name != "ray":
            raise InputError("ray_address", "needs the runner ray")


def run_shards(
    options: RunnerOptions, job: LinkJob, shards: Sequence[Shard], report: Callable[[LinkCounts], None]
) -> Messages:
    """Link shards where the options say; `report` gets the progress of this process."""
    open_worker = options.open_worker
    if options.name == "ray":
        from genret.retrieval.linking.runners.ray_runner import RayRunner

        return RayRunner(options.num_workers, options.address, open_worker=open_worker).run(job, shards)
    num_workers = min(options.num_workers or _usual_workers(job.worker.device), len(shards))
    if num_workers == 1:
        return link_here(job, shards, open_worker, report)
    return link_in_processes(job, shards, open_worker, num_workers)


def _usual_workers(device: str) -> int:
    if device == "cpu" or (device == "auto" and not _has_gpu()):
        return len(os.sched_getaffinity(0))
    return 1  # one model fills a GPU


def _has_gpu() -> bool:
    if not any(Path(device).exists() for device in _GPU_DEVICES):
        return False  # without the import of torch, which takes a second
    import torch

    return torch.cuda.is_available()


@dataclass(frozen=True, slots=True, repr=False)
class LinkSummary(Shown):
    """Totals of a complete run."""

    out: str  # the output
    counts: LinkCounts  # counts of all shards, those of earlier sessions included
    num_shards: int  # shards of the corpus
    num_resumed: int  # shards that earlier sessions had finished
    seconds: float  # wall time of this session
    was_complete: bool  # whether an earlier session had finished it all, so that nothing was done
    index_digest: str  # the index linked to
    model_fingerprint: str  # the checkpoint linked with
    key: str  # the run key

    _told = ("out", "counts.num_mentions", "counts.num_linked", "counts.num_failed", "seconds")

    def to_dict(self) -> dict[str, Any]:
        """Return everything as a flat JSON object."""
        totals = asdict(self)
        return {**totals.pop("counts"), **totals, "seconds": round(self.seconds, 3)}
