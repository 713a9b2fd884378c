"""Postings: which entities a row names, known only when every entity has its number."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from index_builder.durable import naming
from index_builder.runs import IntArray
from index_builder.version_files import VersionFiles
from retrieval.index.layout import POSTINGS_FILE, postings_schema, smallest_unsigned


class PostingSpill:
    """Takes postings in rank order, by source instead of entity number, and writes postings.arrow.

    A *source* numbers the entities of all runs in one sequence. The title of an entity may sort long after
    its alias, so numbers are put in at the end: 12 bytes per posting on disk until then, and 4 bytes per
    source in memory for the map. Writing takes about 13 bytes per posting and 4 per row.

    Args:
        work: A directory for the spill.
        num_sources: Entities of all runs.
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
        """Give entities the next numbers, in this order. Shape: (n,)."""
        begin = self.num_entities
        self.num_entities += len(sources)
        self._number[sources] = np.arange(begin, self.num_entities, dtype=np.int32)

    def add(self, rank: IntArray, source: IntArray, form: IntArray, num_rows: int) -> None:
        """Append the postings of the next `num_rows` rows; an entity's forms of one row count as the first.

        Args:
            rank: Ascending, from 0 for the first of these rows; every row has one. Shape: (n,).
            source: Shape: (n,).
            form: Shape: (n,).
            num_rows: Rows.
        """
        rank, source, form = _distinct(rank, source, form)
        self.one_to_one = self.one_to_one and len(rank) == num_rows and not form.any()
        with naming(self._path), self._path.open("ab") as file:
            for array in (rank, source, form):
                file.write(array.astype(np.int32).data)
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
    tied = _tied(rank)
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
    tied = _tied(rank)
    order[tied] = tied[np.lexsort((entity[tied], rank[tied]))]
    return order


def _tied(rank: IntArray) -> npt.NDArray[np.int64]:
    """Return the places whose rank also stands beside them."""
    same = rank[1:] == rank[:-1]
    tied = np.zeros(len(rank), dtype=bool)
    tied[1:] |= same
    tied[:-1] |= same
    return np.flatnonzero(tied)
