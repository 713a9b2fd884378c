"""Sorted runs, which a build merges, and build shards, which are runs on disk.

A run holds entities in the lexicographic order of their titles' rows, and the forms (titles and aliases) of
these entities in the lexicographic order of their own rows. A build merges shards; an update merges the live
version with shards.

Rows are sorted by a vectorised most-significant-first sort: as many tokens as fit are packed into one
63-bit key, and only tied rows go on to their next tokens. Few rows get past the second key.

A shard is one file of plain number arrays and one Arrow file of texts. Files are read by position and never
mapped: mapped pages would count as memory of the process.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from genret.index_builder.faults import fault_point
from genret.retrieval.durable import sync, written
from genret.retrieval.index.layout import (
    ALIASES,
    ENTITY_BATCH_ROWS,
    ENTITY_ID,
    METADATA_TYPES,
    TITLE,
    token_type,
)
from genret.retrieval.index.manifest import MetadataColumn
from genret.retrieval.sources.columns import ColumnType, cast
from genret.retrieval.sources.records import Record

IntArray = npt.NDArray[np.signedinteger]


class FormSlice(NamedTuple):
    """F neighbouring forms of one run."""

    tokens: IntArray  # concatenated rows, ascending; equal rows may repeat; shape (total tokens,), unsigned
    offsets: IntArray  # row i is tokens[offsets[i] : offsets[i + 1]]; offsets[0] = 0; shape (F + 1,), int64
    entity: IntArray  # the run's number of each form's entity; shape (F,), int64
    form: IntArray  # 0 for the title, n for the n-th alias; shape (F,), int32


class Run(Protocol):
    """One sorted run. Reading a slice costs memory for the slice alone."""

    num_entities: int  # number of entities, dropped ones included
    num_forms: int  # number of their forms
    keep: npt.NDArray[np.bool_]  # mask of the entities that are merged; shape (num_entities,), bool
    has_ids: bool  # whether any entity's id differs from its title

    def find(self, row: Sequence[int]) -> int:
        """Return how many forms sort before `row` (the lower bound), in 0 … num_forms."""

    def row(self, number: int) -> tuple[int, ...]:
        """Return the row of form `number`."""

    def forms(self, begin: int, end: int) -> FormSlice:
        """Return forms begin … end - 1."""

    def entities(self, begin: int, end: int) -> pa.Table:
        """Return entities begin … end - 1.

        Columns: `entity_id` and `title` (string), `aliases` (list<string>), and the new version's metadata
        columns, in its order and types.
        """


def windows(numbers: IntArray) -> Iterator[tuple[int, int, slice]]:
    """Divide ascending entity numbers into spans of at most 65,536, for reading entities span by span.

    Yields the bounds [low, high) of a span, and the slice of `numbers` that lies in it.
    """
    begin = 0
    while begin < len(numbers):
        low = int(numbers[begin])
        end = int(np.searchsorted(numbers, low + ENTITY_BATCH_ROWS))
        yield low, int(numbers[end - 1]) + 1, slice(begin, end)
        begin = end


def sort_rows(tokens: IntArray, offsets: IntArray, vocab_size: int) -> tuple[IntArray, npt.NDArray[np.bool_]]:
    """Sort F rows; a row sorts before its extensions, equal rows keep their order.

    Row f is tokens[offsets[f] : offsets[f + 1]], and tokens are below `vocab_size`.

    Returns:
        order: Row numbers in lexicographic order. Shape: (F,), int64.
        first: Whether a row differs from the one before it in that order. Shape: (F,), bool.
    """
    bits = max(int(vocab_size), 1).bit_length()  # tokens are packed as token + 1; 0 is "past the end"
    width = max(63 // bits, 1)
    starts, ends = offsets[:-1], offsets[1:]
    count = len(starts)
    order = np.arange(count)
    first = np.zeros(count, dtype=bool)
    first[:1] = True
    places = np.arange(count)  # unsettled places of `order`; runs of ties are contiguous
    depth = 0
    while len(places):
        rows = order[places]
        keys = _pack(tokens, starts[rows] + depth, ends[rows], width, bits)
        run = np.cumsum(first[places])  # number of each place's run of ties
        by_key = np.lexsort((keys, run)) if depth else np.argsort(keys, kind="stable")
        order[places] = rows[by_key]
        keys = keys[by_key]
        # A run keeps its places, so only places inside a run can newly differ from the one before.
        differs = np.zeros(len(places), dtype=bool)
        differs[1:] = keys[1:] != keys[:-1]
        first[places] |= differs
        depth += width
        tied = ~first[places]
        tied[:-1] |= tied[1:]
        # A row that ends exactly here stays once more, as "past the end", to separate from its extensions.
        unfinished = ends[order[places]] - starts[order[places]] >= depth
        places = places[tied & unfinished]
    return order, first


def offsets_of(lengths: IntArray) -> npt.NDArray[np.int64]:
    """Return where rows of these lengths begin when they are concatenated, and the end. Shape: (n + 1,)."""
    offsets = np.zeros(len(lengths) + 1, dtype=np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return offsets


def gather_rows(tokens: IntArray, offsets: IntArray, rows: IntArray) -> tuple[IntArray, IntArray]:
    """Return some rows, concatenated in the given order, and their offsets, of shape (n + 1,), int64."""
    lengths = (offsets[1:] - offsets[:-1])[rows]
    gathered_offsets = offsets_of(lengths)
    gathered = np.empty(int(gathered_offsets[-1]), dtype=tokens.dtype)
    step = 1 << 20  # in pieces, because positions take eight bytes per token
    for begin in range(0, len(rows), step):
        piece = slice(begin, min(begin + step, len(rows)))
        base = gathered_offsets[piece.start]
        total = int(gathered_offsets[piece.stop] - base)
        shift = offsets[:-1][rows[piece]] - (gathered_offsets[piece] - base)
        positions = np.repeat(shift, lengths[piece]) + np.arange(total)
        gathered[base : base + total] = tokens[positions]
    return gathered, gathered_offsets


def tied_places(values: npt.NDArray[np.integer]) -> npt.NDArray[np.int64]:
    """Return the places of sorted values that equal a neighbour, ascending."""
    same = np.zeros(len(values) + 1, dtype=bool)
    same[1:-1] = values[1:] == values[:-1]
    return np.flatnonzero(same[1:] | same[:-1])


def sort_ties(
    rank: IntArray, entities: IntArray, ids_of: Callable[[IntArray], pa.Array | pa.ChunkedArray]
) -> None:
    """Sort entities, given in order of rank, by (rank, id), in place; `ids_of` returns the ids of some."""
    tied = tied_places(rank)
    if len(tied):
        table = pa.table({"rank": rank[tied], "id": ids_of(entities[tied])})
        by_id = pc.sort_indices(table, sort_keys=[("rank", "ascending"), ("id", "ascending")])
        entities[tied] = entities[tied[by_id.to_numpy()]]


def _pack(tokens: IntArray, starts: IntArray, ends: IntArray, width: int, bits: int) -> npt.NDArray[np.int64]:
    keys = np.zeros(len(starts), dtype=np.int64)
    last = len(tokens) - 1
    for i in range(width):
        at = starts + i
        inside = at < ends
        column = tokens[np.minimum(at, last)].astype(np.int64) + 1
        keys = (keys << bits) | np.where(inside, column, 0)
    return keys


_Array = npt.NDArray[Any]

# Memory that sorting takes beside the data: order, keys, packed columns, ranks.
_SORT_BYTES_PER_FORM = 96
_SORT_BYTES_PER_ENTITY = 64
_SECOND_SEED = 0x9E3779B97F4A7C15


class ShardWriter:
    """Collects batches of records with their rows until they are written.

    All tokens are below `vocab_size`; `columns` are the names of the metadata columns.
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
        """Add records with the rows of their forms, titles before aliases, and the numbers of forms."""
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
        """Sort what was collected into a new folder and sync it; the writer is empty afterwards.

        Raises:
            OSError: the folder cannot be written, for example on a full disk.
        """
        folder.mkdir()
        fault_point("shard-writing")
        numbers = {name: _join(parts) for name, parts in self._numbers.items()}
        offsets = offsets_of(numbers.pop("lengths"))
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
        texts = pa.Table.from_batches(self._texts, _texts_schema(self._has_ids, len(self._columns)))
        order, first = sort_rows(numbers["tokens"], offsets, self._vocab_size)
        rank = np.empty(len(order), dtype=np.int32)  # among the distinct rows
        rank[order] = np.cumsum(first) - 1
        first_form = np.cumsum(forms) - forms
        title_rank = rank[first_form]
        entity_order = np.argsort(title_rank, kind="stable")
        sort_ties(title_rank[entity_order], entity_order, lambda some: texts.column(0).take(pa.array(some)))
        written = _sorted_numbers(numbers, offsets, forms, order, entity_order)
        _write_numbers(folder / NUMBERS_FILE, written, shape)
        _write_texts(folder / TEXTS_FILE, texts, entity_order)
        sync(folder)
        fault_point("shard-written")
        return shape

    def _to_texts(self, records: Sequence[Record]) -> pa.RecordBatch:
        columns = [pa.array([r.entity_id for r in records], type=pa.string())] if self._has_ids else []
        columns.append(pa.array([r.title for r in records], type=pa.string()))
        columns.append(pa.array([r.aliases for r in records], type=pa.list_(pa.string())))
        for i in range(len(self._columns)):
            columns.append(pa.array([r.metadata[i] for r in records], type=pa.string()))
        return pa.record_batch(columns, schema=_texts_schema(self._has_ids, len(self._columns)))


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
    expected = _sections(shape)
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
    """Return two independent hashes of each text, the first its `key_hash`. Shape: (texts, 2).

    The hashes of the empty text are 0, which costs nothing when most texts are empty.
    """
    if not any(texts):
        return np.zeros((len(texts), 2), dtype=np.uint64)
    encoded = [text.encode() for text in texts]
    digest = xxhash.xxh3_64_intdigest
    halves = [[digest(data, seed) if data else 0 for data in encoded] for seed in (0, _SECOND_SEED)]
    return np.array(halves, dtype=np.uint64).T


