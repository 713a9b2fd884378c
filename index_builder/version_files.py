"""Writes the data files of one version: the trie, the rows by length, the postings.

While runs are merged, the parts of a file are spilled to disk. Bytes depend on the data alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from genret.decoding.trie.trie_arrays import TrieArrays
from genret.index_builder.runs import IntArray, tied_places
from genret.retrieval.durable import naming, written
from genret.retrieval.index.layout import (
    MAX_COLUMNAR_LENGTH,
    POSTINGS_FILE,
    TRIE_FILE,
    postings_schema,
    rows_file,
    rows_schema,
    smallest_unsigned,
    token_type,
    trie_schema,
)
from genret.retrieval.index.manifest import Bucket, FileEntry
from genret.retrieval.index.small_files import digest_file


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
