"""Finds entities of an index by id, title, alias, or by the former title of a page.

`IndexResolver` looks up all labels of a set at once; `EntityFinder` looks up what methods answered.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from genret.retrieval.errors import SourceError
from genret.retrieval.evaluation.datasets.file_lines import text_field, text_lines, wrong
from genret.retrieval.index.layout import ALIASES, ENTITY_ID, TITLE
from genret.retrieval.index.owners import Owners, form_owners
from genret.retrieval.index.reader import Index
from genret.retrieval.normalize import normalize
from genret.retrieval.types import Entity


class IndexResolver:
    """Finds the entities of labels, many at once: an index is read once.

    A title is compared exactly, after the text policy. It names the entities with this title; without any,
    those with this alias; without any, those of the title that it redirects to (`read_redirects`). The index
    is read once for all ids, once for all titles, and once more for those that no title is.
    """

    def __init__(self, index: Index, redirects: Mapping[str, str] | None = None) -> None:
        self._index = index
        self._redirects = redirects or {}

    def by_ids(self, entity_ids: Sequence[str]) -> list[str | None]:
        """Return the id of each entity, or None where the index has no such entity."""
        if not entity_ids:
            return []
        wanted = [normalize(entity_id) for entity_id in entity_ids]
        numbers = self._index.entities.numbers(wanted).tolist()
        return [None if number < 0 else name for number, name in zip(numbers, wanted, strict=True)]

    def by_titles(self, titles: Sequence[str]) -> list[tuple[str, ...]]:
        """Return the ids of all entities that each title names, in the index's order; () where none does."""
        wanted = [normalize(title) for title in titles]
        found = self._named(wanted)
        followed = {title: end for title in wanted if title not in found and (end := self._target(title))}
        found_behind = self._named(followed.values())
        behind = {title: found_behind.get(end, ()) for title, end in followed.items()}
        return [found.get(title) or behind.get(title, ()) for title in wanted]

    def numbers_by_titles(self, titles: Iterable[str]) -> dict[str, list[int]]:
        """Return the entity numbers of each normalised title or alias that names any, without redirects."""
        wanted = list(dict.fromkeys(titles))
        if not wanted:
            return {}
        numbers = _grouped(wanted, _matches(self._index.entities.column(TITLE), wanted))
        if others := [title for title in wanted if title not in numbers]:
            numbers.update(_grouped(others, self._alias_matches(others)))
        return numbers

    def _named(self, titles: Iterable[str]) -> dict[str, tuple[str, ...]]:
        numbers = self.numbers_by_titles(titles)
        every = np.array(sorted({n for found in numbers.values() for n in found}), dtype=np.int64)
        if not len(every):
            return {}
        ids = self._index.entities.column(ENTITY_ID).take(pa.array(every)).to_pylist()
        id_of = dict(zip(every.tolist(), ids, strict=True))
        return {title: tuple(id_of[n] for n in found) for title, found in numbers.items()}

    def _alias_matches(self, wanted: list[str]) -> Iterator[tuple[int, int]]:
        """Yield the entity and the place in `wanted` of every alias that is wanted."""
        first = 0
        for chunk in _alias_column(self._index).chunks:
            owners = pc.list_parent_indices(chunk).to_numpy(zero_copy_only=False)
            aliases = pa.chunked_array([chunk.flatten()])
            yield from ((first + int(owners[at]), place) for at, place in _matches(aliases, wanted))
            first += len(chunk)

    def _target(self, title: str) -> str | None:
        """Follow redirects to their end; None where there are none, or where they go round."""
        seen = set()
        while title in self._redirects:
            if title in seen:
                return None
            seen.add(title)
            title = self._redirects[title]
        return title if seen else None


def read_redirects(path: str | Path) -> dict[str, str]:
    """Read lines of an old title, a tab, and the present title; a SourceError names a malformed one."""
    redirects: dict[str, str] = {}
    for number, line in text_lines(path):
        fields = line.split("\t")
        if len(fields) != 2:
            wrong(path, number, None, "two fields, old title and title", f"{len(fields)}")
        old, new = (
            text_field(path, number, field, name) for field, name in zip(fields, ("old", "new"), strict=True)
        )
        if redirects.setdefault(old, new) != new:
            raise SourceError(f"{path}, line {number}: {old!r} redirects to {redirects[old]!r} already")
    return redirects


def _matches(column: pa.ChunkedArray, wanted: list[str]) -> Iterator[tuple[int, int]]:
    """Yield the row and the place in `wanted` of every value that is wanted."""
    values = pa.array(wanted, type=pa.string())
    places = pc.index_in(column, value_set=values).fill_null(-1).to_numpy()
    rows = np.flatnonzero(places >= 0)
    yield from zip(rows.tolist(), places[rows].tolist(), strict=True)


def _grouped(wanted: Sequence[str], pairs: Iterable[tuple[int, int]]) -> dict[str, list[int]]:
    """Return value -> entity numbers, ascending and distinct."""
    found: dict[str, list[int]] = {}
    for number, place in pairs:
        numbers = found.setdefault(wanted[place], [])
        if not numbers or numbers[-1] != number:
            numbers.append(number)
    return found


class EntityFinder:
    """Finds entities by id, by title and by alias.

    The tables of titles and aliases are built on first use: some 200 bytes per text.
    """

    def __init__(self, index: Index) -> None:
        self._index = index

    def known(self, entity_ids: Sequence[str]) -> dict[str, int]:
        """Return the number of each entity that the index has, by its id."""
        numbers = self._index.entities.numbers(entity_ids).tolist()
        return {i: n for n, i in zip(numbers, entity_ids, strict=True) if n >= 0}

    def entities(self, entity_ids: Sequence[str]) -> dict[str, Entity]:
        """Return those of the entities that the index has, by their ids."""
        return {i: self._index.entity(n) for i, n in self.known(entity_ids).items()}

    def named(self, text: str, title_weight: float) -> Owners:
        """Return the entities with this title or alias, and their shares of it."""
        name = normalize(text)
        titled = self._titles.get(name, ())
        numbers = np.array(sorted({*titled, *self._aliases.get(name, ())}), dtype=np.int64)
        return form_owners(self._index, numbers, np.isin(numbers, titled), title_weight)

    @cached_property
    def _titles(self) -> dict[str, tuple[int, ...]]:
        return _table([title] for title in self._index.entities.column(TITLE).to_pylist())

    @cached_property
    def _aliases(self) -> dict[str, tuple[int, ...]]:
        return _table(aliases_of(self._index))


def _table(texts: Iterable[Sequence[str]]) -> dict[str, tuple[int, ...]]:
    """Return text -> the numbers of the entities that have it."""
    table: dict[str, tuple[int, ...]] = {}
    for number, of_entity in enumerate(texts):
        for text in of_entity:
            table[text] = (*table.get(text, ()), number)
    return table


def aliases_of(index: Index) -> list[list[str]]:
    """Return the aliases of every entity, by its number; empty if the index stores none."""
    return [aliases or [] for aliases in _alias_column(index).to_pylist()]


def _alias_column(index: Index) -> pa.ChunkedArray:
    try:
        return index.entities.column(ALIASES)
    except ValueError:  # no such column: no entity has any
        return pa.chunked_array([], type=pa.list_(pa.string()))
