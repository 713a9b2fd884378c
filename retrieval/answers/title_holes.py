"""Opens the titles that schemas may ask for: of the indexes by name, under filters, or likely for one query.

`IndexSet` holds the indexes that schemas may name at one moment. It is immutable: a request keeps the set
it began with, so that an index can be replaced while answers are written over it. `TitleSlots`, the titles of
an index in order and its leaves under filters, are shared by all sets with it.

`ShortlistedSlots` puts the titles that a beam search finds for one query in place of all titles of an index.
A model that was taught to write bare titles knows little behind `{"title": "`, where it has never been.
"""

from __future__ import annotations

import copy
import itertools
import math
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

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


@dataclass(frozen=True, slots=True, eq=False)
class NamedIndex:
    """One version of an index under its name in schemas.

    Attributes:
        index: Open as long as it is used.
        find: Finder of its likeliest titles, for shortlists; None: there is none.
        serial: Number that no other has in this process.
    """

    name: str
    index: Index
    filters: FilterStore
    find: Finder | None = None
    serial: int = field(default_factory=lambda: next(_serials))


class IndexSet:
    """Indexes by name; the first one is also called "titles". `open_holes` makes the title slots of a set."""

    def __init__(
        self, indexes: Mapping[str, NamedIndex], open_holes: Callable[[IndexSet], TitleSlots]
    ) -> None:
        self._indexes = dict(indexes)
        self._open_holes = open_holes
        self._holes: TitleSlots | None = None
        self._lock = threading.Lock()

    def __iter__(self) -> Iterator[NamedIndex]:
        return iter(self._indexes.values())

    def __contains__(self, name: str) -> bool:
        return name in self._indexes

    @property
    def first_name(self) -> str:
        """The name of the index that "titles" means by default."""
        return next(iter(self._indexes), FIRST_INDEX)

    def with_index(self, named: NamedIndex) -> IndexSet:
        """Return a set with one index more, or in place of the one of its name."""
        return IndexSet({**self._indexes, named.name: named}, self._open_holes)

    @property
    def holes(self) -> TitleSlots:
        """The titles that schemas may name."""
        if self._holes is None:
            with self._lock:
                if self._holes is None:
                    self._holes = self._open_holes(self)
        return self._holes

    @property
    def opened_holes(self) -> TitleSlots | None:
        """The title slots, if they were asked for before."""
        return self._holes

    def index(self, name: str) -> Index:
        """Return the index of a name in schemas; TitleSlotError if there is none."""
        named = self._named(name)
        if named is None:
            raise TitleSlotError(f"there is no index {name!r}")
        return named.index

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
        # Without escapes JSON spells a name in one way.
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
    """Whether JSON spells a name as it is, without escapes."""
    return '"' not in name and "\\" not in name


# Name in schemas of the index that was added first.
FIRST_INDEX = "titles"
DEFAULT_MAX_FILTERED_BYTES = 256 << 20


