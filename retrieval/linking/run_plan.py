"""The plan of a run: what is to be linked, where it goes, and what an earlier run has done of it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from retrieval.errors import InputError
from retrieval.index.digests import digest_file
from retrieval.index.layout import VERSIONS_DIR
from retrieval.index.versions import list_versions
from retrieval.linking.counts import LinkCounts
from retrieval.linking.documents.corpus import CorpusOptions, CorpusPlan, plan_corpus
from retrieval.linking.documents.shard import Shard
from retrieval.linking.options import LinkJob, LinkOptions, WorkerOptions
from retrieval.linking.output.folder import OutputFolder
from retrieval.linking.output.layout import RUN_FILE, SUMMARY_FILE
from retrieval.linking.output.record import ShardRecord
from retrieval.linking.output.target import OutputTarget
from retrieval.linking.run_error import LinkingRunError
from retrieval.linking.run_identity import IndexIdentity, differences, run_identity

_NAMED_FOREIGN = 3


@dataclass(frozen=True, slots=True)
class RunPlan:
    """What a run would do.

    Attributes:
        target: Where the output goes.
        corpus: The shards.
        identity: What the run is about.
        job: What every worker is told.
        done: Records of shards that an earlier run finished, by number.
        is_complete: Whether the output is complete already.
        totals: Counts of a complete run whose parts may be gone, as a single file was made of them.
    """

    target: OutputTarget
    corpus: CorpusPlan
    identity: Mapping[str, Any]
    job: LinkJob
    done: Mapping[int, ShardRecord]
    is_complete: bool
    totals: LinkCounts | None = None

    @property
    def missing(self) -> list[Shard]:
        """Shards to be linked, in order."""
        return [shard for shard in self.corpus.shards if shard.number not in self.done]

    def done_counts(self) -> LinkCounts:
        """Return what the finished shards add up to."""
        counts = LinkCounts()
        if self.totals is not None:
            counts.add(self.totals)
            return counts
        for record in self.done.values():
            counts.add(record.counts)
        return counts

    def to_json(self) -> dict[str, Any]:
        """Return what a dry run says."""
        return {
            "out": str(self.target.name),
            "num_documents": self.corpus.num_documents,
            "num_bytes": self.corpus.num_bytes,
            "num_shards": len(self.corpus.shards),
            "num_done": len(self.done),
            "is_complete": self.is_complete,
            "index_digest": self.job.index_digest,
            "model_fingerprint": self.job.model_fingerprint,
            "key": self.job.key,
        }


def check_target(target: OutputTarget, inputs: Iterable[str], overwrite: bool) -> None:
    """Refuse a place that holds something else, before any work is done; changes nothing.

    Raises:
        InputError: the file is there already, or the output would be among the inputs.
        LinkingRunError: the folder holds files that no run wrote.
    """
    _check_apart(target, inputs)
    folder = OutputFolder(target.folder)
    identity = None if overwrite else folder.identity()
    if target.file is not None and target.file.exists() and not overwrite and not _is_merged(target):
        raise _exists(target)
    foreign = folder.foreign_names()
    if foreign and identity is None and not (overwrite and (target.folder / RUN_FILE).exists()):
        shown = ", ".join(foreign[:_NAMED_FOREIGN]) + (", ..." if len(foreign) > _NAMED_FOREIGN else "")
        raise LinkingRunError(
            f"{target.folder}: holds files that no linking run wrote ({shown}), which are left alone; "
            "choose another folder"
        )


def _exists(target: OutputTarget) -> InputError:
    return InputError("out", f"{target.file} exists already; replace it with --overwrite")


def _check_apart(target: OutputTarget, inputs: Iterable[str]) -> None:
    """Refuse an output that is an input, or in a folder that is one: it would be read by the next run."""
    out = Path(os.path.realpath(target.name))
    for path in inputs:
        place = Path(os.path.realpath(path))
        if out == place or place.is_relative_to(os.path.realpath(target.folder)):
            raise InputError("out", f"{target.name} holds the input {path}; choose another place")
        if place in out.parents:
            raise InputError(
                "out",
                f"{target.name} is inside the input folder {path}, with which it would be read by the next "
                "run; choose a place outside",
            )


def plan_run(
    target: OutputTarget,
    corpus: CorpusOptions,
    options: LinkOptions,
    worker: WorkerOptions,
    max_bad_rows: int,
    overwrite: bool,
    report: Callable[[int], None] | None = None,
) -> RunPlan:
    """Read the inputs, see which index and model they go with, and what is done already; changes nothing.

    Raises:
        LinkingRunError: the folder holds another run; the text names every difference.
        GenretError: the inputs, the index or the checkpoint cannot be used.
    """
    index = IndexIdentity.of(worker.index, worker.verify_digests)
    shards = plan_corpus(corpus, report)
    identity = run_identity(shards, corpus, options, worker, index, target.output_format)
    folder = OutputFolder(target.folder)
    job = LinkJob(
        corpus=corpus,
        options=options,
        worker=worker,
        out=str(target.folder),
        output_format=target.output_format,
        index_digest=index.digest,
        key=identity["key"],
        index_version=index.version,
        model_fingerprint=identity["model"],
        max_bad_documents=max_bad_rows,
    )
    # A file is made of the parts anew; a folder that is to be written over keeps none of them.
    if overwrite and (target.file is None or differs(folder, identity)):
        return RunPlan(target, shards, identity, job, {}, False)
    if found := differs(folder, identity):
        raise LinkingRunError(
            f"{target.folder}: holds another run: {'; '.join(found)}. "
            f"Choose another --out, or begin anew with --overwrite{_old_version(folder, worker, index)}"
        )
    done = folder.finished(job.key, shards.shards, target.output_format)
    summary = folder.summary()
    if target.file is None:
        return RunPlan(target, shards, identity, job, done, bool(summary) and len(done) == len(shards.shards))
    if overwrite or summary is None or not _is_merged(target):
        return RunPlan(target, shards, identity, job, done, False)
    if summary.get("key") != job.key:
        raise _exists(target)
    try:
        return RunPlan(target, shards, identity, job, done, True, LinkCounts.from_json(summary))
    except ValueError as error:
        raise LinkingRunError(f"{folder.path / SUMMARY_FILE}: cannot be read: {error}") from error


def differs(folder: OutputFolder, identity: Mapping[str, Any]) -> list[str]:
    """Return in words how the run in a folder is another one; empty: it is the same, or there is none."""
    try:
        before = folder.identity()
    except LinkingRunError as error:
        return [str(error)]
    return [] if before is None else differences(before, identity)


def _old_version(folder: OutputFolder, worker: WorkerOptions, index: IndexIdentity) -> str:
    """Return how to go on with the version of the index that a run began with, where it is still kept."""
    with suppress(LinkingRunError):  # such a folder has been told about as one that cannot be read
        began = ((folder.identity() or {}).get("index") or {}).get("version")
        if began != index.version and began in list_versions(Path(worker.index)):
            return f", or finish it with --index {Path(worker.index) / VERSIONS_DIR / began}"
    return ""


def _is_merged(target: OutputTarget) -> bool:
    """Say whether the file is what the run in the folder beside it was to make: only tidying is missing."""
    summary = OutputFolder(target.folder).summary()
    merged = None if summary is None else summary.get("file_digest")
    file = target.file
    return merged is not None and file is not None and file.is_file() and digest_file(file) == merged
