"""Records and their rows, gathered in memory, then sorted and written as one shard."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import xxhash

from index_builder.durable import sync_directory, written
from index_builder.faults import fault_point
from index_builder.shard_layout import (
    NUMBERS_FILE,
    TEXTS_BATCH,
    TEXTS_FILE,
    ShardShape,
    sections,
    texts_schema,
)
from index_builder.sort import gather_rows, sort_rows
from retrieval.index.layout import token_type
from retrieval.sources import Record

IntArray = npt.NDArray[np.signedinteger]
_Array = npt.NDArray[Any]

# What sorting takes per form and per entity, beside the data: order, keys, packed columns, ranks.
_SORT_BYTES_PER_FORM = 96
_SORT_BYTES_PER_ENTITY = 64
_SECOND_SEED = 0x9E3779B97F4A7C15


class ShardWriter:
    """Collects batches of records with their rows until they are written.

    Args:
        has_ids: Whether records have ids.
        columns: Names of the metadata columns.
        vocab_size: Every token is below this.
    """

    def __init__(self, has_ids: bool, columns: tuple[str, ...], vocab_size: int) -> None:
        self._has_ids = has_ids
        self._columns = columns
        self._vocab_size = vocab_size
        self._dtype = token_type(vocab_size).to_pandas_dtype()
        self._texts: list[pa.RecordBatch] = []
        self._numbers: dict[str, list[_Array]] = {
            name: [] for name in ("tokens", "lengths", "forms", "file", "line", "key", "content")
        }
        self._ids_differ = False
        self.num_entities = 0
        self.num_forms = 0
        self._data_bytes = 0

    @property
    def num_bytes(self) -> int:
        """Memory that writing this shard will take: the data, its sorted copy, and the sorting."""
        sorting = self.num_forms * _SORT_BYTES_PER_FORM + self.num_entities * _SORT_BYTES_PER_ENTITY
        return 2 * self._data_bytes + sorting

    def add(self, records: Sequence[Record], rows: Sequence[Sequence[int]], forms: Sequence[int]) -> None:
        """Add records with the rows of all their forms.

        Args:
            records: Records.
            rows: Rows, for each record its title's and then its aliases'.
            forms: Number of forms of each record.
        """
        if not records:
            return
        texts = self._to_texts(records)
        lengths = np.fromiter(map(len, rows), dtype=np.int32, count=len(rows))
        numbers: dict[str, _Array] = {
            "tokens": np.fromiter(chain.from_iterable(rows), dtype=self._dtype, count=int(lengths.sum())),
            "lengths": lengths,
            "forms": np.array(forms, dtype=np.int32),
            "file": np.fromiter((r.file for r in records), dtype=np.int32, count=len(records)),
            "line": np.fromiter((r.line for r in records), dtype=np.int64, count=len(records)),
            "key": digest_texts([r.title if r.entity_id is None else r.entity_id for r in records]),
            "content": digest_texts([_content(record) for record in records]),
        }
        for name, array in numbers.items():
            self._numbers[name].append(array)
            self._data_bytes += array.nbytes
        self._texts.append(texts)
        self._data_bytes += texts.nbytes
        self._ids_differ = self._ids_differ or any(r.entity_id not in (None, r.title) for r in records)
        self.num_entities += len(records)
        self.num_forms += len(rows)

    def write(self, folder: Path) -> ShardShape:
        """Sort what was collected, write and sync it; the writer is used up then.

        Args:
            folder: Does not exist yet.

        Raises:
            OSError: the disk is full, or worse; its `filename` is set.
        """
        folder.mkdir()
        fault_point("shard-writing")
        numbers = {name: _join(parts) for name, parts in self._numbers.items()}
        offsets = np.zeros(self.num_forms + 1, dtype=np.int64)
        np.cumsum(numbers.pop("lengths"), out=offsets[1:])
        forms = numbers.pop("forms")
        shape = ShardShape(
            entities=self.num_entities,
            forms=self.num_forms,
            tokens=int(offsets[-1]),
            vocab_size=self._vocab_size,
            has_ids=self._has_ids,
            ids_differ=self._ids_differ,
            columns=self._columns,
        )
        texts = pa.Table.from_batches(self._texts, texts_schema(self._has_ids, len(self._columns)))
        order, rank = sort_forms(numbers["tokens"], offsets, self._vocab_size)
        first_form = np.cumsum(forms) - forms
        entity_order = self._order_entities(rank[first_form], texts)
        written = _sorted_numbers(numbers, offsets, forms, order, entity_order)
        _write_numbers(folder / NUMBERS_FILE, written, shape)
        _write_texts(folder / TEXTS_FILE, texts, entity_order)
        sync_directory(folder)
        fault_point("shard-written")
        return shape

    def _to_texts(self, records: Sequence[Record]) -> pa.RecordBatch:
        columns = [pa.array([r.entity_id for r in records], type=pa.string())] if self._has_ids else []
        columns.append(pa.array([r.title for r in records], type=pa.string()))
        columns.append(pa.array([r.aliases for r in records], type=pa.list_(pa.string())))
        for i in range(len(self._columns)):
            columns.append(pa.array([r.metadata[i] for r in records], type=pa.string()))
        return pa.record_batch(columns, schema=texts_schema(self._has_ids, len(self._columns)))

    def _order_entities(self, title_ranks: IntArray, texts: pa.Table) -> IntArray:
        """Return the entities by the rank of their title's row; ties by id, or title."""
        by_rank = np.argsort(title_ranks, kind="stable")
        ranks = title_ranks[by_rank]
        tied = np.flatnonzero(ranks[1:] == ranks[:-1])
        if not len(tied):
            return by_rank
        members = np.unique(np.concatenate([tied, tied + 1]))
        keys = texts.column(0).take(pa.array(by_rank[members])).to_pylist()
        ordered = sorted(zip(ranks[members].tolist(), keys, by_rank[members].tolist(), strict=True))
        by_rank[members] = [entity for _, _, entity in ordered]
        return by_rank


