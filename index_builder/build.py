"""Builds an index: sources -> sorted shards -> merge -> publication.

`build_index` does all of it. `read_shards` reads, tokenises and sorts the sources into shards, continuing an
interrupted run, and resolves which records are entities of their own; updates use it too. `write_version`
merges the shards into the files of a version, `EvidenceMaker` adds evidence, `publish` makes it live.
"""

from __future__ import annotations

import resource
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from genret.index_builder.build_options import (
    MIB,
    BuildOptions,
    asked_columns,
    check_columns,
    check_method,
    check_model,
)
from genret.index_builder.entities import check_weights, resolve_identities
from genret.index_builder.evidence_maker import EvidenceMaker, read_rankings
from genret.index_builder.faults import fault_point
from genret.index_builder.merge import VersionSpec, write_version
from genret.index_builder.past_queries import check_query_files
from genret.index_builder.publish import prune, publish, remove_work, spill_folder, staging
from genret.index_builder.runs import ShardRun
from genret.index_builder.shard_maker import OverLong, RowEncoder, ShardMaker, open_journal, work_key
from genret.retrieval.errors import IndexDirectoryError, SourceError
from genret.retrieval.index.layout import TITLE, WORK_DIR
from genret.retrieval.index.manifest import FileEntry, HistoryEntry, Manifest, MetadataColumn, TokenizerEntry
from genret.retrieval.index.reader import read_manifest
from genret.retrieval.index.summary import evidence_facts, evidence_lines
from genret.retrieval.index.versions import live_or_none, read_version
from genret.retrieval.normalize import NormalizationReport
from genret.retrieval.progress import PhaseClock, StepProgress
from genret.retrieval.sources.alias_file import AliasFile, key_hash
from genret.retrieval.sources.columns import ColumnType, Kinds, fit_number, resolve
from genret.retrieval.sources.memory_rows import MemoryRows
from genret.retrieval.sources.records import Rejects
from genret.retrieval.sources.source_files import digest_file, is_read_once
from genret.retrieval.sources.title_source import RowSample, TitleSource
from genret.retrieval.tables import Shown
from genret.retrieval.text import Rendering, TextTokenizer


@dataclass(frozen=True, slots=True, repr=False)
class BuildSummary(Shown):
    """Result of a build; its text is that of the command."""

    index: Path  # directory
    version: str  # id of the version now live
    manifest: Manifest
    rejected: Mapping[str, int]  # bad rows per reason
    report: str  # a few lines about the bad rows; "" when there are none
    rejects_file: Path | None
    normalization: NormalizationReport  # changes that the text policy made
    seconds: Mapping[str, float]  # per phase
    peak_rss_bytes: int
    resumed_shards: int  # made by an earlier, interrupted run
    resumed_records: int
    prompt: str | None = None  # template to ask with, where it is not the checkpoint's default
    before: str = ""  # version that this one replaced, with its entities and the way back; "" for none

    def __str__(self) -> str:
        counts, manifest = self.manifest.counts, self.manifest
        lines = [
            f"{self.index}: version {self.version}",
            f"  {counts.entities:,} entities, {counts.rows:,} rows (titles and aliases) of up to "
            f"{counts.depth} tokens, {counts.nodes:,} trie nodes",
            f"  {manifest.num_bytes:,} bytes, {manifest.num_bytes / counts.rows:.1f} per row",
        ]
        duplicates = manifest.history[-1].duplicates
        if duplicates:
            lines.append(f"  {duplicates:,} repeated rows counted once")
        lines += catalogue_lines(manifest.metadata, manifest.weight_column, self.normalization)
        lines += [f"  {line}" for line in evidence_lines(evidence_facts(manifest))]
        if self.resumed_records:
            lines.append(f"  {self.resumed_records:,} records were taken over from an earlier run")
        lines += [f"  before: {self.before}"] if self.before else []
        seconds = sum(self.seconds.values())
        lines.append(f"  {seconds:.1f} s, peak memory {self.peak_rss_bytes / MIB:,.0f} MiB")
        lines += [] if self.prompt is None else [f"  ask with: --prompt {self.prompt}"]
        return "\n".join(lines)

    _told = ("index", "manifest.counts.entities", "manifest.counts.rows", "rejected", "version")

    def to_dict(self) -> dict[str, Any]:
        """Return the summary as a JSON object."""
        history = self.manifest.history[-1]
        return {
            "index": str(self.index),
            "version": self.version,
            "counts": asdict(self.manifest.counts),
            "records": history.records,
            "duplicates": history.duplicates,
            "rejected": dict(self.rejected),
            "rejects_file": None if self.rejects_file is None else str(self.rejects_file),
            "normalization": asdict(self.normalization),
            "metadata": {column.name: column.type for column in self.manifest.metadata},
            "weight_column": self.manifest.weight_column,
            **evidence_facts(self.manifest),
            "bytes": self.manifest.num_bytes,
            "files": {file.name: file.bytes for file in self.manifest.files},
            "seconds": {name: round(seconds, 3) for name, seconds in self.seconds.items()},
            "peak_rss_bytes": self.peak_rss_bytes,
            "resumed": {"shards": self.resumed_shards, "records": self.resumed_records},
        }


