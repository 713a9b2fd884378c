"""The shortest of a run of sorted texts, as JSON spells them."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property

import numpy as np
import numpy.typing as npt

from decoding.grammar.holes.place import ESCAPED_BYTES, spelled
from decoding.grammar.holes.sorted_texts import SortedTexts

# Texts of a block; the shortest length of each block is kept, 2 bytes.
_BLOCK = 64
_LONGEST = (1 << 16) - 1
_AT_ONCE = 1 << 18
_ESCAPED = frozenset(ESCAPED_BYTES)

Longs = npt.NDArray[np.int64]


class ShortestTexts:
    """Finds shortest texts; a wide run is looked at by blocks.

    Args:
        texts: At least one.
    """

    def __init__(self, texts: SortedTexts) -> None:
        self._texts = texts

    @cached_property
    def _blocks(self) -> npt.NDArray[np.uint16]:
        """Bytes of the shortest text of each block, no more than 65,535. Shape: (ceil(n / 64),)."""
        order = self._texts.order
        shortest = np.empty(-(-len(order) // _BLOCK), dtype=np.uint16)
        for begin in range(0, len(order), _AT_ONCE):
            lengths = self._texts.batches.lengths(order[begin : begin + _AT_ONCE])
            least = np.minimum.reduceat(lengths, np.arange(0, len(lengths), _BLOCK))
            first = begin // _BLOCK
            shortest[first : first + len(least)] = np.minimum(least, _LONGEST)
        return shortest

    @property
    def num_bytes(self) -> int:
        """Memory of the blocks."""
        return 2 * -(-len(self._texts) // _BLOCK)

    def spelling(self, begin: int, end: int, depth: int) -> bytes:
        """The shortest spelling from a depth on of all texts of a run, of equally short ones the first."""
        best: bytes | None = None
        length = self._least(begin, end, -1)
        while length is not None and (best is None or length - depth <= len(best)):
            for position in self._positions(begin, end, length):
                text = self._texts.text(position)[depth:]
                plain = not _ESCAPED.intersection(text)
                spelling = text if plain else spelled(text)
                if best is None or (len(spelling), spelling) < (len(best), best):
                    best = spelling
                if plain:
                    break  # those behind it are no shorter, and none of them is spelled before it
            if best is not None and len(best) == length - depth:
                break
            length = self._least(begin, end, length)
        if best is None:
            raise ValueError(f"expected a run of texts, got [{begin}, {end})")
        return best

    def _least(self, begin: int, end: int, above: int) -> int | None:
        """The least length above some length."""
        length = self._texts.length
        head, whole, tail = _parts(begin, end)
        found = [size for part in (head, tail) for position in part if (size := length(position)) > above]
        blocks = self._blocks[whole.start : whole.stop]
        longer = blocks[blocks > above]
        least = int(longer.min()) if len(longer) else _LONGEST
        # The shortest text of a block may be too short, and others of it not. That comes to many blocks only
        # where all texts of some length have escapes.
        some = blocks <= above
        if least < _LONGEST:
            found.append(least)
        else:
            some |= blocks == _LONGEST
        for block in (np.flatnonzero(some) + whole.start).tolist():
            found += [size for position in _positions_of(block) if (size := length(position)) > above]
        return min(found, default=None)

    def _positions(self, begin: int, end: int, length: int) -> Iterator[int]:
        """The positions of the texts of a run that have some length, ascending."""
        head, whole, tail = _parts(begin, end)
        some = self._blocks[whole.start : whole.stop] <= min(length, _LONGEST)
        blocks = (np.flatnonzero(some) + whole.start).tolist()
        for part in (head, *map(_positions_of, blocks), tail):
            for position in part:
                if self._texts.length(position) == length:
                    yield position


def _parts(begin: int, end: int) -> tuple[range, range, range]:
    """The positions of a run before its whole blocks, these blocks, and the positions behind them."""
    first = -(-begin // _BLOCK)
    behind = max(end // _BLOCK, first)
    head = range(begin, min(first * _BLOCK, end))
    return head, range(first, behind), range(max(behind * _BLOCK, head.stop), end)


def _positions_of(block: int) -> range:
    return range(block * _BLOCK, (block + 1) * _BLOCK)
