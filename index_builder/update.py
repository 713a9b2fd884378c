"""Updates an index: merges the live version with added entities, without removed ones, into a new version."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from genret.index_builder.build import SourceRuns, check_rejects, peak_rss_bytes, read_shards
from genret.index_builder.build_options import BuildOptions, EvidenceChange, VectorChange, check_method
from genret.index_builder.changes import Changes, Removals, VersionRun, apply_changes, read_removals
from genret.index_builder.entities import check_weights
from genret.index_builder.evidence_maker import EvidenceMaker, PreviousEvidence, copy_version
from genret.index_builder.merge import VersionSpec, write_version
from genret.index_builder.publish import (
    prune,
    publish,
    remove_vector_work,
    remove_work,
    spill_folder,
    staging,
    temporary_work,
)
from genret.index_builder.runs import Run, ShardRun
from genret.index_builder.update_evidence import EvidenceDecisions, check_changes, fates_of, update_evidence
from genret.retrieval.arguments import check_text
from genret.retrieval.errors import IndexMismatchError, InputError, SourceError, did_you_mean
from genret.retrieval.index.entities import weight_problem
from genret.retrieval.index.layout import FORMAT_VERSION, WEIGHT_TYPES, WORK_DIR
from genret.retrieval.index.manifest import HistoryEntry, Manifest, extend_history
from genret.retrieval.index.reader import Index
from genret.retrieval.index.summary import evidence_facts, evidence_lines, unusable_vectors
from genret.retrieval.index.versions import live_version
from genret.retrieval.progress import PhaseClock, StepProgress
from genret.retrieval.sources.columns import ColumnType, find_column, no_such_column
from genret.retrieval.sources.records import Rejects
from genret.retrieval.sources.source_files import digest_file, is_read_once
from genret.retrieval.sources.title_source import TitleSource
from genret.retrieval.tables import Shown
from genret.retrieval.text import TextTokenizer


@dataclass(frozen=True, slots=True, repr=False)
class UpdateSummary(Shown):
    """Result of an update, or with `dry_run` its plan; its text is that of the command."""

    index: Path  # directory
    parent: str  # id of the version that was live before
    version: str  # id of the version now live: the parent if nothing changed, or for a dry run
    manifest: Manifest  # of that version
    changes: Changes
    fates: EvidenceDecisions
    weight_column: str | None
    dry_run: bool
    rejected: Mapping[str, int]  # bad rows per reason
    report: str  # a few lines about the bad rows; "" when there are none
    rejects_file: Path | None
    seconds: Mapping[str, float]  # per phase
    peak_rss_bytes: int

    def __str__(self) -> str:
        changes, counts = self.changes, self.manifest.counts
        changed = (
            f"{changes.added:,} added, {changes.changed:,} changed, {changes.removed:,} removed; "
            f"{changes.unchanged:,} added ones were there already, "
            f"{changes.missing:,} to remove were not there"
        )
        named = {"evidence": self.fates.evidence, "vectors": self.fates.vectors}
        fates = {name: fate for name, fate in named.items() if fate != "absent"}
        weights = self.weight_column
        if self.dry_run:
            lines = [f"{self.index}: dry run, version {self.version} stays live", f"  would be: {changed}"]
            lines += [f"  {name} would be {fate}" for name, fate in fates.items()]
            lines += [] if weights is None else [f"  weights would be those of {weights}"]
            return "\n".join(lines)
        if self.version == self.parent:
            return f"{self.index}: no change, version {self.version} stays live\n  {changed}"
        lines = [
            f"{self.index}: version {self.version}, before: {self.parent}",
            f"  {changed}",
            f"  {counts.entities:,} entities, {counts.rows:,} rows, {self.manifest.num_bytes:,} bytes",
        ]
        lines += [] if weights is None else [f"  weights: {weights}"]
        lines += [f"  {name} {fate}" for name, fate in fates.items()]
        lines += [f"    {line}" for line in evidence_lines(evidence_facts(self.manifest))]
        return "\n".join(lines)

    _told = ("index", "version", "changes", "dry_run", "rejected")

    def to_dict(self) -> dict[str, Any]:
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
    progress: StepProgress | None = None,
) -> UpdateSummary:
    """Publish a new version of an index with entities added, replaced and removed.

    The files are those that a build of the same entities would write, with the same ids and types of
    metadata. What the index has is not tokenised again. Rankings are kept while the kinds of evidence are the
    same. Without a tokenizer nothing can be added. Of the options, the rendering, the limit on titles, the
    types of metadata and, unless the request names another, the weight column are the index's own.

    Raises:
        IndexDirectoryError: there is no index, it is damaged or cannot be written, or (dry run) the temporary
            directory cannot. The live version is untouched.
        IndexMismatchError: the index has another tokenizer.
        SourceError: a source cannot be used, has columns that the index lacks, contradicts the removals,
            there are more bad rows than allowed, no entity would be left, or all weights would be 0.
        InputError: an option is wrong, the weight column holds something that is no weight, or evidence
            cannot be kept in step with the entities.
        ModelError: the encoder of the vectors cannot be loaded.
        MissingExtraError: new vectors are asked for, and a library they need is not installed.
    """
    if (wish := request.vectors.wish) is not None:
        check_method(wish.method, wish.options.device, wish.options.kind)
    clock = PhaseClock(progress or StepProgress())
    live_version(options.out)
    clock.phase("opening")
    with _workplace(request, options.out) as (folder, root), Index.open(options.out) as index:
        check_changes(request.evidence, request.vectors, index)
        weights = weight_column(request, index)
        with _read(request, tokenizer, options, index, root, clock) as (front, removals, shaping):
            rejects = front.rejects
            clock.phase("comparing")
            live = VersionRun(index)
            changes, replaced = apply_changes(live, front.shards, removals, rejects, request.ignore_missing)
            rejects.check(OUTCOME)
            everything: list[Run] = [live, *front.shards]
            runs = [run for run in everything if run.keep.any()]
            if not runs:
                raise SourceError(f"{options.out}: no entity would be left; an index needs at least one")
            if request.weight_column is not None and weights is not None:
                problem = weight_problem(index.entities, weights, live.keep)
                if problem is not None:
                    raise InputError("weight_column", problem)
            check_weights(runs, weights)
            rewritten = changes.any or index.manifest.format_version < FORMAT_VERSION
            fates = fates_of(request.evidence, request.vectors, index, rewritten)
            if fates.vectors == "dropped" and (why := unusable_vectors(index.manifest)) is not None:
                clock.note(f"the vectors are dropped: {why}")
            step = _history(request, front, removals, shaping, index, changes)
            history = extend_history(index.manifest.history, step)
            manifest, number_of_old = None, np.arange(index.num_entities)
            if rewritten and folder is not None:
                numbers, parts = _live_numbers(live, front.shards, replaced), list[npt.NDArray[np.int32]]()
                was, memory = index.manifest, options.free_bytes
                spec = VersionSpec(was.tokenizer, was.rendering, was.metadata, weights)
                with spill_folder(options.out / WORK_DIR) as spill:
                    manifest = write_version(
                        runs, spec, folder, spill, memory, clock, told=lambda n: parts.append(numbers[n])
                    )
                manifest = replace(manifest, history=history)
                number_of_old = np.concatenate(parts).astype(np.int64)
            elif folder is not None and (fates.changes_files or weights != index.manifest.weight_column):
                clock.phase("copying")
                copied = copy_version(index, folder, fates.evidence == "kept", fates.vectors == "kept")
                manifest = replace(copied, history=history, weight_column=weights)
        version = index.version
        if manifest is not None and folder is not None:
            manifest = update_evidence(
                manifest,
                EvidenceMaker(folder, root, options, clock, OUTCOME),
                fates,
                PreviousEvidence(index, number_of_old),
                request.evidence,
                request.vectors,
                rejects,
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
            rejected=rejects.counts(),
            report=rejects.report() if rejects.rows else "",
            rejects_file=options.rejects if rejects.rows else None,
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
            yield folder, index / WORK_DIR


def _live_numbers(
    live: VersionRun, shards: Sequence[ShardRun], replaced: Sequence[npt.NDArray[np.int32]]
) -> npt.NDArray[np.int32]:
    """Return the live number of every entity of the merged runs, in one sequence; -1 for new ones.

    `replaced` holds for every shard the live entity that each of its entities replaces, or -1. Runs that keep
    no entity are not merged.
    """
    runs: list[Run] = [live, *shards]
    numbers = [np.arange(live.num_entities, dtype=np.int32), *replaced]
    return np.concatenate([was for run, was in zip(runs, numbers, strict=True) if run.keep.any()])


def _history(
    request: UpdateRequest,
    front: SourceRuns,
    removals: Removals,
    shaping: Mapping[str, Any],
    index: Index,
    changes: Changes,
) -> HistoryEntry:
    weights = {} if request.weight_column is None else {"weight_column": weight_column(request, index)}
    return HistoryEntry(
        operation="update",
        parent=index.version,
        sources=(
            *front.sources,
            *removals.sources,
            *(digest_file(file.path) for file in request.evidence.query_files),
        ),
        options={
            "ignore_missing": request.ignore_missing,
            **shaping,
            **weights,
            **request.evidence.shaping(),
            **request.vectors.shaping(),
            MAX_TITLE_TOKENS: max_title_tokens(index.manifest),
        },
        records=front.records + len(removals),
        duplicates=front.duplicates,
        rejected=len(front.rejects.rows),
        added=changes.added,
        changed=changes.changed,
        removed=changes.removed,
    )


MAX_TITLE_TOKENS = "max_title_tokens"
OUTCOME = "nothing was updated"


@dataclass(frozen=True, slots=True)
class UpdateRequest:
    """The changes that an update is to make.

    Raises:
        InputError: nothing is to be changed, or an id is not valid Unicode.
    """

    add: tuple[str | Path, ...] = ()  # files of entities; one whose id exists is replaced
    remove: tuple[str | Path, ...] = ()  # files of ids, one per line
    remove_ids: tuple[str, ...] = ()  # further ids
    ignore_missing: bool = False  # whether unknown ids to remove are accepted instead of counting as bad rows
    dry_run: bool = False  # whether only to report the changes
    vectors: VectorChange = field(default_factory=VectorChange)  # changes of the vectors
    weight_column: str | None = None  # new weight column, a metadata column of the index; None: unchanged
    # Changes of names, texts and past queries
    evidence: EvidenceChange = field(default_factory=EvidenceChange)

    def __post_init__(self) -> None:
        changes = (self.add, self.remove, self.remove_ids, self.weight_column)
        if not (any(changes) or self.vectors.any or self.evidence.any):
            raise InputError(
                "update",
                "nothing to do: expected files to add, ids to remove, evidence, vectors or a column of "
                "weights",
            )
        for entity_id in self.remove_ids:
            check_text("remove_id", entity_id)


@contextmanager
def _read(
    request: UpdateRequest,
    tokenizer: TextTokenizer | None,
    options: BuildOptions,
    index: Index,
    root: Path,
    progress: StepProgress,
) -> Iterator[tuple[SourceRuns, Removals, Mapping[str, Any]]]:
    """Read the added and removed entities; yield them, and the options that shaped the added ones.

    The bad rows of both are written on the way out, also after an error. The shards are written below `root`.
    Raises what `update_index` does about sources and options.
    """
    if not request.add:
        with Rejects("update", options.max_bad_rows).written_to(options.rejects) as rejects:
            yield SourceRuns(rejects), read_removals(request.remove, request.remove_ids, rejects), {}
        return
    checked = _check(tokenizer, index)
    options = reading_options(request, options, index, progress)
    with read_shards(list(request.add), checked, options, root, progress) as front:
        removals = read_removals(request.remove, request.remove_ids, front.rejects)
        check_rejects(front, OUTCOME)
        for shard in front.shards:
            shard.use_columns(index.manifest.metadata)
        yield front, removals, options.shaping()


def reading_options(
    request: UpdateRequest, options: BuildOptions, index: Index, progress: StepProgress
) -> BuildOptions:
    """Return the options for reading the added files: rendering, limits and types are the index's.

    Raises:
        SourceError: a file has a column that the index lacks.
        InputError: a declared type is not the index's, or a file can be read only once.
    """
    once = [str(path) for path in request.add if is_read_once(path)]
    if once:
        raise InputError("add", f"expected files, got {once[0]!r}, which can be read only once")
    weight, kept = weight_column(request, index), options.mapping.metadata
    if kept is None and "metadata" in index.manifest.history[0].options:  # the build named those to keep
        kept = index.metadata_columns
    may_miss = (*index.metadata_columns, *as_built(index.manifest).values())
    mapping = replace(options.mapping, weight=weight, metadata=kept, may_miss=may_miss)
    with TitleSource(request.add, mapping, options.format, unescape_html=options.unescape_html) as source:
        names, name, place = source.columns.names, source.name, source.columns.weight
        layouts = zip(source.names, source.layouts, strict=True)
        bare = [one for one, layout in layouts if place is None or layout.metadata[place] is None]
    known = index.metadata_types
    unknown = [column for column in names if column not in known]
    if unknown:
        keeping = " ".join(f"--metadata {column}" for column in names if column in known) or "--no-metadata"
        hint = did_you_mean(unknown[0], known, ";") if len(unknown) == 1 else ";"
        raise SourceError(
            f"{name}: the index has no metadata column {', '.join(map(repr, unknown))}{hint} "
            f"its columns are {', '.join(map(repr, known)) or 'none'}; leave it out with {keeping}, or build "
            "the index anew to have it"
        )
    if weight is not None and bare:
        progress.note(f"{', '.join(bare)}: no column {weight!r}, so each entity there has the weight 1")
    for column, declared in options.mapping.types.items():
        if known.get(column, declared) != declared:
            raise InputError("types", f"{column}: the column is {known[column]} in the index, got {declared}")
    types = {column: ColumnType(known[column]) for column in names}
    return replace(
        options,
        mapping=replace(mapping, types=types),
        rendering=index.rendering,
        max_title_tokens=max_title_tokens(index.manifest),
    )


def weight_column(request: UpdateRequest, index: Index) -> str | None:
    """Return the name of the new version's weight column, or None.

    Raises:
        InputError: there is no such column, or it holds no numbers.
    """
    wanted, types = request.weight_column, index.metadata_types
    if wanted is None:
        return index.manifest.weight_column
    place = find_column(index.metadata_columns, wanted, str(index.path))
    name = wanted if place is None else index.metadata_columns[place]
    if types.get(name) not in WEIGHT_TYPES:
        raise InputError("weight_column", no_such_column(name, types, "numbers", WEIGHT_TYPES))
    return name


# Parameters of the command, by what the history calls them.
_READ_AS = {"title": "title_column", "entity_id": "id_column", "aliases": "aliases_column"}
_READ_AS["alias_separator"] = "alias_separator"


def as_built(manifest: Manifest) -> dict[str, Any]:
    """Return the names of columns and the separator that the build was given, by the command's parameters."""
    first = manifest.history[0]
    named = first.options.get("columns") if first.operation == "build" else None
    columns = named if isinstance(named, dict) else {}
    return {parameter: columns[name] for name, parameter in _READ_AS.items() if name in columns}


def max_title_tokens(manifest: Manifest) -> int:
    """Return the limit on title tokens that the version was built with."""
    for entry in reversed(manifest.history):
        bound = entry.options.get(MAX_TITLE_TOKENS)
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
            f"the one given is {tokenizer.name} ({tokenizer.fingerprint}); an update needs the same one"
        )
    return tokenizer
