"""A version that is already there as a sorted run: nothing of it is tokenised again."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from index_builder.runs import FormSlice
from index_builder.sort import gather_rows
from retrieval.index.layout import ALIASES, ENTITY_ID, TITLE
from retrieval.index.reader import Index


class VersionRun:
    """A `Run` over an open index, whose row order and entity order are already those of a run.

    Its files are mapped: what has been read of them counts as resident, but the system may take it back.

    Args:
        index: Open; `close` closes it.
    """

    def __init__(self, index: Index) -> None:
        self._index = index
        self._offsets = index.postings.offsets
        self.num_entities = index.num_entities
        self.num_forms = index.manifest.counts.postings
        self.keep: npt.NDArray[np.bool_] = np.ones(index.num_entities, dtype=bool)
        self.has_ids = index.manifest.stored_ids

    def find(self, row: Sequence[int]) -> int:
        """Return how many forms sort before `row`."""
        return int(self._offsets[self._index.rows.lower_bound(row)])

    def row(self, number: int) -> tuple[int, ...]:
        """Return the row of form `number`."""
        return self._index.rows.token_ids(self._rank(number))

    def forms(self, begin: int, end: int) -> FormSlice:
        """Return forms begin … end - 1."""
        first, last = (self._rank(begin), self._rank(end - 1) + 1) if begin < end else (0, 0)
        tokens, offsets = self._index.rows.slice(first, last)
        if last - first != end - begin:  # several entities share a row
            bounds = np.clip(self._offsets[first : last + 1], begin, end)
            repeated = np.repeat(np.arange(last - first), np.diff(bounds))
            tokens, offsets = gather_rows(tokens, offsets, repeated)
        postings = self._index.postings
        return FormSlice(
            tokens=tokens,
            offsets=offsets,
            entity=postings.entity[begin:end].astype(np.int64),
            form=postings.form[begin:end].astype(np.int32),
        )

    def entities(self, begin: int, end: int) -> pa.Table:
        """Return entities begin … end - 1: id, title, aliases and metadata, decoded."""
        return self._decoded(self._index.entities.slice(begin, end))

    def entities_at(self, numbers: npt.NDArray[np.int64]) -> pa.Table:
        """Return some entities in the given order, with the columns of `entities`. Shape: (n,), n > 0."""
        return self._decoded(self._index.entities.take(numbers))

    def numbers(self, entity_ids: pa.Array) -> npt.NDArray[np.int64]:
        """Return the numbers of entities by their ids; -1 where an id is unknown."""
        return self._index.entities.numbers(entity_ids).astype(np.int64)

    def close(self) -> None:
        """Let go of the index."""
        self._index.close()

    def _decoded(self, stored: pa.Table) -> pa.Table:
        title = stored.column(TITLE)
        aliases = stored.column(ALIASES) if ALIASES in stored.column_names else _no_aliases(stored.num_rows)
        columns = {
            ENTITY_ID: stored.column(ENTITY_ID) if self.has_ids else title,
            TITLE: title,
            ALIASES: aliases,
        }
        for name in self._index.metadata_columns:
            column = stored.column(name)
            if pa.types.is_dictionary(column.type):
                column = column.cast(column.type.value_type)
            columns[name] = column
        return pa.table(columns)

    def _rank(self, form: int) -> int:
        return int(np.searchsorted(self._offsets, self._offsets.dtype.type(form), side="right")) - 1


def _no_aliases(count: int) -> pa.Array:
    offsets = pa.array(np.zeros(count + 1, dtype=np.int32))
    return pa.ListArray.from_arrays(offsets, pa.array([], type=pa.string()))
