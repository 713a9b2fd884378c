"""The two loops of a search: compiled where numba is installed, by NumPy elsewhere, with the same sums."""

from __future__ import annotations

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
    totals: FloatArray,
    length: npt.NDArray[np.uint8],
    length_factor: FloatArray,
    least: np.float32,
    place: npt.NDArray[np.int32],
    score: FloatArray,
) -> int:
    """Find the texts of a block whose score is positive and at least `least`, and put the totals back to 0.

    Args:
        totals: Sums over terms. Shape: (65536,).
        length: Terms of every text. Shape: (n,).
        length_factor: What the sum of a text of each length is multiplied by, falling. Shape: (256,).
        least: The least score.
        place: Where the places found go, rising. Shape: (65536,).
        score: Where their scores go. Shape: (65536,).

    Returns:
        How many were found.
    """
    found = np.flatnonzero(totals[: len(length)] * length_factor[0] >= max(least, np.finfo(np.float32).tiny))
    scores = totals[found] * length_factor[length[found]]
    kept = scores >= least
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
    totals: FloatArray,
    length: npt.NDArray[np.uint8],
    length_factor: FloatArray,
    least: np.float32,
    place: npt.NDArray[np.int32],
    score: FloatArray,
) -> int:
    count = 0
    factor = length_factor[0]
    for i in range(len(length)):
        total = totals[i]
        if total > 0 and total * factor >= least:
            value = total * length_factor[length[i]]
            if value >= least:
                place[count] = i
                score[count] = value
                count += 1
    totals[:] = 0
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


if find_spec("numba") is not None:
    from decoding.kernels.compiling import compiled

    accumulate = compiled(_accumulate)
    best_of_block = compiled(_best_of_block)
    overlaps = compiled(_overlaps)
