"""Makes filters of restrictions, keeps them, and hands them out by batch.

An `EntityFilter` is what decoding and ranking need: allowed entities, and allowed rows of the trie.
`FilterStore` checks and makes the filters of one index on demand; `FilterCache` keeps those last used,
within a bound on their memory.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import torch

from decoding.bounded_cache import BoundedCache
from decoding.cancellation import CancelToken
from decoding.constraints import Constraint
from decoding.errors import DecodingCancelledError
from decoding.trie.row_filter import FilteredTrie, RowFilter, counts_before
from decoding.trie.title_trie import TitleTrie
from retrieval.errors import InputError
from retrieval.filters.check import check
from retrieval.filters.evaluate import evaluate
from retrieval.filters.restriction import FilterKey, Restriction
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


# The different filters of one batch, which stay in memory while it is decoded, kept or not. It also bounds
# their number far below what decoding's states can tell apart.
_MAX_BATCH_BYTES = 512 * 2**20
# Of a filter: for each row and for each entity.
_ROW_BYTES, _ENTITY_BYTES = 4, 1


class FilterStore:
    """Filters by restriction.

    Args:
        index: An open index.
        device: Where the states of its trie live.
        max_bytes: Bound on the memory of the filters kept.

    Attributes:
        max_bytes: The bound.

    Raises:
        InputError: the bound is negative.
    """

    def __init__(self, index: Index, device: torch.device | str, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self._cache = FilterCache(max_bytes)
        self._maker = FilterMaker(index, device)
        size = _ROW_BYTES * (index.num_rows + 1) + _ENTITY_BYTES * index.num_entities
        self._most = max(1, _MAX_BATCH_BYTES // size)

    @property
    def stats(self) -> FilterCacheStats:
        """What was asked for and what is kept."""
        return self._cache.stats

    def clear(self) -> None:
        """Give up the filters kept."""
        self._cache.clear()

    def check(self, restriction: Restriction) -> None:
        """Refuse a predicate that does not fit the index; costs next to nothing, from any thread.

        Raises:
            InputError: its field is "filter".
        """
        self._maker.check(restriction)

    def batches(
        self,
        restrictions: Sequence[Restriction],
        max_size: int,
        cancel: Sequence[CancelToken | None] | None = None,
    ) -> Iterator[list[EntityFilter | DecodingCancelledError | None]]:
        """Cut requests, in their order, into batches whose filters fit into memory together.

        The filters of a batch are made when it is asked for. Equal restrictions share one filter.

        Args:
            restrictions: Ones that `check` let pass.
            max_size: Most requests in a batch.
            cancel: Polled while a request's filter is made, one per request.

        Yields:
            Per request of the next batch its filter, None where nothing is restricted, or what ended the
            making of it.
        """
        batch: list[EntityFilter | DecodingCancelledError | None] = []
        used: dict[FilterKey, EntityFilter] = {}
        for restriction, token in zip(restrictions, cancel or [None] * len(restrictions), strict=True):
            key = None if restriction.is_open else restriction.key()
            is_new = key is not None and key not in used
            if batch and (len(batch) >= max_size or (is_new and len(used) >= self._most)):
                yield batch
                batch, used = [], {}
            if key is None:
                batch.append(None)
                continue
            try:
                if key not in used:
                    poll = None if token is None else token.check
                    used[key] = self._cache.get_or_make(key, partial(self._maker.make, restriction, poll))
                batch.append(used[key])
            except DecodingCancelledError as error:
                batch.append(error)
        if batch:
            yield batch


DEFAULT_FILTER_CACHE_BYTES = 256 * 2**20
_MAX_BYTES = 2**50
# What objects that make up a kept filter take besides their data: over a small index, most of it.
_OBJECT_BYTES = 2048


@dataclass(frozen=True, slots=True)
class FilterCacheStats:
    """What a cache has done and holds.

    Attributes:
        hits: Filters that were there.
        misses: Filters that had to be made.
        evictions: Filters given up for others.
        num_filters: Filters held.
        num_bytes: Their memory, that of their keys included.
        max_bytes: Bound on it.
    """

    hits: int
    misses: int
    evictions: int
    num_filters: int
    num_bytes: int
    max_bytes: int


def kept_bytes(key: FilterKey, made: EntityFilter) -> int:
    """Return the memory it takes to keep a filter under a key."""
    return made.num_bytes + sys.getsizeof(key.predicate) + _OBJECT_BYTES


class FilterCache(BoundedCache[FilterKey, EntityFilter]):
    """The filters last used, of one index version.

    A filter that is larger than the bound alone is made, used and not kept. Two threads that miss the same
    filter at once both make it, because either may be cancelled.

    Args:
        max_bytes: Bound on the memory of all filters held; 0 keeps none.

    Raises:
        InputError: the bound is negative or no integer.
    """

    def __init__(self, max_bytes: int = DEFAULT_FILTER_CACHE_BYTES) -> None:
        if isinstance(max_bytes, bool) or not isinstance(max_bytes, int) or not 0 <= max_bytes <= _MAX_BYTES:
            raise InputError("filter_cache_bytes", f"must be an integer of at least 0, got {max_bytes!r}")
        super().__init__(max_bytes, kept_bytes)

    @property
    def stats(self) -> FilterCacheStats:
        """What the cache has done and holds."""
        with self.lock:
            return FilterCacheStats(
                hits=self.hits,
                misses=self.misses,
                evictions=self.evictions,
                num_filters=len(self),
                num_bytes=self.size,
                max_bytes=self.max_size,
            )
