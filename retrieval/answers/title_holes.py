"""Opens the titles that schemas may ask for: of the indexes by name, under filters, or likely for one query.

`IndexSet` holds the indexes that schemas may name at one moment. It is immutable: a request keeps the set
it began with, so that an index can be replaced while answers are written over it. `TitleSlots` holds the
titles in order, and the leaves under filters, of all indexes of a model.

`ShortlistedSlots` puts the titles that a search finds for one query in place of all titles of an index.
A model that was taught to write bare titles knows little behind `{"title": "`, where it has never been.
"""

from __future__ import annotations

import itertools
import math
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from weakref import WeakKeyDictionary

from genret.decoding.bounded_cache import BoundedCache
from genret.decoding.grammar.errors import VocabularyError
from genret.decoding.grammar.holes.text_leaf import TextLeaf, TextSearcher
from genret.decoding.grammar.holes.text_places import spelled
from genret.decoding.grammar.leaves.leaf import TitleSlotError, TitleSlotName
from genret.decoding.grammar.leaves.leaf_factory import Leaves
from genret.decoding.sorted_texts import SortedTexts
from genret.retrieval.arguments import Restriction
from genret.retrieval.errors import InputError
from genret.retrieval.filters.entity_filter import EntityFilter, FilterStore
from genret.retrieval.filters.predicate import canonical, parse
from genret.retrieval.index.entities import title_batches
from genret.retrieval.index.layout import TITLE
from genret.retrieval.index.reader import Index
from genret.retrieval.types import Entity

_serials = itertools.count(1)


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class NamedIndex:
    """One version of an index under its name in schemas.

    Attributes:
        index: Open as long as it is used.
        find: Finder of its best titles, for shortlists; None: there is none.
        serial: Number that no other has in this process.
    """

    name: str
    index: Index
    filters: FilterStore
    find: Finder | None = None
    serial: int = field(default_factory=lambda: next(_serials))


class IndexSet:
    """Indexes by name; the first one is also called "titles".

    Called, it opens title slots (`decoding.grammar.leaves.leaf.TitleSlotOpener`). `slots` returns those of
    the model.
    """

    def __init__(self, indexes: Iterable[NamedIndex], slots: Callable[[], TitleSlots]) -> None:
        self._indexes = {named.name: named for named in indexes}
        self._slots = slots

    def __iter__(self) -> Iterator[NamedIndex]:
        return iter(self._indexes.values())

    @property
    def first_name(self) -> str:
        """The name of the index that "titles" means by default."""
        return next(iter(self._indexes), FIRST_INDEX)

    def with_index(self, named: NamedIndex) -> IndexSet:
        """Return a set with one index more, or in place of the one of its name."""
        return IndexSet({**self._indexes, named.name: named}.values(), self._slots)

    def __call__(self, name: TitleSlotName) -> TextLeaf:
        """Return the leaf of a set of titles; raises as `TitleSlots.leaf` does, and as `index`."""
        return self._slots().leaf(self._known(name.index), name.predicate)

    def index(self, name: str) -> Index:
        """Return the index of a name in schemas; TitleSlotError if there is none."""
        return self._known(name).index

    def finder(self, name: str) -> Finder:
        """Return the finder of the likeliest entities of an index; InputError if there is none."""
        named = self._named(name)
        if named is None or named.find is None:
            raise InputError("shortlist", f"nothing finds titles of the index {name!r}")
        return named.find

    def stamp(self, schema: str, titles: str) -> tuple[int, ...]:
        """Return serials of the indexes that a schema may ask for: while they stay, so does its grammar.

        An index that the text mentions by chance is among them, one that it never names is not. `titles` is
        the index that the schema calls "titles".
        """
        if "\\" in schema:  # a name may be spelled with escapes
            return tuple(named.serial for named in self)
        # Without escapes JSON spells a name in one way, or not at all.
        asked = {named.name for named in self if {'"', "\\"} & {*named.name} or f'"{named.name}"' in schema}
        if f'"{FIRST_INDEX}"' in schema:
            asked.add(self.first_name if titles == FIRST_INDEX else titles)
        return tuple(named.serial for named in self if named.name in asked)

    def _named(self, name: str) -> NamedIndex | None:
        found = self._indexes.get(name)
        if found is None and name == FIRST_INDEX:
            return next(iter(self), None)
        return found

    def _known(self, name: str) -> NamedIndex:
        found = self._named(name)
        if found is None:
            known = ", ".join(map(repr, self._indexes))
            told = f"{FIRST_INDEX!r}, for the one that is asked, and {known}" if known else "none"
            raise TitleSlotError(f"there is no index {name!r}; there are: {told}")
        return found


# Name in schemas of the index that was added first.
FIRST_INDEX = "titles"
DEFAULT_MAX_FILTERED_BYTES = 256 << 20


