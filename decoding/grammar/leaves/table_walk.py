"""Walking the vocabulary's trie under the table of an automaton: which tokens pass, and where texts end.

Three ways with the same results. Small subtrees are walked in Python. Large ones are walked level by level
with NumPy or, once `warm_up` has been called where numba is there, by a compiled loop: compiling takes
seconds, so no request ever does it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from decoding.grammar.leaves.leaf import FEW_TOKENS, Exit, LeafTokens
from decoding.grammar.leaves.numpy_walk import Ints, trace_by_levels, walk_by_levels
from decoding.grammar.regular.byte_dfa import ByteDfa
from decoding.grammar.vocabulary.token_node import TokenNode

if TYPE_CHECKING:
    from decoding.grammar.leaves.numba_walk import CompiledWalk
    from decoding.grammar.vocabulary.vocabulary import Vocabulary

logger = logging.getLogger(__name__)

# Below so many prefixes a loop in Python is quicker than the first NumPy operations.
FEW_PLACES = 24


class Table(NamedTuple):
    """An automaton as the walks read it.

    Attributes:
        next_state: By state and byte, -1 where there is none. Shape: (S, 256), int32, contiguous, read-only.
        label: By state, -1 where no text ends. Shape: (S,), int32, contiguous, read-only.
        alive: Whether a state may be reached. Shape: (S,), bool, read-only.
        passes: What the compiled loop has found of the characters that a state treats alike, as it keeps
            them. Shape: (S,), uint64.
        following: The state behind these; -2 where the loop has not been yet. Shape: (S,), int32.
    """

    next_state: NDArray[np.int32]
    label: NDArray[np.int32]
    alive: NDArray[np.bool_]
    passes: NDArray[np.uint64]
    following: NDArray[np.int32]

    @staticmethod
    def of(
        next_state: NDArray[np.int32], label: NDArray[np.int32], alive: NDArray[np.bool_] | None = None
    ) -> Table:
        """Make the arrays what the compiled loop is compiled for; `alive` None: all states."""
        num_states = len(label)
        states = np.ascontiguousarray(next_state, dtype=np.int32).view()
        labels = np.ascontiguousarray(label, dtype=np.int32).view()
        living = np.ones(num_states, np.bool_) if alive is None else alive.view()
        states.flags.writeable = labels.flags.writeable = living.flags.writeable = False
        passes = np.zeros(num_states, dtype=np.uint64)
        return Table(states, labels, living, passes, np.full(num_states, -2, dtype=np.int32))

    @staticmethod
    def of_automaton(automaton: ByteDfa) -> Table:
        """Write out an automaton's edges."""
        rows = automaton.rows
        edges = np.fromiter(chain.from_iterable(chain.from_iterable(rows)), np.int32).reshape(-1, 3)
        first, behind, target = edges[:, 0], edges[:, 1] + 1, edges[:, 2]
        begin = 256 * np.repeat(np.arange(len(rows)), [len(row) for row in rows]) + first
        length = behind - first
        next_state = np.full(256 * len(rows), -1, dtype=np.int32)
        places = np.repeat(begin - (np.cumsum(length) - length), length) + np.arange(length.sum())
        next_state[places] = np.repeat(target, length)
        return Table.of(next_state.reshape(-1, 256), np.array(automaton.ends, dtype=np.int32))

    @property
    def num_bytes(self) -> int:
        """Memory of all arrays but the next states, which tables of fewer texts share."""
        return self.label.nbytes + self.alive.nbytes + self.passes.nbytes + self.following.nbytes


class Steps(Protocol):
    """An automaton, read byte by byte or as a table."""

    @property
    def table(self) -> Table:
        """The whole of it."""

    def step(self, state: int, byte: int) -> int:
        """The state after one byte, -1 if it is not allowed."""

    def label(self, state: int) -> int:
        """What the text written so far is, -1 where it is not a whole text."""