def catalogue_lines(
    columns: Sequence[MetadataColumn], weights: str | None, report: NormalizationReport
) -> list[str]:
    """Return lines about metadata, weights and normalised titles."""
    types = ", ".join(f"{column.name} ({column.type})" for column in columns)
    lines = [f"  metadata: {types}"] if columns else []
    lines += [] if weights is None else [f"  weights: {weights}"]
    counted = {
        "put into NFC": report.composed,
        "with white space corrected": report.respaced,
        "with HTML entities kept": report.html_entities,
        "with HTML entities resolved": report.unescaped,
    }
    said = [f"{count:,} {what}" for what, count in counted.items() if count]
    return [*lines, f"  titles: {', '.join(said)}"] if said else lines


def build_index(
    sources: Sources,
    tokenizer: TextTokenizer,
    options: BuildOptions,
    progress: StepProgress | None = None,
) -> BuildSummary:
    """Build an index and make it the live version of `options.out`.

    An interrupted build continues after its last finished shard if sources, options, tokenizer and libraries
    are the same. The source "-" is standard input; the tokenizer is that of the model that will write the
    titles.

    Raises:
        SourceError: a source cannot be used, there are more bad rows than allowed, or all weights are 0.
        InputError: the tokenizer has no end token, or an option is wrong.
        MissingExtraError: vectors are asked for, and a library they need is not installed.
        ModelError: the encoder of the vectors, or the model to weigh, cannot be loaded.
        IndexDirectoryError: the index directory cannot be written. The live version is untouched.
    """
    clock = PhaseClock(progress or StepProgress())
    check_evidence(options, tokenizer)
    root = options.out / WORK_DIR
    with staging(options.out) as folder:
        with read_shards(sources, tokenizer, options, root, clock) as front:
            check_rejects(front)
            check_weights(front.shards, front.weight_column)
            with spill_folder(root) as spill:
                entry = tokenizer_entry(tokenizer, options.rendering)
                spec = VersionSpec(entry, options.rendering, front.columns, front.weight_column)
                manifest = write_version(front.shards, spec, folder, spill, options.free_bytes, clock)
        history = (_history(front, options, manifest.counts.entities),)
        manifest = replace(manifest, history=history)
        manifest = _add_evidence(manifest, EvidenceMaker(folder, root, options, clock), options, front)
        clock.phase("publishing")
        before, replaced = live_or_none(options.out), _replaced(options.out, options.keep_versions)
        live = publish(options.out, folder, manifest)
        prune(options.out, live, options.keep_versions, before)
        remove_work(root)
    rejects = front.rejects
    return BuildSummary(
        index=options.out,
        version=live,
        manifest=manifest,
        rejected=rejects.counts(),
        report=rejects.report() if rejects.rows else "",
        rejects_file=options.rejects if rejects.rows else None,
        normalization=front.normalization,
        seconds=clock.seconds(),
        peak_rss_bytes=peak_rss_bytes(),
        resumed_shards=front.resumed_shards,
        resumed_records=front.resumed_records,
        before="" if before == live else replaced,
    )


def _replaced(index: Path, kept: int) -> str:
    """Return the live version with its entities and, if versions are kept, the way back; "" without one."""
    with suppress(IndexDirectoryError):
        manifest, version = read_version(index, read_manifest)
        way_back = f"; genret rollback {index} --to {version[:8]}" if kept else ""
        return f"{version}, {manifest.counts.entities:,} entities{way_back}"
    return ""


def _add_evidence(
    manifest: Manifest, maker: EvidenceMaker, options: BuildOptions, front: SourceRuns
) -> Manifest:
    evidence, vectors = options.evidence, options.vectors
    if evidence is not None:
        manifest = maker.make_fields(manifest, evidence.columns, evidence.queries, front.rejects)
    if vectors is not None:
        manifest = maker.make_vectors(manifest, vectors)
    if evidence is not None:
        device = "cpu" if vectors is None else vectors.options.device
        manifest = maker.make_ranking(
            manifest, device, evidence.ranking, evidence.model_place, options.prompt
        )
    return manifest