class TitleSlots:
    """The titles of a model's indexes, in order and under filters.

    All schemas over one index, or over one index under one filter, share one leaf. The order of filtered
    titles takes 4 bytes per title; the filters used last are kept up to `max_filtered_bytes`, and as long as
    a grammar holds them. Safe to use from several threads.
    """

    def __init__(self, leaves: Leaves, max_filtered_bytes: int = DEFAULT_MAX_FILTERED_BYTES) -> None:
        self._searcher = TextSearcher(leaves.vocabulary)
        self._titles: WeakKeyDictionary[NamedIndex, _Titles] = WeakKeyDictionary()
        # Leaves used last, of all versions of all indexes. They grow by the masks that are found of them.
        self._filtered: BoundedCache[tuple[_Titles, TitleSlotName], TextLeaf] = BoundedCache(
            max_filtered_bytes, lambda key, leaf: leaf.num_bytes, max_value_size=math.inf
        )
        self._lock = threading.Lock()

    def forget(self, named: NamedIndex) -> None:
        """Drop everything kept of an index that is no longer asked for; it can be opened again."""
        with self._lock:
            titles = self._titles.pop(named, None)
        self._filtered.discard(lambda key: key[0] is titles)

    def leaf(self, named: NamedIndex, predicate: str | None) -> TextLeaf:
        """Return the leaf of an index's titles, under a filter of those allowed.

        Raises:
            TitleSlotError: the index does not know the order of its titles, or the filter cannot be read or
                does not fit the index; or the tokenizer cannot write one of its titles.
        """
        titles = self._titles_of(named)
        if titles.refusal is not None:
            raise TitleSlotError(titles.refusal)
        if predicate is None:
            return titles.leaf()
        try:
            read = parse(predicate)
            restriction = Restriction(read)
            titles.filters.check(restriction)
        except InputError as error:
            raise TitleSlotError(error.message, "x-genret-filter") from None
        key = TitleSlotName(titles.name, canonical(read))
        found = self._filtered.get((titles, key))
        if found is not None:
            return found
        made = titles.filtered(key, restriction)
        with self._lock:
            if self._titles.get(named) is not titles:  # it has been forgotten meanwhile
                return made
            kept = self._filtered.put((titles, key), made)
        self._filtered.settle()
        return kept

    @property
    def num_bytes(self) -> int:
        """Memory beyond the indexes, of leaves that are kept here."""
        with self._lock:
            leaves = [titles.opened for titles in self._titles.values()]
        with self._filtered.lock:
            leaves += [leaf for _, leaf in self._filtered.items()]
        return sum(leaf.num_bytes for leaf in leaves if leaf is not None)

    def warm_up(self, indexes: Iterable[NamedIndex]) -> None:
        """Compile the slow parts, so that no request over these indexes waits for them."""
        self._searcher.warm_up()
        for titles in map(self._titles_of, indexes):
            if titles.index.title_order is not None and titles.refusal is None:
                titles.leaf().warm_up()

    def _titles_of(self, named: NamedIndex) -> _Titles:
        with self._lock:
            titles = self._titles.get(named)
            if titles is None:
                titles = _Titles(named.name, named.index, named.filters, self._searcher)
                self._titles[named] = titles
            return titles


class _Titles:
    """The titles of one index."""

    def __init__(self, name: str, index: Index, filters: FilterStore, searcher: TextSearcher) -> None:
        self.name = name
        self.index = index
        self.filters = filters
        self.opened: TextLeaf | None = None
        self._searcher = searcher
        self._texts: SortedTexts | None = None
        self._lock = threading.Lock()

    @cached_property
    def refusal(self) -> str | None:
        """Why the tokenizer cannot write its titles, with the first such title; None: it can."""
        batches = title_batches(self.index.entities.stored_column(TITLE))
        try:
            self._searcher.require(batches, spelled)
        except VocabularyError as error:
            return f"{self.name}: {error}"
        return None

    def leaf(self) -> TextLeaf:
        """Return the leaf of all titles."""
        texts = self.texts()
        with self._lock:
            if self.opened is None:
                self.opened = TextLeaf(
                    TitleSlotName(self.name), (self.index.digest, ""), texts, self._searcher
                )
            return self.opened

    def filtered(self, name: TitleSlotName, restriction: Restriction) -> TextLeaf:
        """Return the leaf of the titles that a filter allows."""
        (batch,) = self.filters.batches([restriction], 1)
        (allowed,) = batch
        if not isinstance(allowed, EntityFilter):  # only a cancelled or an open restriction has none
            raise TitleSlotError(f"filter: {name.predicate!r} could not be applied")
        texts = self.texts().among(allowed.allowed)
        key = (self.index.digest, name.predicate)
        leaf = TextLeaf(name, key, texts, self._searcher, own_bytes=texts.order.nbytes)
        leaf.prepare()
        return leaf

    def texts(self) -> SortedTexts:
        """Return the titles in order; TitleSlotError if the index does not know it."""
        with self._lock:
            if self._texts is None:
                order = self.index.title_order
                if order is None:
                    raise TitleSlotError(
                        f"the index {self.name!r} is of format version {self.index.manifest.format_version}, "
                        "which has no order of titles; rebuild it, or update it with genret update"
                    )
                titles = self.index.entities.stored_column(TITLE)
                self._texts = SortedTexts(title_batches(titles), order)
            return self._texts


# The likeliest entities of an index for a query, under a filter if there is one; at most so many.
Finder = Callable[[str, str | None, int], Sequence[Entity]]


@dataclass(frozen=True, slots=True, eq=False)
class ShortlistedSlots:
    """Opens the title slots of one request's schema (`decoding.grammar.leaves.leaf.TitleSlotOpener`).

    `finder` returns the finder of an index by name; a slot has at most `size` titles.
    """

    query: str
    size: int
    finder: Callable[[str], Finder]
    searcher: TextSearcher
    leaves: dict[TitleSlotName, TextLeaf] = field(default_factory=dict)

    def __call__(self, name: TitleSlotName) -> TextLeaf:
        """Return the leaf of the likeliest titles of an index; they are searched for once."""
        leaf = self.leaves.get(name)
        if leaf is None:
            found = self.finder(name.index)(self.query, name.predicate, self.size)
            titles = tuple(entity.title for entity in found)
            texts = SortedTexts.of(title.encode() for title in titles)
            leaf = self.leaves[name] = TextLeaf(name, ("shortlist", titles), texts, self.searcher)
        return leaf