def _content(record: Record) -> str:
    """Return everything in which two records with the same id, or title, may differ."""
    if record.entity_id is None and not record.aliases and not record.metadata:
        return ""  # a title alone: with equal keys there is nothing left to differ
    return repr((record.title, record.aliases, record.metadata))


class ShardRun:
    """A finished shard, opened: a `Run`.

    Entities keep their numbers whether they are kept or not. Until identities are resolved all are kept, and
    an entity of a source without ids has its title for an id.
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
        self._sections = _sections(shape)
        self._numbers_file = (folder / NUMBERS_FILE).open("rb", buffering=0)
        try:
            self._texts_file = pa.OSFile(str(folder / TEXTS_FILE), "rb")
            self._texts = pa.ipc.open_file(self._texts_file)
        except BaseException:
            self._numbers_file.close()
            raise

    def use_columns(self, columns: Sequence[MetadataColumn]) -> None:
        """Choose the metadata that `entities` returns; a column that the shard lacks is empty."""
        self._columns = tuple(columns)

    def number_homonyms(self, entities: IntArray, numbers: IntArray) -> None:
        """Give entities the ids `title#number`, numbers from 2. Shapes: (n,) each."""
        if not len(entities):
            return
        if self._numbers is None or self._marks is None:
            self._numbers = np.zeros(self.num_entities, dtype=np.int32)
            self._marks = np.zeros(self.num_entities, dtype=np.uint16)
        self.has_ids = True
        self._numbers[entities] = numbers
        self._marks[entities] = 0

    def homonyms(self) -> IntArray:
        """Return the entities that have such ids, ascending."""
        return np.empty(0, dtype=np.int64) if self._numbers is None else np.flatnonzero(self._numbers)

    def ids_of_homonyms(self, entities: IntArray) -> list[str]:
        """Return the ids of some homonyms, given in ascending order."""
        titles = self.texts_at(entities).column(TITLE)
        return list(self._numbered(titles, entities).to_pylist())

    def mark_homonyms(self, entities: IntArray) -> None:
        """Put one more "#" behind their numbers, because a title looks like their id."""
        if self._marks is not None:
            self._marks[entities] += 1

    def numbers(self, name: str, begin: int = 0, end: int | None = None) -> npt.NDArray[Any]:
        """Return items begin … end - 1 of one array (`_sections`).

        Raises:
            OSError: the file cannot be read, or has become shorter.
        """
        section = self._sections[name]
        count = (section.count if end is None else end) - begin
        self._numbers_file.seek(section.offset + begin * section.dtype.itemsize)
        array: npt.NDArray[Any] = np.fromfile(self._numbers_file, section.dtype, count)
        if len(array) != count:
            raise OSError(f"a shard ends early: expected {count} of {name} at {begin}, got {len(array)}")
        return array

    def key_half(self, name: str, half: int) -> npt.NDArray[np.uint64]:
        """Return half 0 or 1 of the digests `key` or `content`. Shape: (num_entities,)."""
        return self.numbers(name, half * self.num_entities, (half + 1) * self.num_entities)

    def row(self, number: int) -> tuple[int, ...]:
        """Return the row of form `number`."""
        begin, end = self.numbers("offsets", number, number + 2).tolist()
        return tuple(self.numbers("tokens", begin, end).tolist())

    def find(self, row: Sequence[int]) -> int:
        """Return how many forms sort before `row`."""
        return bisect_left(range(self.num_forms), tuple(row), key=self.row)

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
        """Return entities begin … end - 1: `entity_id`, `title`, `aliases` and the chosen columns."""
        texts = self._read_texts(begin, end)
        title = texts.column(TITLE)
        ids = texts.column(ENTITY_ID) if self.shape.has_ids else self._generated_ids(title, begin, end)
        columns = [ids, title, texts.column(ALIASES)]
        names = [ENTITY_ID, TITLE, ALIASES]
        for column in self._columns:
            names.append(column.name)
            kind, typed = ColumnType(column.type), METADATA_TYPES[column.type]
            if column.name not in self.shape.columns:
                columns.append(pa.nulls(end - begin, typed))
                continue
            cells = texts.column(f"m{self.shape.columns.index(column.name)}")
            columns.append(pa.chunked_array([cast(chunk, kind) for chunk in cells.chunks], type=typed))
        return pa.table(columns, names=names)

    def cells(self, name: str) -> Iterator[tuple[Any, Any, Any]]:
        """Yield file, line and one cell of text of all entities; `TITLE`, or metadata m0, m1 and so on."""
        batches = map(self._texts.get_batch, range(self._texts.num_record_batches))
        texts = chain.from_iterable(batch.column(name).to_pylist() for batch in batches)
        return zip(self.numbers("file"), self.numbers("line"), texts, strict=True)

    def texts_at(self, entities: IntArray) -> pa.Table:
        """Return id, title, aliases and cells (as text) of entities, which are given in ascending order."""
        schema = self._texts.schema
        parts = [schema.empty_table()]
        batch_numbers = entities // TEXTS_BATCH
        for number in np.unique(batch_numbers).tolist():
            inside = entities[batch_numbers == number] - number * TEXTS_BATCH
            parts.append(pa.Table.from_batches([self._texts.get_batch(number)]).take(pa.array(inside)))
        return pa.concat_tables(parts)

    def close(self) -> None:
        """Close the files."""
        self._texts_file.close()
        self._numbers_file.close()

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


NUMBERS_FILE = "numbers"
TEXTS_FILE = "texts.arrow"

# Entities per record batch of the texts: the unit in which they are read back.
TEXTS_BATCH = 8192


@dataclass(frozen=True, slots=True)
class ShardShape:
    """Sizes of a shard; `ids_differ` says whether any id differs from its entity's title."""

    entities: int
    forms: int  # titles and aliases
    tokens: int
    vocab_size: int
    has_ids: bool  # whether the records brought ids
    ids_differ: bool
    columns: tuple[str, ...]  # names of the metadata columns


