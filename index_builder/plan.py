"""A dry run: everything is read and tokenised, nothing is built, and what a build would make is reckoned up.

Records, rows, their lengths and the types of columns are counted; sizes are those of an index over some
ranges of the rows, written to a temporary directory, in proportion.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from index_builder.build import check_evidence, peak_rss_bytes
from index_builder.config import BuildOptions
from index_builder.entity_survey import check_weights
from index_builder.evidence_plan import EvidencePlan, VectorPlan, plan_evidence, plan_vectors
from index_builder.memory import MIB, MemoryBudget
from index_builder.merge import write_version
from index_builder.progress import BuildProgress, Silent
from index_builder.reading import FrontHalf, Sources, read_shards
from index_builder.runs import IntArray
from index_builder.shard import ShardRun
from index_builder.sort import sort_rows
from index_builder.splitters import TYPICAL_FORM_BYTES, cut
from index_builder.tokenize import OverLong
from index_builder.version import VersionSpec, WrittenVersion
from index_builder.workplace import WORK_DIR, temporary_work
from retrieval.index.manifest import MetadataColumn
from retrieval.normalize import NormalizationReport
from retrieval.text import TextTokenizer

_SAMPLE_FORMS = 200_000
_SAMPLED_RANGES = 16
_MOST_BLOCK_BYTES = 64 * MIB


@dataclass(frozen=True, slots=True)
class BuildPlan:
    """What a build would make.

    Attributes:
        records: Records read, bad ones included.
        entities: Entities.
        rows: Distinct rows.
        duplicates: Records that repeat another and would be dropped.
        rejected: Bad rows per reason.
        report: The first bad rows, as text; "" when there are none.
        rejects_file: Where all of them were written; None when nowhere.
        allowed: How many bad rows a build with these options lets pass.
        longest: The longest title or alias refused for its length, if any.
        files: Names of the input files.
        lengths: Number of rows of each length, end token included, by length.
        columns: Metadata columns with their types.
        weight_column: Name of the one that holds weights, or None.
        normalization: What the text policy did.
        evidence: Names, texts and past queries; None where they are not wanted.
        vectors: The vectors, if any are asked for.
        bytes: Size of each part of the index, evidence and vectors left out.
        sample_share: Part of the rows that these sizes were taken from; 1 makes them exact.
        seconds: How long the dry run took.
        build_seconds: How long a build would take, up to the evidence.
        peak_rss_bytes: Most memory the process has taken.
    """

    records: int
    entities: int
    rows: int
    duplicates: int
    rejected: Mapping[str, int]
    report: str
    rejects_file: Path | None
    allowed: int
    longest: OverLong | None
    files: tuple[str, ...]
    lengths: Mapping[int, int]
    columns: tuple[MetadataColumn, ...]
    weight_column: str | None
    normalization: NormalizationReport
    evidence: EvidencePlan | None
    vectors: VectorPlan | None
    bytes: Mapping[str, int]
    sample_share: float
    seconds: float
    build_seconds: float
    peak_rss_bytes: int

    @property
    def num_bytes(self) -> int:
        """Size of the index."""
        return sum(self.bytes.values())

    def to_json(self) -> dict[str, Any]:
        """Return the plan as a JSON object."""
        longest = self.longest
        return {
            "dry_run": True,
            "records": self.records,
            "entities": self.entities,
            "rows": self.rows,
            "duplicates": self.duplicates,
            "rejected": dict(self.rejected),
            "rejects_file": None if self.rejects_file is None else str(self.rejects_file),
            "allowed_bad_rows": self.allowed,
            "longest_over_long": None
            if longest is None
            else {**asdict(longest), "file": self.files[longest.file]},
            "row_lengths": {str(length): count for length, count in self.lengths.items()},
            "metadata": {column.name: column.type for column in self.columns},
            "weight_column": self.weight_column,
            "normalization": self.normalization.to_json(),
            "evidence": None if self.evidence is None else asdict(self.evidence),
            "vectors": None if self.vectors is None else asdict(self.vectors),
            "estimated_bytes": {**self.bytes, "all": self.num_bytes},
            "sample_share": round(self.sample_share, 4),
            "seconds": round(self.seconds, 3),
            "estimated_build_seconds": round(self.build_seconds, 3),
            "peak_rss_bytes": self.peak_rss_bytes,
        }


def plan_build(
    sources: Sources, tokenizer: TextTokenizer, options: BuildOptions, progress: BuildProgress | None = None
) -> BuildPlan:
    """Find out what `build_index` would make; the index directory is neither read nor written.

    Shards go to the system's directory for temporary files.

    Args:
        sources: One titles file or several; "-" for standard input.
        tokenizer: Of the model that will write the titles.
        options: How.
        progress: Told about every step.

    Raises:
        SourceError: a source cannot be used, has more than 10,000 bad rows beyond those allowed, or all
            weights are 0.
        InputError: the tokenizer has no end token, or an option is wrong.
        MissingExtraError: vectors are asked for, and a library they need is not installed.
        IndexDirectoryError: the directory for temporary files cannot be written.
    """
    progress = progress or Silent()
    check_evidence(options, tokenizer)
    options = replace(options, resume=False)
    begun = time.monotonic()
    with (
        temporary_work() as place,
        read_shards(sources, tokenizer, options, place / WORK_DIR, progress) as front,
    ):
        read_seconds = time.monotonic() - begun
        check_weights(front.shards, front.weight_column)
        lengths = _row_lengths(front.shards, tokenizer.vocab_size, options, progress)
        progress.phase("counting texts")
        evidence, vectors = options.evidence, options.vectors
        plans = (
            None if evidence is None else plan_evidence(evidence, front.shards, front.columns, front.rejects),
            None if vectors is None else plan_vectors(vectors, front.shards, front.columns),
        )
        sample = _write_sample(front, tokenizer, options, place, progress)
        return _plan(front, options, lengths, plans, sample, begun, read_seconds)


@dataclass(frozen=True, slots=True)
class _Sample:
    written: WrittenVersion | None
    seconds: float


def _plan(
    front: FrontHalf,
    options: BuildOptions,
    lengths: IntArray,
    plans: tuple[EvidencePlan | None, VectorPlan | None],
    sample: _Sample,
    begun: float,
    read_seconds: float,
) -> BuildPlan:
    rows = int(lengths.sum())
    share = 1.0 if sample.written is None else sample.written.counts.rows / max(rows, 1)
    return BuildPlan(
        records=front.records,
        entities=front.num_entities,
        rows=rows,
        duplicates=front.duplicates,
        rejected=front.rejects.counts(),
        report=front.rejects.report() if front.rejects.rows else "",
        rejects_file=options.rejects if front.rejects.rows else None,
        allowed=options.max_bad_rows,
        longest=front.longest,
        files=front.rejects.files,
        lengths={int(length): int(lengths[length]) for length in np.flatnonzero(lengths)},
        columns=front.columns,
        weight_column=front.weight_column,
        normalization=front.normalization,
        evidence=plans[0],
        vectors=plans[1],
        bytes=_bytes_per_part(sample.written, share),
        sample_share=share,
        seconds=time.monotonic() - begun,
        build_seconds=read_seconds + sample.seconds / share,
        peak_rss_bytes=peak_rss_bytes(),
    )


def _row_lengths(
    shards: Sequence[ShardRun], vocab_size: int, options: BuildOptions, progress: BuildProgress
) -> IntArray:
    """Count the distinct rows of all entities. Shape: (longest + 1,), by length."""
    progress.phase("counting rows", sum(shard.num_forms for shard in shards))
    lengths = np.zeros(options.max_title_tokens + 1, dtype=np.int64)
    done = 0
    for spans in cut(shards, _block_bytes(options)):
        tokens, sizes = [], []
        for shard, (begin, end) in zip(shards, spans, strict=True):
            part = shard.forms(begin, end)
            kept = shard.keep[part.entity]
            size = np.diff(part.offsets)
            tokens.append(part.tokens[np.repeat(kept, size)])
            sizes.append(size[kept])
            done += end - begin
        size = np.concatenate(sizes)
        offsets = np.concatenate([[0], np.cumsum(size)])
        order, first = sort_rows(np.concatenate(tokens), offsets, vocab_size)
        lengths += np.bincount(size[order[first]], minlength=len(lengths))
        progress.advance(done, f"{done:,} titles and aliases")
    return lengths


def _write_sample(
    front: FrontHalf, tokenizer: TextTokenizer, options: BuildOptions, place: Path, progress: BuildProgress
) -> _Sample:
    """Write a version over some ranges of the rows, or over all of them if they are few."""
    if not front.num_entities:
        return _Sample(None, 0.0)
    progress.phase("measuring a sample")
    folder, work = place / "version", place / "spill"
    folder.mkdir()
    work.mkdir()
    kept = [shard.keep for shard in front.shards]
    for shard, chosen in zip(front.shards, _sampled(front.shards), strict=True):
        shard.keep = chosen
    begun = time.monotonic()
    try:
        spec = VersionSpec(tokenizer.vocab_size, front.columns)
        budget = MemoryBudget(options.memory_limit)
        written = write_version(front.shards, spec, folder, work, budget, Silent())
    finally:
        for shard, keep in zip(front.shards, kept, strict=True):
            shard.keep = keep
    return _Sample(written, time.monotonic() - begun)


def _sampled(shards: Sequence[ShardRun]) -> list[npt.NDArray[np.bool_]]:
    """Return which entities of each shard are in the sample: those of some ranges of rows, all over them."""
    num_forms = sum(shard.num_forms for shard in shards)
    if num_forms <= _SAMPLE_FORMS:
        return [shard.keep for shard in shards]
    chosen = [np.zeros(shard.num_entities, dtype=bool) for shard in shards]
    ranges = cut(shards, num_forms * TYPICAL_FORM_BYTES // (num_forms // (_SAMPLE_FORMS // _SAMPLED_RANGES)))
    for spans in ranges[:: max(len(ranges) // _SAMPLED_RANGES, 1)]:
        for shard, mask, (begin, end) in zip(shards, chosen, spans, strict=True):
            part = shard.forms(begin, end)
            mask[part.entity[part.form == 0]] = True
    sampled = [mask & shard.keep for shard, mask in zip(shards, chosen, strict=True)]
    return sampled if any(mask.any() for mask in sampled) else [shard.keep for shard in shards]


def _bytes_per_part(written: WrittenVersion | None, share: float) -> dict[str, int]:
    parts = {"rows": 0, "trie": 0, "entities": 0, "postings": 0, "title_order": 0}
    for file in () if written is None else written.files:
        parts[file.name.split("/")[0].split(".")[0]] += file.bytes
    return {name: round(size / share) for name, size in parts.items()}


def _block_bytes(options: BuildOptions) -> int:
    return min(MemoryBudget(options.memory_limit).free_bytes // 4, _MOST_BLOCK_BYTES)
