"""Entities of an index by id, and by what a model wrote without a constraint."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np
import pyarrow as pa

from retrieval.index.layout import ALIASES, TITLE
from retrieval.index.owners import Owners, form_owners
from retrieval.index.reader import Index
from retrieval.normalize import normalize
from retrieval.types import Entity


class IndexTitles:
    """Finds entities by id, by title and by alias.

    The tables of titles and aliases are made when they are first asked for: some 200 bytes per text.

    Args:
        index: An open index.
    """

    def __init__(self, index: Index) -> None:
        self._index = index

    def known(self, entity_ids: Sequence[str]) -> set[str]:
        """Return those of the ids that the index has."""
        numbers = self._index.entities.numbers(entity_ids).tolist()
        return {i for n, i in zip(numbers, entity_ids, strict=True) if n >= 0}

    def entities(self, entity_ids: Sequence[str]) -> dict[str, Entity]:
        """Return those of the entities that the index has, by their ids."""
        numbers = self._index.entities.numbers(entity_ids).tolist()
        return {i: self._index.entity(n) for n, i in zip(numbers, entity_ids, strict=True) if n >= 0}

    def named(self, text: str, title_weight: float) -> Owners:
        """Return the entities with this title or alias, and their shares of it."""
        name = normalize(text)
        titled = self._titles.get(name, ())
        numbers = np.array(sorted({*titled, *self._aliases.get(name, ())}), dtype=np.int64)
        return form_owners(self._index, numbers, np.isin(numbers, titled), title_weight)

    @cached_property
    def _titles(self) -> dict[str, tuple[int, ...]]:
        titles = self._index.entities.column(TITLE).to_pylist()
        table: dict[str, tuple[int, ...]] = {}
        for number, title in enumerate(titles):
            table[title] = (*table.get(title, ()), number)
        return table

    @cached_property
    def _aliases(self) -> dict[str, tuple[int, ...]]:
        table: dict[str, tuple[int, ...]] = {}
        for number, aliases in enumerate(aliases_of(self._index)):
            for alias in aliases:
                table[alias] = (*table.get(alias, ()), number)
        return table


def aliases_of(index: Index) -> list[list[str]]:
    """Return the aliases of every entity, by its number; empty where the index stores none."""
    try:
        column: pa.ChunkedArray = index.entities.column(ALIASES)
    except ValueError:  # no such column: no entity has any
        return []
    return [aliases or [] for aliases in column.to_pylist()]
