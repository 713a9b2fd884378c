"""Walking a trie under the table of an automaton in a compiled loop. Importing this needs numba."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import numpy as np

from decoding.grammar.leaves.leaf import FEW_TOKENS
from decoding.grammar.leaves.numba_walk_loop import classify, trace, walk
from decoding.grammar.leaves.table_walk import Ints, Table, Walked
from decoding.grammar.regular.byte_dfa import ByteDfa
from decoding.numba_compiling import keep_nothing

if TYPE_CHECKING:
    from decoding.grammar.vocabulary import Vocabulary

logger = logging.getLogger(__name__)

# Where what the loop finds begins: behind its two counts, and behind the tokens.
_TOKENS = 2
_EXITS = _TOKENS + FEW_TOKENS
_ROOM = 1024


class CompiledWalk:
    """The compiled loop over one vocabulary's trie; compiled, or read from numba's cache, when made.

    Args:
        vocabulary: Whose trie.
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        trie = vocabulary.trie
        # One array instead of six: what a call costs is the arrays it takes, and a node is in one cache line.
        num_nodes = len(trie.byte)
        self._nodes = np.zeros((num_nodes + 1, 8), dtype=np.int32)
        columns = (trie.byte, trie.depth, trie.end, trie.token_begin[:-1])
        self._nodes[:num_nodes, :4] = np.stack(columns, axis=1, dtype=np.int32)
        self._nodes[num_nodes, 3] = len(trie.tokens)
        self._below = self._nodes.view(np.uint64)
        self._everything = vocabulary.packed(trie.tokens)
        self._trie = (self._nodes, self._below, trie.tokens, self._everything)
        self._depth = trie.max_depth
        self._num_words = vocabulary.num_words
        try:
            self._ask_nothing()
        except Exception as error:
            # Kept code may be cut short, another user's or on a full disk, each an error of its own kind.
            keep_nothing()
            self._ask_nothing()
            logger.warning("compiled loops are neither found nor kept for the next process: %r", error)

    def _ask_nothing(self) -> None:
        classify(self._nodes, self._depth, self._below)
        nothing = Table.of_automaton(ByteDfa.literals([]))
        self(nothing, 0, (0,))
        self.trace(nothing, 0, (0,), (-1, -1))

    @property
    def num_bytes(self) -> int:
        """Memory of what was copied for the loop."""
        return self._nodes.nbytes + self._everything.nbytes

    def __call__(self, table: Table, state: int, positions: tuple[int, ...]) -> Walked:
        """Walk (`decoding.grammar.leaves.table_walk.Walk`)."""
        mask = np.zeros(self._num_words, dtype=np.uint32)
        roots = np.array(positions, dtype=np.int32)
        room = _ROOM
        while True:
            found = np.empty(_EXITS + 2 * room, dtype=np.int32)
            walk(*table, state, *self._trie, self._depth, roots, mask, found)
            num_tokens, num_exits = found[:_TOKENS].tolist()
            if num_exits <= room:
                break
            room = num_exits  # rare: many texts of a big set end within tokens
        exits: dict[int, list[int]] = {}
        pairs = found[_EXITS : _EXITS + 2 * num_exits].tolist()
        for place, label in zip(pairs[::2], pairs[1::2], strict=True):
            exits.setdefault(label, []).append(place)
        if num_tokens <= FEW_TOKENS:
            return Walked(found[_TOKENS : _TOKENS + num_tokens].tolist(), None, exits)
        mask.flags.writeable = False
        return Walked(None, mask, exits)

    def trace(
        self, table: Table, state: int, positions: tuple[int, ...], begin: tuple[int, int]
    ) -> tuple[Ints, Ints, Ints]:
        """Trace (`decoding.grammar.leaves.table_walk.Trace`)."""
        roots = np.array(positions, dtype=np.int32)
        room = int((self._nodes[roots, 2] - roots).sum())
        found = np.empty((3, room), dtype=np.int32)  # what is not met is never touched, so it takes no memory
        rows = (table.next_state, table.is_written, table.edges, table.edge_begin)
        count = trace(*rows, state, self._nodes, self._depth, roots, *begin, found)
        places, states, counts = found[:, :count].copy()
        return places, states, counts
