"""Reading a shard: the run it is to a merge, and the columns by which its records are told apart."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from index_builder.runs import FormSlice, IntArray
from index_builder.shard_layout import NUMBERS_FILE, TEXTS_BATCH, TEXTS_FILE, Section, ShardShape, sections
from retrieval.index.layout import ALIASES, ENTITY_ID, METADATA_TYPES, TITLE
from retrieval.index.manifest import MetadataColumn
from retrieval.sources.column_types import ColumnType, cast


class ShardRun:
    """A finished shard, opened; a `Run`.

    Entities keep their numbers whether they take part or not. Before identities are resolved all of them do,
    and an entity of a source without ids has its title for an id.

    Args:
        folder: Where `ShardWriter` wrote it.
        shape: What it returned.
    """

    def __init__(self, folder: Path, shape: ShardShape) -> None:
        self.shape = shape
        self.num_entities = shape.entities
        self.num_forms = shape.forms
        self.has_ids = shape.ids_differ
        self.keep: npt.NDArray[np.bool_] = np.ones(shape.entities, dtype=bool)
        self._numbers: IntArray | None = None
        self._marks: IntArray | None = None
        self._columns: tuple[MetadataColumn, ...] = ()
        self._sections = sections(shape)
        self._descriptor = os.open(folder / NUMBERS_FILE, os.O_RDONLY)
        try:
            # Read, not mapped: mapped pages would count as memory of the process.
            self._file = pa.OSFile(str(folder / TEXTS_FILE), "rb")
            self._texts = pa.ipc.open_file(self._file)
        except BaseException:
            os.close(self._descriptor)
            raise

    def use_columns(self, columns: Sequence[MetadataColumn]) -> None:
        """Say what metadata `entities` returns; a column that the shard lacks is empty."""
        self._columns = tuple(columns)

    def number_homonyms(self, entities: IntArray, numbers: IntArray) -> None:
        """Give entities the ids `title#number`.

        Args:
            entities: Which. Shape: (n,).
            numbers: From 2. Shape: (n,).
        """
        if not len(entities):
            return
        if self._numbers is None or self._marks is None:
            self._numbers = np.zeros(self.num_entities, dtype=np.int32)
            self._marks = np.zeros(self.num_entities, dtype=np.uint16)
        self.has_ids = True
        self._numbers[entities] = numbers
        self._marks[entities] = 0

    def homonyms(self) -> IntArray:
        """Return the entities that were given such ids, ascending."""
        return np.empty(0, dtype=np.int64) if self._numbers is None else np.flatnonzero(self._numbers)

    def ids_of_homonyms(self, entities: IntArray) -> list[str]:
        """Return the ids of some of them, given in ascending order."""
        titles = self.texts_at(entities).column(TITLE)
        ids: list[str] = self._numbered(titles, entities).to_pylist()
        return ids

    def mark_homonyms(self, entities: IntArray) -> None:
        """Put one more "#" behind their numbers, because a title looks like their id."""
        if self._marks is not None:
            self._marks[entities] += 1

    def numbers(self, name: str, begin: int = 0, end: int | None = None) -> npt.NDArray[Any]:
        """Return items begin … end - 1 of an array of the file of numbers.

        Raises:
            OSError: it cannot be read, or has become shorter.
        """
        section = self._sections[name]
        end = section.count if end is None else end
        return _read(self._descriptor, section, begin, end)

    def key_half(self, name: str, half: int) -> npt.NDArray[np.uint64]:
        """Return half 0 or 1 of the digests `key` or `content`. Shape: (num_entities,)."""
        return self.numbers(name, half * self.num_entities, (half + 1) * self.num_entities)

    def row(self, number: int) -> tuple[int, ...]:
        """Return the row of form `number`."""
        begin, end = self.numbers("offsets", number, number + 2).tolist()
        return tuple(self.numbers("tokens", begin, end).tolist())

    def find(self, row: Sequence[int]) -> int:
        """Return how many forms sort before `row`."""
        return _lower_bound(self.num_forms, self.row, tuple(row))

    def forms(self, begin: int, end: int) -> FormSlice:
        """Return forms begin … end - 1."""
        offsets = self.numbers("offsets", begin, end + 1)
        return FormSlice(
            tokens=self.numbers("tokens", int(offsets[0]), int(offsets[-1])),
            offsets=offsets - offsets[0],
            entity=self.numbers("entity", begin, end).astype(np.int64),
            form=self.numbers("form", begin, end),
        )

    def entities(self, begin: int, end: int) -> pa.Table:
        """Return entities begin … end - 1: `entity_id`, `title`, `aliases` and the columns asked for."""
        texts = self._read_texts(begin, end)
        title = texts.column(TITLE)
        ids = texts.column(ENTITY_ID) if self.shape.has_ids else self._generated_ids(title, begin, end)
        columns = [ids, title, texts.column(ALIASES)]
        names = [ENTITY_ID, TITLE, ALIASES]
        for column in self._columns:
            names.append(column.name)
            if column.name not in self.shape.columns:
                columns.append(pa.nulls(end - begin, METADATA_TYPES[column.type]))
                continue
            cells = texts.column(f"m{self.shape.columns.index(column.name)}")
            columns.append(_cast(cells, column))
        return pa.table(columns, names=names)

    def titles(self) -> Iterator[list[str]]:
        """Yield the titles of all entities, a batch at a time."""
        for number in range(self._texts.num_record_batches):
            yield self._texts.get_batch(number).column(TITLE).to_pylist()

    def texts_at(self, entities: IntArray) -> pa.Table:
        """Return id, title, aliases and cells (as text) of some entities, in ascending order of them."""
        schema = self._texts.schema
        parts = [schema.empty_table()]
        batch_numbers = entities // TEXTS_BATCH
        for number in np.unique(batch_numbers).tolist():
            inside = entities[batch_numbers == number] - number * TEXTS_BATCH
            parts.append(pa.Table.from_batches([self._texts.get_batch(number)]).take(pa.array(inside)))
        return pa.concat_tables(parts)

    def close(self) -> None:
        """Let go of the files."""
        if self._descriptor >= 0:
            self._file.close()
            os.close(self._descriptor)
            self._descriptor = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _read_texts(self, begin: int, end: int) -> pa.Table:
        first, last = begin // TEXTS_BATCH, -(-end // TEXTS_BATCH)
        batches = [self._texts.get_batch(number) for number in range(first, last)]
        table = pa.Table.from_batches(batches, self._texts.schema)
        return table.slice(begin - first * TEXTS_BATCH, end - begin)

    def _generated_ids(self, title: pa.ChunkedArray, begin: int, end: int) -> pa.ChunkedArray:
        if self._numbers is None:
            return title
        chosen = self._numbers[begin:end] > 0
        places = np.flatnonzero(chosen)
        if not len(places):
            return title
        ids = self._numbered(title.take(pa.array(places)), places + begin)
        whole = title.combine_chunks()
        return pa.chunked_array([pc.replace_with_mask(whole, pa.array(chosen), ids.combine_chunks())])

    def _numbered(self, titles: pa.ChunkedArray, entities: IntArray) -> pa.ChunkedArray:
        if self._numbers is None or self._marks is None:
            return titles
        numbers = pa.array(self._numbers[entities]).cast(pa.string())
        marks = pc.binary_repeat("#", pa.array(self._marks[entities]))
        return pc.binary_join_element_wise(titles, "#", numbers, marks, "")


def _cast(cells: pa.ChunkedArray, column: MetadataColumn) -> pa.ChunkedArray:
    kind = ColumnType(column.type)
    typed = METADATA_TYPES[column.type]
    return pa.chunked_array([cast(chunk, kind) for chunk in cells.chunks], type=typed)


def _lower_bound(count: int, row_of: Callable[[int], tuple[int, ...]], row: tuple[int, ...]) -> int:
    low, high = 0, count
    while low < high:
        middle = (low + high) // 2
        if row_of(middle) < row:
            low = middle + 1
        else:
            high = middle
    return low


def _read(descriptor: int, section: Section, begin: int, end: int) -> npt.NDArray[Any]:
    array = np.empty(end - begin, dtype=section.dtype)
    buffer = array.view(np.uint8).data
    offset = section.offset + begin * section.dtype.itemsize
    done = 0
    while done < len(buffer):  # one call reads at most 2 GiB
        count = os.preadv(descriptor, [buffer[done:]], offset + done)
        if not count:
            raise OSError(f"a shard ends early: expected {len(buffer)} bytes at {offset}, got {done}")
        done += count
    return array
