"""Defines sorted runs, which a build merges, and sorts the token rows that they hold.

A run holds entities in the lexicographic order of their titles' rows, and the forms (titles and aliases) of
these entities in the lexicographic order of their own rows. A build merges shards; an update merges the live
version with shards.

Rows are sorted by a vectorised most-significant-first sort: as many tokens as fit are packed into one
63-bit key, and only tied rows go on to their next tokens. Few rows get past the second key.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from genret.retrieval.index.layout import ENTITY_BATCH_ROWS

IntArray = npt.NDArray[np.signedinteger]


@dataclass(frozen=True, slots=True)
class FormSlice:
    """F neighbouring forms of one run."""

    tokens: IntArray  # concatenated rows, ascending; equal rows may repeat; shape (total tokens,), unsigned
    offsets: IntArray  # row i is tokens[offsets[i] : offsets[i + 1]]; offsets[0] = 0; shape (F + 1,), int64
    entity: IntArray  # the run's number of each form's entity; shape (F,), int64
    form: IntArray  # 0 for the title, n for the n-th alias; shape (F,), int32


class Run(Protocol):
    """One sorted run. Reading a slice costs memory for the slice alone."""

    num_entities: int  # number of entities, dropped ones included
    num_forms: int  # number of their forms
    keep: npt.NDArray[np.bool_]  # mask of the entities that are merged; shape (num_entities,), bool
    has_ids: bool  # whether any entity's id differs from its title

    def find(self, row: Sequence[int]) -> int:
        """Return how many forms sort before `row` (the lower bound), in 0 … num_forms."""

    def row(self, number: int) -> tuple[int, ...]:
        """Return the row of form `number`."""

    def forms(self, begin: int, end: int) -> FormSlice:
        """Return forms begin … end - 1."""

    def entities(self, begin: int, end: int) -> pa.Table:
        """Return entities begin … end - 1.

        Columns: `entity_id` and `title` (string), `aliases` (list<string>), and the new version's metadata
        columns, in its order and types.
        """


def windows(numbers: IntArray) -> Iterator[tuple[int, int, slice]]:
    """Divide ascending entity numbers into spans of at most 65,536, for reading entities span by span.

    Yields the bounds [low, high) of a span, and the slice of `numbers` that lies in it.
    """
    begin = 0
    while begin < len(numbers):
        low = int(numbers[begin])
        end = int(np.searchsorted(numbers, low + ENTITY_BATCH_ROWS))
        yield low, int(numbers[end - 1]) + 1, slice(begin, end)
        begin = end


def sort_rows(tokens: IntArray, offsets: IntArray, vocab_size: int) -> tuple[IntArray, npt.NDArray[np.bool_]]:
    """Sort F rows; a row sorts before its extensions, equal rows keep their order.

    Row f is tokens[offsets[f] : offsets[f + 1]], and tokens are below `vocab_size`.

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
    places = np.arange(count)  # unsettled places of `order`; runs of ties are contiguous
    depth = 0
    while len(places):
        rows = order[places]
        keys = _pack(tokens, starts[rows] + depth, ends[rows], width, bits)
        run = np.cumsum(first[places])  # number of each place's run of ties
        by_key = np.lexsort((keys, run)) if depth else np.argsort(keys, kind="stable")
        order[places] = rows[by_key]
        keys = keys[by_key]
        # A run keeps its places, so only places inside a run can newly differ from the one before.
        differs = np.zeros(len(places), dtype=bool)
        differs[1:] = keys[1:] != keys[:-1]
        first[places] |= differs
        depth += width
        tied = ~first[places]
        tied[:-1] |= tied[1:]
        # A row that ends exactly here stays once more, as "past the end", to separate from its extensions.
        unfinished = ends[order[places]] - starts[order[places]] >= depth
        places = places[tied & unfinished]
    return order, first


def gather_rows(tokens: IntArray, offsets: IntArray, rows: IntArray) -> tuple[IntArray, IntArray]:
    """Return some rows, concatenated in the given order, and their offsets, of shape (n + 1,), int64."""
    lengths = (offsets[1:] - offsets[:-1])[rows]
    gathered_offsets = np.zeros(len(rows) + 1, dtype=np.int64)
    np.cumsum(lengths, out=gathered_offsets[1:])
    gathered = np.empty(int(gathered_offsets[-1]), dtype=tokens.dtype)
    step = 1 << 20  # in pieces, because positions take eight bytes per token
    for begin in range(0, len(rows), step):
        piece = slice(begin, min(begin + step, len(rows)))
        base = gathered_offsets[piece.start]
        total = int(gathered_offsets[piece.stop] - base)
        shift = offsets[:-1][rows[piece]] - (gathered_offsets[piece] - base)
        positions = np.repeat(shift, lengths[piece]) + np.arange(total)
        gathered[base : base + total] = tokens[positions]
    return gathered, gathered_offsets


def tied_places(values: IntArray) -> npt.NDArray[np.int64]:
    """Return the places of sorted values that equal a neighbour, ascending."""
    same = values[1:] == values[:-1]
    tied = np.zeros(len(values), dtype=bool)
    tied[1:] |= same
    tied[:-1] |= same
    return np.flatnonzero(tied)


def _pack(tokens: IntArray, starts: IntArray, ends: IntArray, width: int, bits: int) -> npt.NDArray[np.int64]:
    keys = np.zeros(len(starts), dtype=np.int64)
    last = len(tokens) - 1
    for i in range(width):
        at = starts + i
        inside = at < ends
        column = tokens[np.minimum(at, last)].astype(np.int64) + 1
        keys = (keys << bits) | np.where(inside, column, 0)
    return keys
