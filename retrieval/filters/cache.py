"""Filters that were made, kept by what they say, within a bound on their memory."""

from __future__ import annotations

import sys
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from threading import Lock

from retrieval.errors import InputError
from retrieval.filters.entity_filter import EntityFilter
from retrieval.filters.restriction import FilterKey

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


class FilterCache:
    """The filters last used, of one index version, up to a number of bytes.

    A filter that is larger than the bound alone is made, used and not kept; it displaces nothing. Filters in
    use stay alive with the requests that use them, whatever the cache gives up meanwhile. Safe to use from
    several threads; two that miss the same filter at once both make it.

    Args:
        max_bytes: Bound on the memory of all filters held; 0 keeps none.

    Raises:
        InputError: the bound is negative or no integer.
    """

    def __init__(self, max_bytes: int = DEFAULT_FILTER_CACHE_BYTES) -> None:
        if isinstance(max_bytes, bool) or not isinstance(max_bytes, int) or not 0 <= max_bytes <= _MAX_BYTES:
            raise InputError("filter_cache_bytes", f"must be an integer of at least 0, got {max_bytes!r}")
        self._max_bytes = max_bytes
        self._filters: OrderedDict[FilterKey, EntityFilter] = OrderedDict()
        self._lock = Lock()
        self._num_bytes = self._hits = self._misses = self._evictions = 0

    def get(self, key: FilterKey, make: Callable[[], EntityFilter]) -> EntityFilter:
        """Return the filter of a key, made now if it is not there; what `make` raises is passed on."""
        with self._lock:
            found = self._filters.get(key)
            if found is not None:
                self._hits += 1
                self._filters.move_to_end(key)
                return found
            self._misses += 1
        made = make()
        with self._lock:
            self._keep(key, made)
        return made

    def clear(self) -> None:
        """Give up everything held; the counts stay."""
        with self._lock:
            self._filters.clear()
            self._num_bytes = 0

    @property
    def stats(self) -> FilterCacheStats:
        """What the cache has done and holds."""
        with self._lock:
            return FilterCacheStats(
                hits=self._hits,
                misses=self._misses,
                evictions=self._evictions,
                num_filters=len(self._filters),
                num_bytes=self._num_bytes,
                max_bytes=self._max_bytes,
            )

    def _keep(self, key: FilterKey, made: EntityFilter) -> None:
        size = kept_bytes(key, made)
        if size > self._max_bytes or key in self._filters:
            return
        self._filters[key] = made
        self._num_bytes += size
        while self._num_bytes > self._max_bytes:
            self._num_bytes -= kept_bytes(*self._filters.popitem(last=False))
            self._evictions += 1