def sort_forms(tokens: IntArray, offsets: IntArray, vocab_size: int) -> tuple[IntArray, IntArray]:
    """Return the lexicographic order of rows and the rank of each among the distinct ones."""
    order, first = sort_rows(tokens, offsets, vocab_size)
    rank = np.empty(len(order), dtype=np.int32)
    rank[order] = np.cumsum(first) - 1
    return order, rank


def _sorted_numbers(
    numbers: dict[str, _Array], offsets: IntArray, forms: IntArray, order: IntArray, entities: IntArray
) -> Iterator[tuple[str, _Array]]:
    """Yield the arrays of the file of numbers in sorted order, one at a time."""
    tokens, row_offsets = gather_rows(numbers.pop("tokens"), offsets, order)
    yield "tokens", tokens
    del tokens
    yield "offsets", row_offsets
    del row_offsets
    number = np.empty(len(entities), dtype=np.int32)
    number[entities] = np.arange(len(entities), dtype=np.int32)
    record = np.repeat(np.arange(len(forms), dtype=np.int32), forms)
    yield "entity", number[record[order]]
    first_form = np.cumsum(forms) - forms
    form = (np.arange(len(record)) - first_form[record]).astype(np.int32)
    yield "form", form[order]
    for name in ("key", "content"):
        yield name, numbers.pop(name)[entities].T
    for name in ("file", "line"):
        yield name, numbers.pop(name)[entities]
    yield "sequence", entities.astype(np.int32)


def _write_numbers(path: Path, arrays: Iterator[tuple[str, _Array]], shape: ShardShape) -> None:
    expected = sections(shape)
    with written(path) as file:
        for name, array in arrays:
            section = expected[name]
            assert file.tell() == section.offset  # the layout is what readers go by
            file.write(np.ascontiguousarray(array, dtype=section.dtype).data)


def _write_texts(path: Path, texts: pa.Table, order: IntArray) -> None:
    with written(path) as file, pa.ipc.new_file(file, texts.schema) as writer:
        for begin in range(0, len(order), TEXTS_BATCH):
            wanted = texts.take(pa.array(order[begin : begin + TEXTS_BATCH]))
            writer.write_batch(wanted.combine_chunks().to_batches()[0])


def _join(parts: list[_Array]) -> _Array:
    joined: _Array = np.concatenate(parts)
    parts.clear()
    return joined


def digest_texts(texts: Sequence[str]) -> npt.NDArray[np.uint64]:
    """Return two independent hashes of each text, the first of them its `key_hash`. Shape: (texts, 2).

    Those of the empty text are 0, which costs nothing where most texts are empty.
    """
    if not any(texts):
        return np.zeros((len(texts), 2), dtype=np.uint64)
    encoded = [text.encode() for text in texts]
    digest = xxhash.xxh3_64_intdigest
    halves = [
        [digest(data) if data else 0 for data in encoded],
        [digest(data, _SECOND_SEED) if data else 0 for data in encoded],
    ]
    return np.array(halves, dtype=np.uint64).T


def _content(record: Record) -> str:
    """Return everything about a record that two with one id, or one title, may differ in."""
    if record.entity_id is None and not record.aliases and not record.metadata:
        return ""  # a title alone: with equal keys there is nothing left to differ
    return repr((record.title, record.aliases, record.metadata))
