"""An update: the live version and what is added, merged into a new version without what is removed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from index_builder.build import peak_rss_bytes
from index_builder.changes import Changes, apply_changes
from index_builder.config import BuildOptions
from index_builder.entity_survey import check_weights
from index_builder.evidence import Before, EvidenceMaker, copy_version
from index_builder.evidence_wish import check_method
from index_builder.memory import MemoryBudget
from index_builder.merge import write_version
from index_builder.progress import BuildProgress, PhaseClock, Silent
from index_builder.publish import prune, publish, staging, work_root
from index_builder.runs import Run
from index_builder.update_evidence import Ancestry, Fates, check_changes, fates_of, update_evidence
from index_builder.update_reading import (
    MAX_TITLE_TOKENS,
    OUTCOME,
    UpdateReading,
    UpdateRequest,
    max_title_tokens,
    read_update,
    weight_column,
)
from index_builder.version import VersionSpec
from index_builder.version_run import VersionRun
from index_builder.workplace import (
    remove_vector_work,
    remove_work,
    shaping_libraries,
    spill_folder,
    temporary_work,
)
from retrieval.errors import InputError, SourceError
from retrieval.index.evidence_summary import evidence_facts, unusable_vectors
from retrieval.index.layout import FORMAT_VERSION
from retrieval.index.manifest import HistoryEntry, Manifest, extend_history
from retrieval.index.reader import Index
from retrieval.index.versions import live_version
from retrieval.index.weights import weight_problem
from retrieval.sources import digest_files
from retrieval.text import TextTokenizer

__all__ = ["UpdateRequest", "UpdateSummary", "update_index"]


@dataclass(frozen=True, slots=True)
class UpdateSummary:
    """What an update made.

    Attributes:
        index: The index directory.
        parent: Id of the version that was live before.
        version: Id of the version now live: the parent, if nothing changed or it was a dry run.
        manifest: Of that version.
        changes: What the request comes to.
        fates: What becomes, or would become, of evidence and vectors.
        weight_column: Name of the column that holds the weights, or would hold them; None for none.
        dry_run: Whether it was only asked for.
        rejected: Bad rows per reason.
        report: A few lines about the bad rows; "" when there are none.
        rejects_file: Where they were written, or None.
        seconds: How long each phase took.
        peak_rss_bytes: Most memory the process has taken so far.
    """

    index: Path
    parent: str
    version: str
    manifest: Manifest
    changes: Changes
    fates: Fates
    weight_column: str | None
    dry_run: bool
    rejected: Mapping[str, int]
    report: str
    rejects_file: Path | None
    seconds: Mapping[str, float]
    peak_rss_bytes: int

    def to_json(self) -> dict[str, Any]:
        """Return the summary as a JSON object."""
        return {
            "index": str(self.index),
            "parent": self.parent,
            "version": self.version,
            "published": self.version != self.parent,
            "dry_run": self.dry_run,
            **asdict(self.changes),
            **evidence_facts(self.manifest),
            "evidence_is": self.fates.evidence,
            "vectors_are": self.fates.vectors,
            "weight_column": self.weight_column,
            "counts": asdict(self.manifest.counts),
            "rejected": dict(self.rejected),
            "rejects_file": None if self.rejects_file is None else str(self.rejects_file),
            "bytes": self.manifest.num_bytes,
            "seconds": {name: round(seconds, 3) for name, seconds in self.seconds.items()},
            "peak_rss_bytes": self.peak_rss_bytes,
        }


def update_index(
    request: UpdateRequest,
    tokenizer: TextTokenizer | None,
    options: BuildOptions,
    progress: BuildProgress | None = None,
) -> UpdateSummary:
    """Publish a new version of an index with entities added, replaced and removed.

    The files of the new version are those that a build of the same entities would write: same ids, same
    types of metadata. Nothing that is there already is tokenised again. Rankings are kept while there are
    the same kinds of evidence.

    Args:
        request: What shall be different.
        tokenizer: That of the index; None will do if nothing is added.
        options: How to read. Rendering, the bound on titles, the types of metadata and, unless the request
            names another, the column of weights are the index's own.
        progress: Told about every step.

    Raises:
        IndexDirectoryError: there is no index, it is damaged or cannot be written, or for a dry run, the
            directory for temporary files cannot. The live version is untouched.
        IndexMismatchError: the index has another tokenizer.
        SourceError: a source cannot be used, has columns that the index lacks, contradicts the removals,
            there are more bad rows than allowed, no entity would be left, or all weights would be 0.
        InputError: an option is wrong, the column of weights holds what can be no weight, or evidence
            cannot be kept in step with what is there.
        ModelError: the encoder of the vectors cannot be loaded.
        MissingExtraError: new vectors are asked for, and a library they need is not installed.
    """
    wish = request.vectors.wish
    if wish is not None:
        check_method(wish.method, wish.options.device)
    clock = PhaseClock(progress or Silent())
    live_version(options.out)
    clock.phase("opening")
    with _workplace(request, options.out) as (folder, root), Index.open(options.out) as index:
        check_changes(request.evidence, request.vectors, index)
        weights = weight_column(request, index)
        with read_update(request, tokenizer, options, index, root, clock) as reading:
            clock.phase("comparing")
            live = VersionRun(index)
            changes, replaced = apply_changes(
                live, reading.shards, reading.removals, reading.rejects, request.ignore_missing
            )
            reading.rejects.check(OUTCOME)
            every: list[Run] = [live, *reading.shards]
            runs = _kept(every, options.out)
            if request.weight_column is not None and weights is not None:
                problem = weight_problem(index.entities, weights, live.keep)
                if problem is not None:
                    raise InputError("weight_column", problem)
            check_weights(runs, weights)
            rewritten = changes.any or index.manifest.format_version < FORMAT_VERSION
            fates = fates_of(request.evidence, request.vectors, index, rewritten)
            if fates.vectors == "dropped" and (why := unusable_vectors(index.manifest)) is not None:
                clock.note(f"the vectors are dropped: {why}")
            ancestry = Ancestry(index.num_entities, every, replaced)
            history = extend_history(index.manifest.history, _history(reading, index, changes))
            manifest = None
            if rewritten and folder is not None:
                spec = VersionSpec(index.vocab_size, index.manifest.metadata, weights)
                manifest = _write(runs, spec, reading, index, folder, history, ancestry, clock)
            elif folder is not None and (fates.changes_files or weights != index.manifest.weight_column):
                clock.phase("copying")
                copied = copy_version(index, folder, fates.evidence == "kept", fates.vectors == "kept")
                manifest = replace(copied, history=history, weight_column=weights)
        version = index.version
        if manifest is not None and folder is not None:
            manifest = update_evidence(
                manifest,
                EvidenceMaker(folder, root, options, clock),
                fates,
                Before(index, ancestry.numbers() if rewritten else np.arange(index.num_entities)),
                request.evidence,
                request.vectors,
                reading.rejects,
                options,
                clock,
            )
            clock.phase("publishing")
            version = publish(options.out, folder, manifest)
            prune(options.out, version, options.keep_versions, before=index.version)
            remove_vector_work(root)
        if request.add:
            remove_work(root)
        return UpdateSummary(
            index=options.out,
            parent=index.version,
            version=version,
            manifest=manifest or index.manifest,
            changes=changes,
            fates=fates,
            weight_column=weights,
            dry_run=request.dry_run,
            rejected=reading.rejects.counts(),
            report=reading.rejects.report() if reading.rejects.rows else "",
            rejects_file=options.rejects if reading.rejects.rows else None,
            seconds=clock.seconds(),
            peak_rss_bytes=peak_rss_bytes(),
        )


@contextmanager
def _workplace(request: UpdateRequest, index: Path) -> Iterator[tuple[Path | None, Path]]:
    """Yield where the new version and the shards are written; a dry run writes nothing into the index."""
    if request.dry_run:
        with temporary_work() as place:
            yield None, place
    else:
        with staging(index) as folder:
            yield folder, work_root(index)


def _kept(runs: Sequence[Run], index: Path) -> list[Run]:
    kept = [run for run in runs if run.keep.any()]
    if not kept:
        raise SourceError(f"{index}: no entity would be left; an index needs at least one")
    return kept


def _write(
    runs: Sequence[Run],
    spec: VersionSpec,
    reading: UpdateReading,
    index: Index,
    folder: Path,
    history: tuple[HistoryEntry, ...],
    ancestry: Ancestry,
    progress: BuildProgress,
) -> Manifest:
    """Write the files of the new version but its evidence, and return the manifest of them."""
    budget = MemoryBudget(reading.options.memory_limit)
    with spill_folder(work_root(reading.options.out)) as spill:
        written = write_version(runs, spec, folder, spill, budget, progress, told=ancestry.add)
    return written.to_manifest(
        tokenizer=index.manifest.tokenizer,
        rendering=index.rendering,
        history=history,
        built_with=shaping_libraries(),
    )


def _history(reading: UpdateReading, index: Index, changes: Changes) -> HistoryEntry:
    front, request = reading.front, reading.request
    shaping: dict[str, Any] = {"ignore_missing": request.ignore_missing}
    if front is not None:
        shaping |= reading.options.shaping()
    if request.weight_column is not None:
        shaping["weight_column"] = weight_column(request, index)
    return HistoryEntry(
        operation="update",
        parent=index.version,
        sources=(
            *(front.sources if front is not None else ()),
            *reading.removals.sources,
            *digest_files([file.path for file in request.evidence.query_files]),
        ),
        options={
            **shaping,
            **request.evidence.shaping(),
            **request.vectors.shaping(),
            MAX_TITLE_TOKENS: max_title_tokens(index.manifest),
        },
        records=(front.records if front is not None else 0) + len(reading.removals),
        duplicates=front.duplicates if front is not None else 0,
        rejected=len(reading.rejects.rows),
        added=changes.added,
        changed=changes.changed,
        removed=changes.removed,
    )
