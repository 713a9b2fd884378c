"""Estimates what a build would make, for a dry run: a sample is built, with its evidence, and scaled up.

Of a large source only stretches are read, as three samples of different sizes, by which each figure is
scaled as it grows. Otherwise all rows are read, and ranges of the sorted rows are built if they are many.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from genret.index_builder.build import (
    SourceRuns,
    Sources,
    catalogue_lines,
    check_evidence,
    peak_rss_bytes,
    read_shards,
    tokenizer_entry,
)
from genret.index_builder.build_options import MIB, BuildOptions, VectorBuildOptions
from genret.index_builder.entities import check_weights
from genret.index_builder.evidence_maker import EvidenceMaker
from genret.index_builder.merge import TYPICAL_FORM_BYTES, VersionSpec, cut, write_version
from genret.index_builder.past_queries import count_queries
from genret.index_builder.publish import temporary_work
from genret.index_builder.runs import IntArray, ShardRun, offsets_of, sort_rows
from genret.index_builder.shard_maker import OverLong
from genret.retrieval.index.layout import WORK_DIR
from genret.retrieval.index.manifest import Manifest, MetadataColumn
from genret.retrieval.index.reader import EntityTexts, Index, text_columns
from genret.retrieval.index.summary import length_lines
from genret.retrieval.normalize import NormalizationReport
from genret.retrieval.progress import PhaseClock, StepProgress, duration
from genret.retrieval.sources.records import SHOWN
from genret.retrieval.sources.title_source import RowSample
from genret.retrieval.tables import Shown, plain
from genret.retrieval.text import TextTokenizer
from genret.retrieval.vectors.embedder import open_model
from genret.retrieval.vectors.faiss_index import kind_of, load_faiss, new_index, sample_size, train
from genret.retrieval.vectors.vector_maker import VectorOptions

DEFAULT_SAMPLE = 10_000
# Sources of fewer rows than this many samples are read whole, unless a sample is asked for.
_LARGE = 10
_BAR_WIDTH = 40
_SAMPLE_FORMS = 200_000
_SAMPLED_RANGES = 16
_MOST_BLOCK_BYTES = 64 * MIB
# Fields that the plan's JSON object has under their own names, as they are.
_COUNTED = ("sampled", "records", "entities", "rows", "tokens", "nodes", "duplicates")
_ADDED = ("weight_column", "normalization", "evidence", "vectors")


@dataclass(frozen=True, slots=True, repr=False)
class BuildPlan(Shown):
    """Plan of a build, as estimates where a sample was read; its text is that of the command."""

    records: int  # bad ones included
    entities: int
    rows: int  # distinct rows
    tokens: int  # of these rows
    nodes: int  # of the trie
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
    sample_share: float  # share of the rows that were built for sizes and seconds; 1: all
    sampled: int | None  # rows that were read; None: all
    ranges: Mapping[str, tuple[float, float]]  # of estimates by name, where a sample was read
    phases: Mapping[str, float]  # estimated seconds of the build, by step
    build_peak_bytes: int  # estimated peak memory of the build
    seconds: float  # taken by the dry run
    peak_rss_bytes: int  # of the dry run

    _told = ("records", "entities", "rows", "rejected", "num_bytes", "build_seconds")

    @property
    def num_bytes(self) -> int:
        """Size of the index, without evidence and vectors."""
        return sum(self.bytes.values())

    @property
    def build_seconds(self) -> float:
        """Estimated time of the build, with evidence and vectors."""
        return sum(self.phases.values())

    @property
    def would_fail(self) -> bool:
        """Whether there are too many bad rows for a build."""
        return sum(self.rejected.values()) > self.allowed

    def __str__(self) -> str:
        bad_rows = sum(self.rejected.values())
        reasons = ", ".join(f"{count:,} × {reason}" for reason, count in self.rejected.items())
        about = "" if self.sampled is None else "about "
        lines = [
            f"dry run: {about}{self.records:,} records, of which {self.entities:,} are entities; "
            f"{self.rows:,} rows{self._span('rows')}",
            f"  {self.duplicates:,} repeated rows counted once{self._span('duplicates')}",
            f"  {bad_rows:,} bad rows" + (f": {reasons}" if reasons else ""),
        ]
        if self.sampled is not None:
            lines.insert(
                1, f"  estimated from {self.sampled:,} rows; --sample 0 reads all and finds all bad rows"
            )
        if self.longest is not None:
            longest = self.longest
            line = "" if self.sampled is not None else f" line {longest.line}"
            lines.append(
                f"  longest over-long title: {longest.tokens:,} tokens, {self.files[longest.file]}{line}: "
                f"{longest.text[:60]!r}"
            )
        lines += catalogue_lines(self.columns, self.weight_column, self.normalization)
        lines.append(
            f"  {self.tokens:,} tokens{self._span('tokens')}, {self.nodes:,} trie nodes{self._span('nodes')}"
        )
        lengths = length_lines(self.lengths, "#", _BAR_WIDTH) if self.lengths else []
        lines += ["", "tokens per row, end token included:", *lengths, ""]
        exactness = (
            "as built" if self.sample_share == 1 else f"estimated from {self.sample_share:.1%} of the rows"
        )
        lines.append(f"bytes, {exactness}:")
        lines += [f"  {name:<10} {size:>15,}" for name, size in self.bytes.items()]
        per_row = self.num_bytes / max(self.rows, 1)
        lines.append(f"  {'all':<10} {self.num_bytes:>15,}, {per_row:.1f} per row{self._span('bytes')}")
        further = [part for part in (self.evidence, self.vectors) if part is not None]
        lines += [f"  and {part.describe()}" for part in further]
        if self.would_fail:
            lines.append(f"a build would fail: {about}{bad_rows:,} bad rows, allowed: {self.allowed:,}")
        lines.append(f"estimated build time: {duration(self.build_seconds)}{self._span('seconds', ' s')}")
        lines += [f"  {name:<28} {duration(one)}" for name, one in self.phases.items() if one >= 1]
        peak = f"{self.build_peak_bytes / MIB:,.0f} MiB{self._span('peak_mib', ' MiB')}"
        lines.append(f"estimated peak memory: about {peak}")
        lines.append(f"this dry run took {duration(self.seconds)}")
        return "\n".join(lines)

    def _span(self, name: str, unit: str = "") -> str:
        """Return the range of an estimate in words; "" for an exact figure."""
        low, high = self.ranges.get(name, (0, 0))
        return "" if round(low) == round(high) else f" ({low:,.0f} to {high:,.0f}{unit})"

    def to_dict(self) -> dict[str, Any]:
        """Return the plan as a JSON object."""
        longest = self.longest
        return {
            "dry_run": True,
            **{name: plain(getattr(self, name)) for name in _COUNTED},
            "rejected": dict(self.rejected),
            "rejects_file": plain(self.rejects_file),
            "allowed_bad_rows": self.allowed,
            "longest_over_long": longest and {**asdict(longest), "file": self.files[longest.file]},
            "row_lengths": plain(self.lengths),
            "metadata": {column.name: column.type for column in self.columns},
            **{name: plain(getattr(self, name)) for name in _ADDED},
            "estimated_bytes": {**self.bytes, "all": self.num_bytes},
            "sample_share": round(self.sample_share, 4),
            "ranges": {name: [round(low, 3), round(high, 3)] for name, (low, high) in self.ranges.items()},
            "seconds": round(self.seconds, 3),
            "estimated_build_seconds": round(self.build_seconds, 3),
            "estimated_phases": {name: round(one, 3) for name, one in self.phases.items()},
            "estimated_peak_bytes": self.build_peak_bytes,
            "peak_rss_bytes": self.peak_rss_bytes,
        }


def plan_build(
    sources: Sources,
    tokenizer: TextTokenizer,
    options: BuildOptions,
    progress: StepProgress | None = None,
    sample: int | None = None,
) -> BuildPlan:
    """Find out what `build_index` would make; the index directory is neither read nor written.

    Shards go to the system's temporary directory. Other arguments are those of `build_index`.

    Of a source with at least twice as many rows only about `sample` are read; 0: all. None: 10,000 where
    there are more than 100,000. Pipes and rows in memory are read whole.

    Raises what `build_index` does: bad rows are an error when there are 10,000 beyond those allowed, and the
    directory that must be writable is the temporary one.
    """
    progress = progress or StepProgress()
    check_evidence(options, tokenizer)
    options = replace(options, resume=False)
    begun = time.monotonic()
    rows = DEFAULT_SAMPLE if sample is None else sample
    least = rows * (_LARGE if sample is None else 2)
    wishes = [RowSample(max(rows // part, 1), least) if rows else None for part in (16, 4, 1)]
    parts: list[_Part] = []
    with temporary_work() as place:
        for number, wish in enumerate(wishes):
            folder = place / str(number)
            folder.mkdir()
            clock = PhaseClock(progress)
            with read_shards(sources, tokenizer, options, folder / WORK_DIR, clock, wish) as front:
                is_whole = front.estimated_records is None
                is_last = is_whole or number == len(wishes) - 1
                parts.append(_measured(front, tokenizer, options, folder, clock, is_last))
            if is_whole:
                break
        return _plan(parts, options, begun)


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
        order, first = sort_rows(np.concatenate(tokens), offsets_of(size), vocab_size)
        lengths += np.bincount(size[order[first]], minlength=len(lengths))
        progress.advance(done, f"{done:,} titles and aliases")
    return lengths


_RANKING, _COUNTING, _VECTORS = "fitting the ranking", "counting rows", "measuring vectors"
_BLOCKS = 40  # of entities, by whose means the error of a sample is told


@dataclass(frozen=True, slots=True, eq=False)
class _Part:
    """One sample: the records read, and the index built of them."""

    front: SourceRuns  # its shards are closed
    entities: int
    lengths: IntArray  # number of distinct rows by length
    error: float  # standard error of the tokens of an entity, as a share of them
    share: float  # share of these rows that was built
    manifest: Manifest | None  # of what was built; None where there is no entity
    seconds: Mapping[str, float]  # by step of a build, of all that was read
    vectors: VectorPlan | None

    def figures(self) -> dict[str, float]:
        """Return the figures that grow with the number of records, by name; sizes in bytes by part."""
        sizes = dict.fromkeys((*_PARTS, "evidence", "nodes"), 0.0)
        if self.manifest is not None:
            sizes["nodes"] = self.manifest.counts.nodes / self.share
            for file in self.manifest.files:
                part = file.name.split("/")[0].split(".")[0]
                sizes[part if part in _PARTS else "evidence"] += file.bytes / self.share
        return {"distinct": float(self.lengths.sum()), **sizes}


_PARTS = ("rows", "trie", "entities", "postings", "title_order")


def _measured(
    front: SourceRuns,
    tokenizer: TextTokenizer,
    options: BuildOptions,
    place: Path,
    clock: PhaseClock,
    is_last: bool,
) -> _Part:
    """Build what was read, or ranges of it if it is much.

    Only the last sample has a ranking fitted and tells about vectors.
    """
    is_whole = front.estimated_records is None
    if is_whole:
        check_weights(front.shards, front.weight_column)
    read = clock.seconds()
    lengths = _row_lengths(front.shards, tokenizer.vocab_size, options, clock)
    manifest, vectors, share = None, None, 1.0
    if front.num_entities:
        folder, spill = place / "version", place / "spill"
        folder.mkdir()
        spill.mkdir()
        kept = [shard.keep for shard in front.shards]
        for shard, chosen in zip(front.shards, _sampled(front.shards), strict=True):
            shard.keep = chosen
        entry = tokenizer_entry(tokenizer, options.rendering)
        spec = VersionSpec(entry, options.rendering, front.columns)
        manifest = write_version(front.shards, spec, folder, spill, options.free_bytes, clock)
        share = manifest.counts.rows / int(lengths.sum())
        if (wish := options.evidence) is not None:
            maker = EvidenceMaker(folder, place, options, clock)
            manifest = maker.make_fields(manifest, wish.columns, (), front.rejects)
            if is_last:
                manifest = maker.make_ranking(manifest, "cpu", wish.ranking)
        if options.vectors is not None and is_last:
            clock.phase(_VECTORS)
            scale = (front.estimated_records or front.records) / front.records / share
            with Index.open_unpublished(folder, manifest) as index:
                vectors = _measured_vectors(options.vectors, index, scale)
        for shard, keep in zip(front.shards, kept, strict=True):
            shard.keep = keep
    seconds = {
        name: taken if name in read or name == _RANKING else taken / share
        for name, taken in clock.seconds().items()
        if name not in (_COUNTING, _VECTORS)
    }
    error = 0.0 if is_whole else _error(front.shards)
    return _Part(front, front.num_entities, lengths, error, share, manifest, seconds, vectors)


def _error(shards: Sequence[ShardRun]) -> float:
    """Return the standard error of the tokens of an entity, as a share of them, by blocks of the source."""
    means: list[float] = []
    for shard in shards:
        forms = shard.forms(0, shard.num_forms)
        tokens = np.bincount(forms.entity, np.diff(forms.offsets), shard.num_entities)
        means += [float(block.mean()) for block in np.array_split(tokens, _BLOCKS) if len(block)]
    return float(np.std(means) / np.mean(means) / math.sqrt(len(means))) if means else 0.0


def _plan(parts: Sequence[_Part], options: BuildOptions, begun: float) -> BuildPlan:
    last = parts[-1]
    front, is_whole = last.front, last.front.estimated_records is None
    records = round(front.records if front.estimated_records is None else front.estimated_records)
    scale = records / front.records
    grown = {name: _grown(parts, name, records) for name in last.figures()}

    def span(name: str, unit: float = 1, error: float = last.error, more: float = 0) -> tuple[float, float]:
        low, high = sorted(grown[name])
        return low * unit * (1 - 2 * error - _SPARSER * more), high * unit * (1 + 2 * error + _DENSER * more)

    duplicates = _repeated(parts, records)
    rejected = Counter({reason: round(count * scale) for reason, count in front.rejects.counts().items()})
    bad_rows = sum(rejected.values())
    rows = round(grown["distinct"][0])
    by_row = rows / max(int(last.lengths.sum()), 1)
    lengths = {int(at): round(last.lengths[at] * by_row) for at in np.flatnonzero(last.lengths)}
    tokens_by_row = int(last.lengths @ np.arange(len(last.lengths))) / max(int(last.lengths.sum()), 1)
    phases = {name: _grown_seconds(parts, name, records)[0] for name in last.seconds}
    most = sum(_grown_seconds(parts, name, records)[1] for name in last.seconds)
    evidence = None
    if options.evidence is not None:
        of_titles = Counter(front.rejects.counts())
        queries, query_bytes = count_queries(options.evidence.queries, front.rejects)
        rejected.update(Counter(front.rejects.counts()) - of_titles)
        entry = None if last.manifest is None else last.manifest.evidence
        names, texts = (0, 0) if entry is None else (entry.names, entry.texts)
        size = grown["evidence"][0] + _PER_QUERY * queries + _PER_BYTE * query_bytes
        unit = scale / last.share
        columns = () if entry is None else entry.columns
        evidence = EvidencePlan(round(names * unit), columns, round(texts * unit), queries, round(size))
        if queries:
            phases["past queries"] = queries * phases.get(_NAMES, 0.0) / max(evidence.names, 1)
    if last.vectors is not None:
        phases["vectors"] = last.vectors.seconds
        most += last.vectors.seconds
    phases["publishing"] = 0.0
    seconds = sum(phases.values())
    peak = peak_rss_bytes() + _held_bytes(last, records, rows, options)
    ranges = {
        "rows": span("distinct", error=0 if isinstance(front.estimated_records, int) else last.error),
        "duplicates": duplicates[1:],
        "tokens": span("distinct", tokens_by_row),
        "nodes": span("nodes", more=math.log(scale, 4)),
        "bytes": tuple(sum(ends) for ends in zip(*map(span, _PARTS), strict=True)),
        "seconds": (_LEAST_TIME * seconds, _MOST_TIME * max(seconds, most)),
        "peak_mib": (peak / MIB, _MOST_MEMORY * peak / MIB),
    }
    return BuildPlan(
        records=records,
        entities=last.entities if is_whole else records - bad_rows - duplicates[0],
        rows=rows,
        tokens=round(rows * tokens_by_row),
        nodes=round(grown["nodes"][0]),
        duplicates=duplicates[0],
        rejected=dict(rejected),
        report=_report(last),
        rejects_file=options.rejects if is_whole and front.rejects.rows else None,
        allowed=options.max_bad_rows,
        longest=front.longest,
        files=front.rejects.files,
        lengths=lengths,
        columns=front.columns,
        weight_column=front.weight_column,
        normalization=NormalizationReport(
            **{name: round(count * scale) for name, count in asdict(front.normalization).items()}
        ),
        evidence=evidence,
        vectors=last.vectors,
        bytes={name: round(grown[name][0]) for name in _PARTS},
        sample_share=last.share / scale,
        sampled=None if is_whole else front.records,
        ranges={} if is_whole else ranges,
        phases=phases,
        build_peak_bytes=peak,
        seconds=time.monotonic() - begun,
        peak_rss_bytes=peak_rss_bytes(),
    )


def _report(part: _Part) -> str:
    """Return a few lines about bad rows; those of a sample have no numbers of lines."""
    rejects = part.front.rejects
    if not rejects.rows or part.front.estimated_records is None:
        return rejects.report() if rejects.rows else ""
    lines = [f"{rejects.source}: {len(rejects.rows):,} of {part.front.records:,} sampled rows are bad"]
    lines += [f"  {row.told('').partition(': ')[2]}" for row in rejects.rows[:SHOWN]]
    return "\n".join(lines)


def _grown(parts: Sequence[_Part], name: str, records: int) -> tuple[float, float]:
    """Return two estimates of a figure for all records, the better one first.

    It is a + b·n + c·√n through three samples, since most grow in proportion, by a fixed size, and by what
    repeats itself more and more, such as words; the other one is the straight line through the last two.
    """
    values = [part.figures()[name] for part in parts]
    sizes = [float(part.front.records) for part in parts]
    if len(parts) == 1:
        return values[0], values[0]
    ratio = records / sizes[-1]
    proportional = values[-1] * ratio
    if not sizes[0] < sizes[1] < sizes[2]:
        return proportional, proportional
    bases = np.array([[1.0, size, math.sqrt(size)] for size in (*sizes, records)])
    curve = float(bases[-1] @ np.linalg.solve(bases[:-1], values))
    line = values[-1] + (values[-1] - values[-2]) / (sizes[-1] - sizes[-2]) * (records - sizes[-1])
    least = values[-1] * math.sqrt(ratio)
    return min(max(curve, least), proportional), min(max(line, least), proportional)


def _repeated(parts: Sequence[_Part], records: int) -> tuple[int, int, int]:
    """Return how many records repeat another, and the range: they grow with a power of 1 to 2 of all."""
    last = parts[-1].front
    if len(parts) == 1 or not last.duplicates:
        return last.duplicates, last.duplicates, last.duplicates
    ratio = records / last.records
    power, before = 1.5, parts[-2].front
    if before.duplicates >= _FEW and before.records < last.records:
        power = math.log(last.duplicates / before.duplicates) / math.log(last.records / before.records)
    estimates = (last.duplicates * ratio**one for one in (min(max(power, 1.0), 2.0), 1.0, 2.0))
    told, low, high = (min(round(one), records - 1) for one in estimates)
    return told, low, high


def _grown_seconds(parts: Sequence[_Part], name: str, records: int) -> tuple[float, float]:
    """Return the estimated and the longest time of a step: a straight line, which begins above 0 at most.

    The ranking is fitted to as many queries whatever the size; only finding their candidates takes longer.
    """
    last = parts[-1].seconds[name]
    if len(parts) == 1:
        return last, last
    ratio = records / parts[-1].front.records
    if name == _RANKING:
        return last * ratio**_RANKING_GROWTH, last * ratio ** (2 * _RANKING_GROWTH)
    growth = max(last - parts[-2].seconds.get(name, last), 0.0)
    step = parts[-2].front.records / parts[-1].front.records
    growth = min(growth / (1 - step), last) if step < 1 else last
    return last + growth * (ratio - 1), last * ratio


def _held_bytes(part: _Part, records: int, rows: int, options: BuildOptions) -> int:
    """Return the memory that a build takes beside what the sample took, for a shard and the trie."""
    sizes = part.figures()
    per_record = _HELD * (sizes["rows"] + sizes["entities"]) / max(part.front.records, 1)
    held = min(per_record * min(records, options.shard_records), options.free_bytes / 2)
    trie = _ROW_BYTES * rows + _ENTITY_BYTES * records
    return round(max(held - per_record * min(part.front.records, options.shard_records), 0) + trie)


# Least and most time, as shares of the estimated and of the longest one.
_LEAST_TIME, _MOST_TIME = 0.6, 1.25
# Most memory, as a share of the estimated one. Shares by which a fourfold of the rows takes away or
# adds nodes, at most: samples of a list in random order do not show how rows crowd together.
_MOST_MEMORY, _SPARSER, _DENSER = 1.5, 0.02, 0.06
# The time of the ranking grows with this power of the records, measured from 10,000 to 500,000.
_RANKING_GROWTH = 0.15
_FEW = 5  # repeated records, from which on their growth shows
# A shard in memory, as a multiple of its files; bytes of the trie per row, and of what is kept of an entity.
_HELD, _ROW_BYTES, _ENTITY_BYTES = 1.2, 26, 4
_NAMES = "words and letters of names"


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


# Bytes of past queries: for each, and for each of their bytes; they are also stored themselves.
_PER_QUERY, _PER_BYTE = 17, 3.1


@dataclass(frozen=True, slots=True)
class EvidencePlan:
    """The planned evidence by words and letters."""

    names: int  # titles and aliases
    columns: tuple[str, ...]  # of texts
    texts: int  # entities with texts
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
    texts: int
    dimensions: int
    kind: str  # "flat", "hnsw", "ivfpq" or "factory"
    bytes: int  # estimate of vectors.faiss
    seconds: float  # estimated, of embedding and of training and filling the index

    def describe(self) -> str:
        """Return the plan in one line."""
        noun = "text" if self.texts == 1 else "texts"
        size = f"of {self.dimensions} dimensions, about {self.bytes:,} bytes, {duration(self.seconds)}"
        return f"vectors: {self.method}, {self.texts:,} {noun}, {self.kind}, {size}"


def _measured_vectors(wish: VectorBuildOptions, index: Index, scale: float) -> VectorPlan:
    """Plan the vectors of `scale` times as many entities as an index has: some of its texts are embedded."""
    texts = EntityTexts(index, text_columns(wish.options.columns, index.metadata_types))
    embedder = open_model(wish.method.placed(), wish.options.device)
    tried = texts.sample(_EMBEDDED).texts
    embedder.embed_texts(tried[:_WARM])
    begun = time.perf_counter()
    embedder.embed_texts(tried)
    per_text = (time.perf_counter() - begun) / max(len(tried), 1)
    return plan_vectors(wish, round(texts.count * scale), embedder.dimensions, per_text)


def plan_vectors(wish: VectorBuildOptions, texts: int, dimensions: int, per_text: float) -> VectorPlan:
    """Plan vectors of so many texts, where one takes `per_text` seconds to embed.

    Raises:
        InputError: faiss knows no such kind of index, or it cannot hold such vectors.
        MissingExtraError: faiss is not installed.
    """
    options = wish.options
    kind = kind_of(options.kind, texts)
    empty = new_index(kind, options.kind, dimensions, texts, options.seed)
    trained = 0 if empty.is_trained else min(options.sample or sample_size(texts), texts)
    count = min(texts, _FILLED)
    taken, size = _filled(kind, options, dimensions, count)
    quarter = max(count // 4, 1)
    growth, per_vector = 1.0, size / max(count, 1)
    if quarter < count < texts:
        before, less = _filled(kind, options, dimensions, quarter)
        growth = min(max(math.log(taken / before) / math.log(count / quarter), 0.5), 1.3)
        per_vector = (size - less) / (count - quarter)
    told = size + per_vector * (texts - count)
    filling = taken * (texts / max(count, 1)) ** growth
    seconds = per_text * (texts + trained + (0 if kind == "flat" else _KNOWN_ITEMS)) + filling
    return VectorPlan(str(wish.method), texts, dimensions, kind, round(told), seconds)


# Texts that are embedded for the time they take, and before it; random vectors that fill an index; texts that
# choose the search effort.
_EMBEDDED, _WARM, _FILLED, _KNOWN_ITEMS = 256, 16, 8192, 1000


def _filled(kind: str, options: VectorOptions, dimensions: int, count: int) -> tuple[float, int]:
    """Return the seconds in which faiss trains an index and fills it with random vectors, and its bytes."""
    vectors = np.random.default_rng(0).standard_normal((count, dimensions), np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    index = new_index(kind, options.kind, dimensions, count, options.seed)
    begun = time.perf_counter()
    train(index, vectors[: options.sample or sample_size(count)])
    index.add_with_ids(vectors, np.arange(count))
    return time.perf_counter() - begun, load_faiss().serialize_index(index).nbytes
