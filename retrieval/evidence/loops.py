"""Inner loops of the search by terms: in NumPy, or compiled where numba is installed, with equal results."""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float32]
IntArray = npt.NDArray[np.int64]
Places = npt.NDArray[np.uint16]  # in a block
Levels = npt.NDArray[np.uint8]  # of lengths and weights
Lists = tuple[Places, IntArray, IntArray, FloatArray]
Factors = tuple[Levels, FloatArray, Levels, FloatArray]
Room = tuple[npt.NDArray[np.int32], FloatArray]


def accumulate(text: Places, begin: IntArray, end: IntArray, weights: FloatArray, totals: FloatArray) -> None:
    """Add the weight of every term to the totals of its texts.

    Args:
        text: Lists of a block. Shape: (p,).
        begin: Begin of each term's list. Shape: (q,).
        end: End of each term's list. Shape: (q,).
        weights: Weights of the terms. Shape: (q,).
        totals: Sums per text, added to. Shape: (65536,).
    """
    for first, last, weight in zip(begin.tolist(), end.tolist(), weights, strict=True):
        totals[text[first:last]] += weight  # a list holds a place once


def best_of_block(lists: Lists, factors: Factors, least: tuple[np.float32, np.float32], room: Room) -> int:
    """Find the texts of a block whose score is positive and, plain or weighted, large enough.

    A score is a total times the factor of the text's length, and is weighted by the factor of its weight.

    Args:
        lists: Lists, their begins and ends, and totals, as in `accumulate`; the totals are reset to 0.
        factors: Length of every text, factors of lengths, falling, weight of every text, factors of weights,
            rising. Shapes: (n,), (256,), (n,), (256,).
        least: Least score, and least weighted score.
        room: Places, in any order, and scores, which are written. Shapes: (65536,).

    Returns:
        Number of the texts found.
    """
    _, _, _, totals = lists
    length, length_factor, weight, weight_factor = factors
    place, score = room
    enough = min(least[0] / length_factor[0], least[1] / (length_factor[0] * weight_factor[-1]))
    found = np.flatnonzero(totals[: len(length)] >= max(enough * 0.999, np.finfo(np.float32).tiny))
    scores = totals[found] * length_factor[length[found]]
    kept = (scores >= least[0]) | (scores * weight_factor[weight[found]] >= least[1])
    count = int(kept.sum())
    place[:count], score[:count] = found[kept], scores[kept]
    totals[:] = 0
    return count


def overlaps(
    text: Places, begin: IntArray, end: IntArray, weights: FloatArray, places: Places, sums: FloatArray
) -> None:
    """Add to the sum of every place in a block the weights of the terms that it has; see `accumulate`.

    Shapes: places and sums (n,).
    """
    for first, last, weight in zip(begin.tolist(), end.tolist(), weights, strict=True):
        if first < last:
            mine = text[first:last]
            at = np.minimum(np.searchsorted(mine, places), last - first - 1)
            sums[mine[at] == places] += weight


def _accumulate(
    text: Places, begin: IntArray, end: IntArray, weights: FloatArray, totals: FloatArray
) -> None:
    for t in range(len(weights)):
        weight = weights[t]
        for i in range(begin[t], end[t]):
            totals[text[i]] += weight


def _best_of_block(lists: Lists, factors: Factors, least: tuple[np.float32, np.float32], room: Room) -> int:
    text, begin, end, totals = lists
    length, length_factor, weight, weight_factor = factors
    place, score = room
    count = 0
    factor, most = length_factor[0], weight_factor[-1]
    num_postings = 0
    for t in range(len(begin)):
        num_postings += end[t] - begin[t]
    # After short lists most totals are 0: then the lists are searched, else all places as one list.
    all_places = num_postings >= len(length) // 4
    for t in range(1 if all_places else len(begin)):
        first, last = (0, len(length)) if all_places else (begin[t], end[t])
        for n in range(first, last):
            i = n if all_places else np.int64(text[n])
            total = totals[i]
            if total == 0:
                continue
            totals[i] = 0
            if i >= len(length) or total <= 0:  # a damaged file may name any place
                continue
            if total * factor >= least[0] or total * factor * most >= least[1]:
                value = total * length_factor[length[i]]
                if value >= least[0] or value * weight_factor[weight[i]] >= least[1]:
                    place[count] = i
                    score[count] = value
                    count += 1
    totals[len(length) :] = 0
    return count


def _overlaps(
    text: Places, begin: IntArray, end: IntArray, weights: FloatArray, places: Places, sums: FloatArray
) -> None:
    for t in range(len(weights)):
        low = begin[t]
        for n in range(len(places)):
            place = places[n]
            if n and place < places[n - 1]:
                low = begin[t]
            # Places usually rise: gallop from the last one, in steps that double.
            high, step = low, 1
            while high < end[t] and text[high] < place:
                low, high, step = high + 1, high + step, step * 2
            high = min(high, end[t])
            while low < high:
                middle = (low + high) // 2
                if text[middle] < place:
                    low = middle + 1
                else:
                    high = middle
            if low < end[t] and text[low] == place:
                sums[n] += weights[t]


@cache
def compile_loops() -> None:
    """Compile the loops where numba is installed: twice as fast afterwards, for a second."""
    global accumulate, best_of_block, overlaps
    if find_spec("numba") is not None:
        from genret.decoding.numba_compiling import compiled

        accumulate = compiled(_accumulate)
        best_of_block = compiled(_best_of_block)
        overlaps = compiled(_overlaps)
