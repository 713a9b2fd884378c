"""Reads the entities of an index: titles, aliases, metadata, weights, ids, the order of titles.

Entities are found by id in a sorted table of hashes, made in memory. An id that is found is compared as text,
so that equal hashes of different ids can cost time and nothing else.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from genret.decoding.sorted_texts import TextBatches
from genret.retrieval.errors import IndexFormatError
from genret.retrieval.index.layout import (
    ALIASES,
    ENTITIES_FILE,
    ENTITY_BATCH_ROWS,
    ENTITY_ID,
    POSTINGS_FILE,
    TITLE,
    TITLE_ORDER_FILE,
    as_arrow,
    as_numpy,
    read_table,
    single_chunk,
    title_order_schema,
)
from genret.retrieval.types import Entity

# The table of hashes is made after so many passes, and used for at most one id per so many entities.
_PASSES_BEFORE_LOOKUP = 16
_FEW_IDS = 16

IntArray = npt.NDArray[np.signedinteger]


class EntityTable:
    """The entities of an index, memory-mapped; IndexFormatError if record batches have unexpected sizes.

    Arrow follows offsets and codes without looking. So a column of a batch is checked when it is first read,
    which raises IndexFormatError; opening does not pass over it.

    Args:
        table: entities.arrow; a table without ids uses titles as ids.
        metadata_columns: Names of the metadata columns.
        name: The file's name, for messages.

    Attributes:
        id_column: Name of the column of ids: that of titles where no ids are stored.
    """

    def __init__(self, table: pa.Table, metadata_columns: tuple[str, ...], name: str) -> None:
        self._table = table
        self._name = name
        self._batches = table.to_batches()
        self._checked: set[tuple[int, str]] = set()
        for number, batch in enumerate(self._batches):
            expected = min(ENTITY_BATCH_ROWS, table.num_rows - number * ENTITY_BATCH_ROWS)
            if batch.num_rows != expected:
                raise IndexFormatError(
                    f"{name}: expected record batches of {ENTITY_BATCH_ROWS} rows, got {batch.num_rows}"
                )
        names = table.column_names
        self.id_column = ENTITY_ID if ENTITY_ID in names else TITLE
        self._has_aliases = ALIASES in names
        self._lookup: IdLookup | None = None
        self._num_passes = 0
        self.metadata_columns = metadata_columns

    def __len__(self) -> int:
        return int(self._table.num_rows)

    def entity(self, number: int) -> Entity:
        """Return one entity; ValueError if there is no such number."""
        batch, at = self._locate(number)
        aliases = batch.column(ALIASES)[at].as_py() if self._has_aliases else ()
        return Entity(
            entity_id=batch.column(self.id_column)[at].as_py(),
            title=batch.column(TITLE)[at].as_py(),
            aliases=tuple(aliases),
            metadata={name: batch.column(name)[at].as_py() for name in self.metadata_columns},
        )

    def names(self, numbers: Sequence[int]) -> list[tuple[str, str]]:
        """Return title and id of entities, at least one, in the given order."""
        found = self.take(np.asarray(numbers, dtype=np.int64))
        columns = (found.column(TITLE).to_pylist(), found.column(self.id_column).to_pylist())
        return list(zip(*columns, strict=True))

    def form(self, number: int, form: int) -> str:
        """Return a surface form's text: the title for 0, the n-th alias for n.

        IndexFormatError if a posting claims an alias that the entity does not have.
        """
        batch, at = self._locate(number)
        if form == 0:
            return str(batch.column(TITLE)[at].as_py())
        aliases = batch.column(ALIASES)[at] if self._has_aliases else ()
        if form > len(aliases):
            raise IndexFormatError(
                f"{POSTINGS_FILE}: a form of entity {number}: expected at most {len(aliases)}, got {form}"
            )
        return str(aliases[form - 1].as_py())

    def numbers(self, entity_ids: Sequence[str] | pa.Array) -> IntArray:
        """Look up many ids in one pass over the table, with some 60 bytes per id and 8 per entity.

        Returns:
            Entity numbers, -1 where an id is unknown. Shape: (len(entity_ids),), int64.
        """
        wanted = _strings(entity_ids)
        found = np.full(len(wanted), -1, dtype=np.int64)
        places = pc.index_in(self.stored_column(ENTITY_ID), value_set=wanted).fill_null(-1).to_numpy()
        hits = np.flatnonzero(places >= 0)
        found[places[hits]] = hits
        # An id asked for twice is found at its first place.
        first: IntArray = pc.index_in(wanted, value_set=wanted).to_numpy(zero_copy_only=False)
        return found[first]

    def find(self, entity_ids: Sequence[str] | pa.Array) -> IntArray:
        """Return `numbers` for callers that ask again and again for few ids.

        The first calls pass over the table. Later ones use a table of hashes, 16 bytes per entity.
        """
        wanted = _strings(entity_ids)
        lookup = self._lookup_for(wanted)
        if lookup is not None:
            numbers, is_sure = lookup.find(wanted)
            if is_sure:
                return numbers
        return self.numbers(wanted)

    def _lookup_for(self, wanted: pa.Array) -> IdLookup | None:
        """Return the table of hashes where it pays; made when passes so far took longer than making it."""
        ids = self.stored_column(ENTITY_ID)
        is_plain = wanted.type == ids.type == pa.string() and not wanted.null_count
        if not is_plain or len(wanted) * _FEW_IDS > len(ids):
            return None
        if self._lookup is None:
            self._num_passes += 1  # of two threads one may be forgotten, or both make the table: no harm
            if self._num_passes > _PASSES_BEFORE_LOOKUP and not ids.null_count:
                self._lookup = IdLookup(ids)
        return self._lookup

    def column(self, name: str) -> pa.ChunkedArray:
        """Return a column, decoded: a metadata column, "title", "entity_id" or, if there are any, "aliases".

        Raises:
            ValueError: no such column; the text lists those there are.
        """
        column = self.stored_column(name)
        if pa.types.is_dictionary(column.type):
            return column.cast(column.type.value_type)
        return column

    def stored_column(self, name: str) -> pa.ChunkedArray:
        """Return a column as it lies in the file, zero-copy; errors are those of `column`.

        Strings that repeat are dictionary-encoded; all chunks share one dictionary, sorted by code points.
        """
        name = self._stored(name)
        for number in range(len(self._batches)):
            self._check(number, name)
        return self._table.column(name)

    def column_type(self, name: str) -> pa.DataType:
        """Return the type of a stored column without reading it; errors are those of `column`."""
        return self._table.schema.field(self._stored(name)).type

    def slice(self, begin: int, end: int) -> pa.Table:
        """Return entities begin … end - 1 as they lie in the file, zero-copy."""
        for number in range(begin // ENTITY_BATCH_ROWS, -(-end // ENTITY_BATCH_ROWS)):
            self._batch(number)
        return self._table.slice(begin, end - begin)

    def take(self, numbers: IntArray, names: Sequence[str] | None = None) -> pa.Table:
        """Return entities as they lie in the file, in the order of `numbers`, at least one. Shape: (n,).

        `names` are the stored columns to take, None for all.
        """
        names = self._table.column_names if names is None else names
        order = np.argsort(numbers, kind="stable")
        batch, at = np.divmod(numbers[order], ENTITY_BATCH_ROWS)
        present, begins = np.unique(batch, return_index=True)
        parts = [
            self._batch(i).select(names).take(as_arrow(places))
            for i, places in zip(present.tolist(), np.split(at, begins[1:]), strict=True)
        ]
        back = np.empty(len(order), dtype=np.int64)
        back[order] = np.arange(len(order))
        return pa.Table.from_batches(parts).combine_chunks().take(as_arrow(back))

    def _locate(self, number: int) -> tuple[pa.RecordBatch, int]:
        if isinstance(number, str) or not 0 <= number < len(self):
            raise ValueError(f"entity number: expected 0 <= number < {len(self)}, got {number!r}")
        batch, at = divmod(number, ENTITY_BATCH_ROWS)
        return self._batch(batch), at

    def _stored(self, name: str) -> str:
        """Return the name under which a column is stored."""
        name = self.id_column if name == ENTITY_ID else name
        if name not in self._table.column_names:
            known = list(dict.fromkeys([ENTITY_ID, *self._table.column_names]))
            raise ValueError(f"column: expected one of {known}, got {name!r}")
        return name

    def _batch(self, number: int) -> pa.RecordBatch:
        """Return a record batch whose columns are all checked."""
        for name in self._table.column_names:
            self._check(number, name)
        return self._batches[number]

    def _check(self, number: int, name: str) -> None:
        """Check the offsets, codes and characters of a column of a batch, the first time it is asked for."""
        if (number, name) not in self._checked:
            try:
                self._batches[number].column(name).validate(full=True)
            except pa.ArrowException as error:
                raise IndexFormatError(f"{self._name}: column {name!r}: {error}") from error
            self._checked.add((number, name))


def _strings(entity_ids: Sequence[str] | pa.Array) -> pa.Array:
    return entity_ids if isinstance(entity_ids, pa.Array) else pa.array(entity_ids, type=pa.string())


@dataclass(frozen=True, slots=True, eq=False)
class Postings:
    """Row -> entities, many to many."""

    offsets: IntArray  # postings of rank r are offsets[r] … offsets[r + 1] - 1. Shape: (R + 1,), int32.
    entity: IntArray  # entity number of each posting, ascending within a rank. Shape: (P,), int32.
    # Which of the entity's forms the row is: 0 the title, n the n-th alias. Shape: (P,), unsigned.
    form: IntArray

    @classmethod
    def from_table(cls, table: pa.Table, name: str) -> Postings:
        """Wrap postings.arrow, zero-copy; IndexFormatError if it is stored in several pieces."""
        lists = single_chunk(table, name, "postings")
        values = lists.values
        return cls(as_numpy(lists.offsets), as_numpy(values.field("entity")), as_numpy(values.field("form")))

    def check(self, num_entities: int, num_postings: int) -> None:
        """Check that rows name entities, one at least, in one pass over each array.

        IndexFormatError if they do not. Forms are compared with the entity's aliases where they are read.
        """
        entity, offsets = self.entity, self.offsets
        problem = None
        if len(entity) != num_postings:
            problem = f"expected {num_postings} postings, got {len(entity)}"
        elif offsets[0] != 0 or offsets[-1] != len(entity):
            problem = f"the rows are postings {offsets[0]} to {offsets[-1]} of {len(entity)}"
        elif (none := offsets[1:] <= offsets[:-1]).any():
            problem = f"row {int(none.argmax())} names no entity"
        elif len(entity) and (entity.min() < 0 or entity.max() >= num_entities):
            problem = f"an entity number is outside 0 … {num_entities - 1}"
        if problem is not None:
            raise IndexFormatError(f"{POSTINGS_FILE}: {problem}")

    @classmethod
    def one_to_one(cls, num_rows: int) -> Postings:
        """Return the postings of an index in which row r is the title of entity r."""
        every = np.arange(num_rows + 1, dtype=np.int32)
        return cls(every, every[:-1], np.zeros(num_rows, dtype=np.uint8))

    def of(self, rank: int) -> list[tuple[int, int]]:
        """Return (entity number, form) of every entity that row `rank` names."""
        begin, end = int(self.offsets[rank]), int(self.offsets[rank + 1])
        return list(zip(self.entity[begin:end].tolist(), self.form[begin:end].tolist(), strict=True))


def filled_weights(column: pa.ChunkedArray) -> npt.NDArray[np.float64]:
    """Return the weights of a column as one read-only array, 1 where a value is missing. Shape: (n,).

    IndexFormatError if one of them is negative or not finite.
    """
    filled = np.empty(len(column), dtype=np.float64)
    begin = 0
    for chunk in column.chunks:
        end = begin + len(chunk)
        filled[begin:end] = chunk.cast(pa.float64(), safe=False).fill_null(1.0).to_numpy()
        begin = end
    if len(filled) and not (filled.min() >= 0 and filled.max() < np.inf):  # nor NaN
        raise IndexFormatError(f"{ENTITIES_FILE}: a weight is no finite number of at least 0")
    filled.flags.writeable = False
    return filled


def weight_problem(
    entities: EntityTable, column: str, kept: npt.NDArray[np.bool_] | None = None
) -> str | None:
    """Return the fault of the first value that can be no weight among `kept` entities; None: no fault.

    Shape: `kept` (num_entities,), None for all.
    """
    values = entities.stored_column(column)
    wrong = pc.invert(pc.and_(pc.is_finite(values), pc.greater_equal(values, 0)))  # null where missing
    if kept is not None:
        wrong = pc.and_(wrong, pa.array(kept))
    number = pc.index(wrong, True).as_py()
    if number < 0:
        return None
    entity = entities.entity(number)
    return (
        f"column {column!r}: the entity {entity.entity_id!r} has the value {entity.metadata[column]}; "
        "a weight is a finite number, at least 0"
    )


def weight_facts(name: str, column: pa.ChunkedArray) -> dict[str, Any]:
    """Return facts about a column of weights; `largest` is None where all are missing."""
    return {
        "column": name,
        "missing": column.null_count,
        "zeros": pc.sum(pc.equal(column, 0)).as_py() or 0,
        "largest": pc.max(column).as_py(),
    }


def weight_line(facts: dict[str, Any]) -> str:
    """Return a line of text for `weight_facts`."""
    largest = "" if facts["largest"] is None else f", the largest {facts['largest']:,}"
    return f"{facts['column']}: {facts['missing']:,} missing (weight 1), {facts['zeros']:,} zero{largest}"


Hashes = npt.NDArray[np.uint64]
Numbers = npt.NDArray[np.int64]

_WORD = 8
# Odd multipliers with bits all over: those of the finaliser of SplitMix64 (Steele, Lea and Flood 2014).
_FIRST, _SECOND = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_SHIFTS = (np.uint64(30), np.uint64(27), np.uint64(31))


class IdLookup:
    """Finds the places of ids in a column of strings without nulls, none of them twice.

    Memory: 16 bytes per id. Making it takes as long as some ten to twenty passes over the ids.
    """

    def __init__(self, ids: pa.ChunkedArray) -> None:
        self._ids = ids
        hashes = np.concatenate([np.empty(0, dtype=np.uint64), *map(hash_strings, ids.chunks)])
        self._begins = np.cumsum([0, *map(len, ids.chunks)])[:-1]
        self._places = np.argsort(hashes)
        self._hashes = hashes[self._places]

    def find(self, wanted: pa.Array) -> tuple[Numbers, bool]:
        """Look up strings without nulls. Shape: (n,).

        Returns:
            The place of every id, -1 for unknown ones, and whether that is sure: it is not where an id has
            the hash of another one. Shape: (n,), int64.
        """
        found = np.full(len(wanted), -1, dtype=np.int64)
        if not len(self._hashes) or not len(wanted):
            return found, True
        hashes = hash_strings(wanted)
        at = np.minimum(np.searchsorted(self._hashes, hashes), len(self._hashes) - 1)
        hits = np.flatnonzero(self._hashes[at] == hashes)
        places = self._places[at[hits]]
        is_same = self._are(places, wanted.take(pa.array(hits)))
        found[hits[is_same]] = places[is_same]
        return found, bool(is_same.all())

    def _are(self, places: Numbers, texts: pa.Array) -> npt.NDArray[np.bool_]:
        """Return whether the ids at some places are these texts. Shapes: (n,), (n,) -> (n,)."""
        order = np.argsort(places, kind="stable")
        # Chunk by chunk: Arrow's own look-up in several chunks goes through all of them first.
        chunk = np.searchsorted(self._begins, places[order], side="right") - 1
        present, begins = np.unique(chunk, return_index=True)
        same = np.empty(len(places), dtype=np.bool_)
        for number, members in zip(present.tolist(), np.split(order, begins[1:]), strict=True):
            found = self._ids.chunk(number).take(pa.array(places[members] - self._begins[number]))
            equal = pc.equal(found, texts.take(pa.array(members)))
            same[members] = equal.to_numpy(zero_copy_only=False)
        return same


def hash_strings(strings: pa.Array) -> Hashes:
    """Return 64 bits of every string (no nulls), eight bytes of all at a time. Shape: (n,), uint64."""
    _, offsets_buffer, data = strings.buffers()
    offsets = np.frombuffer(offsets_buffer, dtype=np.int32)[
        strings.offset : strings.offset + len(strings) + 1
    ]
    begins, lengths = offsets[:-1].astype(np.int64), np.diff(offsets)
    hashes = lengths.astype(np.uint64) * _SECOND
    text = np.zeros((0 if data is None else data.size) + _WORD, dtype=np.uint8)
    if data is not None:
        text[:-_WORD] = np.frombuffer(data, dtype=np.uint8)
    # Every eight bytes of the text, wherever they begin.
    words = np.ndarray(shape=(len(text) - _WORD + 1,), dtype="<u8", buffer=text, strides=(1,))
    rows = np.flatnonzero(lengths)
    done = 0
    while len(rows):
        word = words[begins[rows] + done]
        left = np.minimum(lengths[rows] - done, _WORD)
        # Bytes behind the end of a string belong to another one.
        word &= np.uint64(0xFFFFFFFFFFFFFFFF) >> ((_WORD - left) * 8).astype(np.uint64)
        hashes[rows] = _mixed(hashes[rows] ^ word)
        done += _WORD
        rows = rows[lengths[rows] > done]
    return hashes


def _mixed(values: Hashes) -> Hashes:
    values = (values ^ (values >> _SHIFTS[0])) * _FIRST
    values = (values ^ (values >> _SHIFTS[1])) * _SECOND
    mixed: Hashes = values ^ (values >> _SHIFTS[2])
    return mixed


Ints = npt.NDArray[np.int32]
_COMPARED_AT_ONCE = 65_536


def read_title_order(data: pa.Buffer, num_entities: int) -> Ints:
    """Return the order, zero-copy, checked. Shape: (num_entities,), int32. IndexFormatError if it is none."""
    table = read_table(data, TITLE_ORDER_FILE, [title_order_schema()], num_entities)
    order: Ints = as_numpy(single_chunk(table, TITLE_ORDER_FILE, "entity")).view(np.int32)
    # Readers of titles by these numbers do not check them again.
    if int(order.min()) < 0 or int(order.max()) >= num_entities:
        raise IndexFormatError(f"{TITLE_ORDER_FILE}: an entity number is outside 0 … {num_entities - 1}")
    return order


def title_batches(titles: pa.ChunkedArray) -> TextBatches:
    """Return the bytes of a column of titles as views of the mapped file.

    IndexFormatError if a title does not lie inside the column's bytes.
    """
    offsets, data = [], []
    for chunk in titles.chunks:
        _, begins, texts = chunk.buffers()
        stored = np.frombuffer(begins, dtype=np.int32) if begins else np.zeros(1, dtype=np.int32)
        offsets.append(stored[chunk.offset : chunk.offset + len(chunk) + 1])
        data.append(np.frombuffer(texts, dtype=np.uint8) if texts else np.empty(0, dtype=np.uint8))
    try:
        return TextBatches(offsets, data, ENTITY_BATCH_ROWS)
    except ValueError as error:
        raise IndexFormatError(f"{ENTITIES_FILE}: column {TITLE!r}: {error}") from error


def first_disorder(order: Ints, entities: EntityTable) -> int | None:
    """Return the first place whose entity should not stand behind the one before it; None: there is none.

    Entities are in order when titles ascend, byte by byte, and entities of one title by number. So a list of
    numbers in range that is in order names every entity once. Shape: `order` (n,).
    """
    for begin in range(0, len(order) - 1, _COMPARED_AT_ONCE):
        numbers = order[begin : begin + _COMPARED_AT_ONCE + 1]
        titles = entities.take(numbers, [TITLE]).column(TITLE).combine_chunks()
        before, behind = titles[:-1], titles[1:]
        falls = pc.and_(pc.equal(behind, before), pa.array(numbers[1:] <= numbers[:-1]))
        wrong = pc.index(pc.or_(pc.less(behind, before), falls), True).as_py()
        if wrong >= 0:
            return int(begin + wrong + 1)
    return None