def check_evidence(options: BuildOptions, tokenizer: TextTokenizer) -> None:
    """Check that the evidence asked for can be made, before anything is read; raises as `build_index`."""
    if options.evidence is not None:
        if options.evidence.queries:
            check_query_files(options.evidence.queries)
        if options.evidence.ranking is not None:
            read_rankings(options.evidence.ranking)
        if (model := options.evidence.model_place) is not None:
            check_model(model, tokenizer, options.rendering, options.prompt)
    if (vectors := options.vectors) is not None:
        check_method(vectors.method, vectors.options.device, vectors.options.kind)


def check_rejects(front: SourceRuns, outcome: str = "nothing was built") -> None:
    """Fail when there are too many bad rows, or no good one.

    Raises:
        SourceError: that is so; the message ends with `outcome`.
    """
    front.rejects.check(outcome)
    if not front.num_entities:
        raise SourceError(f"{front.rejects.source}: no good row is left\n{front.rejects.report()}")


def tokenizer_entry(tokenizer: TextTokenizer, rendering: Rendering) -> TokenizerEntry:
    """Return a tokenizer's manifest entry; the merge fills in the largest id in use."""
    end_token_id = tokenizer.end_token_id(rendering)
    return TokenizerEntry(
        name=Path(tokenizer.name).name,
        fingerprint=tokenizer.fingerprint,
        vocab_size=tokenizer.vocab_size,
        end_token_id=end_token_id,
        max_token_id=end_token_id,
    )


