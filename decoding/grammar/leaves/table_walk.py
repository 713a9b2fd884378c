"""Walks the vocabulary's trie under the table of an automaton: which tokens pass, and where texts end.

Small subtrees are walked in Python. Large ones are walked with NumPy or, once `warm_up` has been called and
numba works, in a compiled loop; compiling takes seconds, so no request does it. All give the same results.

The table's rows are written when a walk first needs them, into zeroed memory that is mapped in small pages.
NumPy asks for pages of two mebibytes for large arrays; a sparsely written table would then take two
mebibytes, and a hundred microseconds to zero them, for every row.
"""

from __future__ import annotations

import logging
import mmap
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from genret.decoding.grammar.leaves.leaf import FEW_TOKENS, LeafTokens, TokenWalk
from genret.decoding.grammar.regular.byte_dfa import ByteDfa
from genret.decoding.grammar.token_trie import TokenNode

if TYPE_CHECKING:
    from genret.decoding.grammar.leaves.dfa_leaf import DfaLeaf
    from genret.decoding.grammar.vocabulary import Vocabulary


Ints = NDArray[np.int32]


def ranges(first: Ints, behind: Ints) -> tuple[Ints, Ints]:
    """Write out ranges one after the other: their numbers, and the range that each comes from."""
    length = behind - first
    owner = np.repeat(np.arange(len(first), dtype=np.int32), length)
    shift = first - (np.cumsum(length, dtype=np.int32) - length)
    return np.arange(len(owner), dtype=np.int32) + shift[owner], owner


logger = logging.getLogger(__name__)

_QUOTE = ord('"')
FEW_PLACES = 24
"""Up to so many prefixes a loop in Python is quicker than the first NumPy operations."""


class TransitionTable(NamedTuple):
    """An automaton as the walks read it.

    Rows are written when a walk first needs them: automata of counted patterns have 100,000 states, of which
    one walk meets some hundreds. The last four arrays are read-only.
    """

    next_state: NDArray[np.int32]  # By state and byte, -1 for none, for written rows. Shape: (S, 256)
    is_written: NDArray[np.uint8]  # Whether a state's row is written. Shape: (S,)
    edges: NDArray[np.int32]  # First byte, last byte and next state, by state. Shape: (E, 3)
    edge_begin: NDArray[np.int32]  # Index of each state's first edge. Shape: (S + 1,)
    label: NDArray[np.int32]  # Label by state, -1 where no text ends. Shape: (S,), contiguous
    alive: NDArray[np.bool_]  # Whether a state may be reached. Shape: (S,)

    @staticmethod
    def of_automaton(automaton: ByteDfa) -> TransitionTable:
        """The table of an automaton, without any written row."""
        num_states = automaton.num_states
        alive = np.ones(num_states, np.bool_)
        alive.flags.writeable = False
        return TransitionTable(
            sparse_zeros((num_states, 256), np.int32),
            np.zeros(num_states, np.uint8),
            automaton.edges,
            automaton.edge_begin,
            automaton.labels,
            alive,
        )

    def with_some(self, label: NDArray[np.int32], alive: NDArray[np.bool_]) -> TransitionTable:
        """The table of some of the texts, with these labels and living states; rows are shared."""
        label.flags.writeable = alive.flags.writeable = False
        rows = (self.next_state, self.is_written, self.edges, self.edge_begin)
        return TransitionTable(*rows, label, alive)

    def written(self) -> NDArray[np.int32]:
        """The next states of all states; missing rows are written. Shape: (S, 256), int32."""
        missing = np.flatnonzero(self.is_written == 0)
        if len(missing):
            count = np.diff(self.edge_begin)[missing]
            row = np.repeat(np.arange(len(missing)), count)
            runs = np.repeat(self.edge_begin[missing] - (np.cumsum(count) - count), count)
            first, last, target = self.edges[runs + np.arange(len(row))].T
            length = last - first + 1
            places = np.repeat(256 * row + first - (np.cumsum(length) - length), length)
            rows = np.full(256 * len(missing), -1, np.int32)
            rows[places + np.arange(len(places))] = np.repeat(target, length)
            self.next_state[missing] = rows.reshape(-1, 256)
            self.is_written[missing] = 1
        return self.next_state

    @property
    def num_bytes(self) -> int:
        """Memory of labels and living states; rows are shared with tables of fewer texts."""
        return self.label.nbytes + self.alive.nbytes

    @property
    def num_row_bytes(self) -> int:
        """Memory of the written rows and of the edges."""
        written = int(np.count_nonzero(self.is_written))
        arrays = self.is_written.nbytes + self.edges.nbytes + self.edge_begin.nbytes
        return int(arrays + written * self.next_state[0].nbytes)


Walk = Callable[[TransitionTable, int, tuple[int, ...]], TokenWalk]
Flags = NDArray[np.bool_]
Trace = Callable[[TransitionTable, int, tuple[int, ...], Flags], tuple[Ints, Ints, Ints]]


