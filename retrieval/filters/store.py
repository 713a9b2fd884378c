"""The filters of one index: checked, made on demand, kept for further requests, handed out by batch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

import torch

from retrieval.filters.cache import FilterCache, FilterCacheStats
from retrieval.filters.entity_filter import EntityFilter, FilterMaker
from retrieval.filters.restriction import FilterKey, Restriction
from retrieval.index.reader import Index

# Row counts of the different filters of one batch, which decoding copies into one table. It also bounds the
# lanes of that table far below what its states can tell apart.
_MAX_BATCH_BYTES = 512 * 2**20
_COUNT_BYTES = 4


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
        self._most = max(1, _MAX_BATCH_BYTES // (_COUNT_BYTES * (index.num_rows + 1)))

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
        self, restrictions: Sequence[Restriction], max_size: int
    ) -> Iterator[list[EntityFilter | None]]:
        """Cut requests, in their order, into batches whose filters fit into memory together.

        The filters of a batch are made when it is asked for. Equal restrictions share one filter.

        Args:
            restrictions: Ones that `check` let pass.
            max_size: Most requests in a batch.

        Yields:
            Per request of the next batch its filter, None where nothing is restricted.
        """
        batch: list[EntityFilter | None] = []
        used: dict[FilterKey, EntityFilter] = {}
        for restriction in restrictions:
            key = None if restriction.is_open else restriction.key()
            is_new = key is not None and key not in used
            if batch and (len(batch) >= max_size or (is_new and len(used) >= self._most)):
                yield batch
                batch, used = [], {}
            if key is None:
                batch.append(None)
                continue
            if key not in used:
                used[key] = self._cache.get(key, partial(self._maker.make, restriction))
            batch.append(used[key])
        if batch:
            yield batch
