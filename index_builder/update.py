"""An update: the live version and what is added, merged into a new version without what is removed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from index_builder.build import check_rejects, peak_rss_bytes, spill_folder
from index_builder.changes import Changes, apply_changes
from index_builder.config import BuildOptions
from index_builder.memory import MemoryBudget
from index_builder.merge import write_version
from index_builder.progress import BuildProgress, PhaseClock, Silent
from index_builder.publish import prune, publish, staging, work_root
from index_builder.reading import FrontHalf, read_shards
from index_builder.removals import Removals, read_removals
from index_builder.runs import Run
from index_builder.shard import ShardRun
from index_builder.version import VersionSpec
from index_builder.version_run import VersionRun
from index_builder.workplace import remove_work, shaping_libraries
from retrieval.errors import IndexMismatchError, InputError, SourceError
from retrieval.index.manifest import HistoryEntry, Manifest, extend_history
from retrieval.index.reader import Index
from retrieval.index.versions import live_version
from retrieval.rejects import Rejects
from retrieval.sources import ColumnType, open_source
from retrieval.sources.opening import is_read_once
from retrieval.text import TextTokenizer

_MAX_TITLE_TOKENS = "max_title_tokens"
_OUTCOME = "nothing was updated"


@dataclass(frozen=True, slots=True)
class UpdateRequest:
    """What shall be different.

    Attributes:
        add: Files of entities; one that is there under its id is replaced.
        remove: Files of ids, one per line.
        remove_ids: Further ids.
        ignore_missing: Whether ids to remove that are not there are no bad rows.
        dry_run: Only say what would be different.

    Raises:
        InputError: nothing shall.
    """

    add: tuple[str | Path, ...] = ()
    remove: tuple[str | Path, ...] = ()
    remove_ids: tuple[str, ...] = ()
    ignore_missing: bool = False
    dry_run: bool = False

    def __post_init__(self) -> None:
        if not (self.add or self.remove or self.remove_ids):
            raise InputError("update", "nothing to do: expected files to add, or ids to remove")


@dataclass(frozen=True, slots=True)
class UpdateSummary:
    """What an update made.

    Attributes:
        index: The index directory.
        parent: Id of the version that was live before.
        version: Id of the version now live: the parent, if nothing changed or it was a dry run.
        manifest: Of that version.
        changes: What the request comes to.
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
    types of metadata. Nothing that is there already is tokenised again.

    Args:
        request: What shall be different.
        tokenizer: That of the index; None will do if nothing is added.
        options: How to read. Rendering, the bound on titles and the types of metadata are the index's own.
        progress: Told about every step.

    Raises:
        IndexDirectoryError: there is no index, it is damaged or cannot be written. The live version is
            untouched.
        IndexMismatchError: the index has another tokenizer.
        SourceError: a source cannot be used, has columns that the index lacks, contradicts the removals,
            there are more bad rows than allowed, or no entity would be left.
        InputError: an option is wrong.
    """
    clock = PhaseClock(progress or Silent())
    live_version(options.out)
    clock.phase("opening")
    with staging(options.out) as folder, Index.open(options.out) as index:
        with _read(request, tokenizer, options, index, clock) as reading:
            clock.phase("comparing")
            live = VersionRun(index)
            changes = apply_changes(
                live, reading.shards, reading.removals, reading.rejects, request.ignore_missing
            )
            reading.rejects.check(_OUTCOME)
            runs = _kept([live, *reading.shards], options.out)
            manifest = None
            if changes.any and not request.dry_run:
                manifest = _write(runs, reading, index, folder, changes, clock)
        version = index.version
        if manifest is not None:
            clock.phase("publishing")
            version = publish(options.out, folder, manifest)
            prune(options.out, version, options.keep_versions, before=index.version)
        if request.add:
            remove_work(work_root(options.out))
        return UpdateSummary(
            index=options.out,
            parent=index.version,
            version=version,
            manifest=manifest or index.manifest,
            changes=changes,
            dry_run=request.dry_run,
            rejected=reading.rejects.counts(),
            report=reading.rejects.report() if reading.rejects.rows else "",
            rejects_file=options.rejects if reading.rejects.rows else None,
            seconds=clock.seconds(),
            peak_rss_bytes=peak_rss_bytes(),
        )


@dataclass(frozen=True, slots=True)
class _Reading:
    """Everything a request names, read.

    Attributes:
        request: The request.
        options: How the files were read.
        front: What is added; None when nothing is.
        removals: What is removed.
        rejects: Bad rows of both.
    """

    request: UpdateRequest
    options: BuildOptions
    front: FrontHalf | None
    removals: Removals
    rejects: Rejects

    @property
    def shards(self) -> tuple[ShardRun, ...]:
        """What is added, as runs."""
        return () if self.front is None else self.front.shards


@contextmanager
def _read(
    request: UpdateRequest,
    tokenizer: TextTokenizer | None,
    options: BuildOptions,
    index: Index,
    progress: BuildProgress,
) -> Iterator[_Reading]:
    """Read everything; the bad rows are written on the way out, whatever has happened."""
    if not request.add:
        rejects = Rejects("update", options.max_bad_rows)
        try:
            removals = read_removals(request.remove, request.remove_ids, rejects)
            yield _Reading(request, options, None, removals, rejects)
        finally:
            if options.rejects is not None:
                rejects.write(options.rejects)
        return
    checked = _check(tokenizer, index)
    options = reading_options(request, options, index)
    with read_shards(list(request.add), checked, options, work_root(options.out), progress) as front:
        removals = read_removals(request.remove, request.remove_ids, front.rejects)
        check_rejects(front, _OUTCOME)
        for shard in front.shards:
            shard.use_columns(index.manifest.metadata)
        yield _Reading(request, options, front, removals, front.rejects)


def _kept(runs: Sequence[Run], index: Path) -> list[Run]:
    kept = [run for run in runs if run.keep.any()]
    if not kept:
        raise SourceError(f"{index}: no entity would be left; an index needs at least one")
    return kept


def _write(
    runs: Sequence[Run],
    reading: _Reading,
    index: Index,
    folder: Path,
    changes: Changes,
    progress: BuildProgress,
) -> Manifest:
    """Write the files of the new version and return its manifest."""
    spec = VersionSpec(index.vocab_size, index.manifest.metadata)
    budget = MemoryBudget(reading.options.memory_limit)
    with spill_folder(work_root(reading.options.out)) as spill:
        written = write_version(runs, spec, folder, spill, budget, progress)
    return written.to_manifest(
        tokenizer=index.manifest.tokenizer,
        rendering=index.rendering,
        history=extend_history(index.manifest.history, _history(reading, index, changes)),
        built_with=shaping_libraries(),
    )


def reading_options(request: UpdateRequest, options: BuildOptions, index: Index) -> BuildOptions:
    """Return the options with which files to add are read: rendering, bounds and types are the index's.

    Raises:
        SourceError: a file has a column that the index lacks.
        InputError: a type is declared that is not the index's, or a file can be read only once.
    """
    once = [str(path) for path in request.add if is_read_once(path)]
    if once:
        raise InputError("add", f"expected files, got {once[0]!r}, which can be read only once")
    with open_source(
        request.add, options.mapping, options.format, unescape_html=options.unescape_html
    ) as source:
        names, name = source.columns.names, source.name
    known = index.metadata_types
    unknown = [column for column in names if column not in known]
    if unknown:
        raise SourceError(
            f"{name}: the index has no metadata column {', '.join(map(repr, unknown))}; "
            f"its columns are {', '.join(map(repr, known)) or 'none'}"
        )
    for column, declared in options.mapping.types.items():
        if known.get(column, declared) != declared:
            raise InputError("types", f"{column}: the column is {known[column]} in the index, got {declared}")
    types = {column: ColumnType(known[column]) for column in names}
    return replace(
        options,
        mapping=replace(options.mapping, types=types),
        rendering=index.rendering,
        max_title_tokens=max_title_tokens(index.manifest),
    )


def max_title_tokens(manifest: Manifest) -> int:
    """Return the bound on titles that the version was built with."""
    for entry in reversed(manifest.history):
        bound = entry.options.get(_MAX_TITLE_TOKENS)
        if type(bound) is int and bound >= 2:
            return bound
    return manifest.counts.depth


def _check(tokenizer: TextTokenizer | None, index: Index) -> TextTokenizer:
    ours = index.manifest.tokenizer
    if tokenizer is None:
        raise InputError("tokenizer", "expected that of the index, because titles are added; got none")
    if tokenizer.fingerprint != ours.fingerprint:
        raise IndexMismatchError(
            f"the index {index.path} was built with the tokenizer {ours.name!r} ({ours.fingerprint}), but "
            f"the one given is {tokenizer.source} ({tokenizer.fingerprint}); an update needs the same one"
        )
    return tokenizer


def _history(reading: _Reading, index: Index, changes: Changes) -> HistoryEntry:
    front, request = reading.front, reading.request
    shaping: dict[str, Any] = {"ignore_missing": request.ignore_missing}
    if request.remove_ids:
        shaping["remove_ids"] = list(request.remove_ids)
    if front is not None:
        shaping |= reading.options.shaping()
    return HistoryEntry(
        operation="update",
        parent=index.version,
        sources=(*(front.sources if front is not None else ()), *reading.removals.sources),
        options={**shaping, _MAX_TITLE_TOKENS: max_title_tokens(index.manifest)},
        records=(front.records if front is not None else 0) + len(reading.removals),
        duplicates=front.duplicates if front is not None else 0,
        rejected=len(reading.rejects.rows),
        added=changes.added,
        changed=changes.changed,
        removed=changes.removed,
    )