@dataclass(frozen=True, slots=True)
class _Section:
    """One array of the file of numbers; `offset` is in bytes, `count` in items."""

    dtype: np.dtype[Any]
    offset: int
    count: int


def _sections(shape: ShardShape) -> dict[str, _Section]:
    """Return the arrays of the file of numbers, in their order.

    tokens, offsets, entity, form: as in `FormSlice`, of all forms; offsets has F + 1 items.
    key: Two halves of the digest of each entity's id, or title where there are no ids. Shape: (2, E).
    content: The same of the rest of its record. Shape: (2, E).
    file, line: Place of its record. Shape: (E,).
    sequence: Number of its record within the shard, in the order of the source. Shape: (E,).
    """
    arrays = (
        ("tokens", token_type(shape.vocab_size).to_pandas_dtype(), shape.tokens),
        ("offsets", np.int64, shape.forms + 1),
        ("entity", np.int32, shape.forms),
        ("form", np.int32, shape.forms),
        ("key", np.uint64, 2 * shape.entities),
        ("content", np.uint64, 2 * shape.entities),
        ("file", np.int32, shape.entities),
        ("line", np.int64, shape.entities),
        ("sequence", np.int32, shape.entities),
    )
    result: dict[str, _Section] = {}
    offset = 0
    for name, item, count in arrays:
        dtype = np.dtype(item)
        result[name] = _Section(dtype, offset, count)
        offset += dtype.itemsize * count
    return result


def _texts_schema(has_ids: bool, num_columns: int) -> pa.Schema:
    """Return the schema of the texts; metadata cells are canonical text, whatever their type."""
    fields = [pa.field(ENTITY_ID, pa.string(), nullable=False)] if has_ids else []
    fields += [
        pa.field(TITLE, pa.string(), nullable=False),
        pa.field(ALIASES, pa.list_(pa.string()), nullable=False),
    ]
    # Numbered, because a metadata column may have any name.
    return pa.schema([*fields, *(pa.field(f"m{i}", pa.string()) for i in range(num_columns))])
