"""All names of an index in one order, with the list of those that have each word.

The order is by weight, the greatest first, then by letters, the fewest first, then by the first four words; a
name's *place* is its number in it. So the best of any lists are their least places.
"""

from __future__ import annotations

import logging
import time
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from genret.retrieval.completion.sorted_words import Bits, ErrorSteps, IntArray, SortedWords, Words, spread
from genret.retrieval.evidence.postings import fold_all
from genret.retrieval.index.layout import as_numpy

logger = logging.getLogger(__name__)

Mask = npt.NDArray[np.bool_]
FloatArray = npt.NDArray[np.float64]
Run = tuple[int, int]  # of words: [begin, end)

_ORDERED_WORDS = 4
# Places that a list is asked for first; then, as long as more are wanted, so many times as many.
_FIRST_PLACES, _MORE = 1024, 16
# A place is marked by its last bits.
_NUM_MARKS = 1 << 19


class NameLists:
    """The names, their words and the lists of these. Immutable; safe to use from several threads.

    Args:
        names: Batches of entities' numbers, ascending over all, and of a text for each.
        weights: Weight of every entity; None: equal. Shape: (num_entities,).

    Attributes:
        vocabulary: The words of all names.
        owner: Entity of each place. Shape: (names,), int32.
        text: Number of each name among those of its entity; None: all are 0.
            Shape: (names,).
    """

    def __init__(self, names: Iterable[tuple[IntArray, list[str]]], weights: FloatArray | None) -> None:
        begun = time.monotonic()
        owners, words, counts, letters = _read_names(names)
        owner = np.concatenate([*owners, np.empty(0, np.int32)])
        encoded = pa.chunked_array(words, pa.string()).combine_chunks().dictionary_encode()
        del words, owners
        ascending = pc.sort_indices(encoded.dictionary)
        self.vocabulary = SortedWords(encoded.dictionary.take(ascending))
        rank = np.empty(len(ascending), np.int32)
        rank[as_numpy(ascending)] = np.arange(len(ascending), dtype=np.int32)
        word: Words = rank[as_numpy(encoded.indices)]
        del encoded, rank
        count = np.concatenate([*counts, np.empty(0, np.int32)])
        order = _order(weights, owner, word, count, np.concatenate([*letters, np.empty(0, np.int32)]))
        self.owner: Words = owner[order]
        text = np.arange(len(owner)) - np.searchsorted(owner, owner)
        self.text = (
            text[order].astype(np.uint16 if text.max() < 1 << 16 else np.int32) if text.any() else None
        )
        begin = np.cumsum(count) - count
        self._word: Words = word[spread(begin[order], count[order])[0]]
        del word
        self._offset: IntArray = np.zeros(len(order) + 1, np.uint32)
        np.cumsum(count[order], out=self._offset[1:])
        place = np.repeat(np.arange(len(order), dtype=np.uint64), count[order])
        pairs = (self._word.astype(np.uint64) << np.uint64(32)) | place
        pairs.sort()
        pairs = pairs[np.diff(pairs, prepend=np.uint64(2**64 - 1)) != 0]
        self._list: Words = pairs.astype(np.uint32).view(np.int32)
        self._list_begin = np.searchsorted(
            (pairs >> np.uint64(32)).astype(np.uint32), np.arange(self.vocabulary.size + 1, dtype=np.uint32)
        ).astype(np.uint32)
        del pairs
        first = self._word[self._offset[:-1]].astype(np.uint64) << np.uint64(32)
        first |= np.arange(len(order), dtype=np.uint64)
        first.sort()
        self._by_first: Words = first.astype(np.uint32).view(np.int32)  # places by first word, then place
        taken = time.monotonic() - begun
        logger.info("table of %d names for completion: %d bytes, %.1f s", len(self), self.num_bytes, taken)

    def __len__(self) -> int:
        return len(self.owner)

    @property
    def num_bytes(self) -> int:
        """Memory of the table."""
        lists: list[npt.NDArray[Any]] = [self._list, self._list_begin, self._by_first]
        arrays = [self.owner, self._word, self._offset, *lists]
        if self.text is not None:
            arrays.append(self.text)
        return self.vocabulary.num_bytes + sum(array.nbytes for array in arrays)

    def words_of(self, place: int) -> list[int]:
        """Return the words of a name, in its order."""
        found: list[int] = self._word[self._offset[place] : self._offset[place + 1]].tolist()
        return found

    def size(self, begin: npt.NDArray[np.integer], end: npt.NDArray[np.integer]) -> int:
        """Return the lengths of the lists of runs of words, together. Shapes: (n,)."""
        return int((self._list_begin[end].astype(np.int64) - self._list_begin[begin]).sum())

    def listed(self, begin: IntArray, end: IntArray) -> Words:
        """Return the places of names that have a word of some runs, unordered, perhaps repeated."""
        first = self._list_begin[begin].astype(np.int64)
        last = self._list_begin[end].astype(np.int64)
        if len(first) == 1:
            return self._list[first[0] : last[0]]
        found: Words = self._list[spread(first, last - first)[0]]
        return found

    def with_all(self, runs: Sequence[Run]) -> Iterator[Words]:
        """Yield the places of names that have a word of every run, ascending, in pieces."""
        bounds = [np.array([run]).T for run in runs]
        sizes = [self.size(*bound) for bound in bounds]
        driver = int(np.argmin(sizes))
        others = [run for number, run in enumerate(runs) if number != driver]
        for places in ascending(self.listed(*bounds[driver])):
            yield places[self._have(places, others)] if others else places

    def beginning_with(self, runs: Sequence[Run]) -> Iterator[Words]:
        """Yield the places of names whose n-th word is in the n-th run, for every run, in pieces."""
        low, high = (self._first_place(word) for word in runs[0])
        listed = [self.listed(*np.array([run]).T) for run in runs[1:]]
        for places in ascending(min([self._by_first[low:high], *listed], key=len)):
            begin, end = self._offset[places], self._offset[places + 1]
            kept = end - begin >= len(runs)
            places, begin = places[kept], begin[kept]
            for number, (first, last) in enumerate(runs):
                word = self._word[begin + np.uint32(number)]
                kept = (word >= first) & (word < last)
                places, begin = places[kept], begin[kept]
            yield places

    def least(self, places: Words, errors: ErrorSteps) -> Bits:
        """Return the least errors of the words of each name. Shapes: (n,) -> (n,)."""
        if not len(places):
            return np.empty(0, np.uint8)
        at, begins = self._words_at(places)
        return np.minimum.reduceat(errors.of(self._word[at]), begins)

    def _have(self, places: Words, runs: Sequence[Run]) -> Mask:
        have = np.ones(len(places), np.bool_)
        if not len(places):
            return have
        at, begins = self._words_at(places)
        words = self._word[at]
        for first, last in runs:
            have &= np.logical_or.reduceat((words >= first) & (words < last), begins)
        return have

    def _words_at(self, places: Words) -> tuple[IntArray, IntArray]:
        begin = self._offset[places].astype(np.int64)
        count = self._offset[places + 1].astype(np.int64) - begin
        return spread(begin, count)[0], np.cumsum(count) - count

    def _first_place(self, word: int) -> int:
        """Return where the names begin whose first word is `word` or behind it."""
        places = range(len(self._by_first))
        return bisect_left(places, word, key=lambda place: self._word[self._offset[self._by_first[place]]])