def peak_rss_bytes() -> int:
    """Return the peak memory of this process."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _history(front: SourceRuns, options: BuildOptions, entities: int) -> HistoryEntry:
    queries = () if options.evidence is None else options.evidence.queries
    return HistoryEntry(
        operation="build",
        parent="",
        sources=(*front.sources, *(digest_file(file.path) for file in queries)),
        options=options.shaping() | options.shaping_evidence(),
        records=front.records,
        duplicates=front.duplicates,
        rejected=len(front.rejects.rows),
        added=entities,
    )


_TRIED_CELLS = 1000  # before a column is given up that holds more text than numbers
Sources = str | Path | Sequence[str | Path | MemoryRows]


@dataclass(frozen=True, slots=True)
class SourceRuns:
    """Everything that was read, as sorted runs, in the order of the source; by default nothing."""

    rejects: Rejects  # not yet checked against the limit
    shards: tuple[ShardRun, ...] = ()  # their `keep` says which records are entities
    columns: tuple[MetadataColumn, ...] = ()  # metadata columns, as the shards return them
    weight_column: str | None = None
    longest: OverLong | None = None  # longest title or alias refused for its length in this run
    normalization: NormalizationReport = field(default_factory=NormalizationReport)
    sources: tuple[FileEntry, ...] = ()
    records: int = 0  # read, bad ones included
    duplicates: int = 0  # dropped because they repeat another
    resumed_shards: int = 0  # made by an earlier run
    resumed_records: int = 0  # in those shards, bad ones included
    estimated_records: float | None = None  # of the source, if only stretches of it were read

    @property
    def num_entities(self) -> int:
        """Number of records that are entities."""
        return sum(int(np.count_nonzero(shard.keep)) for shard in self.shards)


@contextmanager
def read_shards(
    sources: Sources,
    tokenizer: TextTokenizer,
    options: BuildOptions,
    root: Path,
    progress: StepProgress,
    sample: RowSample | None = None,
) -> Iterator[SourceRuns]:
    """Read, tokenise and sort the sources, continuing an interrupted run; the shards are open in the block.

    On the way out the bad rows are written to `options.rejects`, also after an error. The shards lie in the
    work directory `root`. With a `sample` they hold stretches of a large source, and its files are not
    digested.

    Raises:
        SourceError: a source cannot be used.
        InputError: the tokenizer has no end token, or an option is wrong.
        OSError: the work directory cannot be written.
    """
    paths = [sources] if isinstance(sources, str | Path) else list(sources)
    with ExitStack() as stack:
        encoder = RowEncoder(tokenizer, options.rendering, options.max_title_tokens)
        aliases = None
        if options.aliases is not None:
            aliases = AliasFile(options.aliases, options.max_bad_rows, options.unescape_html)
        source = stack.enter_context(
            TitleSource(paths, options.mapping, options.format, aliases, options.unescape_html, sample)
        )
        columns_asked = asked_columns(options.evidence, options.vectors)
        names = zip(source.columns.names, source.columns.declared, strict=True)
        check_columns(columns_asked, {name: str(kind or "string") for name, kind in names})
        rejects = Rejects(source.name, options.max_bad_rows, files=source.names, unit=source.unit)
        stack.enter_context(rejects.written_to(options.rejects))
        shaping = None if sample is not None else _shaping(paths, tokenizer, options)
        journal = open_journal(root, work_key(shaping), options.resume)
        stack.enter_context(_removed_if_bad(root))
        resumed = list(journal.entries)
        if resumed:
            noun = "shard" if len(resumed) == 1 else "shards"
            records = f"{resumed[-1].position.records_read:,} records in {len(resumed)} {noun}"
            progress.note(f"resuming: {records} are already tokenised")
        maker = ShardMaker(source, encoder, tokenizer.vocab_size, options, journal, rejects)
        maker.run(progress)
        columns = _columns(source, maker.kinds)
        check_columns(columns_asked, {column.name: column.type for column in columns})
        shards = []
        for number, entry in enumerate(journal.entries):
            shards.append(ShardRun(journal.shard_folder(number), entry.shape))
            stack.enter_context(closing(shards[-1])).use_columns(columns)
        if source.estimated_records is None:
            for doubt in _doubts(source, maker.kinds, shards):
                progress.note(doubt)
        progress.phase("resolving entities")
        duplicates = resolve_identities(shards, source.names, rejects, options.free_bytes // 2)
        if aliases is not None and source.estimated_records is None:
            aliases.reject_unknown(_known_keys(shards, aliases), rejects, file=len(paths))
        fault_point("identities-resolved")
        yield SourceRuns(
            shards=tuple(shards),
            columns=columns,
            weight_column=None if source.columns.weight is None else columns[source.columns.weight].name,
            rejects=rejects,
            longest=encoder.longest,
            normalization=maker.normalization,
            sources=() if sample is not None else source.entries(),
            records=source.records_read,
            duplicates=duplicates,
            resumed_shards=len(resumed),
            resumed_records=resumed[-1].position.records_read if resumed else 0,
            estimated_records=source.estimated_records,
        )


def _shaping(
    paths: Sequence[str | Path | MemoryRows], tokenizer: TextTokenizer, options: BuildOptions
) -> dict[str, Any] | None:
    """Return everything that decides about the shards; None when an input can be read only once."""
    read = [path for path in (*paths, options.aliases) if isinstance(path, str | Path)]
    if any(map(is_read_once, (*paths, *read))):
        return None
    return {
        "sources": [asdict(digest_file(path)) for path in read],
        "tokenizer": tokenizer.fingerprint,
        "end_token": tokenizer.end_token_id(options.rendering),
        "rendering": options.rendering.to_json(),
        "options": options.shaping(),
    }


def _columns(source: TitleSource, kinds: Sequence[Kinds]) -> tuple[MetadataColumn, ...]:
    types = [resolve(seen, wanted) for seen, wanted in zip(kinds, source.columns.declared, strict=True)]
    weight = source.columns.weight
    if weight is not None and types[weight] is ColumnType.STRING:
        # Every cell is a number: none has a value, text spells them, or long integers stand beside fractions.
        types[weight] = ColumnType.FLOAT
    return tuple(
        MetadataColumn(name, kind.value) for name, kind in zip(source.columns.names, types, strict=True)
    )


def _doubts(source: TitleSource, kinds: Sequence[Kinds], shards: Sequence[ShardRun]) -> Iterator[str]:
    """Yield a note on every column that is text although most of its cells are numbers."""
    columns = zip(source.columns.names, source.columns.declared, kinds, strict=True)
    for number, (name, declared, seen) in enumerate(columns):
        is_mixed = declared is None and Kinds.STRING in seen and seen & (Kinds.INT | Kinds.FLOAT)
        count, odd, first = 0, 0, None
        for cell in chain.from_iterable(shard.cells(f"m{number}") for shard in shards if is_mixed):
            count += cell[2] is not None
            if cell[2] is not None and fit_number(cell[2]) is None:
                odd, first = odd + 1, min(first or cell, cell)
                if 2 * odd > count + _TRIED_CELLS:
                    break
        if first is not None and 2 * odd < count:
            why = f"because {source.names[first[0]]}, {source.unit} {first[1]} has {first[2][:80]!r}"
            ways = f"leave such cells empty, or refuse their rows with --type {name}=float"
            yield f"the column {name!r} is text, {why}; {ways}"


def _known_keys(shards: Sequence[ShardRun], aliases: AliasFile) -> npt.NDArray[np.uint64]:
    """Return the hashes of all names that an alias may refer to, ascending; 8 bytes per record."""
    parts = [np.empty(0, dtype=np.uint64)]
    for shard in shards:
        if aliases.by_id or not shard.shape.has_ids:
            parts.append(shard.key_half("key", 0))
        else:
            hashes = (key_hash(title) for _, _, title in shard.cells(TITLE))
            parts.append(np.fromiter(hashes, np.uint64, shard.num_entities))
    return np.sort(np.concatenate(parts))


@contextmanager
def _removed_if_bad(root: Path) -> Iterator[None]:
    """Remove the work directory when a source is bad: resuming would fail in the same way."""
    try:
        yield
    except SourceError:
        remove_work(root, keeps_copies=True)
        raise
