"""Filters are kept within a bound on their bytes, the least recently used going first."""

from __future__ import annotations

import numpy as np
import pytest

from genret.decoding.bounded_cache import BoundedCache
from genret.decoding.trie.row_filter import RowFilter
from genret.retrieval.arguments import FilterKey
from genret.retrieval.errors import InputError
from genret.retrieval.filters.entity_filter import EntityFilter, FilterStore, kept_bytes
from tests.own_process import TracedMemory, alone

ROWS = 9


def some_filter(rows: int = ROWS) -> EntityFilter:
    mask = np.ones(rows, dtype=np.bool_)
    return EntityFilter(mask, rows, RowFilter.from_mask(mask))


def key(name: str) -> FilterKey:
    return FilterKey(name, "", "")


SIZE = kept_bytes(key("a"), some_filter())


def cache_of(max_bytes: int) -> BoundedCache[FilterKey, EntityFilter]:
    return BoundedCache(max_bytes, kept_bytes)


def refuse() -> EntityFilter:
    raise AssertionError("made again")


def test_over_a_small_index_the_bound_holds_for_what_is_around_the_counts() -> None:
    """A predicate may be a thousand times as long as its counts."""
    held, size, num_dropped, num_kept = alone(held_by_many_predicates)
    assert held < size <= 2**20
    assert num_dropped + num_kept == 2000


def held_by_many_predicates() -> tuple[int, int, int, int]:
    cache = cache_of(2**20)
    with TracedMemory() as memory:
        for number in range(2000):
            cache.get_or_make(key(f"{number} " + "x" * 10_000), some_filter)
    return memory.held, cache.size, cache.evictions, len(cache)


def test_what_is_kept_is_not_made_again_until_the_cache_is_cleared() -> None:
    cache = cache_of(2**20)
    made = cache.get_or_make(key("a"), some_filter)
    assert cache.get_or_make(key("a"), refuse) is made
    assert cache.get_or_make(FilterKey("a", "x", ""), some_filter) is not made
    assert (cache.hits, cache.misses, cache.evictions) == (1, 2, 0)
    assert (len(cache), cache.size) == (2, 2 * SIZE)
    cache.clear()
    assert (len(cache), cache.size, cache.misses) == (0, 0, 2), "the counts stay"
    cache.get_or_make(key("a"), some_filter)
    assert cache.size == SIZE


def test_the_least_recently_used_goes_first() -> None:
    cache = cache_of(2 * SIZE)
    a = cache.get_or_make(key("a"), some_filter)
    cache.get_or_make(key("b"), some_filter)
    cache.get_or_make(key("a"), refuse)
    cache.get_or_make(key("c"), some_filter)
    assert cache.get_or_make(key("a"), refuse) is a
    cache.get_or_make(key("c"), refuse)
    b = cache.get_or_make(key("b"), some_filter)
    assert cache.get_or_make(key("b"), refuse) is b
    assert (len(cache), cache.size, cache.evictions) == (2, 2 * SIZE, 2)


@pytest.mark.parametrize("bound", [-1, 1.5, True, None])
def test_bounds_that_are_none(bound: object) -> None:
    with pytest.raises(InputError, match="filter_cache_bytes: must be an integer of at least 0"):
        FilterStore(None, "cpu", bound)  # type: ignore[arg-type]
