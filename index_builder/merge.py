"""Merges sorted runs into the files of a version, in bounded memory.

Rows are visited range by range: the forms of the range are read from every run, sorted, and given ranks;
titles give their entities their numbers. Equal input gives equal bytes, wherever the ranges are cut.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from genret.decoding.trie.trie_arrays import TrieDeriver
from genret.index_builder.entities import EntitySurvey, EntityWriter, RunSources, stored_schema, survey
from genret.index_builder.faults import fault_point
from genret.index_builder.publish import library_versions
from genret.index_builder.runs import (
    FormSlice,
    IntArray,
    Run,
    gather_rows,
    offsets_of,
    sort_rows,
    sort_ties,
)
from genret.index_builder.version_files import ArraySpill, PostingSpill, RowBucketWriter, VersionFiles
from genret.retrieval.errors import SourceError
from genret.retrieval.index.layout import (
    ENTITIES_FILE,
    MAX_ROWS,
    TITLE,
    TITLE_ORDER_FILE,
    title_order_schema,
    token_type,
)
from genret.retrieval.index.manifest import (
    Bucket,
    Counts,
    Manifest,
    MetadataColumn,
    TokenizerEntry,
)
from genret.retrieval.progress import StepProgress
from genret.retrieval.text import Rendering

# Larger ranges are no faster: sorting one should stay in reach of the caches.
_MOST_BLOCK_BYTES = 160 << 20


def write_version(
    runs: Sequence[Run],
    spec: VersionSpec,
    folder: Path,
    work: Path,
    free_bytes: int,
    progress: StepProgress,
    block_bytes: int | None = None,
    told: Callable[[IntArray], None] | None = None,
) -> Manifest:
    """Merge runs into the data files of a version, synced; return its manifest, which lacks the history.

    Memory, for R rows, P postings and E entities of all runs, dropped ones included: 4 E for the entities'
    numbers and three batches of 65,536 of them; while merging one range of rows (`block_bytes`, by default a
    quarter of `free_bytes`, at most 160 MiB), and then, one after the other, twice the rows of the largest
    length, the trie (about 26 R for titles of two-byte tokens), unless row r is entity r, 13 P + 4 R for the
    postings, and 13 E for the order of titles. Disk in `work`, which is empty before and after: the rows'
    files and the trie once, and 12 P.

    The ids of the kept entities differ. `told` is called for each range with the entities that get the next
    numbers; entities of all runs are counted in one sequence, dropped ones included.

    Raises:
        SourceError: no entity is kept, or there are too many.
        OSError: a file cannot be written, for example on a full disk.
    """
    sources = RunSources(runs)
    facts = _survey(runs, spec, sources, progress)
    fault_point("merge-started")
    files = VersionFiles(folder)
    merged = _Merge(runs, sources, spec, work)
    schema = stored_schema(facts, spec.metadata)
    with files.open(ENTITIES_FILE, schema) as writer:
        entities = EntityWriter(writer, schema, facts, sources)
        blocks = cut(runs, block_bytes or min(free_bytes // 4, _MOST_BLOCK_BYTES))
        progress.phase("merging", sum(run.num_forms for run in runs))
        done = 0
        for spans in blocks:
            numbered = merged.add(spans)
            entities.add(numbered)
            if told is not None:
                told(numbered)
            done += sum(end - begin for begin, end in spans)
            progress.advance(done, f"{done:,} titles and aliases")
            fault_point("block-merged")
        progress.phase("writing")
        buckets = merged.rows.write(files)
        fault_point("rows-written")
        merged.write_trie(files)
        fault_point("trie-written")
        entities.finish()
    fault_point("entities-written")
    merged.postings.write(files)
    fault_point("postings-written")
    write_title_order(folder, files)
    fault_point("title-order-written")
    return merged.manifest(buckets, files, facts)


# Memory of a form while its range is merged, beside 16 bytes per token: numbers, sort keys, places.
_FORM_BYTES = 200
_TOKEN_BYTES = 16
# The same for a form of eight tokens, these included.
TYPICAL_FORM_BYTES = _FORM_BYTES + 8 * _TOKEN_BYTES


def cut(runs: Sequence[Run], block_bytes: int) -> list[list[tuple[int, int]]]:
    """Divide the forms of all runs into ranges of rows, ascending, of about `block_bytes` in a merge.

    The boundary rows are sampled from the runs at regular distances, a quarter of a range apart, so a range
    may be half as large again as wanted. Equal rows are never divided: a row that repeats millions of times
    makes one range that large, at some 330 bytes per repetition.

    Returns for every range the forms [begin, end) of each run. Shape: (ranges, runs).
    """
    bounds = [[run.find(row) for run in runs] for row in _splitters(runs, block_bytes)]
    edges = [[0] * len(runs), *bounds, [run.num_forms for run in runs]]
    ranges = [list(zip(low, high, strict=True)) for low, high in pairwise(edges)]
    return [spans for spans in ranges if any(begin < end for begin, end in spans)]


def _splitters(runs: Sequence[Run], block_bytes: int) -> list[tuple[int, ...]]:
    per_range = block_bytes // TYPICAL_FORM_BYTES
    step = max(per_range // (4 * max(len(runs), 1)), 1)
    sample = sorted(run.row(form) for run in runs for form in range(step // 2, run.num_forms, step))
    splitters: list[tuple[int, ...]] = []
    size = 0
    for row in sample:
        size += step * (_FORM_BYTES + _TOKEN_BYTES * len(row))
        if size >= block_bytes and (not splitters or row > splitters[-1]):
            splitters.append(row)
            size = 0
    return splitters


def _survey(
    runs: Sequence[Run], spec: VersionSpec, sources: RunSources, progress: StepProgress
) -> EntitySurvey:
    num_forms = sum(run.num_forms for run in runs)
    if max(num_forms, len(sources)) > MAX_ROWS:
        raise SourceError(f"more than {MAX_ROWS} titles and aliases are not supported, got {num_forms}")
    progress.phase("surveying entities")
    facts = survey(runs, spec.metadata)
    if not facts.entities:
        raise SourceError("no entity is left: an index needs at least one")
    return facts


class _Merge:
    """State of a merge."""

    def __init__(self, runs: Sequence[Run], sources: RunSources, spec: VersionSpec, work: Path) -> None:
        self._runs = runs
        self._sources = sources
        self._spec = spec
        self._vocab_size = spec.tokenizer.vocab_size
        self._dtype = token_type(self._vocab_size).to_pandas_dtype()
        self.rows = RowBucketWriter(work, self._vocab_size)
        self._trie_pieces = ArraySpill(work / "trie")
        self._trie = TrieDeriver(self._dtype, self._trie_pieces.put)
        self._trie_counts: dict[str, int] = {}
        self.postings = PostingSpill(work, len(sources))

    def add(self, spans: Sequence[tuple[int, int]]) -> npt.NDArray[np.int64]:
        """Add the next range, given as forms [begin, end) of every run.

        Returns the entities whose titles are in it, as numbers over all runs, in their final order.
        """
        forms = self._load(spans)
        if not len(forms.entity):
            return np.empty(0, dtype=np.int64)
        order, first = sort_rows(forms.tokens, forms.offsets, self._vocab_size)
        rank = np.cumsum(first) - 1
        source, form = forms.entity[order], forms.form[order]
        self.postings.add(rank, source, form, int(rank[-1]) + 1)
        titles = np.flatnonzero(form == 0)
        entities = source[titles].astype(np.int64)
        sort_ties(rank[titles], entities, self._sources.ids)
        self.postings.number(entities)
        tokens, offsets = gather_rows(forms.tokens, forms.offsets, order[first])
        del forms, order, first, rank, source, form
        self.rows.add(tokens, offsets)
        self._trie.add(tokens, offsets)
        return entities

    def write_trie(self, files: VersionFiles) -> None:
        """Derive and write the trie; nothing of it stays in memory."""
        trie = self._trie.finish()
        self._trie_pieces.remove()
        files.write_trie(trie, self._vocab_size)
        self._trie_counts = {
            "nodes": trie.num_nodes,
            "depth": trie.depth,
            "max_children": trie.max_children,
        }

    def manifest(self, buckets: tuple[Bucket, ...], files: VersionFiles, facts: EntitySurvey) -> Manifest:
        """Return the manifest of what was written."""
        spec = self._spec
        counts = Counts(
            entities=self.postings.num_entities,
            rows=self.rows.num_rows,
            postings=self.postings.num_postings,
            tokens=self.rows.num_tokens,
            **self._trie_counts,
        )
        return Manifest(
            tokenizer=replace(spec.tokenizer, max_token_id=self.rows.max_token_id),
            rendering=spec.rendering,
            counts=counts,
            buckets=buckets,
            stored_ids=facts.has_ids,
            stored_aliases=facts.has_aliases,
            metadata=spec.metadata,
            files=files.entries,
            history=(),
            built_with=library_versions(),
            weight_column=spec.weight_column,
        )

    def _load(self, spans: Sequence[tuple[int, int]]) -> FormSlice:
        """Return the kept forms of a range, run after run; their entities are numbered over all runs."""
        tokens, lengths, source, form = [np.empty(0, dtype=self._dtype)], [], [], []
        for run, (begin, end), base in zip(self._runs, spans, self._sources.begins.tolist(), strict=False):
            if begin == end:
                continue
            part = run.forms(begin, end)
            kept = np.flatnonzero(run.keep[part.entity])
            whole = len(kept) == end - begin
            rows, offsets = (
                (part.tokens, part.offsets) if whole else gather_rows(part.tokens, part.offsets, kept)
            )
            tokens.append(rows)
            lengths.append(np.diff(offsets))
            source.append((part.entity if whole else part.entity[kept]) + base)
            form.append(part.form if whole else part.form[kept])
        return FormSlice(np.concatenate(tokens), offsets_of(_joined(lengths)), _joined(source), _joined(form))


def _joined(parts: list[IntArray]) -> npt.NDArray[np.int64]:
    return np.concatenate([np.empty(0, dtype=np.int64), *parts])


@dataclass(frozen=True, slots=True)
class VersionSpec:
    """Facts about a version that the runs do not tell; the merge finds the tokenizer's largest id in use."""

    tokenizer: TokenizerEntry
    rendering: Rendering
    metadata: tuple[MetadataColumn, ...] = ()  # in the order in which they are stored
    weight_column: str | None = None  # name of the metadata column of weights


def write_title_order(folder: Path, files: VersionFiles) -> None:
    """Write title_order.arrow for the entities in the folder. Memory: about 13 bytes per entity.

    Raises:
        OSError: the file cannot be written; `filename` is set.
    """
    with pa.memory_map(str(folder / ENTITIES_FILE)) as mapped:
        titles = pa.ipc.open_file(mapped).read_all().column(TITLE)
        order = pc.sort_indices(titles).cast(pa.int32())  # stable, by bytes
        schema = title_order_schema()
        files.write(TITLE_ORDER_FILE, schema, [pa.record_batch([order], schema=schema)])
