"""Entities by number and by id, and which entities a row stands for."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from retrieval.errors import IndexFormatError
from retrieval.index.arrow_files import as_arrow, as_numpy, single_chunk
from retrieval.index.id_lookup import IdLookup
from retrieval.index.layout import ALIASES, ENTITY_BATCH_ROWS, ENTITY_ID, TITLE
from retrieval.types import Entity

# A table of hashes is made after so many passes, and asked for fewer ids than one of so many entities.
_PASSES_BEFORE_LOOKUP = 16
_FEW_IDS = 16

IntArray = npt.NDArray[np.signedinteger]


class EntityTable:
    """The entities of an index, memory-mapped.

    Args:
        table: entities.arrow; a table without ids uses titles as ids.
        metadata_columns: Names of the metadata columns.
        name: The file's name, for messages.

    Attributes:
        id_column: The column of ids: that of titles where no ids are stored.
        metadata_columns: Names of the metadata columns.

    Raises:
        IndexFormatError: the record batches have unexpected sizes.
    """

    def __init__(self, table: pa.Table, metadata_columns: tuple[str, ...], name: str) -> None:
        self._table = table
        self._batches = table.to_batches()
        for batch in self._batches[:-1]:
            if batch.num_rows != ENTITY_BATCH_ROWS:
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
        """Return one entity.

        Raises:
            ValueError: no such number.
        """
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
        """Return a surface form's text: the title for 0, the n-th alias for n."""
        batch, at = self._locate(number)
        text: str = (
            batch.column(TITLE)[at].as_py() if form == 0 else batch.column(ALIASES)[at][form - 1].as_py()
        )
        return text

    def numbers(self, entity_ids: Sequence[str] | pa.Array) -> IntArray:
        """Look up many ids at once in one pass over the table.

        Memory: some 60 bytes per id that is looked up, and 8 per entity.

        Returns:
            Entity numbers, -1 where an id is unknown. Shape: (len(entity_ids),), int64.
        """
        wanted = _strings(entity_ids)
        found = np.full(len(wanted), -1, dtype=np.int64)
        places = pc.index_in(self._table.column(self.id_column), value_set=wanted).fill_null(-1).to_numpy()
        hits = np.flatnonzero(places >= 0)
        found[places[hits]] = hits
        # An id asked for twice is found at its first place.
        first: IntArray = pc.index_in(wanted, value_set=wanted).to_numpy(zero_copy_only=False)
        return found[first]

    def find(self, entity_ids: Sequence[str] | pa.Array) -> IntArray:
        """Return what `numbers` does, for callers that ask again and again for few ids.

        The first calls pass over the table. Later ones look few ids up in a table of hashes, which takes
        16 bytes per entity from then on.
        """
        wanted = _strings(entity_ids)
        lookup = self._lookup_for(wanted)
        if lookup is not None:
            numbers, is_sure = lookup.find(wanted)
            if is_sure:
                return numbers
        return self.numbers(wanted)

    def _lookup_for(self, wanted: pa.Array) -> IdLookup | None:
        """Return the table of hashes where it pays; made when the passes before took longer than it takes."""
        ids = self._table.column(self.id_column)
        is_plain = wanted.type == ids.type == pa.string() and not wanted.null_count
        if not is_plain or len(wanted) * _FEW_IDS > len(ids):
            return None
        if self._lookup is None:
            self._num_passes += 1  # of two threads one may be forgotten, or both make the table: no harm
            if self._num_passes > _PASSES_BEFORE_LOOKUP and not ids.null_count:
                self._lookup = IdLookup(ids)
        return self._lookup

    def column(self, name: str) -> pa.ChunkedArray:
        """Return a column: a metadata column, "title", "entity_id" or, where there are any, "aliases".

        A dictionary-encoded column is decoded, which copies it.

        Raises:
            ValueError: no such column; the text lists those there are.
        """
        column = self.stored_column(name)
        if pa.types.is_dictionary(column.type):
            return column.cast(column.type.value_type)
        return column

    def stored_column(self, name: str) -> pa.ChunkedArray:
        """Return a column as it lies in the file, zero-copy: strings that repeat are dictionary-encoded.

        All chunks share one dictionary, sorted by code points.

        Raises:
            ValueError: no such column; the text lists those there are.
        """
        if name == ENTITY_ID:
            return self._table.column(self.id_column)
        if name not in self._table.column_names:
            known = list(dict.fromkeys([ENTITY_ID, *self._table.column_names]))
            raise ValueError(f"column: expected one of {known}, got {name!r}")
        return self._table.column(name)

    def slice(self, begin: int, end: int) -> pa.Table:
        """Return entities begin … end - 1 as they lie in the file, zero-copy."""
        return self._table.slice(begin, end - begin)

    def take(self, numbers: IntArray) -> pa.Table:
        """Return entities as they lie in the file, in the given order.

        Args:
            numbers: At least one. Shape: (n,).
        """
        order = np.argsort(numbers, kind="stable")
        batch, at = np.divmod(numbers[order], ENTITY_BATCH_ROWS)
        present, begins = np.unique(batch, return_index=True)
        parts = [
            self._batches[i].take(as_arrow(places))
            for i, places in zip(present.tolist(), np.split(at, begins[1:]), strict=True)
        ]
        back = np.empty(len(order), dtype=np.int64)
        back[order] = np.arange(len(order))
        return pa.Table.from_batches(parts).combine_chunks().take(as_arrow(back))

    def _locate(self, number: int) -> tuple[pa.RecordBatch, int]:
        if not 0 <= number < len(self):
            raise ValueError(f"entity number: expected 0 <= number < {len(self)}, got {number}")
        batch, at = divmod(number, ENTITY_BATCH_ROWS)
        return self._batches[batch], at


def _strings(entity_ids: Sequence[str] | pa.Array) -> pa.Array:
    return entity_ids if isinstance(entity_ids, pa.Array) else pa.array(entity_ids, type=pa.string())


class Postings:
    """Row -> entities, many to many.

    Attributes:
        offsets: Postings of rank r are offsets[r] … offsets[r + 1] - 1. Shape: (R + 1,), int32.
        entity: Entity number of each posting, ascending within a rank. Shape: (P,), int32.
        form: Which of the entity's forms the row is: 0 the title, n the n-th alias. Shape: (P,), unsigned.
    """

    __slots__ = ("entity", "form", "offsets")

    def __init__(self, offsets: IntArray, entity: IntArray, form: IntArray) -> None:
        self.offsets = offsets
        self.entity = entity
        self.form = form

    @classmethod
    def from_table(cls, table: pa.Table, name: str) -> Postings:
        """Wrap postings.arrow, zero-copy.

        Raises:
            IndexFormatError: the table is stored in several pieces.
        """
        lists = single_chunk(table, name, "postings")
        values = lists.values
        return cls(as_numpy(lists.offsets), as_numpy(values.field("entity")), as_numpy(values.field("form")))

    @classmethod
    def one_to_one(cls, num_rows: int) -> Postings:
        """Return the postings of an index in which row r is the title of entity r."""
        every = np.arange(num_rows + 1, dtype=np.int32)
        return cls(every, every[:-1], np.zeros(num_rows, dtype=np.uint8))

    def of(self, rank: int) -> list[tuple[int, int]]:
        """Return (entity number, form) of every entity that row `rank` names."""
        begin, end = int(self.offsets[rank]), int(self.offsets[rank + 1])
        return list(zip(self.entity[begin:end].tolist(), self.form[begin:end].tolist(), strict=True))
