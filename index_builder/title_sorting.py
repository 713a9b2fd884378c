"""Sorts the titles of written entities by their bytes, in bounded memory.

Titles are dealt by their first two bytes, then, while a group is too large, by the next two, and are sorted
eight bytes at a time once a group is small.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from genret.decoding.sorted_texts import WORD, TextBatches
from genret.index_builder.version_files import VersionFiles
from genret.retrieval.index.entities import title_batches
from genret.retrieval.index.layout import ENTITIES_FILE, TITLE, TITLE_ORDER_FILE, title_order_schema

Ints = npt.NDArray[np.int32]
Longs = npt.NDArray[np.int64]

# Memory for sorting a title: numbers, words, places and copies of each.
TITLE_BYTES = 64
# Sorting more at once is no faster.
_MOST_TITLES = 1 << 20
_DEALT = 2  # bytes by which titles are dealt at once
_DEALT_AT_ONCE = 1 << 17


def write_title_order(folder: Path, files: VersionFiles, free_bytes: int) -> None:
    """Write title_order.arrow for the entities in the folder.

    Memory: 4 bytes per entity, as much again for the largest group of titles with the same first two bytes,
    and up to `free_bytes`.

    Raises:
        OSError: the file cannot be written; `filename` is set.
    """
    with pa.memory_map(str(folder / ENTITIES_FILE)) as mapped:
        titles = title_batches(pa.ipc.open_file(mapped).read_all().column(TITLE))
        order = title_order(titles, min(max(free_bytes // TITLE_BYTES, 1), _MOST_TITLES))
        schema = title_order_schema()
        files.write(TITLE_ORDER_FILE, schema, [pa.record_batch([pa.array(order)], schema=schema)])


def title_order(titles: TextBatches, most: int) -> Ints:
    """Return the numbers of texts in order of (bytes, number); at most `most` are sorted at once."""
    order = np.arange(titles.num_texts, dtype=np.int32)
    _sort(titles, order, 0, most)
    return order


def _sort(titles: TextBatches, numbers: Ints, depth: int, most: int) -> None:
    """Sort texts that share their first `depth` bytes in place; they are given in order of their numbers."""
    if len(numbers) <= most:
        numbers[:] = _refined(titles, numbers, depth)
        return
    ends = _deal(titles, numbers, depth)
    for begin, end, is_one in _groups(ends, most):
        part = numbers[begin:end]
        if is_one and len(part) > most:
            _sort_alike(titles, part, depth, most)
        else:
            part[:] = _refined(titles, part, depth)


def _sort_alike(titles: TextBatches, numbers: Ints, depth: int, most: int) -> None:
    """Sort texts that share the two bytes at `depth`, or as many as they have: those that end there first."""
    ended = np.zeros(len(numbers), dtype=np.int8)
    for begin in range(0, len(numbers), _DEALT_AT_ONCE):
        part = slice(begin, begin + _DEALT_AT_ONCE)
        ended[part] = np.minimum(titles.lengths(numbers[part]) - depth, _DEALT)
    by_end = np.argsort(ended, kind="stable")
    numbers[:] = numbers[by_end]
    behind = int(np.searchsorted(ended[by_end], _DEALT))
    if behind < len(numbers):
        _sort(titles, numbers[behind:], depth + _DEALT, most)


def _deal(titles: TextBatches, numbers: Ints, depth: int) -> Longs:
    """Reorder texts by their two bytes at `depth`, stably. Return the end of each pair of bytes."""
    keys = np.empty(len(numbers), dtype=np.uint16)
    for begin in range(0, len(numbers), _DEALT_AT_ONCE):
        part = slice(begin, begin + _DEALT_AT_ONCE)
        words, _ = titles.words(numbers[part], depth)
        keys[part] = words >> np.uint64(64 - 8 * _DEALT)
    counts = np.bincount(keys, minlength=1 << 8 * _DEALT)
    ends = np.cumsum(counts)
    room = ends - counts
    dealt = np.empty_like(numbers)
    for begin in range(0, len(numbers), _DEALT_AT_ONCE):
        some = keys[begin : begin + _DEALT_AT_ONCE]
        by_key = np.argsort(some, kind="stable")
        present, first, count = np.unique(some[by_key], return_index=True, return_counts=True)
        places = np.arange(len(some)) + np.repeat(room[present] - first, count)
        dealt[places] = numbers[begin : begin + _DEALT_AT_ONCE][by_key]
        room[present] += count
    numbers[:] = dealt
    return ends


def _groups(ends: Longs, most: int) -> Iterator[tuple[int, int, bool]]:
    """Yield runs of pairs with at most `most` texts, or single larger pairs: (begin, end, is one pair)."""
    begin = last = pairs = 0
    for end in np.unique(ends).tolist():
        if end == last:
            continue
        if pairs and end - begin > most:
            yield begin, last, pairs == 1
            begin, pairs = last, 0
        last, pairs = end, pairs + 1
    if last > begin:
        yield begin, last, pairs == 1


def _refined(titles: TextBatches, numbers: Ints, depth: int) -> Ints:
    """Return texts, given in order of their numbers, in order of their bytes from `depth` on."""
    words, taken = titles.words(numbers, depth)
    order = np.argsort(words, kind="stable")
    numbers, words, taken = numbers[order], words[order], taken[order]
    same = np.zeros(len(numbers), dtype=bool)  # equal to the one before, as far as compared
    same[1:] = words[1:] == words[:-1]
    tied = _tied(same)
    while len(tied):
        # Of equal words, texts that end go first; the others go on.
        run = np.cumsum(~same)[tied]
        ended = taken[tied]
        order = np.lexsort((ended, run))
        numbers[tied], ended = numbers[tied][order], ended[order]
        same[tied] &= np.concatenate([[False], ended[1:] == ended[:-1]])
        going = ended == WORD
        same[tied[~going]] = False
        places = tied[going]
        depth += WORD
        if not len(places):
            break
        words, more = titles.words(numbers[places], depth)
        run = np.cumsum(~same)[places]
        order = np.lexsort((words, run))
        numbers[places], words, more = numbers[places][order], words[order], more[order]
        taken[places] = more
        same[places] &= np.concatenate([[False], words[1:] == words[:-1]])
        tied = _tied(same)
    return numbers


def _tied(same: npt.NDArray[np.bool_]) -> Longs:
    """Return the places that equal the one before or behind them."""
    tied = same.copy()
    tied[:-1] |= same[1:]
    return np.flatnonzero(tied)
