"""The back half of a build: sorted runs become the files of a version, in bounded memory.

Rows are visited range by range. Of every run the forms of the range are read, put in order, and given
ranks; titles give their entities their numbers. Equal input gives equal bytes, wherever the ranges are cut.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from decoding.trie.trie_arrays import TrieDeriver
from index_builder.entity_writer import EntitySurvey, EntityWriter, RunSources, stored_schema, survey
from index_builder.faults import fault_point
from index_builder.memory_budget import MIB, MemoryBudget, cut
from index_builder.runs import IntArray, Run, gather_rows, sort_rows
from index_builder.title_sorting import write_title_order
from index_builder.version_files import ArraySpill, PostingSpill, RowBucketWriter, VersionFiles
from retrieval.errors import SourceError
from retrieval.index.layout import ENTITIES_FILE, MAX_ROWS, token_type
from retrieval.index.manifest import (
    Bucket,
    Counts,
    FileEntry,
    HistoryEntry,
    Manifest,
    MetadataColumn,
    TokenizerEntry,
)
from retrieval.progress import StepProgress
from retrieval.text import Rendering

# Larger ranges are no faster: sorting one should stay in reach of the caches.
_MOST_BLOCK_BYTES = 160 * MIB


def write_version(
    runs: Sequence[Run],
    spec: VersionSpec,
    folder: Path,
    work: Path,
    budget: MemoryBudget,
    progress: StepProgress,
    block_bytes: int | None = None,
    told: Callable[[IntArray], None] | None = None,
) -> WrittenVersion:
    """Merge runs into the data files of a version; the manifest is the caller's.

    Memory, for R rows, P postings and E entities of all runs, dropped ones included: 4 E for the entities'
    numbers and three batches of 65,536 of them; while merging one range of rows (`block_bytes`), and then,
    one after the other, twice the rows of the largest length, the trie (about 26 R for titles of two-byte
    tokens), unless row r is entity r, 13 P + 4 R for the postings, and at most 8 E and a quarter of what the
    budget leaves for the order of titles. Disk in `work`: the rows' files and the trie once, and 12 P.

    Args:
        runs: Sorted runs; the entities they keep have different ids.
        spec: What the version shall be.
        folder: Empty directory for the files.
        work: Empty directory for spills; empty again afterwards.
        budget: Bounds the memory of a range.
        progress: Told about every step.
        block_bytes: Size of a range; None: a quarter of what the budget leaves, at most 160 MiB.
        told: Told which entities get the next numbers, range by range; those of all runs count on from run to
            run, dropped ones included.

    Returns:
        What was written; every file is synced.

    Raises:
        SourceError: no entity is kept, or there are too many.
        OSError: the disk is full, or worse.
    """
    sources = RunSources(runs)
    facts = _survey(runs, spec, sources, progress)
    fault_point("merge-started")
    files = VersionFiles(folder)
    merged = _Merge(runs, sources, spec, work)
    schema = stored_schema(facts, spec.metadata)
    with files.open(ENTITIES_FILE, schema) as writer:
        entities = EntityWriter(writer, schema, facts, sources)
        blocks = cut(runs, block_bytes or min(budget.free_bytes // 4, _MOST_BLOCK_BYTES))
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
    write_title_order(folder, files, budget.free_bytes // 4)
    fault_point("title-order-written")
    return merged.written(buckets, files, facts)


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


@dataclass(frozen=True, slots=True)
class _Forms:
    """The kept forms of one range, run after run: `FormSlice` with sources in place of entities."""

    tokens: IntArray
    offsets: IntArray
    source: IntArray
    form: IntArray


class _Merge:
    """The state of a merge."""

    def __init__(self, runs: Sequence[Run], sources: RunSources, spec: VersionSpec, work: Path) -> None:
        self._runs = runs
        self._sources = sources
        self._spec = spec
        self._dtype = token_type(spec.vocab_size).to_pandas_dtype()
        self.rows = RowBucketWriter(work, spec.vocab_size)
        self._trie_pieces = ArraySpill(work / "trie")
        self._trie = TrieDeriver(self._dtype, self._trie_pieces.put)
        self._trie_counts: dict[str, int] = {}
        self.postings = PostingSpill(work, len(sources))

    def add(self, spans: Sequence[tuple[int, int]]) -> npt.NDArray[np.int64]:
        """Take in the next range.

        Args:
            spans: Forms [begin, end) of every run.

        Returns:
            The sources of the entities whose titles are in it, in their final order. Shape: (n,).
        """
        forms = self._load(spans)
        if not len(forms.source):
            return np.empty(0, dtype=np.int64)
        order, first = sort_rows(forms.tokens, forms.offsets, self._spec.vocab_size)
        rank = np.cumsum(first) - 1
        source, form = forms.source[order], forms.form[order]
        self.postings.add(rank, source, form, int(rank[-1]) + 1)
        titles = np.flatnonzero(form == 0)
        entities = self._order_entities(rank[titles], source[titles])
        self.postings.number(entities)
        tokens, offsets = gather_rows(forms.tokens, forms.offsets, order[first])
        del forms, order, first, rank, source, form
        self.rows.add(tokens, offsets)
        self._trie.add(tokens, offsets)
        return entities

    def write_trie(self, files: VersionFiles) -> None:
        """Put the transitions together and write them; nothing of them stays in memory."""
        trie = self._trie.finish()
        self._trie_pieces.remove()
        files.write_trie(trie, self._spec.vocab_size)
        self._trie_counts = {
            "nodes": trie.num_nodes,
            "depth": trie.depth,
            "max_children": trie.max_children,
        }

    def written(
        self, buckets: tuple[Bucket, ...], files: VersionFiles, facts: EntitySurvey
    ) -> WrittenVersion:
        """Sum up."""
        counts = Counts(
            entities=self.postings.num_entities,
            rows=self.rows.num_rows,
            postings=self.postings.num_postings,
            tokens=self.rows.num_tokens,
            **self._trie_counts,
        )
        return WrittenVersion(
            spec=self._spec,
            counts=counts,
            buckets=buckets,
            files=files.entries,
            stored_ids=facts.has_ids,
            stored_aliases=facts.has_aliases,
            max_token_id=self.rows.max_token_id,
        )

    def _load(self, spans: Sequence[tuple[int, int]]) -> _Forms:
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
        sizes = _joined(lengths)
        offsets = np.zeros(len(sizes) + 1, dtype=np.int64)
        np.cumsum(sizes, out=offsets[1:])
        return _Forms(np.concatenate(tokens), offsets, _joined(source), _joined(form))

    def _order_entities(self, rank: IntArray, source: IntArray) -> npt.NDArray[np.int64]:
        """Put entities, in order of rank, into that of (rank, id)."""
        ordered = source.astype(np.int64)
        same = rank[1:] == rank[:-1]
        tied = np.zeros(len(rank), dtype=bool)
        tied[1:] |= same
        tied[:-1] |= same
        places = np.flatnonzero(tied)
        if len(places):
            ids = self._sources.ids(ordered[places])
            table = pa.table({"rank": rank[places], "id": ids})
            by_id = pc.sort_indices(table, sort_keys=[("rank", "ascending"), ("id", "ascending")])
            ordered[places] = ordered[places[by_id.to_numpy()]]
        return ordered


def _joined(parts: list[IntArray]) -> npt.NDArray[np.int64]:
    return np.concatenate([np.empty(0, dtype=np.int64), *parts])


@dataclass(frozen=True, slots=True)
class VersionSpec:
    """What `index_builder.merge.write_version` must know beside the runs.

    Attributes:
        vocab_size: Every token of every row is below this.
        metadata: The metadata columns, in the order in which they are stored.
        weight_column: Name of the one that holds the weights of entities, or None.
    """

    vocab_size: int
    metadata: tuple[MetadataColumn, ...] = ()
    weight_column: str | None = None


@dataclass(frozen=True, slots=True)
class WrittenVersion:
    """The data files of a version, written and synced; its manifest is not.

    Attributes:
        spec: As asked for.
        counts: How many of everything.
        buckets: Row lengths that occur, ascending.
        files: Every data file, by name.
        stored_ids: Whether any entity's id differs from its title.
        stored_aliases: Whether any entity has aliases.
        max_token_id: Largest id in any row.
    """

    spec: VersionSpec
    counts: Counts
    buckets: tuple[Bucket, ...]
    files: tuple[FileEntry, ...]
    stored_ids: bool
    stored_aliases: bool
    max_token_id: int

    def to_manifest(
        self,
        tokenizer: TokenizerEntry,
        rendering: Rendering,
        history: tuple[HistoryEntry, ...],
        built_with: Mapping[str, str],
    ) -> Manifest:
        """Return the manifest of the version.

        Args:
            tokenizer: The tokenizer of the rows; its `max_token_id` is put right here.
            rendering: How titles stand after the prompt.
            history: How the version came about.
            built_with: Versions of the libraries that shaped the data.
        """
        return Manifest(
            tokenizer=replace(tokenizer, max_token_id=self.max_token_id),
            rendering=rendering,
            counts=self.counts,
            buckets=self.buckets,
            stored_ids=self.stored_ids,
            stored_aliases=self.stored_aliases,
            metadata=self.spec.metadata,
            files=self.files,
            history=history,
            built_with=built_with,
            weight_column=self.spec.weight_column,
        )
