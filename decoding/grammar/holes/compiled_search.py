"""Following sorted texts in compiled loops. Importing this needs numba."""

from __future__ import annotations

import logging
from bisect import bisect_left
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from decoding.grammar.holes.search_loops import narrow, walk
from decoding.grammar.holes.text_places import TextRange, TextWalk
from decoding.grammar.leaves.leaf import FEW_TOKENS
from decoding.numba_compiling import keep_nothing
from decoding.sorted_texts import SortedTexts

if TYPE_CHECKING:
    from decoding.grammar.token_trie import FlatTrie
    from decoding.grammar.vocabulary import Vocabulary

logger = logging.getLogger(__name__)

# The columns of the trie's nodes, as the loop has them.
_BYTE, _CHILDREN, _TOKEN, _POSITION = range(4)
# Where what the loop finds begins: behind its two counts, and behind the tokens.
_TOKENS = 2
_EXITS = _TOKENS + FEW_TOKENS
_ROOM = 1024
_LEVEL = 10


class CompiledSearch:
    """The compiled loops over one vocabulary's trie; compiled, or read from numba's cache, when made.

    Args:
        vocabulary: Whose trie.
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        trie = vocabulary.trie
        self._nodes, self._begins = _by_depth(trie)
        self._positions = self._nodes[:, _POSITION].data
        self._depths = trie.depth_view
        self._tokens = trie.tokens
        self._depth = trie.max_depth
        self._num_words = vocabulary.num_words
        texts, place = SortedTexts.of([b"a"]), TextRange(0, 1, 0, 0)
        try:
            self._warm_up(texts, place)
        except Exception as error:
            # Kept code may be cut short, another user's or on a full disk, each an error of its own kind.
            keep_nothing()
            self._warm_up(texts, place)
            logger.warning("compiled loops are neither found nor kept for the next process: %r", error)

    @property
    def num_bytes(self) -> int:
        """Memory of what was copied for the loops."""
        return self._nodes.nbytes

    def narrow(self, texts: SortedTexts, place: TextRange, byte: int) -> TextRange | None:
        """The place behind one byte of JSON, None where no text goes on with it."""
        found = narrow(texts.order, texts.batches.addresses, texts.batches.shift, *place, byte)
        return TextRange(*found) if found[3] >= 0 else None

    def walk(self, texts: SortedTexts, place: TextRange, positions: tuple[int, ...]) -> TextWalk:
        """Find the tokens below some positions of the trie that go on with some text."""
        mask: NDArray[np.uint32] = np.zeros(self._num_words, dtype=np.uint32)
        roots = np.array([self._node(position) for position in positions], dtype=np.int32)
        levels = np.empty((self._depth + 1, _LEVEL), dtype=np.int64)
        room = _ROOM
        while True:
            found = np.empty(_EXITS + room, dtype=np.int32)
            walk(
                texts.order,
                texts.batches.addresses,
                texts.batches.shift,
                *place,
                self._nodes,
                self._tokens,
                levels,
                roots,
                mask,
                found,
            )
            num_tokens, num_exits = found[:_TOKENS].tolist()
            if num_exits <= room:
                break
            room = num_exits  # rare: many texts end within tokens
        exits = found[_EXITS : _EXITS + num_exits].tolist()
        if num_tokens <= FEW_TOKENS:
            return TextWalk(found[_TOKENS : _TOKENS + num_tokens].tolist(), None, exits)
        mask.flags.writeable = False
        return TextWalk(None, mask, exits)

    def _node(self, position: int) -> int:
        """The row of a position of the trie; those of one depth are in the trie's order."""
        depth = self._depths[position]
        return bisect_left(self._positions, position, self._begins[depth], self._begins[depth + 1])

    def _warm_up(self, texts: SortedTexts, place: TextRange) -> None:
        self.narrow(texts, place, 0)
        self.walk(texts, place, (0,))


def _by_depth(trie: FlatTrie) -> tuple[NDArray[np.int32], list[int]]:
    """Return the nodes as `walk` takes them, and where each depth begins and the last ends.

    Children side by side share cache lines, and one array is a cheaper argument than four.
    """
    positions = np.argsort(trie.depth, kind="stable")
    begins = np.searchsorted(trie.depth[positions], np.arange(trie.max_depth + 2)).tolist()
    nodes = np.zeros((len(positions) + 1, 4), dtype=np.int32)
    nodes[-1, _CHILDREN] = len(positions)
    first = trie.token_begin[positions]
    counts = trie.token_begin[positions + 1] - first
    nodes[:-1, _BYTE] = trie.byte[positions] + (counts << 8)
    nodes[:-1, _POSITION] = positions
    nodes[:-1, _TOKEN] = first
    only = np.flatnonzero(counts == 1)
    nodes[only, _TOKEN] = trie.tokens[first[only]]
    levels = [positions[begin:end] for begin, end in pairwise(begins)]
    for end, level, below in zip(begins[1:], levels, [*levels[1:], levels[0][:0]], strict=True):
        nodes[end - len(level) : end, _CHILDREN] = end + np.searchsorted(below, level)
    return nodes, begins
