"""Estimates what a build would make, for a dry run: everything is read and tokenised, nothing is built.

Rows, their lengths and column types are counted. Sizes are extrapolated from an index over a sample of the
rows; sizes of evidence are estimated from the number and length of its texts.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from genret.index_builder.build import (
    SourceRuns,
    Sources,
    catalogue_lines,
    check_evidence,
    peak_rss_bytes,
    read_shards,
    tokenizer_entry,
)
from genret.index_builder.build_options import MIB, BuildOptions, EvidenceOptions, VectorBuildOptions
from genret.index_builder.entities import check_weights
from genret.index_builder.merge import TYPICAL_FORM_BYTES, VersionSpec, cut, write_version
from genret.index_builder.past_queries import count_queries
from genret.index_builder.publish import WORK_DIR, temporary_work
from genret.index_builder.runs import IntArray, Run, ShardRun, sort_rows, windows
from genret.index_builder.shard_maker import OverLong
from genret.retrieval.index.layout import ALIASES, TITLE
from genret.retrieval.index.manifest import Manifest, MetadataColumn
from genret.retrieval.index.reader import text_columns
from genret.retrieval.index.summary import length_lines
from genret.retrieval.normalize import NormalizationReport
from genret.retrieval.progress import StepProgress
from genret.retrieval.sources.records import Rejects
from genret.retrieval.tables import Shown
from genret.retrieval.text import TextTokenizer
from genret.retrieval.vectors.faiss_index import kind_of, new_index, num_cells, num_subquantisers

_BAR_WIDTH = 40
_SAMPLE_FORMS = 200_000
_SAMPLED_RANGES = 16
_MOST_BLOCK_BYTES = 64 * MIB


@dataclass(frozen=True, slots=True, repr=False)
class BuildPlan(Shown):
    """Plan of a build; its text is that of the command."""

    records: int  # read, bad ones included
    entities: int
    rows: int  # distinct rows
    duplicates: int  # records that repeat another and would be dropped
    rejected: Mapping[str, int]  # bad rows per reason
    report: str  # the first bad rows; "" when there are none
    rejects_file: Path | None
    allowed: int  # number of bad rows that a build with these options accepts
    longest: OverLong | None  # longest title or alias refused for its length
    files: tuple[str, ...]  # names of the input files
    lengths: Mapping[int, int]  # number of rows by length, end token included
    columns: tuple[MetadataColumn, ...]
    weight_column: str | None
    normalization: NormalizationReport
    evidence: EvidencePlan | None
    vectors: VectorPlan | None
    bytes: Mapping[str, int]  # by part of the index, without evidence and vectors
    sample_share: float  # share of the rows that were sampled for these sizes; 1 makes them exact
    seconds: float  # taken by the dry run
    build_seconds: float  # estimate up to the evidence
    peak_rss_bytes: int

    _told = ("records", "entities", "rows", "rejected", "num_bytes", "build_seconds")

    @property
    def num_bytes(self) -> int:
        """Estimated size of the index, without evidence and vectors."""
        return sum(self.bytes.values())

    def __str__(self) -> str:
        reasons = ", ".join(f"{count:,} × {reason}" for reason, count in self.rejected.items())
        lines = [
            f"dry run: {self.records:,} records, of which {self.entities:,} are entities; {self.rows:,} rows",
            f"  {self.duplicates:,} repeated rows counted once",
            f"  {sum(self.rejected.values()):,} bad rows" + (f": {reasons}" if reasons else ""),
        ]
        if self.longest is not None:
            longest = self.longest
            lines.append(
                f"  longest over-long title: {longest.tokens:,} tokens, {self.files[longest.file]} line "
                f"{longest.line}: {longest.text[:60]!r}"
            )
        lines += catalogue_lines(self.columns, self.weight_column, self.normalization)
        lengths = length_lines(self.lengths, "#", _BAR_WIDTH) if self.lengths else []
        lines += ["", "tokens per row, end token included:", *lengths, ""]
        exactness = (
            "as built" if self.sample_share == 1 else f"estimated from {self.sample_share:.1%} of the rows"
        )
        lines.append(f"bytes, {exactness}:")
        lines += [f"  {name:<10} {size:>15,}" for name, size in self.bytes.items()]
        lines.append(f"  {'all':<10} {self.num_bytes:>15,}, {self.num_bytes / max(self.rows, 1):.1f} per row")
        further = [part for part in (self.evidence, self.vectors) if part is not None]
        lines += [f"  and {part.describe()}" for part in further]
        bad_rows = sum(self.rejected.values())
        if bad_rows > self.allowed:
            lines.append(f"a build would fail: {bad_rows:,} bad rows, allowed: {self.allowed:,}")
        beside = "" if self.vectors is None else ", vectors not counted"
        taken = f"this dry run took {self.seconds:.0f} s"
        lines.append(f"estimated build time: {self.build_seconds:.0f} s{beside}; {taken}")
        return "\n".join(lines)

    def to_dict(self) -> dict[str, Any]:
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
            "normalization": asdict(self.normalization),
            "evidence": None if self.evidence is None else asdict(self.evidence),
            "vectors": None if self.vectors is None else asdict(self.vectors),
            "estimated_bytes": {**self.bytes, "all": self.num_bytes},
            "sample_share": round(self.sample_share, 4),
            "seconds": round(self.seconds, 3),
            "estimated_build_seconds": round(self.build_seconds, 3),
            "peak_rss_bytes": self.peak_rss_bytes,
        }


def plan_build(
    sources: Sources, tokenizer: TextTokenizer, options: BuildOptions, progress: StepProgress | None = None
) -> BuildPlan:
    """Find out what `build_index` would make; the index directory is neither read nor written.

    Arguments are those of `build_index`. Shards go to the system's temporary directory.

    Raises:
        SourceError: a source cannot be used, has more than 10,000 bad rows beyond those allowed, or all
            weights are 0.
        InputError: the tokenizer has no end token, or an option is wrong.
        MissingExtraError: vectors are asked for, and a library they need is not installed.
        IndexDirectoryError: the temporary directory cannot be written.
    """
    progress = progress or StepProgress()
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
        plan_of_evidence = None
        if evidence is not None:
            plan_of_evidence = _plan_evidence(evidence, front.shards, front.columns, front.rejects)
        plan_of_vectors = None if vectors is None else plan_vectors(vectors, front.shards, front.columns)
        sample, sample_seconds = _write_sample(front, tokenizer, options, place, progress)
        rows = int(lengths.sum())
        share = 1.0 if sample is None else sample.counts.rows / max(rows, 1)
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
            evidence=plan_of_evidence,
            vectors=plan_of_vectors,
            bytes=_bytes_per_part(sample, share),
            sample_share=share,
            seconds=time.monotonic() - begun,
            build_seconds=read_seconds + sample_seconds / share,
            peak_rss_bytes=peak_rss_bytes(),
        )


def _row_lengths(
    shards: Sequence[ShardRun], vocab_size: int, options: BuildOptions, progress: StepProgress
) -> IntArray:
    """Count the distinct rows of all entities by length. Shape: (longest + 1,)."""
    progress.phase("counting rows", sum(shard.num_forms for shard in shards))
    lengths = np.zeros(options.max_title_tokens + 1, dtype=np.int64)
    done = 0
    block_bytes = min(options.free_bytes // 4, _MOST_BLOCK_BYTES)
    for spans in cut(shards, block_bytes):
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
    front: SourceRuns, tokenizer: TextTokenizer, options: BuildOptions, place: Path, progress: StepProgress
) -> tuple[Manifest | None, float]:
    """Write a version over some ranges of the rows, or over all if they are few.

    Returns its manifest, None if there is no entity, and the seconds it took.
    """
    if not front.num_entities:
        return None, 0.0
    progress.phase("measuring a sample")
    folder, work = place / "version", place / "spill"
    folder.mkdir()
    work.mkdir()
    kept = [shard.keep for shard in front.shards]
    for shard, chosen in zip(front.shards, _sampled(front.shards), strict=True):
        shard.keep = chosen
    begun = time.monotonic()
    try:
        entry = tokenizer_entry(tokenizer, options.rendering)
        spec = VersionSpec(entry, options.rendering, front.columns)
        written = write_version(front.shards, spec, folder, work, options.free_bytes, StepProgress())
    finally:
        for shard, keep in zip(front.shards, kept, strict=True):
            shard.keep = keep
    return written, time.monotonic() - begun


def _sampled(shards: Sequence[ShardRun]) -> list[npt.NDArray[np.bool_]]:
    """Return a mask per shard of the sampled entities: those of ranges spread over all rows."""
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


def _bytes_per_part(written: Manifest | None, share: float) -> dict[str, int]:
    parts = {"rows": 0, "trie": 0, "entities": 0, "postings": 0, "title_order": 0}
    for file in () if written is None else written.files:
        parts[file.name.split("/")[0].split(".")[0]] += file.bytes
    return {name: round(size / share) for name, size in parts.items()}


# Bytes of a field per text and per byte of text, measured on titles and on descriptions.
_PER_TEXT, _PER_BYTE = 9, 2.1
# Past queries are also stored themselves.
_PER_QUERY = 8
# Bytes of a number of a vector, and of an id.
_WORD = 4
_ID = 8
# A node of hnsw with 32 neighbours: twice as many on the lowest level, some above, plus level and offset.
_GRAPH_NODE = 4 * 64 + 20
_LEVEL_SHARE = 1 / 16


@dataclass(frozen=True, slots=True)
class EvidencePlan:
    """The planned evidence by words and letters."""

    names: int  # titles and aliases; equal ones of one entity count twice
    columns: tuple[str, ...]  # of texts
    texts: int
    queries: int  # lines of past queries, those for unknown entities included
    bytes: int  # estimate

    def describe(self) -> str:
        """Return the plan in one line."""
        texts = f", {self.texts:,} texts of {', '.join(self.columns)}" if self.columns else ""
        queries = f", up to {self.queries:,} past queries" if self.queries else ""
        return f"evidence: {self.names:,} names{texts}{queries}, about {self.bytes:,} bytes"


@dataclass(frozen=True, slots=True)
class VectorPlan:
    """The planned vectors."""

    method: str
    texts: int  # upper bound: a build counts equal texts of one entity once
    dimensions: int | None  # None where only the model knows
    kind: str  # "flat", "hnsw", "ivfpq" or "factory"
    bytes: int | None  # estimate of vectors.faiss; None where it needs the model

    def describe(self) -> str:
        """Return the plan in one line."""
        noun = "text" if self.texts == 1 else "texts"
        size = "of a size that the model decides"
        if self.bytes is not None:
            size = f"of {self.dimensions} dimensions, about {self.bytes:,} bytes"
        return f"vectors: {self.method}, up to {self.texts:,} {noun}, {self.kind}, {size}"


def _plan_evidence(
    wish: EvidenceOptions, shards: Sequence[Run], columns: Sequence[MetadataColumn], rejects: Rejects
) -> EvidencePlan:
    """Plan the evidence of the kept entities. Past queries are read, but not matched with entities."""
    chosen = text_columns(wish.columns, {column.name: column.type for column in columns})
    names, name_bytes, texts, text_bytes = _count_texts(shards, chosen)
    queries, query_bytes = count_queries(wish.queries, rejects)
    size = _PER_TEXT * (names + texts) + _PER_BYTE * (name_bytes + text_bytes)
    size += _PER_QUERY * queries + (_PER_BYTE + 1) * query_bytes
    return EvidencePlan(names, chosen, texts, queries, round(size))


def plan_vectors(
    wish: VectorBuildOptions, shards: Sequence[Run], columns: Sequence[MetadataColumn]
) -> VectorPlan:
    """Plan the vectors of the kept entities.

    Raises:
        InputError: faiss knows no such kind of index, or it cannot hold such vectors.
        MissingExtraError: faiss is not installed.
    """
    chosen = text_columns(wish.options.columns, {column.name: column.type for column in columns})
    names, _, values, _ = _count_texts(shards, chosen)
    texts = names + values
    kind = kind_of(wish.options.kind, texts)
    dimensions = _dimensions(wish)
    size = None
    if dimensions is not None:
        index = new_index(kind, wish.options.kind, dimensions, texts, wish.options.seed)
        size = round(texts * _bytes_per_text(kind, index, dimensions)) + _fixed_bytes(kind, texts, dimensions)
    return VectorPlan(str(wish.method), texts, dimensions, kind, size)


def _count_texts(shards: Sequence[Run], columns: Sequence[str]) -> tuple[int, int, int, int]:
    """Return how many names there are and their bytes, then the same for texts of columns."""
    sums = [0, 0, 0, 0]
    for shard in shards:
        kept = np.flatnonzero(shard.keep)
        for low, high, inside in windows(kept):
            table = shard.entities(low, high).take(pa.array(kept[inside] - low))
            for column in (table.column(TITLE), pc.list_flatten(table.column(ALIASES))):
                sums[0] += len(column)
                sums[1] += pc.sum(pc.binary_length(column)).as_py() or 0
            for name in columns:
                cells = table.column(name)
                said = cells.filter(pc.not_equal(pc.utf8_trim_whitespace(cells), ""))
                sums[2] += len(said)
                sums[3] += pc.sum(pc.binary_length(said)).as_py() or 0
    return sums[0], sums[1], sums[2], sums[3]


def _dimensions(wish: VectorBuildOptions) -> int | None:
    try:
        config = json.loads((Path(wish.method.source) / "config.json").read_bytes())
        size = config.get("hidden_size", config.get("d_model"))
    except (OSError, ValueError, AttributeError):  # a hub id, or a model that says it elsewhere
        return None
    return size if type(size) is int and size > 0 else None


def _bytes_per_text(kind: str, index: Any, dimensions: int) -> float:
    if kind == "ivfpq":
        return num_subquantisers(dimensions) / 2 + _ID
    if kind == "hnsw":
        return _WORD * dimensions + _ID + _GRAPH_NODE * (1 + _LEVEL_SHARE)
    if kind == "flat":
        return _WORD * dimensions + _ID
    inner = getattr(index, "index", index)  # the index inside the id map
    try:
        return float(inner.sa_code_size()) + _ID
    except RuntimeError:  # not every index of faiss knows
        return float(_WORD * dimensions) + _ID


def _fixed_bytes(kind: str, texts: int, dimensions: int) -> int:
    """Return the bytes of the quantisers: the cells' centroids, and sixteen for each part of a vector."""
    return _WORD * dimensions * (num_cells(texts) + 16) if kind == "ivfpq" else 0
