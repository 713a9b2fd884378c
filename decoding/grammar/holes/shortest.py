"""The shortest of a run of sorted texts, as JSON spells them."""

from __future__ import annotations

from functools import cached_property

import numpy as np
import numpy.typing as npt

from decoding.grammar.holes.place import ESCAPED_BYTES, spelled
from decoding.grammar.holes.sorted_texts import SortedTexts

# Texts of a block; the shortest length of each block is kept, 2 bytes.
_BLOCK = 256
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
        """Bytes of the shortest text of each block, no more than 65,535. Shape: (ceil(n / 256),)."""
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
        longest = -1  # texts of at most this length have been looked at
        while best is None or longest - depth < len(best):
            length, places = self._next_shortest(begin, end, longest)
            if length is None:
                break
            for place in places:
                text = self._texts.text(place)[depth:]
                plain = not _ESCAPED.intersection(text)
                spelling = text if plain else spelled(text)
                if best is None or (len(spelling), spelling) < (len(best), best):
                    best = spelling
                if plain:
                    break  # those behind it are no shorter, and none of them is spelled before it
            longest = length
        if best is None:
            raise ValueError(f"expected a run of texts, got [{begin}, {end})")
        return best

    def _next_shortest(self, begin: int, end: int, above: int) -> tuple[int | None, list[int]]:
        """The least length above some length, and the positions of the texts that have it, ascending."""
        least: int | None = None
        places: list[int] = []
        for first, behind in self._parts(begin, end, above):
            lengths = self._texts.batches.lengths(self._texts.order[first:behind])
            longer = lengths[lengths > above]
            if not len(longer) or (least is not None and int(longer.min()) > least):
                continue
            shortest = int(longer.min())
            found = (np.flatnonzero(lengths == shortest) + first).tolist()
            places = places + found if shortest == least else found
            least = shortest
        return least, places

    def _parts(self, begin: int, end: int, above: int) -> list[tuple[int, int]]:
        """Parts of a run that hold all texts of the least length above some length."""
        first, behind = -(-begin // _BLOCK), end // _BLOCK
        if behind - first < 2:
            return [(begin, end)]
        blocks = self._blocks[first:behind]
        longer = blocks[blocks > above]
        # A block with a text that is too short may also have one of the length that is looked for.
        least = int(longer.min()) if len(longer) else _LONGEST
        some = np.flatnonzero(blocks <= least) + first
        parts = [(int(block) * _BLOCK, int(block + 1) * _BLOCK) for block in some]
        return [(begin, first * _BLOCK), *parts, (behind * _BLOCK, end)]
