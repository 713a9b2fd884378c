"""Merges sorted runs into the files of a version, in bounded memory.

Rows are visited range by range: the forms of the range are read from every run, sorted, and given ranks;
titles give their entities their numbers. Parts of the files are spilled to disk meanwhile. Equal input gives
equal bytes, wherever the ranges are cut.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from genret.decoding.trie.trie_arrays import TrieArrays, TrieDeriver
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
    tied_places,
)
from genret.retrieval.durable import naming, written
from genret.retrieval.errors import SourceError
from genret.retrieval.index.layout import (
    ENTITIES_FILE,
    MAX_COLUMNAR_LENGTH,
    MAX_ROWS,
    POSTINGS_FILE,
    TITLE,
    TITLE_ORDER_FILE,
    TRIE_FILE,
    postings_schema,
    rows_file,
    rows_schema,
    smallest_unsigned,
    title_order_schema,
    token_type,
    trie_schema,
)
from genret.retrieval.index.manifest import (
    Bucket,
    Counts,
    FileEntry,
    Manifest,
    MetadataColumn,
    TokenizerEntry,
)
from genret.retrieval.index.small_files import digest_file
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


class VersionFiles:
    """Files written into a staging directory, synced, with their sizes and digests."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._entries: list[FileEntry] = []

    @property
    def entries(self) -> tuple[FileEntry, ...]:
        """Entries of the files written so far, by name."""
        return tuple(sorted(self._entries, key=lambda entry: entry.name))

    def write(self, name: str, schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> None:
        """Write an Arrow file. Raises `OSError` if it cannot be written; `filename` is set."""
        with self.open(name, schema) as writer:
            for batch in batches:
                writer.write_batch(batch)

    @contextmanager
    def open(self, name: str, schema: pa.Schema) -> Iterator[pa.RecordBatchWriter]:
        """Yield a writer of record batches; the file is listed once the block has ended.

        Raises:
            OSError: it cannot be written; `filename` is set.
        """
        path = self._folder / name
        path.parent.mkdir(exist_ok=True)
        with written(path) as file, pa.ipc.new_file(file, schema) as writer:
            yield writer
        self._entries.append(FileEntry(name, path.stat().st_size, digest_file(path)))

    def write_trie(self, trie: TrieArrays, vocab_size: int) -> None:
        """Write the trie's arrays."""
        schema = trie_schema(token_type(vocab_size))
        arrays = (trie.token, trie.child_begin, trie.row_begin, trie.tail_begin)
        columns = [
            pa.LargeListArray.from_arrays(
                pa.array([0, len(array)], type=pa.int64()),
                pa.array(array, type=field.type.value_type),
                type=field.type,
            )
            for array, field in zip(arrays, schema, strict=True)
        ]
        self.write(TRIE_FILE, schema, [pa.record_batch(columns, schema=schema)])


class RowBucketWriter:
    """Spills rows per length into an empty directory, and writes one file per length.

    Memory: one block of rows, later one length at a time. A spill is removed when its file is written.
    """

    def __init__(self, work: Path, vocab_size: int) -> None:
        self._work = work
        self._type = token_type(vocab_size)
        self._rows: dict[int, int] = {}
        self.num_rows = 0
        self.num_tokens = 0
        self.max_token_id = 0

    def add(self, tokens: IntArray, offsets: IntArray) -> None:
        """Append rows, in the order of ranks; row i is tokens[offsets[i] : offsets[i + 1]]."""
        lengths = np.diff(offsets)
        by_length = np.argsort(lengths, kind="stable")
        present, begins = np.unique(lengths[by_length], return_index=True)
        ends = [*begins[1:].tolist(), len(lengths)]
        for length, begin, end in zip(present.tolist(), begins.tolist(), ends, strict=True):
            places = by_length[begin:end]
            matrix = tokens[offsets[places][:, None] + np.arange(length)]
            _append(self._work / f"{length}.tokens", matrix)
            _append(self._work / f"{length}.ranks", (places + self.num_rows).astype(np.int32))
            self._rows[length] = self._rows.get(length, 0) + end - begin
        self.num_rows += len(lengths)
        self.num_tokens += len(tokens)
        self.max_token_id = max(self.max_token_id, int(tokens.max(initial=0)))

    def write(self, files: VersionFiles) -> tuple[Bucket, ...]:
        """Write one file per length; return the buckets, by length."""
        buckets = [Bucket(length, self._rows[length]) for length in sorted(self._rows)]
        for bucket in buckets:
            schema = rows_schema(bucket.length, self._type)
            batch = pa.record_batch(self._columns(bucket, schema), schema=schema)
            files.write(rows_file(bucket.length), schema, [batch])
        return tuple(buckets)

    def _columns(self, bucket: Bucket, schema: pa.Schema) -> list[pa.Array]:
        flat = _take(self._work / f"{bucket.length}.tokens", self._type.to_pandas_dtype())
        columns: list[pa.Array]
        if bucket.length <= MAX_COLUMNAR_LENGTH:
            matrix = np.ascontiguousarray(flat.reshape(-1, bucket.length).T)
            columns = [pa.array(column) for column in matrix]
        else:
            columns = [pa.FixedSizeListArray.from_arrays(pa.array(flat), type=schema.field("tokens").type)]
        ranks = _take(self._work / f"{bucket.length}.ranks", np.int32)
        return [*columns, pa.array(ranks)]


def _append(path: Path, array: npt.NDArray[Any]) -> None:
    with naming(path), path.open("ab") as file:
        file.write(np.ascontiguousarray(array).data)


def _take(path: Path, dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    array: npt.NDArray[Any] = np.fromfile(path, dtype=dtype)
    path.unlink()
    return array


class PostingSpill:
    """Collects postings in rank order, by source instead of entity number, and writes postings.arrow.

    A *source* is the number of an entity over all runs. The title of an entity may sort long after its alias,
    so entity numbers are filled in at the end: until then 12 bytes per posting on disk, and 4 bytes per
    source in memory. Writing takes about 13 bytes per posting and 4 per row.
    """

    def __init__(self, work: Path, num_sources: int) -> None:
        self._path = work / "postings"
        self._blocks: list[tuple[int, int]] = []  # rows and postings
        self._max_form = 0
        self._number = np.full(num_sources, -1, dtype=np.int32)
        self.num_postings = 0
        self.num_entities = 0
        self.one_to_one = True  # whether row r is the title of entity r, for every r so far

    def number(self, sources: IntArray) -> None:
        """Give entities the next numbers, in this order."""
        begin = self.num_entities
        self.num_entities += len(sources)
        self._number[sources] = np.arange(begin, self.num_entities, dtype=np.int32)

    def add(self, rank: IntArray, source: IntArray, form: IntArray, num_rows: int) -> None:
        """Append the postings of the next `num_rows` rows; an entity's forms of one row count as the first.

        Ranks ascend, begin at 0 for the first of these rows, and name every row. Shape of each array: (n,).
        """
        rank, source, form = _distinct(rank, source, form)
        self.one_to_one = self.one_to_one and len(rank) == num_rows and not form.any()
        for array in (rank, source, form):
            _append(self._path, array.astype(np.int32))
        self._blocks.append((num_rows, len(rank)))
        self._max_form = max(self._max_form, int(form.max(initial=0)))
        self.num_postings += len(rank)

    def write(self, files: VersionFiles) -> None:
        """Write rank -> entities, unless row r is entity r throughout; the spill is removed."""
        if not self.one_to_one:
            form_type = smallest_unsigned(self._max_form)
            schema = postings_schema(form_type)
            lists = self._lists(schema, form_type)
            files.write(POSTINGS_FILE, schema, [pa.record_batch([lists], schema=schema)])
        self._path.unlink(missing_ok=True)

    def _lists(self, schema: pa.Schema, form_type: pa.DataType) -> pa.Array:
        entities = np.empty(self.num_postings, dtype=np.int32)
        forms = np.empty(self.num_postings, dtype=form_type.to_pandas_dtype())
        counts = np.zeros(sum(rows for rows, _ in self._blocks) + 1, dtype=np.int32)
        row, posting = 0, 0
        with self._path.open("rb") as file:
            for num_rows, count in self._blocks:
                rank, source, form = (np.fromfile(file, dtype=np.int32, count=count) for _ in range(3))
                entity = self._number[source]
                order = _order_ties(rank, entity)
                entities[posting : posting + count] = entity[order]
                forms[posting : posting + count] = form[order]
                counts[row + 1 : row + num_rows + 1] = np.bincount(rank, minlength=num_rows)
                row, posting = row + num_rows, posting + count
        list_type = schema.field("postings").type
        columns = [pa.array(entities), pa.array(forms)]
        values = pa.StructArray.from_arrays(columns, fields=list(list_type.value_type))
        offsets = np.cumsum(counts, dtype=np.int32)
        return pa.ListArray.from_arrays(pa.array(offsets), values, type=list_type)


def _distinct(rank: IntArray, source: IntArray, form: IntArray) -> tuple[IntArray, IntArray, IntArray]:
    """Keep the lowest form of every (rank, source); ranks stay ascending."""
    tied = tied_places(rank)
    if not len(tied):
        return rank, source, form
    order = np.arange(len(rank))
    order[tied] = tied[np.lexsort((form[tied], source[tied], rank[tied]))]
    rank, source, form = rank[order], source[order], form[order]
    keep = np.ones(len(rank), dtype=bool)
    keep[1:] = (rank[1:] != rank[:-1]) | (source[1:] != source[:-1])
    return rank[keep], source[keep], form[keep]


def _order_ties(rank: IntArray, entity: IntArray) -> npt.NDArray[np.int64]:
    """Return the order by (rank, entity); ranks are ascending already."""
    order = np.arange(len(rank))
    tied = tied_places(rank)
    order[tied] = tied[np.lexsort((entity[tied], rank[tied]))]
    return order


class ArraySpill:
    """One file of arrays; memory holds only the place of each."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._end = 0

    def put(self, array: npt.NDArray[Any]) -> Callable[[], npt.NDArray[Any]]:
        """Append an array and return a function that reads it back.

        Raises:
            OSError: the file cannot be written; `filename` is set.
        """
        _append(self._path, array)
        begin = self._end
        self._end += array.nbytes
        return partial(self._get, begin, len(array), array.dtype)

    def remove(self) -> None:
        """Remove the file; nothing can be read back any more."""
        self._path.unlink(missing_ok=True)

    def _get(self, begin: int, count: int, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
        with naming(self._path):
            array: npt.NDArray[Any] = np.fromfile(self._path, dtype, count, offset=begin)
            if len(array) != count:
                raise OSError(f"{self._path} ends early: expected {count} items at {begin}, got {len(array)}")
        return array


class _Merge:
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
        self._trie_counts = {"nodes": trie.num_nodes, "depth": trie.depth, "max_children": trie.max_children}

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
            rows = part[:2] if whole else gather_rows(part.tokens, part.offsets, kept)
            tokens.append(rows[0])
            lengths.append(np.diff(rows[1]))
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
