"""Lexicographic order of token rows, vectorised: a most-significant-first sort on packed tokens.

As many tokens as fit are packed into one 63-bit key; rows are sorted by it, and only rows that tie go on
to their next tokens. Titles differ early, so few rows get past the second key.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

IntArray = npt.NDArray[np.signedinteger]


def sort_rows(tokens: IntArray, offsets: IntArray, vocab_size: int) -> tuple[IntArray, npt.NDArray[np.bool_]]:
    """Sort F rows; a row sorts before its extensions, equal rows keep their order.

    Args:
        tokens: All rows, concatenated; every token is in 0 … vocab_size - 1. Shape: (total tokens,).
        offsets: Row f is tokens[offsets[f] : offsets[f + 1]]. Shape: (F + 1,).
        vocab_size: Bound of the tokens.

    Returns:
        order: Row numbers in lexicographic order. Shape: (F,), int64.
        first: Whether a row differs from the one before it in that order. Shape: (F,), bool.
    """
    bits = max(int(vocab_size), 1).bit_length()  # tokens are packed as token + 1; 0 is "past the end"
    width = max(63 // bits, 1)
    starts, ends = offsets[:-1], offsets[1:]
    count = len(starts)
    order = np.arange(count)
    first = np.zeros(count, dtype=bool)
    first[:1] = True
    places = np.arange(count)  # places of `order` still to be settled; runs of ties are contiguous
    depth = 0
    while len(places):
        rows = order[places]
        keys = _pack(tokens, starts[rows] + depth, ends[rows], width, bits)
        run = np.cumsum(first[places])  # which run of ties a place belongs to
        by_key = np.lexsort((keys, run)) if depth else np.argsort(keys, kind="stable")
        order[places] = rows[by_key]
        keys = keys[by_key]
        # A run keeps its places, so only places inside a run can newly differ from their predecessor.
        differs = np.zeros(len(places), dtype=bool)
        differs[1:] = keys[1:] != keys[:-1]
        first[places] |= differs
        depth += width
        tied = ~first[places]
        tied[:-1] |= tied[1:]
        # A row that ends exactly here takes part once more, as "past the end", to part from its extensions.
        unfinished = ends[order[places]] - starts[order[places]] >= depth
        places = places[tied & unfinished]
    return order, first


def gather_rows(tokens: IntArray, offsets: IntArray, rows: IntArray) -> tuple[IntArray, IntArray]:
    """Return some rows, concatenated in the given order.

    Returns:
        tokens: Shape: (total tokens of the rows,).
        offsets: Shape: (len(rows) + 1,), int64.
    """
    lengths = (offsets[1:] - offsets[:-1])[rows]
    gathered_offsets = np.zeros(len(rows) + 1, dtype=np.int64)
    np.cumsum(lengths, out=gathered_offsets[1:])
    gathered = np.empty(int(gathered_offsets[-1]), dtype=tokens.dtype)
    step = 1 << 20  # in pieces: the positions take eight bytes per token
    for begin in range(0, len(rows), step):
        piece = slice(begin, min(begin + step, len(rows)))
        base = gathered_offsets[piece.start]
        total = int(gathered_offsets[piece.stop] - base)
        shift = offsets[:-1][rows[piece]] - (gathered_offsets[piece] - base)
        positions = np.repeat(shift, lengths[piece]) + np.arange(total)
        gathered[base : base + total] = tokens[positions]
    return gathered, gathered_offsets


def _pack(tokens: IntArray, starts: IntArray, ends: IntArray, width: int, bits: int) -> npt.NDArray[np.int64]:
    keys = np.zeros(len(starts), dtype=np.int64)
    last = len(tokens) - 1
    for i in range(width):
        at = starts + i
        inside = at < ends
        column = tokens[np.minimum(at, last)].astype(np.int64) + 1
        keys = (keys << bits) | np.where(inside, column, 0)
    return keys
