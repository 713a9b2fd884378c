"""Finds entities of an index: by id, by title, by alias, or by what a page was called before.

`IndexResolver` looks up all labels of a set at once; `EntityFinder` looks up what methods answered, among
them texts that a model wrote without a constraint.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from retrieval.errors import SourceError
from retrieval.evaluation.datasets.file_lines import text_field, text_lines, wrong
from retrieval.index.layout import ALIASES, ENTITY_ID, TITLE
from retrieval.index.owners import Owners, form_owners
from retrieval.index.reader import Index
from retrieval.normalize import normalize
from retrieval.types import Entity


class IndexResolver:
    """Finds entities of an index; see `TitleResolver`.

    A title is compared after the text policy and otherwise exactly. Where no entity has it, those that have
    it as an alias are meant, and where there are none, those of the title that it redirects to.

    Args:
        index: Passed over once for all ids, once for all titles, and once more for those that no title is.
        redirects: Old title -> title; from `read_redirects`.
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
        """Return the numbers of the entities that each title or alias names, of those that name any.

        Args:
            titles: After the text policy; redirects are not followed.
        """
        wanted = list(dict.fromkeys(titles))
        numbers = self._by_title(wanted)
        numbers.update(self._by_alias([title for title in wanted if title not in numbers]))
        return numbers

    def _named(self, titles: Iterable[str]) -> dict[str, tuple[str, ...]]:
        numbers = self.numbers_by_titles(titles)
        every = np.array(sorted({n for found in numbers.values() for n in found}), dtype=np.int64)
        if not len(every):
            return {}
        ids = self._index.entities.column(ENTITY_ID).take(pa.array(every)).to_pylist()
        id_of = dict(zip(every.tolist(), ids, strict=True))
        return {title: tuple(id_of[n] for n in found) for title, found in numbers.items()}

    def _by_title(self, wanted: list[str]) -> dict[str, list[int]]:
        if not wanted:
            return {}
        values = pa.array(wanted, type=pa.string())
        column = self._index.entities.column(TITLE)
        return _grouped(wanted, _matches(column, values))

    def _by_alias(self, wanted: list[str]) -> dict[str, list[int]]:
        if not wanted or not self._has_aliases:
            return {}
        values = pa.array(wanted, type=pa.string())
        first = 0
        pairs: list[tuple[int, int]] = []
        for chunk in self._index.entities.column(ALIASES).chunks:
            owners = pc.list_parent_indices(chunk).to_numpy(zero_copy_only=False)
            aliases = pa.chunked_array([chunk.flatten()])
            pairs.extend((first + int(owners[at]), place) for at, place in _matches(aliases, values))
            first += len(chunk)
        return _grouped(wanted, pairs)

    @property
    def _has_aliases(self) -> bool:
        try:
            self._index.entities.stored_column(ALIASES)
        except ValueError:
            return False
        return True

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
    """Read redirects: lines of an old title, a tab, and the title it stands for now; optionally compressed.

    Raises:
        SourceError: the file is missing, or a line has not two fields; names it.
    """
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


def _matches(column: pa.ChunkedArray, values: pa.Array) -> Iterator[tuple[int, int]]:
    """Yield the row and the value of every row that is one of `values`."""
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
