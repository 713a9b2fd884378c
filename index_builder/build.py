"""The build, step by step: read, tokenise, sort, merge, publish."""

from __future__ import annotations

import resource
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from index_builder.config import BuildOptions
from index_builder.entity_survey import check_weights
from index_builder.evidence import EvidenceMaker, read_rankings
from index_builder.evidence_wish import check_method, check_model
from index_builder.memory import MemoryBudget
from index_builder.merge import write_version
from index_builder.past_queries import check_query_files
from index_builder.progress import BuildProgress, PhaseClock, Silent
from index_builder.publish import prune, publish, staging, work_root
from index_builder.reading import FrontHalf, Sources, read_shards
from index_builder.version import VersionSpec
from index_builder.workplace import remove_work, shaping_libraries, spill_folder
from retrieval.errors import SourceError
from retrieval.index.evidence_summary import evidence_facts
from retrieval.index.manifest import HistoryEntry, Manifest, TokenizerEntry
from retrieval.index.versions import live_or_none
from retrieval.normalize import NormalizationReport
from retrieval.rejects import Rejects
from retrieval.text import TextTokenizer


@dataclass(frozen=True, slots=True)
class BuildSummary:
    """What a build made.

    Attributes:
        index: The index directory.
        version: Id of the version now live.
        manifest: Its manifest.
        rejected: Bad rows per reason.
        report: A few lines about the bad rows; "" when there are none.
        rejects_file: Where they were written, or None.
        normalization: What the text policy did to the titles.
        seconds: How long each phase took.
        peak_rss_bytes: Most memory the process has taken so far.
        resumed_shards: Shards that an earlier run had made.
        resumed_records: Records in them.
    """

    index: Path
    version: str
    manifest: Manifest
    rejected: Mapping[str, int]
    report: str
    rejects_file: Path | None
    normalization: NormalizationReport
    seconds: Mapping[str, float]
    peak_rss_bytes: int
    resumed_shards: int
    resumed_records: int

    def to_json(self) -> dict[str, Any]:
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
            "normalization": self.normalization.to_json(),
            "metadata": {column.name: column.type for column in self.manifest.metadata},
            "weight_column": self.manifest.weight_column,
            **evidence_facts(self.manifest),
            "bytes": self.manifest.num_bytes,
            "files": {file.name: file.bytes for file in self.manifest.files},
            "seconds": {name: round(seconds, 3) for name, seconds in self.seconds.items()},
            "peak_rss_bytes": self.peak_rss_bytes,
            "resumed": {"shards": self.resumed_shards, "records": self.resumed_records},
        }


def build_index(
    sources: Sources,
    tokenizer: TextTokenizer,
    options: BuildOptions,
    progress: BuildProgress | None = None,
) -> BuildSummary:
    """Build an index and make it the live version of `options.out`.

    A build that was cut short is taken up where its last finished shard ends, if sources, options, tokenizer
    and libraries are the same.

    Args:
        sources: One titles file or several; "-" for standard input.
        tokenizer: Of the model that will write the titles.
        options: How.
        progress: Told about every step.

    Raises:
        SourceError: a source cannot be used, there are more bad rows than allowed, or all weights are 0.
        InputError: the tokenizer has no end token, or an option is wrong.
        MissingExtraError: vectors are asked for, and a library they need is not installed.
        ModelError: the encoder of the vectors, or the model to weigh, cannot be loaded.
        IndexDirectoryError: the index directory cannot be written. The live version is untouched.
    """
    clock = PhaseClock(progress or Silent())
    check_evidence(options, tokenizer)
    root = work_root(options.out)
    with staging(options.out) as folder:
        with read_shards(sources, tokenizer, options, root, clock) as front:
            check_rejects(front)
            check_weights(front.shards, front.weight_column)
            with spill_folder(root) as spill:
                spec = VersionSpec(tokenizer.vocab_size, front.columns, front.weight_column)
                budget = MemoryBudget(options.memory_limit)
                written = write_version(front.shards, spec, folder, spill, budget, clock)
        manifest = written.to_manifest(
            tokenizer=tokenizer_entry(tokenizer, front.end_token_id),
            rendering=options.rendering,
            history=(_history(front, options, written.counts.entities),),
            built_with=shaping_libraries(),
        )
        manifest = _add_evidence(manifest, EvidenceMaker(folder, root, options, clock), options, front)
        clock.phase("publishing")
        before = live_or_none(options.out)
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
    )


def _add_evidence(
    manifest: Manifest, maker: EvidenceMaker, options: BuildOptions, front: FrontHalf
) -> Manifest:
    evidence, vectors = options.evidence, options.vectors
    if evidence is not None:
        with written_rejects(front.rejects, options):
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
    """Refuse evidence that cannot be made here, before anything is read.

    Args:
        options: What is asked for.
        tokenizer: The index's.

    Raises:
        SourceError: a file of past queries is missing, or lacks a column.
        MissingExtraError: a library that vectors need is not installed.
        InputError: there is no such model or device, or the model to weigh does not fit the index.
        ModelError: the tokenizer of the model to weigh cannot be loaded.
    """
    if options.evidence is not None:
        check_query_files(options.evidence.queries)
        if options.evidence.ranking is not None:
            read_rankings(options.evidence.ranking)
        if (model := options.evidence.model_place) is not None:
            check_model(model, tokenizer, options.rendering, options.prompt)
    if options.vectors is not None:
        check_method(options.vectors.method, options.vectors.options.device)


@contextmanager
def written_rejects(
    rejects: Rejects, options: BuildOptions, outcome: str = "nothing was built"
) -> Iterator[None]:
    """Write the bad rows anew at the end of the block, whatever has happened, and check them.

    Raises:
        SourceError: there are more of them than allowed, or they cannot be written.
    """
    known = len(rejects.rows)
    try:
        yield
        rejects.check(outcome)
    finally:
        if options.rejects is not None and len(rejects.rows) > known:
            rejects.write(options.rejects)


def check_rejects(front: FrontHalf, outcome: str = "nothing was built") -> None:
    """Fail when there are too many bad rows, or nothing else.

    Args:
        front: What was read.
        outcome: What the user is told has come of it.

    Raises:
        SourceError: so it is.
    """
    front.rejects.check(outcome)
    if not front.num_entities:
        raise SourceError(f"{front.rejects.source}: no good row is left\n{front.rejects.report()}")


def tokenizer_entry(tokenizer: TextTokenizer, end_token_id: int) -> TokenizerEntry:
    """Return what a manifest says about a tokenizer; the largest id in use is not known here."""
    return TokenizerEntry(
        name=Path(tokenizer.source).name,
        fingerprint=tokenizer.fingerprint,
        vocab_size=tokenizer.vocab_size,
        end_token_id=end_token_id,
        max_token_id=end_token_id,
    )


def peak_rss_bytes() -> int:
    """Return the most memory this process has taken so far, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _history(front: FrontHalf, options: BuildOptions, entities: int) -> HistoryEntry:
    return HistoryEntry(
        operation="build",
        parent="",
        sources=(*front.sources, *options.query_sources()),
        options=options.shaping() | options.shaping_evidence(),
        records=front.records,
        duplicates=front.duplicates,
        rejected=len(front.rejects.rows),
        added=entities,
        changed=0,
        removed=0,
    )
