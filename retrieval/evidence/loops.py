"""The loops of a search: by NumPy, or compiled where numba is installed, with the same sums."""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float32]
IntArray = npt.NDArray[np.int64]


def accumulate(
    text: npt.NDArray[np.uint16], begin: IntArray, end: IntArray, weights: FloatArray, totals: FloatArray
) -> None:
    """Add the weight of every term to the totals of its texts.

    Args:
        text: The lists of a block. Shape: (p,).
        begin: Where the list of each term begins. Shape: (q,).
        end: Where it ends. Shape: (q,).
        weights: Of the terms. Shape: (q,).
        totals: Added to. Shape: (65536,).
    """
    for first, last, weight in zip(begin.tolist(), end.tolist(), weights, strict=True):
        totals[text[first:last]] += weight  # no place stands twice in a list


def best_of_block(
    text: npt.NDArray[np.uint16],
    begin: IntArray,
    end: IntArray,
    totals: FloatArray,
    length: npt.NDArray[np.uint8],
    length_factor: FloatArray,
    weight: npt.NDArray[np.uint8],
    weight_factor: FloatArray,
    least: np.float32,
    least_weighted: np.float32,
    place: npt.NDArray[np.int32],
    score: FloatArray,
) -> int:
    """Find the texts of a block whose score, plain or weighted, is large enough; put the totals back to 0.

    Args:
        text: The lists of a block. Shape: (p,).
        begin: Where the list of each term begins that was added up. Shape: (q,).
        end: Where it ends. Shape: (q,).
        totals: Sums over terms. Shape: (65536,).
        length: Terms of every text. Shape: (n,).
        length_factor: What the sum of a text of each length is multiplied by, falling. Shape: (256,).
        weight: Of every text. Shape: (n,).
        weight_factor: What the score of a text of each weight is multiplied by, rising. Shape: (256,).
        least: The least score; scores must be positive.
        least_weighted: The least weighted score, which does for a text as well.
        place: Where the places found go, in any order. Shape: (65536,).
        score: Where their scores go. Shape: (65536,).

    Returns:
        How many were found.
    """
    enough = min(least / length_factor[0], least_weighted / (length_factor[0] * weight_factor[-1]))
    found = np.flatnonzero(totals[: len(length)] >= max(enough * 0.999, np.finfo(np.float32).tiny))
    scores = totals[found] * length_factor[length[found]]
    kept = (scores >= least) | (scores * weight_factor[weight[found]] >= least_weighted)
    count = int(kept.sum())
    place[:count], score[:count] = found[kept], scores[kept]
    totals[:] = 0
    return count


def overlaps(
    text: npt.NDArray[np.uint16],
    begin: IntArray,
    end: IntArray,
    weights: FloatArray,
    places: npt.NDArray[np.uint16],
    sums: FloatArray,
) -> None:
    """Add to the sum of every place the weights of the terms that it has.

    Args:
        text: The lists of a block. Shape: (p,).
        begin: Where the list of each term begins. Shape: (q,).
        end: Where it ends. Shape: (q,).
        weights: Of the terms. Shape: (q,).
        places: Places in the block. Shape: (n,).
        sums: Added to. Shape: (n,).
    """
    for first, last, weight in zip(begin.tolist(), end.tolist(), weights, strict=True):
        if first < last:
            mine = text[first:last]
            at = np.minimum(np.searchsorted(mine, places), last - first - 1)
            sums[mine[at] == places] += weight


def _accumulate(
    text: npt.NDArray[np.uint16], begin: IntArray, end: IntArray, weights: FloatArray, totals: FloatArray
) -> None:
    for t in range(len(weights)):
        weight = weights[t]
        for i in range(begin[t], end[t]):
            totals[text[i]] += weight


def _best_of_block(
    text: npt.NDArray[np.uint16],
    begin: IntArray,
    end: IntArray,
    totals: FloatArray,
    length: npt.NDArray[np.uint8],
    length_factor: FloatArray,
    weight: npt.NDArray[np.uint8],
    weight_factor: FloatArray,
    least: np.float32,
    least_weighted: np.float32,
    place: npt.NDArray[np.int32],
    score: FloatArray,
) -> int:
    count = 0
    factor, most = length_factor[0], weight_factor[-1]
    num_postings = 0
    for t in range(len(begin)):
        num_postings += end[t] - begin[t]
    # Most totals are 0 behind short lists: then the lists are looked at, otherwise all places, as one list.
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
            if total * factor >= least or total * factor * most >= least_weighted:
                value = total * length_factor[length[i]]
                if value >= least or value * weight_factor[weight[i]] >= least_weighted:
                    place[count] = i
                    score[count] = value
                    count += 1
    totals[len(length) :] = 0
    return count


def _overlaps(
    text: npt.NDArray[np.uint16],
    begin: IntArray,
    end: IntArray,
    weights: FloatArray,
    places: npt.NDArray[np.uint16],
    sums: FloatArray,
) -> None:
    for t in range(len(weights)):
        low = begin[t]
        for n in range(len(places)):
            place = places[n]
            if n and place < places[n - 1]:
                low = begin[t]
            # Places rise, as a rule: from where the last one was, in steps that double.
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
    """Have the loops compiled, where numba is installed: twice as fast from now on, after a second."""
    global accumulate, best_of_block, overlaps
    if find_spec("numba") is not None:
        from decoding.numba_compiling import compiled

        accumulate = compiled(_accumulate)
        best_of_block = compiled(_best_of_block)
        overlaps = compiled(_overlaps)
