"""Entities of an index by what texts call them: for labels, and for titles written without a constraint."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import pyarrow as pa

from retrieval.index.layout import ALIASES, TITLE
from retrieval.index.reader import Index
from retrieval.normalize import normalize
from retrieval.types import Entity


class IndexTitles:
    """Finds entities by id, by title and by alias; a `TitleResolver`.

    The tables of titles and aliases are made when they are first asked for: some 200 bytes per text.

    Args:
        index: An open index.
    """

    def __init__(self, index: Index) -> None:
        self._index = index

    def by_ids(self, entity_ids: Sequence[str]) -> list[str | None]:
        """Return the id of each entity, or None where the index has no such entity."""
        numbers = self._index.entities.numbers(entity_ids).tolist()
        return [None if n < 0 else i for n, i in zip(numbers, entity_ids, strict=True)]

    def by_titles(self, titles: Sequence[str]) -> list[tuple[str, ...]]:
        """Return the ids of all entities that each title names, in the index's order; () where none does.

        Those whose title it is after the text policy; where there are none, those whose alias it is.
        """
        found = []
        for title in titles:
            name = normalize(title)
            numbers = self._titles.get(name) or self._aliases.get(name, ())
            found.append(tuple(self._index.entity(number).entity_id for number in numbers))
        return found

    def entities(self, entity_ids: Sequence[str]) -> dict[str, Entity]:
        """Return those of the entities that the index has, by their ids."""
        numbers = self._index.entities.numbers(entity_ids).tolist()
        return {i: self._index.entity(n) for n, i in zip(numbers, entity_ids, strict=True) if n >= 0}

    def named(self, text: str) -> list[int]:
        """Return the numbers of the entities with this title or alias: those with the title first."""
        name = normalize(text)
        titled = self._titles.get(name, ())
        aliased = [number for number in self._aliases.get(name, ()) if number not in titled]
        return [*titled, *aliased]

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
