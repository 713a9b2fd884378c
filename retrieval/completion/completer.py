"""Finds the entities that a typed prefix may go on to (`Completer`)."""

from __future__ import annotations

import re
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from genret.decoding.bounded_cache import BoundedCache
from genret.retrieval.arguments import FilterKey
from genret.retrieval.complete_types import CompleteRequest, CompleteResult, Completion, MatchedSpan
from genret.retrieval.completion.name_lists import Mask, NameLists, among, ascending
from genret.retrieval.completion.sorted_words import UNMATCHED, ErrorSteps, Matches, Words
from genret.retrieval.completion.typing_errors import errors_forgiven
from genret.retrieval.evidence.postings import fold, fold_all
from genret.retrieval.filters.evaluate import check_restriction, entity_mask
from genret.retrieval.index.owners import weights_of
from genret.retrieval.index.reader import EntityTexts, Index

# Runs of words kept for the words typed last: those before the last one stay from one keystroke to the next.
_KEPT_RUNS = 1 << 20
_KEPT_MASK_BYTES = 64 << 20
# So few names with a match of one word are looked at one by one.
_FEW_NAMES = 1 << 12
# Lists of more names than this exclude too few to be worth reading.
_MANY_NAMES = 1 << 18
# A character with the marks behind it.
_CLUSTER = re.compile(r".[\u0300-\u036f\u0591-\u05bd\u064b-\u065f\u3099\u309a]*", re.DOTALL)


class _TypedWord(NamedTuple):
    text: str
    is_prefix: bool  # whether more letters may follow


class Completer:
    """Completes prefixes with the entities of an index. Safe to use from several threads.

    The table of names is made on first use.
    """

    def __init__(self, index: Index) -> None:
        self._index = index
        self._table: NameLists | None = None
        self._lock = threading.Lock()
        self._matches: BoundedCache[_TypedWord, Matches] = BoundedCache(
            _KEPT_RUNS, lambda _, found: len(found.begin) + 16
        )
        self._masks: BoundedCache[FilterKey, Mask] = BoundedCache(
            _KEPT_MASK_BYTES, lambda _, mask: mask.nbytes
        )

    @property
    def is_warm(self) -> bool:
        """Whether the table is there, so that no call waits for it."""
        return self._table is not None

    def warm_up(self) -> None:
        """Make the table now, not at the first call."""
        self.table  # noqa: B018

    @property
    def table(self) -> NameLists:
        """The names of the index; made on first use."""
        with self._lock:
            if self._table is None:
                self._table = NameLists(EntityTexts(self._index).batches(), self._index.weights)
            return self._table

    def complete(self, request: CompleteRequest) -> CompleteResult:
        """Return the completions of a prefix, `num_found` of them, by weight whatever the order asked for.

        Raises:
            InputError: the filter does not fit the index.
            IndexDirectoryError: the index is damaged, or was closed.
        """
        restriction = request.restriction
        check_restriction(self._index, restriction)
        allowed = None
        if not restriction.is_open:
            make = partial(entity_mask, self._index, restriction)
            allowed = self._masks.get_or_make(restriction.key(), make)
        typed = _typed_words(request.prefix)
        found = _Found(self.table.owner, request.num_found, allowed)
        self._find(typed, found)
        return CompleteResult(request.prefix, self._completions(typed, found))

    def _find(self, typed: Sequence[_TypedWord], found: _Found) -> None:
        """Find names: those that begin with the prefix, other exact ones, then by typing errors."""
        table = self.table
        if not typed:
            for places in ascending(np.arange(len(table), dtype=np.int32)):
                if found.add(places, 0):
                    return
        runs = [table.vocabulary.exact(*word) for word in typed]
        if runs and all(end > begin for begin, end in runs):
            for search in (table.beginning_with, table.with_all):
                for places in search(runs):
                    if found.add(places, 0):
                        return
        if any(errors_forgiven(len(word.text)) for word in typed):
            self._find_mistyped(typed, found)

    def _find_mistyped(self, typed: Sequence[_TypedWord], found: _Found) -> None:
        """Find names with at least one typing error, after all exact ones were found."""
        table = self.table
        if len(typed) == 1:
            matches = self._matched(typed[0])
            for count in range(1, int(matches.errors.max(initial=0)) + 1):
                some = matches.of(count)
                for places in ascending(table.listed(some.begin, some.end)):
                    if found.add(places, count):
                        return
            return
        by_rarity = sorted(dict.fromkeys(typed), key=self._num_exact)
        driver = self._driver(by_rarity)
        others = [word for word in by_rarity if word != driver]
        listed = self._listed(driver)
        for word in others:  # most names with a word lack the next rarest one
            if len(listed) <= _FEW_NAMES or self._num_matching(word) > _MANY_NAMES:
                break
            listed = among(listed, self._listed(word))
        steps: dict[_TypedWord, ErrorSteps] = {}
        later: list[tuple[Words, npt.NDArray[np.uint8]]] = []
        for places in ascending(listed):
            errors = np.zeros(len(places), np.uint8)
            for word in (*others, driver):
                if not len(places):
                    break
                if word not in steps:
                    steps[word] = self._matched(word).steps(table.vocabulary.size)
                least = table.least(places, steps[word])
                kept = least != UNMATCHED
                places, errors = places[kept], errors[kept] + least[kept]
            if found.add(places[errors == 1], 1):
                return
            later.append((places[errors > 1], errors[errors > 1]))
        places, errors = (np.concatenate(parts) for parts in zip(*later, strict=True))
        for count in range(2, int(errors.max(initial=0)) + 1):
            if found.add(places[errors == count], count):
                return

    def _num_exact(self, word: _TypedWord) -> int:
        """Return how many names have a word without errors; one of two such words counts twice."""
        return self.table.size(*np.array([self.table.vocabulary.exact(*word)]).T)

    def _driver(self, by_rarity: Sequence[_TypedWord]) -> _TypedWord:
        """Return a word whose matches few names have: the rarest one as it was typed, as a rule."""
        best, fewest = by_rarity[0], -1
        for word in by_rarity:
            if 0 <= fewest <= max(_FEW_NAMES, self._num_exact(word)):
                break  # no later one has fewer, or it is not worth while
            size = self._num_matching(word)
            if fewest < 0 or size < fewest:
                best, fewest = word, size
        return best

    def _num_matching(self, word: _TypedWord) -> int:
        matches = self._matched(word)
        return self.table.size(matches.begin, matches.end)

    def _listed(self, word: _TypedWord) -> Words:
        matches = self._matched(word)
        return self.table.listed(matches.begin, matches.end)

    def _matched(self, word: _TypedWord) -> Matches:
        return self._matches.get_or_make(word, partial(self.table.vocabulary.matches, *word))

    def _completions(self, typed: Sequence[_TypedWord], found: _Found) -> tuple[Completion, ...]:
        if not found.entities:
            return ()
        table = self.table
        entities = list(found.entities)
        ordered = sorted(entities)
        numbers, texts = EntityTexts(self._index).of(ordered)
        first = dict(zip(ordered, np.searchsorted(numbers, ordered).tolist(), strict=True))
        names = self._index.entities.names(entities)
        weights = weights_of(self._index, entities).tolist()
        completions = []
        for entity, (title, entity_id), weight in zip(entities, names, weights, strict=True):
            place, errors = found.entities[entity]
            form = texts[first[entity] + (0 if table.text is None else int(table.text[place]))]
            spans = self._spans(typed, form, table.words_of(place))
            completions.append(Completion(entity_id, title, form, spans, errors, weight))
        return tuple(completions)

    def _spans(self, typed: Sequence[_TypedWord], form: str, words: list[int]) -> tuple[MatchedSpan, ...]:
        """Return what of a form stands for typed words; none where its letters cannot be told apart."""
        letters = _letters(form)
        if len(letters) != len(words):
            return ()
        spans = set()
        for word in typed:
            begin, end = self.table.vocabulary.exact(*word)
            exact = [n for n, one in enumerate(words) if begin <= one < end]
            if exact:
                its = letters[exact[0]][: len(word.text)]
            else:
                matches = self._matched(word)
                errors = [_least(matches, one) for one in words]
                its = letters[int(np.argmin(errors))]
            spans.add((its[0][0], its[-1][1]))
        return tuple(MatchedSpan(*span) for span in sorted(spans))


