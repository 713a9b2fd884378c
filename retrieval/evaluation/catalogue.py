"""Entities of an index by what texts call them: for labels, and for titles written without a constraint."""

from __future__ import annotations

from functools import cached_property

import pyarrow as pa

from retrieval.index.layout import ALIASES, ENTITY_ID, TITLE
from retrieval.index.reader import Index
from retrieval.normalize import normalize


class IndexTitles:
    """Finds entities by id, by title and by alias; a `TitleResolver`.

    Each table is made when it is first asked for: some 150 bytes per id, title or alias.

    Args:
        index: An open index.
    """

    def __init__(self, index: Index) -> None:
        self._index = index

    def by_id(self, entity_id: str) -> str | None:
        """Return the entity's id, or None where the index has no such entity."""
        return entity_id if entity_id in self._numbers else None

    def by_title(self, title: str) -> str | None:
        """Return the id of the entity with this title after the text policy; aliases second.

        Of several entities with the title, or with the alias, the one that stands first in the index.
        """
        found = self.named(title)
        return self._index.entity(found[0]).entity_id if found else None

    def named(self, text: str) -> list[int]:
        """Return the numbers of the entities with this title or alias: those with the title first."""
        name = normalize(text)
        titled = self._titles.get(name, ())
        aliased = [number for number in self._aliases.get(name, ()) if number not in titled]
        return [*titled, *aliased]

    @cached_property
    def _numbers(self) -> dict[str, int]:
        ids = self._index.entities.column(ENTITY_ID).to_pylist()
        return {entity_id: number for number, entity_id in enumerate(ids)}

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
