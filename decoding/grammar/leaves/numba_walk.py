"""Walks a trie under the table of an automaton in a compiled loop. Importing this needs numba.

A call counts references to every array it passes on, which takes longer than a step, so the loops do not
share functions for each node. With 200,000 tokens, NumPy's walk takes 5 ms where this one takes 1, for every
character of a string under a counted pattern, and 62 ms where this one takes 9, for a large mask of a real
schema; each is paid beside a forward of the model.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from genret.decoding.grammar.leaves.leaf import FEW_TOKENS, TokenWalk
from genret.decoding.grammar.leaves.table_walk import Ints, TransitionTable
from genret.decoding.grammar.regular.byte_dfa import ByteDfa
from genret.decoding.numba_compiling import compiled

if TYPE_CHECKING:
    from genret.decoding.grammar.vocabulary import Vocabulary

Flags = npt.NDArray[np.uint8]
Words = npt.NDArray[np.uint32]

# A constant of this file: kept compiled code does not notice another file's change.
_FEW = 64
if _FEW != FEW_TOKENS:
    raise ImportError(f"the compiled loop has room for {_FEW} tokens, leaves call {FEW_TOKENS} tokens few")
_QUOTE = ord('"')
# For smaller subtrees, writing a state's row takes longer than searching its edges.
_SMALL_TREE = 24


@compiled
def _write_row(next_state: Ints, is_written: Flags, edges: Ints, edge_begin: Ints, state: int) -> None:
    """Write a row of the table, unless it is written."""
    if is_written[state]:
        return
    # Two threads may write the same row at once, so every value is written once and for good.
    behind = 0
    for e in range(edge_begin[state], edge_begin[state + 1]):
        for byte in range(behind, edges[e, 0]):
            next_state[state, byte] = -1
        behind = edges[e, 1] + 1
        for byte in range(edges[e, 0], behind):
            next_state[state, byte] = edges[e, 2]
    for byte in range(behind, 256):
        next_state[state, byte] = -1
    is_written[state] = 1  # last: whoever reads it finds the row, too


@compiled
def _searched(edges: Ints, edge_begin: Ints, state: int, byte: int) -> int:
    """The state behind a byte, -1 for none, of a state whose row is not written."""
    low, high = edge_begin[state], edge_begin[state + 1]
    while low < high:
        middle = (low + high) // 2
        if edges[middle, 1] < byte:
            low = middle + 1
        else:
            high = middle
    return int(edges[low, 2]) if low < edge_begin[state + 1] and edges[low, 0] <= byte else -1


@compiled
def walk(
    next_state: Ints,
    is_written: Flags,
    edges: Ints,
    edge_begin: Ints,
    label: Ints,
    alive: npt.NDArray[np.bool_],
    state: int,
    nodes: Ints,
    tokens: Ints,
    max_depth: int,
    roots: Ints,
    counting: npt.NDArray[np.bool_] | None,
    mask: Words,
    found: Ints,
) -> tuple[int, int]:
    """Mark the tokens below some nodes that the table lets through, and list where texts have ended.

    The first six arguments are those of `TransitionTable`; `state` is the state at each root. The others:
    * `nodes`: byte, depth, end of the subtree and first token, in depth-first order, and a last row for the
      end of the tokens. Shape: (N + 1, 4).
    * `tokens`: ids by node. Shape: (T,).
    * `max_depth`: largest depth of a node.
    * `roots`: positions of nodes.
    * `counting`: None marks tokens. Otherwise nodes are listed instead, and steps out of these states by
      other bytes than a quote are counted. numba compiles one loop without the other's branches for each.
    * `mask`: output, a bit for each token. Shape: (ceil(V / 32),).
    * `found`: output, the first 64 tokens; and for each exit, as long as there is room, its position and its
      label. With `counting`: the positions that pass, the state at each, and the count on the way to each.
      Shape: (3, room).

    Returns:
        The number of tokens, with `counting` of positions, and the number of exits.
    """
    states = np.empty(max_depth + 1, np.int32)
    counts = np.zeros(max_depth + 1, np.int32)
    num_found = 0
    num_exits = 0
    _write_row(next_state, is_written, edges, edge_begin, state)
    for r in range(len(roots)):
        root = roots[r]
        end = nodes[root, 2]
        states[nodes[root, 1]] = state
        counts[nodes[root, 1]] = 0
        position = root + 1
        while position < end:
            depth = nodes[position, 1]
            behind = nodes[position, 2]
            before = states[depth - 1]
            byte = nodes[position, 0]
            if is_written[before]:
                after = next_state[before, byte]
            else:
                after = _searched(edges, edge_begin, before, byte)
            if after < 0 or not alive[after]:
                position = behind
                continue
            if counting is None:
                for t in range(nodes[position, 3], nodes[position + 1, 3]):
                    token = tokens[t]
                    mask[token >> 5] |= np.uint32(1) << np.uint32(token & 31)
                    if num_found < _FEW:
                        found[num_found] = token
                    num_found += 1
                if behind == position + 1:
                    position = behind
                    continue
                if label[after] >= 0:
                    room = _FEW + 2 * num_exits
                    if room + 1 < len(found):
                        found[room] = position
                        found[room + 1] = label[after]
                    num_exits += 1
            else:
                counts[depth] = counts[depth - 1] + (counting[before] and byte != _QUOTE)
                found[0, num_found] = position
                found[1, num_found] = after
                found[2, num_found] = counts[depth]
                num_found += 1
            states[depth] = after
            if behind - position > _SMALL_TREE and not is_written[after]:
                _write_row(next_state, is_written, edges, edge_begin, after)
            position += 1
    return num_found, num_exits


_ROOM = 1024


def marked(num_words: int, loop: Callable[[Words, Ints], tuple[int, int]]) -> TokenWalk:
    """The result of a loop that fills in a mask and a list as `walk` does, and returns the numbers found."""
    mask = np.zeros(num_words, dtype=np.uint32)
    room = _ROOM
    while True:
        found = np.empty(FEW_TOKENS + 2 * room, dtype=np.int32)
        num_tokens, num_exits = loop(mask, found)
        if num_exits <= room:
            break
        room = num_exits  # rare: many texts of a big set end within tokens
    exits: dict[int, list[int]] = {}
    pairs = found[FEW_TOKENS : FEW_TOKENS + 2 * num_exits].tolist()
    for place, label in zip(pairs[::2], pairs[1::2], strict=True):
        exits.setdefault(label, []).append(place)
    if num_tokens <= FEW_TOKENS:
        return TokenWalk(found[:num_tokens].tolist(), None, exits)
    mask.flags.writeable = False
    return TokenWalk(None, mask, exits)


class CompiledWalk:
    """The compiled loops over one vocabulary's trie; compiled, or read from numba's cache, when made."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        trie = vocabulary.trie
        # One array instead of four: a call costs what its arrays cost, and a node is in one cache line.
        num_nodes = len(trie.byte)
        self._nodes = np.zeros((num_nodes + 1, 4), dtype=np.int32)
        columns = (trie.byte, trie.depth, trie.end, trie.token_begin[:-1])
        self._nodes[:num_nodes] = np.stack(columns, axis=1, dtype=np.int32)
        self._nodes[num_nodes, 3] = len(trie.tokens)
        self._trie = (self._nodes, trie.tokens, trie.max_depth)
        self._no_mask = np.zeros(0, dtype=np.uint32)
        self._num_words = vocabulary.num_words
        nothing = TransitionTable.of_automaton(ByteDfa.literals([]))
        self(nothing, 0, (0,))
        self.trace(nothing, 0, (0,), nothing.alive)

    @property
    def num_bytes(self) -> int:
        """Memory of the trie's copy for the loops."""
        return self._nodes.nbytes

    def __call__(self, table: TransitionTable, state: int, positions: tuple[int, ...]) -> TokenWalk:
        """Walk (`table_walk.Walk`)."""
        roots = np.array(positions, dtype=np.int32)
        return marked(
            self._num_words, lambda mask, found: walk(*table, state, *self._trie, roots, None, mask, found)
        )

    def trace(
        self, table: TransitionTable, state: int, positions: tuple[int, ...], counted: npt.NDArray[np.bool_]
    ) -> tuple[Ints, Ints, Ints]:
        """Trace (`table_walk.Trace`)."""
        roots = np.array(positions, dtype=np.int32)
        room = int((self._nodes[roots, 2] - roots).sum())
        found = np.empty((3, room), dtype=np.int32)  # what is not met is never touched, so it takes no memory
        count, _ = walk(*table, state, *self._trie, roots, counted, self._no_mask, found)
        places, states, counts = found[:, :count].copy()
        return places, states, counts