class Walked(NamedTuple):
    """What a walk has met.

    Attributes:
        tokens: Ids of the tokens that pass, in any order; None where `mask` holds them.
        mask: The same as a packed mask. Shape: (ceil(V / 32),), uint32.
        exits: Positions of the flat trie with longer tokens, where a text has ended, by its label.
    """

    tokens: Sequence[int] | None
    mask: NDArray[np.uint32] | None
    exits: dict[int, list[int]]


Walk = Callable[[Table, int, tuple[int, ...]], Walked]
Trace = Callable[[Table, int, tuple[int, ...], tuple[int, int]], tuple[Ints, Ints, Ints]]


class TableWalker:
    """Walks one vocabulary's trie.

    Args:
        vocabulary: Whose trie.
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.vocabulary = vocabulary
        self._large: Walk = self.walk_levels
        self._trace: Trace = self.trace_levels
        self._compiled: CompiledWalk | None = None

    def warm_up(self) -> None:
        """Compile the loops where numba is there and works; build what NumPy's walks need where not."""
        if self._compiled is not None:
            return
        try:
            from decoding.grammar.leaves.numba_walk import CompiledWalk

            compiled = CompiledWalk(self.vocabulary)
        except Exception as error:  # an installation that does not fit together fails in ways of its own
            if not isinstance(error, ImportError):
                logger.warning("numba is installed but does not work: %r; tokens are found with NumPy", error)
            _ = self.vocabulary.trie.children
            return
        self._compiled, self._large, self._trace = compiled, compiled, compiled.trace

    @property
    def num_bytes(self) -> int:
        """Memory of what walks keep beside the trie."""
        return self._compiled.num_bytes if self._compiled is not None else 0

    def tokens(self, leaf: Steps, state: int, node: TokenNode) -> LeafTokens:
        """The tokens below a node that pass from a state on (`Leaf.tokens`)."""
        if node.num_below <= FEW_PLACES:
            tokens, mask, exits = self.walk_nodes(leaf, state, node.positions)
        else:
            tokens, mask, exits = self._large(leaf.table, state, node.positions)
        vocabulary = self.vocabulary
        rests = tuple([Exit(label, vocabulary.rest(exits[label])) for label in sorted(exits)])
        if tokens is None:
            return LeafTokens((), mask, rests)
        if len(tokens) <= FEW_TOKENS:
            return LeafTokens(tuple(sorted(tokens)), None, rests)
        many = vocabulary.packed(tokens)
        many.flags.writeable = False
        return LeafTokens((), many, rests)

    def trace(
        self, table: Table, state: int, positions: tuple[int, ...], begin: tuple[int, int]
    ) -> tuple[Ints, Ints, Ints]:
        """List the positions below some that pass, the state at each, and a count; in any order.

        Args:
            table: The automaton.
            state: At each of the positions.
            positions: Where to begin.
            begin: A state, and a byte: what leads out of the state, except by the byte, is counted.
        """
        return self._trace(table, state, positions, begin)

    def trace_levels(
        self, table: Table, state: int, positions: tuple[int, ...], begin: tuple[int, int]
    ) -> tuple[Ints, Ints, Ints]:
        """Trace with NumPy."""
        return trace_by_levels(self.vocabulary.trie, table.next_state, table.alive, state, positions, begin)

    def walk_nodes(self, leaf: Steps, state: int, positions: tuple[int, ...]) -> Walked:
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
        return Walked(tokens, None, exits)

    def walk_levels(self, table: Table, state: int, positions: tuple[int, ...]) -> Walked:
        """Walk with NumPy."""
        tokens, places, ended = walk_by_levels(
            self.vocabulary.trie, table.next_state, table.label, table.alive, state, positions
        )
        exits: dict[int, list[int]] = {}
        for place, label in zip(places.tolist(), ended.tolist(), strict=True):
            exits.setdefault(label, []).append(place)
        if len(tokens) <= FEW_TOKENS:
            return Walked(tokens.tolist(), None, exits)
        mask = self.vocabulary.packed(tokens)
        mask.flags.writeable = False
        return Walked(None, mask, exits)
