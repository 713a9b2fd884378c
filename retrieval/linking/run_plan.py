"""Plans a run: what is to be linked, where the output goes, and what an earlier run has done of it.

The identity of a run holds whatever decides its rows, so that only the same run is taken up again.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from genret.retrieval.checkpoints import model_fingerprint
from genret.retrieval.compatibility import default_model_of
from genret.retrieval.errors import InputError, SourceError
from genret.retrieval.index.layout import VERSIONS_DIR
from genret.retrieval.index.reader import Index
from genret.retrieval.index.small_files import digest_bytes, digest_file
from genret.retrieval.index.versions import list_versions
from genret.retrieval.linking.documents.corpus import CorpusOptions, CorpusPlan, Shard
from genret.retrieval.linking.documents.corpus_reading import plan_corpus
from genret.retrieval.linking.finding.find_options import STOP_WORD_LISTS
from genret.retrieval.linking.link_options import LinkJob, LinkOptions, WorkerOptions
from genret.retrieval.linking.output.folder import (
    RUN_FILE,
    SUMMARY_FILE,
    LinkingRunError,
    OutputFolder,
    OutputTarget,
    ShardRecord,
)
from genret.retrieval.linking.run_progress import LinkCounts

_NAMED_FOREIGN = 3
_UNSET = "not given"


@dataclass(frozen=True, slots=True)
class RunPlan:
    """The shards of a run, and how many of them are done."""

    target: OutputTarget  # where the output goes
    corpus: CorpusPlan  # the shards
    identity: Mapping[str, Any]  # everything that decides the rows
    job: LinkJob  # the job of every worker
    done: Mapping[int, ShardRecord]  # records of shards that an earlier run finished, by number
    is_complete: bool  # whether the output is complete already
    # Counts of a complete run whose parts may be gone, as a single file was made of them.
    totals: LinkCounts | None = None

    @property
    def missing(self) -> list[Shard]:
        """Shards to be linked, in order."""
        return [shard for shard in self.corpus.shards if shard.number not in self.done]

    def done_counts(self) -> LinkCounts:
        """Return the sum of the counts of the finished shards."""
        counts = LinkCounts()
        known = [record.counts for record in self.done.values()] if self.totals is None else [self.totals]
        for one in known:
            counts.add(one)
        return counts

    def to_json(self) -> dict[str, Any]:
        """Return the plan as JSON, for a dry run."""
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

    An InputError refuses a file that is there and an output among the inputs, a LinkingRunError a folder with
    files that no run wrote.
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
    report: Callable[[int], None] = lambda num_bytes: None,
) -> RunPlan:
    """Read the inputs, the index's and the model's identity, and the finished shards; changes nothing.

    A LinkingRunError says that the folder holds another run, and names every difference; other errors are
    those of inputs, index and checkpoint.
    """
    with Index.open(worker.index, verify_digests=worker.verify_digests) as opened:
        index = {"version": opened.version, "digest": opened.digest}
        model = default_model_of(opened) if worker.model is None else worker.model
    shards = plan_corpus(corpus, report)
    identity = run_identity(shards, corpus, options, index, model, worker, target.output_format)
    folder = OutputFolder(target.folder)
    job = LinkJob(
        corpus=corpus,
        options=options,
        worker=worker,
        out=str(target.folder),
        output_format=target.output_format,
        index_digest=index["digest"],
        key=identity["key"],
        index_version=index["version"],
        model_fingerprint=identity["model"],
        max_bad_documents=max_bad_rows,
    )
    # A file is made of the parts anew; a folder that is to be written over keeps none of them.
    found = differs(folder, identity)
    if overwrite and (target.file is None or found):
        return RunPlan(target, shards, identity, job, {}, False)
    if found:
        raise LinkingRunError(
            f"{target.folder}: holds another run: {'; '.join(found)}. Choose another --out, or begin anew "
            f"with --overwrite{_old_version(folder, worker.index, index['version'])}"
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
    """Return how the run in a folder differs, in words; empty: it is the same, or there is none."""
    try:
        before = folder.identity()
    except LinkingRunError as error:
        return [str(error)]
    return [] if before is None else differences(before, identity)


def _old_version(folder: OutputFolder, index: str, version: str) -> str:
    """Say how to go on with the index version that a run began with, where it is still kept."""
    with suppress(LinkingRunError):  # such a folder has been told about as one that cannot be read
        began = ((folder.identity() or {}).get("index") or {}).get("version")
        if began != version and began in list_versions(Path(index)):
            return f", or finish it with --index {Path(index) / VERSIONS_DIR / began}"
    return ""


def _is_merged(target: OutputTarget) -> bool:
    """Whether the file is the one that the run in the folder beside it was to make."""
    summary = OutputFolder(target.folder).summary()
    merged = None if summary is None else summary.get("file_digest")
    file = target.file
    return merged is not None and file is not None and file.is_file() and digest_file(file) == merged


FORMAT_VERSION = 2
_SHOWN_INPUTS = 3


def run_identity(
    plan: CorpusPlan,
    corpus: CorpusOptions,
    options: LinkOptions,
    index: Mapping[str, str],
    model: str | Path,
    worker: WorkerOptions,
    output_format: str,
) -> dict[str, Any]:
    """Return the identity of a run as JSON, its key under "key".

    The folders' places are not in it: the same files elsewhere make the same rows. The name of an input is,
    as it stands in the rows; that of a file is its name as it was given.
    """
    reading = asdict(corpus)
    del reading["inputs"]
    linking = asdict(options)
    linking["find"]["stop_words"] = _stop_words(options.find.stop_words)
    identity = {
        "format": FORMAT_VERSION,
        "inputs": dict(sorted(plan.digests.items())),
        "num_bytes": plan.num_bytes,
        "num_documents": plan.num_documents,
        "num_shards": len(plan.shards),
        "shards": digest_bytes("".join(shard.digest for shard in plan.shards).encode()),
        "corpus": reading,
        "options": linking,
        "index": dict(index),
        "model": model_fingerprint(model),
        "dtype": worker.dtype,
        "output_format": output_format,
    }
    if worker.engine is not None:  # whose logits may differ in the last digits
        identity["engine"] = "vllm"
    canonical = json.dumps(identity, sort_keys=True, ensure_ascii=True)
    return {**identity, "key": digest_bytes(canonical.encode("ascii"))}


def differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Return how two runs differ, in words; the key decides whether they do."""
    if before.get("key") == now["key"]:
        return []
    found = []
    if before.get("format") != now["format"]:
        found.append(f"the run's format was {before.get('format')}, is now {now['format']}")
    found += _changed_inputs(_mapping(before, "inputs"), _mapping(now, "inputs"))
    for group in ("corpus", "options"):
        found += _changed(group, _mapping(before, group), _mapping(now, group))
    was, becomes = _mapping(before, "index"), _mapping(now, "index")
    if was != becomes:
        found.append(f"the index was {was.get('version')}, is now {becomes['version']}")
    for name, noun in (
        ("model", "the model"),
        ("dtype", "--dtype"),
        ("engine", "--engine"),
        ("output_format", "the format of the output"),
    ):
        if before.get(name) != now.get(name):
            found.append(f"{noun} was {before.get(name, _UNSET)}, is now {now.get(name, _UNSET)}")
    return found or ["the documents are cut into other shards"]


