"""The indexes that schemas may name at one moment.

Immutable: a request keeps the set it began with, so that an index can be replaced while answers are written
over it. What is known of an index (its titles in order, leaves under filters) is shared by all sets with it.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from decoding.grammar.leaves.hole import HoleError
from retrieval.answers.shortlist import Finder
from retrieval.errors import InputError
from retrieval.filters.store import FilterStore
from retrieval.holes import FIRST_INDEX, TitleHoles
from retrieval.index.reader import Index

_serials = itertools.count(1)


@dataclass(frozen=True, slots=True, eq=False)
class NamedIndex:
    """One version of an index under the name that schemas call it.

    Attributes:
        name: As given.
        index: Open as long as it is used.
        filters: Its filters.
        find: Finds its likeliest titles, for shortlists; None: there are none over this index.
        serial: Of this process; no two have the same.
    """

    name: str
    index: Index
    filters: FilterStore
    find: Finder | None = None
    serial: int = field(default_factory=lambda: next(_serials))


class IndexSet:
    """Indexes by name; the first one is also called "titles".

    Args:
        indexes: By their names, in their order.
        open_holes: Makes the holes over a set, when they are first asked for.
    """

    def __init__(
        self, indexes: Mapping[str, NamedIndex], open_holes: Callable[[IndexSet], TitleHoles]
    ) -> None:
        self._indexes = dict(indexes)
        self._open_holes = open_holes
        self._holes: TitleHoles | None = None
        self._lock = threading.Lock()

    def __iter__(self) -> Iterator[NamedIndex]:
        return iter(self._indexes.values())

    def __contains__(self, name: str) -> bool:
        return name in self._indexes

    @property
    def first_name(self) -> str:
        """The name of the index that "titles" means where nothing else is said."""
        return next(iter(self._indexes), FIRST_INDEX)

    def with_index(self, named: NamedIndex) -> IndexSet:
        """Return a set with one index more, or in place of the one of that name."""
        return IndexSet({**self._indexes, named.name: named}, self._open_holes)

    @property
    def holes(self) -> TitleHoles:
        """The titles that schemas may name."""
        if self._holes is None:
            with self._lock:
                if self._holes is None:
                    self._holes = self._open_holes(self)
        return self._holes

    @property
    def opened_holes(self) -> TitleHoles | None:
        """The holes, if they were asked for before."""
        return self._holes

    def index(self, name: str) -> Index:
        """Return the index that a schema means by a name.

        Raises:
            HoleError: there is none.
        """
        named = self._named(name)
        if named is None:
            raise HoleError(f"there is no index {name!r}")
        return named.index

    def finder(self, name: str) -> Finder:
        """Return what finds the likeliest entities of an index.

        Raises:
            InputError: nothing does.
        """
        named = self._named(name)
        if named is None or named.find is None:
            raise InputError("shortlist", f"nothing finds titles of the index {name!r}")
        return named.find

    def stamp(self, schema: str, titles: str) -> tuple[int, ...]:
        """Return the versions that a schema may ask for: while they stay, so does its grammar.

        An index that the text mentions by chance is among them, one that it names never is not.

        Args:
            schema: The schema's text.
            titles: The index that it calls "titles".
        """
        if "\\" in schema:  # a name may be spelled with escapes
            return tuple(named.serial for named in self)
        # JSON spells a name in one way where nothing is escaped.
        asked = {named.name for named in self if not _is_plain(named.name) or f'"{named.name}"' in schema}
        if f'"{FIRST_INDEX}"' in schema:
            asked.add(self.first_name if titles == FIRST_INDEX else titles)
        return tuple(named.serial for named in self if named.name in asked)

    def _named(self, name: str) -> NamedIndex | None:
        found = self._indexes.get(name)
        if found is None and name == FIRST_INDEX:
            return next(iter(self), None)
        return found


def _is_plain(name: str) -> bool:
    """Whether JSON spells a name as it is, where nothing is escaped."""
    return '"' not in name and "\\" not in name
