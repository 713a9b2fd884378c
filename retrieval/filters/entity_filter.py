"""Makes the filters of restrictions, caches them, and hands them out by batch."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt
import torch

from genret.decoding.bounded_cache import BoundedCache, CacheCounts
from genret.decoding.cancellation import CancelToken
from genret.decoding.constraints import StaticConstraint
from genret.decoding.errors import DecodingCancelledError
from genret.decoding.trie.row_filter import FilteredTrie, RowFilter, counts_before
from genret.decoding.trie.title_trie import TitleTrie
from genret.retrieval.arguments import FilterKey, Restriction, check_count
from genret.retrieval.filters.evaluate import check_restriction, entity_mask
from genret.retrieval.index.reader import Index

BoolArray = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True, eq=False)
class EntityFilter:
    """The entities that a request may be answered with. Immutable."""

    allowed: BoolArray  # mask by entity number; shape (num_entities,), bool
    num_allowed: int
    rows: RowFilter  # rows of the trie that name at least one of them

    @property
    def num_bytes(self) -> int:
        """Memory of the mask and of the counts over the rows."""
        return self.allowed.nbytes + self.rows.num_bytes


def mask_of(allowed: EntityFilter | None) -> BoolArray | None:
    """Return the mask of a filter, or None without a filter."""
    return None if allowed is None else allowed.allowed


def constraint_of(trie: TitleTrie, filters: Sequence[EntityFilter | None]) -> StaticConstraint:
    """Return the constraint of a batch: per query any title, or those its filter allows."""
    if all(allowed is None for allowed in filters):
        return trie
    return FilteredTrie(trie, [None if allowed is None else allowed.rows for allowed in filters])


DEFAULT_FILTER_CACHE_BYTES = 256 * 2**20
# Memory of the Python objects of a kept filter: over a small index, most of it.
_OBJECT_BYTES = 2048
# Memory of the distinct filters of one batch, which all stay while it is decoded. It also keeps their number
# far below what decoding's states can tell apart.
_MAX_BATCH_BYTES = 512 * 2**20
# Bytes of a filter per row and per entity.
_ROW_BYTES, _ENTITY_BYTES = 4, 1


def kept_bytes(key: FilterKey, made: EntityFilter) -> int:
    """Return the memory of a kept filter with its key."""
    return made.num_bytes + sys.getsizeof(key.predicate) + _OBJECT_BYTES


class FilterStore:
    """Makes the filters of one open index; their rows live on `device`, like the states of its trie.

    Those last used are kept by restriction, in at most `max_bytes`; a larger one is made, used and not kept.
    Two threads that miss the same filter at once both make it, because either may be cancelled.

    Attributes:
        cache: The filters kept; its size is in bytes, those of the keys included.

    Raises:
        InputError: the bound is negative or no integer.
    """

    def __init__(
        self, index: Index, device: torch.device | str, max_bytes: int = DEFAULT_FILTER_CACHE_BYTES
    ) -> None:
        check_count("filter_cache_bytes", max_bytes)
        self.cache: BoundedCache[FilterKey, EntityFilter] = BoundedCache(max_bytes, kept_bytes)
        self._index = index
        self._device = torch.device(device)
        size = _ROW_BYTES * (index.num_rows + 1) + _ENTITY_BYTES * index.num_entities
        self._most = max(1, _MAX_BATCH_BYTES // size)

    @property
    def stats(self) -> CacheCounts:
        """The counters of the cache."""
        return self.cache.counts

    def check(self, restriction: Restriction) -> None:
        """Raise InputError for "filter" if a predicate does not fit the index; cheap, and from any thread."""
        check_restriction(self._index, restriction)

    def make(self, restriction: Restriction, poll: Callable[[], None] | None = None) -> EntityFilter:
        """Make the filter of a restriction: one pass over its columns, one over the rows.

        `poll` is called now and then; an exception from it ends the making.

        Raises:
            InputError: the predicate does not fit the index.
        """
        self.check(restriction)
        allowed = entity_mask(self._index, restriction, poll)
        allowed.flags.writeable = False
        return EntityFilter(allowed, int(np.count_nonzero(allowed)), self._rows(allowed))

    def batches(
        self,
        restrictions: Sequence[Restriction],
        max_size: int,
        cancel: Sequence[CancelToken | None] | None = None,
    ) -> Iterator[list[EntityFilter | DecodingCancelledError | None]]:
        """Cut requests, in order, into batches of at most `max_size` whose filters fit into memory together.

        The restrictions have passed `check`. The filters of a batch are made when it is asked for, and shared
        by equal restrictions; a request's token is polled meanwhile. Yields per request of a batch its
        filter, None where nothing is restricted, or the error that ended the making.
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
                    used[key] = self.cache.get_or_make(key, partial(self.make, restriction, poll))
                batch.append(used[key])
            except DecodingCancelledError as error:
                batch.append(error)
        if batch:
            yield batch

    def _rows(self, allowed: BoolArray) -> RowFilter:
        if self._index.is_one_to_one:
            return RowFilter.from_mask(allowed, self._device)
        postings = self._index.postings
        # Counts of allowed postings before every row grow exactly where a row has one.
        before = counts_before(allowed[postings.entity].view(np.int8))
        return RowFilter.from_prefix(before[postings.offsets], self._device)