@dataclass(frozen=True, slots=True, eq=False)
class _Found:
    """The best entities so far, each with the place of its name and the errors."""

    owner: Words
    wanted: int
    allowed: Mask | None
    entities: dict[int, tuple[int, int]] = field(default_factory=dict)

    def add(self, places: Words, errors: int) -> bool:
        """Add entities by ascending places; return whether there are enough."""
        owner = self.owner[places]
        if self.allowed is not None:
            kept = self.allowed[owner]
            places, owner = places[kept], owner[kept]
        step = 4 * self.wanted  # an entity may have several of the names
        for begin in range(0, len(places), step):
            some = zip(
                owner[begin : begin + step].tolist(), places[begin : begin + step].tolist(), strict=True
            )
            for entity, place in some:
                if entity not in self.entities:
                    if len(self.entities) == self.wanted:
                        return True
                    self.entities[entity] = place, errors
            if len(self.entities) == self.wanted:
                return True
        return False


def _typed_words(prefix: str) -> list[_TypedWord]:
    """Return the words of a prefix; the last may go on, unless a blank or punctuation follows it."""
    (text,) = fold_all([prefix])
    words = text.split()
    raw = fold(prefix)
    is_ended = raw.endswith(" ") and bool(raw.strip())
    return [_TypedWord(word, not is_ended and n == len(words)) for n, word in enumerate(words, start=1)]


def _least(matches: Matches, word: int) -> int:
    errors = matches.errors[(matches.begin <= word) & (word < matches.end)]
    return int(errors.min(initial=UNMATCHED))


@lru_cache(maxsize=1 << 14)
def _folded(cluster: str) -> str:
    return fold(cluster.replace("\n", " "))


def _letters(form: str) -> list[list[tuple[int, int]]]:
    """Return per folded word of a form the characters [begin, end) behind each of its letters."""
    words: list[list[tuple[int, int]]] = [[]]
    for found in _CLUSTER.finditer(form):
        for letter in _folded(found.group()):
            if letter == " ":
                words.append([])
            else:
                words[-1].append(found.span())
    if not any(words):  # of punctuation alone
        words = [[(at, at + 1) for at in range(*found.span())] for found in re.finditer(r"\S+", form)]
    return [word for word in words if word]