class TitleSlots:
    """Opens the titles of indexes for schemas (`decoding.grammar.leaves.leaf.TitleSlotOpener`).

    All schemas over one index, or over one index under one filter, share one leaf. The order of filtered
    titles takes 4 bytes per title; the filters used last are kept up to `max_filtered_bytes`, and as long as
    a grammar holds them. Safe to use from several threads.
    """

    def __init__(self, leaves: Leaves, max_filtered_bytes: int = DEFAULT_MAX_FILTERED_BYTES) -> None:
        self._searcher = TextSearcher(leaves.vocabulary)
        self._indexes: dict[str, _Titles] = {}
        # Leaves used last, of all versions of all indexes. They grow by the masks that are found of them.
        self._filtered: BoundedCache[tuple[_Titles, TitleSlotName], TextLeaf] = BoundedCache(
            max_filtered_bytes, lambda key, leaf: leaf.num_bytes, max_value_size=math.inf
        )
        self._lock = threading.RLock()

    def among(self, indexes: Iterable[tuple[str, Index, FilterStore]]) -> TitleSlots:
        """Return slots over other indexes (name, index, filters), which share the known ones."""
        other = copy.copy(self)
        other._lock = threading.RLock()
        with self._lock:
            known = dict(self._indexes)
        other._indexes = {}
        for name, index, filters in indexes:
            titles = known.get(name)
            if titles is None or titles.index is not index:
                titles = _Titles(name, index, filters, self._searcher)
            other._indexes[name] = titles
        return other

    def forget(self, index: Index) -> None:
        """Drop everything kept of an index that is no longer asked for; it can be opened again."""
        self._filtered.discard(lambda key: key[0].index is index)

    def add(self, name: str, index: Index, filters: FilterStore) -> None:
        """Let schemas name an index, in place of another one of that name, whose grammars stay as they are.

        The index that is added first is also called "titles".
        """
        with self._lock:
            replaced = self._indexes.get(name)
            self._indexes[name] = _Titles(name, index, filters, self._searcher)
        if replaced is not None:
            self.forget(replaced.index)

    def index(self, name: str) -> Index:
        """Return the index of a name; TitleSlotError lists those there are."""
        return self._titles(name).index

    def __call__(self, name: TitleSlotName) -> TextLeaf:
        """Return the leaf of an index's titles, under a filter of those allowed.

        Raises:
            TitleSlotError: there is no such index, it does not know the order of its titles, or the filter
                cannot be read or does not fit the index; or the tokenizer cannot write one of its titles.
        """
        titles = self._titles(name.index)
        if titles.refusal is not None:
            raise TitleSlotError(titles.refusal)
        if name.predicate is None:
            return titles.leaf()
        try:
            predicate = parse(name.predicate)
            restriction = Restriction(predicate)
            titles.filters.check(restriction)
        except InputError as error:
            raise TitleSlotError(error.message, "x-genret-filter") from None
        key = TitleSlotName(titles.name, canonical(predicate))
        found = self._filtered.get((titles, key))
        if found is not None:
            return found
        made = titles.filtered(key, restriction)
        with self._lock:
            if self._indexes[titles.name] is not titles:  # the index has been replaced meanwhile
                return made
            kept = self._filtered.put((titles, key), made)
        self._filtered.settle()
        return kept

    @property
    def num_bytes(self) -> int:
        """Memory beyond the indexes, of leaves that are kept here."""
        with self._lock:
            leaves = [titles.opened for titles in self._indexes.values()]
        with self._filtered.lock:
            leaves += [leaf for _, leaf in self._filtered.items()]
        return sum(leaf.num_bytes for leaf in leaves if leaf is not None)

    def warm_up(self) -> None:
        """Compile the slow parts, so that no request waits for them."""
        self._searcher.warm_up()
        with self._lock:
            known = list(self._indexes.values())
        for titles in known:
            if titles.index.title_order is not None and titles.refusal is None:
                titles.leaf().warm_up()

    def _titles(self, name: str) -> _Titles:
        with self._lock:
            found = self._indexes.get(name)
            if found is None and name == FIRST_INDEX:
                found = next(iter(self._indexes.values()), None)
            if found is None:
                known = ", ".join(map(repr, self._indexes)) or "none"
                raise TitleSlotError(f"there is no index {name!r}; there are: {known}")
            return found


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


class ShortlistedSlots:
    """Opens the title slots of one request's schema (`decoding.grammar.leaves.leaf.TitleSlotOpener`).

    `finder` returns the finder of an index by name; a slot has at most `size` titles.
    """

    def __init__(
        self, query: str, size: int, finder: Callable[[str], Finder], searcher: TextSearcher
    ) -> None:
        self._query = query
        self._size = size
        self._finder = finder
        self._searcher = searcher
        self._leaves: dict[TitleSlotName, TextLeaf] = {}

    def __call__(self, name: TitleSlotName) -> TextLeaf:
        """Return the leaf of the likeliest titles of an index; they are searched for once."""
        leaf = self._leaves.get(name)
        if leaf is None:
            found = self._finder(name.index)(self._query, name.predicate, self._size)
            titles = tuple(entity.title for entity in found)
            texts = SortedTexts.of(title.encode() for title in titles)
            leaf = self._leaves[name] = TextLeaf(name, ("shortlist", titles), texts, self._searcher)
        return leaf
