"""From a restriction to what decoding and ranking need: allowed entities, and allowed rows of the trie."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import torch

from decoding.row_filter import FilteredTrie, RowFilter, counts_before
from decoding.title_trie import TitleTrie
from decoding.types import Constraint
from retrieval.filters.check import check
from retrieval.filters.evaluate import evaluate
from retrieval.filters.restriction import Restriction
from retrieval.index.layout import ENTITY_ID, TITLE
from retrieval.index.reader import Index

BoolArray = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True, eq=False)
class EntityFilter:
    """The entities a request may be answered with. Immutable.

    Attributes:
        allowed: By entity number. Shape: (num_entities,), bool.
        num_allowed: How many are.
        rows: The rows of the trie that name at least one of them.
    """

    allowed: BoolArray
    num_allowed: int
    rows: RowFilter

    @property
    def num_bytes(self) -> int:
        """Memory of the mask and of the counts over the rows."""
        return self.allowed.nbytes + self.rows.num_bytes


def mask_of(allowed: EntityFilter | None) -> BoolArray | None:
    """Return which entities a filter allows, by number; None without a filter."""
    return None if allowed is None else allowed.allowed


def constraint_of(trie: TitleTrie, filters: Sequence[EntityFilter | None]) -> Constraint:
    """Return what may be written: any title, or per query a title of an entity that its filter allows."""
    if all(allowed is None for allowed in filters):
        return trie
    return FilteredTrie(trie, [None if allowed is None else allowed.rows for allowed in filters])


class FilterMaker:
    """Makes the filters of one index.

    Args:
        index: An open index.
        device: Where the states of its trie live.
    """

    def __init__(self, index: Index, device: torch.device | str) -> None:
        self._index = index
        self._device = torch.device(device)

    def check(self, restriction: Restriction) -> None:
        """Refuse a predicate that does not fit the index; looks at names and types only.

        Raises:
            InputError: its field is "filter".
        """
        if restriction.predicate is not None:
            names = (*self._index.entities.metadata_columns, ENTITY_ID, TITLE)
            check(restriction.predicate, {name: self._column(name).type for name in names})

    def make(self, restriction: Restriction, poll: Callable[[], None] | None = None) -> EntityFilter:
        """Return the filter of a restriction: one pass over the columns it names, one over the rows.

        Args:
            restriction: What passes.
            poll: Called now and then; what it raises ends the making.

        Raises:
            InputError: the predicate does not fit the index.
        """
        self.check(restriction)
        allowed = self._entities(restriction, poll)
        allowed.flags.writeable = False
        return EntityFilter(allowed, int(np.count_nonzero(allowed)), self._rows(allowed))

    def _entities(self, restriction: Restriction, poll: Callable[[], None] | None) -> BoolArray:
        num_entities = self._index.num_entities
        if restriction.predicate is None:
            allowed = np.ones(num_entities, dtype=np.bool_)
        else:
            allowed = evaluate(restriction.predicate, self._column, num_entities, poll)
        if restriction.allow_ids is not None:
            allowed &= self._are_among(restriction.allow_ids)
        if restriction.deny_ids:
            allowed &= ~self._are_among(restriction.deny_ids)
        return allowed

    def _rows(self, allowed: BoolArray) -> RowFilter:
        if self._index.is_one_to_one:
            return RowFilter.from_mask(allowed, self._device)
        postings = self._index.postings
        # Counts of allowed postings before every row: they grow exactly where a row has one.
        before = counts_before(allowed[postings.entity].view(np.int8))
        return RowFilter.from_prefix(before[postings.offsets], self._device)

    def _are_among(self, ids: tuple[str, ...]) -> BoolArray:
        """Return which entities have one of the ids; ids the index lacks have no effect."""
        mask = np.zeros(self._index.num_entities, dtype=np.bool_)
        numbers = self._index.entities.find(ids)
        mask[numbers[numbers >= 0]] = True
        return mask

    def _column(self, name: str) -> pa.ChunkedArray:
        return self._index.entities.stored_column(name)
