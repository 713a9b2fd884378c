"""The filters of one index: checked, made on demand, kept for further requests, handed out by batch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

import torch

from decoding.cancellation import CancelToken
from decoding.errors import DecodingCancelledError
from retrieval.filters.cache import FilterCache, FilterCacheStats
from retrieval.filters.entity_filter import EntityFilter, FilterMaker
from retrieval.filters.restriction import FilterKey, Restriction
from retrieval.index.reader import Index

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
                    used[key] = self._cache.get(key, partial(self._maker.make, restriction, poll))
                batch.append(used[key])
            except DecodingCancelledError as error:
                batch.append(error)
        if batch:
            yield batch
