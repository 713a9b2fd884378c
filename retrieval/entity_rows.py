"""The rows of entities: postings the other way round."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from retrieval.index.reader import Index

# Of a sort key: the entity above, then whether it is an alias, then the rank, which is below 2**31.
_ENTITY_SHIFT, _ALIAS_SHIFT = 32, 31


class EntityRows:
    """Finds the rows of entities.

    Where entities have aliases, the postings are turned round on first use: one sort, a quarter of a second
    for eight million of them, and from then on four bytes for each and eight for each entity. Safe to use
    from several threads.

    Args:
        index: An open index.
    """

    def __init__(self, index: Index) -> None:
        self._index = index
        self._turned: tuple[npt.NDArray[np.int64], npt.NDArray[np.int32]] | None = None

    def of(self, entity: int) -> list[int]:
        """Return the ranks of the distinct rows of an entity, its title's first."""
        if self._index.is_one_to_one:
            return [entity]
        offsets, ranks = self._postings()
        mine: list[int] = ranks[offsets[entity] : offsets[entity + 1]].tolist()
        return mine

    def of_all(self, entities: Sequence[int], most: int) -> tuple[list[list[int]], bool]:
        """Return the rows of several entities, as far as there is space for them.

        Where they have more than `most` rows together, those with the most are cut, all to one number of rows
        and never below their title's.

        Args:
            entities: None of them twice.
            most: Rows wanted, at most; at least one per entity is returned all the same.

        Returns:
            rows: Per entity its rows, its title's first.
            is_whole: Whether none was left out.
        """
        rows = [self.of(entity) for entity in entities]
        counts = np.array([len(mine) for mine in rows], dtype=np.int64)
        if counts.sum() <= most:
            return rows, True
        low, high = 1, int(counts.max())  # the largest cut that fits lies in [low, high)
        while high - low > 1:
            middle = (low + high) // 2
            if np.minimum(counts, middle).sum() <= most:
                low = middle
            else:
                high = middle
        return [mine[:low] for mine in rows], low == int(counts.max())

    def _postings(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int32]]:
        if self._turned is None:
            index = self._index
            postings = index.postings
            keys = postings.entity.astype(np.int64) << _ENTITY_SHIFT
            keys |= (postings.form > 0).astype(np.int64) << _ALIAS_SHIFT
            keys |= np.repeat(np.arange(index.num_rows, dtype=np.int64), np.diff(postings.offsets))
            keys.sort()
            ranks = (keys & ((1 << _ALIAS_SHIFT) - 1)).astype(np.int32)
            offsets = np.zeros(index.num_entities + 1, dtype=np.int64)
            np.cumsum(index.forms_per_entity, out=offsets[1:])
            self._turned = (offsets, ranks)
        return self._turned