def _changed_inputs(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    changed = [name for name in before if name in now and before[name] != now[name]]
    gone = [name for name in before if name not in now]
    new = [name for name in now if name not in before]
    return [
        f"{_some(names)} {what}"
        for names, what in (
            (changed, "has other contents now"),
            (gone, "was an input and is none now"),
            (new, "was no input and is one now"),
        )
        if names
    ]


def _some(names: list[str]) -> str:
    more = f" (and {len(names) - _SHOWN_INPUTS} more files)" if len(names) > _SHOWN_INPUTS else ""
    return ", ".join(names[:_SHOWN_INPUTS]) + more


def _changed(group: str, before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    found = []
    for name in now:
        was, becomes = before.get(name), now[name]
        if was == becomes:
            continue
        if isinstance(was, Mapping) and isinstance(becomes, Mapping):
            found += _changed(name, was, becomes)
        else:
            found.append(f"{name} was {_given(was)}, is now {_given(becomes)}")
    return found


def _given(value: Any) -> str:
    return _UNSET if value is None else json.dumps(value)


def _mapping(identity: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = identity.get(name)
    return value if isinstance(value, Mapping) else {}


def _stop_words(named: str) -> str:
    if named in STOP_WORD_LISTS:
        return named
    try:
        return "xxh3:" + digest_file(Path(named))
    except OSError as error:
        raise SourceError(f"{named}: the list of stop words cannot be read: {error.strerror}") from error