def ascending(places: Words) -> Iterator[Words]:
    """Yield some places in order, each once, in pieces that grow: who has enough stops.

    A piece is what lies between two bounds, which are guessed from a sample; so only pieces are sorted.
    """
    if len(places) <= _FIRST_PLACES * _MORE:
        yield distinct(places)
        return
    sample = np.sort(places[:: len(places) // (2 * _FIRST_PLACES)])
    low, wanted = -1, _FIRST_PLACES
    while wanted < len(places):
        bound = int(sample[min(len(sample) - 1, -(-wanted * len(sample) // len(places)))])
        yield distinct(places[(places > low) & (places <= bound)])
        low, wanted = bound, wanted * _MORE
    yield distinct(places[places > low])


def among(places: Words, others: Words) -> Words:
    """Return places without most of those that are not among others: one may stay by chance."""
    marked = np.zeros(_NUM_MARKS, np.bool_)
    marked[others & (_NUM_MARKS - 1)] = True
    kept: Words = places[marked[places & (_NUM_MARKS - 1)]]
    return kept


def distinct(places: Words) -> Words:
    """Return places in order, each once."""
    places = np.sort(places)
    kept: Words = places[np.diff(places, prepend=-1) != 0]
    return kept


def _read_names(
    names: Iterable[tuple[IntArray, list[str]]],
) -> tuple[list[Words], list[pa.Array], list[Words], list[Words]]:
    """Return owners, words, numbers of words and of letters of all names, in parts."""
    owners, words, counts, letters = [], [], [], []
    for numbers, texts in names:
        folded = pa.array(fold_all(texts), pa.string())
        kept = np.flatnonzero(as_numpy(pc.utf8_length(folded)))
        split = pc.split_pattern(folded.take(pa.array(kept)), " ")
        owners.append(numbers[kept].astype(np.int32))
        words.append(split.flatten())
        counts.append(as_numpy(pc.list_value_length(split)).astype(np.int32))
        letters.append(as_numpy(pc.utf8_length(folded))[kept].astype(np.int32))
    return owners, words, counts, letters


def _order(weights: FloatArray | None, owner: Words, word: Words, count: Words, letters: Words) -> IntArray:
    """Return the numbers of names by their places."""
    begin = np.cumsum(count) - count
    keys = np.zeros((_ORDERED_WORDS, len(owner)), np.int64)
    for number in range(_ORDERED_WORDS):
        has = np.flatnonzero(count > number)
        keys[number, has] = word[begin[has] + number] + 1
    by_words = [keys[n + 1] | keys[n] << 32 for n in range(0, _ORDERED_WORDS, 2)]
    by_weight = [] if weights is None else [-weights[owner]]
    return np.lexsort([*reversed([*by_weight, letters, *by_words])])