class TableWalker:
    """Walks one vocabulary's trie; `trace` is `trace_by_depth` or the compiled loop of the same results."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.vocabulary = vocabulary
        self._large: Walk = self.walk_by_depth
        self.trace: Trace = self.trace_by_depth
        self._compiled_bytes: int | None = None

    def warm_up(self) -> None:
        """Compile the loops if numba works; otherwise build what NumPy's walks need."""
        if self._compiled_bytes is not None:
            return
        try:
            from genret.decoding.grammar.leaves.numba_walk import CompiledWalk

            compiled = CompiledWalk(self.vocabulary)
        except Exception as error:  # an installation that does not fit together fails in ways of its own
            if not isinstance(error, ImportError):
                logger.warning("numba is installed but does not work: %r; tokens are found with NumPy", error)
            _ = self.vocabulary.trie.children
            return
        self._compiled_bytes, self._large, self.trace = compiled.num_bytes, compiled, compiled.trace

    @property
    def num_bytes(self) -> int:
        """Memory that compiled walks keep beside the trie."""
        return self._compiled_bytes or 0

    def tokens(self, leaf: DfaLeaf, state: int, node: TokenNode) -> LeafTokens:
        """The tokens below a node that pass from a state on (`Leaf.tokens`)."""
        if node.num_below <= FEW_PLACES:
            walked = self.walk_nodes(leaf, state, node.positions)
        else:
            walked = self._large(leaf.table, state, node.positions)
        return walked.leaf_tokens(self.vocabulary)

    def trace_by_depth(
        self, table: TransitionTable, state: int, positions: tuple[int, ...], counted: Flags
    ) -> tuple[Ints, Ints, Ints]:
        """List the positions below some that pass, the state at each, and a count, with NumPy.

        Steps out of states that are `counted` count, except by a quote. Shape: (S,), bool.
        """
        trie, next_state = self.vocabulary.trie, table.written()
        child_begin, child = trie.children
        places = np.array(positions, dtype=np.int32)
        states = np.full(len(places), state, dtype=np.int32)
        counts = np.zeros(len(places), dtype=np.int32)
        found = [(places[:0], states[:0], counts[:0])]
        while len(places):
            runs, owner = ranges(child_begin[places], child_begin[places + 1])
            places = child[runs]
            before, byte = states[owner], trie.byte[places]
            states = next_state[before, byte]
            counts = counts[owner] + (counted[before] & (byte != _QUOTE))
            kept = (states >= 0) & table.alive[states]  # whichever state -1 means there
            places, states, counts = places[kept], states[kept], counts[kept]
            found.append((places, states, counts))
        places, states, counts = (np.concatenate(parts) for parts in zip(*found, strict=True))
        return places, states, counts

    def walk_nodes(self, leaf: DfaLeaf, state: int, positions: tuple[int, ...]) -> TokenWalk:
        """Walk in Python, without the table."""
        trie = self.vocabulary.trie
        byte, end, begin, ids = trie.byte_view, trie.end_view, trie.token_begin_view, trie.tokens_view
        step, label_of = leaf.step, leaf.label
        tokens: list[int] = []
        exits: dict[int, list[int]] = {}
        # (where a subtree ends, the state at its root) from the outermost to the one we are in
        for root in positions:
            open_roots = [(end[root], state)]
            position = root + 1
            while position < end[root]:
                while position >= open_roots[-1][0]:
                    open_roots.pop()
                after = step(open_roots[-1][1], byte[position])
                behind = end[position]
                if after < 0:
                    position = behind
                    continue
                tokens += ids[begin[position] : begin[position + 1]]
                if behind > position + 1:
                    label = label_of(after)
                    if label >= 0:
                        exits.setdefault(label, []).append(position)
                    open_roots.append((behind, after))
                position += 1
        return TokenWalk(tokens, None, exits)

    def walk_by_depth(self, table: TransitionTable, state: int, positions: tuple[int, ...]) -> TokenWalk:
        """Walk with NumPy."""
        trie = self.vocabulary.trie
        places, states, _ = self.trace_by_depth(table, state, positions, table.alive)
        runs, _ = ranges(trie.token_begin[places], trie.token_begin[places + 1])
        tokens, ended = trie.tokens[runs], table.label[states]
        is_exit = (ended >= 0) & (trie.end[places] > places + 1)
        exits: dict[int, list[int]] = {}
        for place, label in zip(places[is_exit].tolist(), ended[is_exit].tolist(), strict=True):
            exits.setdefault(label, []).append(place)
        if len(tokens) <= FEW_TOKENS:
            return TokenWalk(tokens.tolist(), None, exits)
        return TokenWalk(None, self.vocabulary.packed(tokens), exits)


_Number = TypeVar("_Number", bound=np.generic)

# Smaller arrays are zeroed faster than mapped.
_LARGE = 1 << 20


def sparse_zeros(shape: tuple[int, ...], dtype: type[_Number]) -> NDArray[_Number]:
    """Zeros that take memory only where something is written, in small pages where the system allows."""
    num_bytes = int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
    if num_bytes < _LARGE:
        return np.zeros(shape, dtype)
    memory = mmap.mmap(-1, num_bytes)
    if hasattr(mmap, "MADV_NOHUGEPAGE"):
        memory.madvise(mmap.MADV_NOHUGEPAGE)
    return np.frombuffer(memory, dtype).reshape(shape)
