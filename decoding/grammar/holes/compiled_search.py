"""Following sorted texts in compiled loops. Importing this needs numba."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from decoding.grammar.holes import search_loops
from decoding.grammar.holes.place import Place
from decoding.grammar.holes.search import Walked
from decoding.grammar.holes.sorted_texts import SortedTexts
from decoding.grammar.leaves.leaf import FEW_TOKENS
from decoding.kernels.compiling import keep_nothing

if TYPE_CHECKING:
    from decoding.grammar.vocabulary.vocabulary import Vocabulary

logger = logging.getLogger(__name__)

# Where what the loop finds begins: behind its two counts, and behind the tokens.
_TOKENS = 2
_EXITS = _TOKENS + FEW_TOKENS
_ROOM = 1024
_LEVEL = 8


class CompiledSearch:
    """The compiled loops over one vocabulary's trie; compiled, or read from numba's cache, when made.

    Args:
        vocabulary: Whose trie.
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        trie = vocabulary.trie
        # One array instead of four: what a call costs is the arrays it takes, and a node is one cache line.
        nodes = np.stack([trie.byte, trie.depth, trie.end, trie.token_begin[:-1]], axis=1, dtype=np.int32)
        self._nodes = np.concatenate([nodes, [[0, 0, 0, len(trie.tokens)]]], dtype=np.int32)
        self._tokens = trie.tokens
        self._depth = trie.max_depth
        self._num_words = vocabulary.num_words
        texts, place = SortedTexts.of([b"a"]), Place(0, 1, 0, 0)
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

    def narrow(self, texts: SortedTexts, place: Place, byte: int) -> Place | None:
        """The place behind one byte of JSON, None where no text goes on with it."""
        found = search_loops.narrow(texts.order, texts.batches.addresses, texts.batches.shift, *place, byte)
        return Place(*found) if found[3] >= 0 else None

    def walk(self, texts: SortedTexts, place: Place, positions: tuple[int, ...]) -> Walked:
        """Find the tokens below some positions of the trie that go on with some text."""
        mask: NDArray[np.uint32] = np.zeros(self._num_words, dtype=np.uint32)
        roots = np.array(positions, dtype=np.int32)
        levels = np.empty((self._depth + 1, _LEVEL), dtype=np.int64)
        room = _ROOM
        while True:
            found = np.empty(_EXITS + room, dtype=np.int32)
            search_loops.walk(
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
            return Walked(found[_TOKENS : _TOKENS + num_tokens].tolist(), None, exits)
        mask.flags.writeable = False
        return Walked(None, mask, exits)

    def _warm_up(self, texts: SortedTexts, place: Place) -> None:
        self.narrow(texts, place, 0)
        self.walk(texts, place, (0,))
