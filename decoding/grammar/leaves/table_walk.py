"""Walks the vocabulary's trie under the table of an automaton: which tokens pass, and where texts end.

Three ways have the same results. Small subtrees are walked in Python. Large ones are walked with NumPy, all
nodes of one depth at a time, or, once `warm_up` has been called where numba is there, by a compiled loop:
compiling takes seconds, so no request ever does it.

The table's rows are written when a walk first needs them, into zeroed memory that is mapped a small page at a
time. For large arrays NumPy asks for pages of two mebibytes: a table of many states with a row here and there
would then take two mebibytes for every row of one, and a hundred microseconds to zero them.
"""

from __future__ import annotations

import logging
import mmap
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from decoding.grammar.leaves.leaf import FEW_TOKENS, Exit, LeafTokens
from decoding.grammar.regular.byte_dfa import ByteDfa
from decoding.grammar.token_trie import FlatTrie, TokenNode

if TYPE_CHECKING:
    from decoding.grammar.vocabulary import Vocabulary


Ints = NDArray[np.int32]


def trace_by_levels(
    trie: FlatTrie,
    next_state: Ints,
    alive: NDArray[np.bool_],
    state: int,
    positions: tuple[int, ...],
    begin: tuple[int, int],
) -> tuple[Ints, Ints, Ints]:
    """Follow the table down from some positions.

    Args:
        trie: The vocabulary's.
        next_state: By state and byte, -1 where there is none. Shape: (S, 256).
        alive: Whether a state may be reached. Shape: (S,).
        state: At each of the positions.
        positions: Where to begin.
        begin: A state, and a byte: what leads out of the state, except by the byte, is counted.

    Returns:
        The positions below that the table lets through, the state at each, and the count on the way to it.
    """
    child_begin, child = trie.children
    places = np.array(positions, dtype=np.int32)
    states = np.full(len(places), state, dtype=np.int32)
    counts = np.zeros(len(places), dtype=np.int32)
    found = [(places[:0], states[:0], counts[:0])]
    counted, except_byte = begin
    while len(places):
        runs, owner = ranges(child_begin[places], child_begin[places + 1])
        places = child[runs]
        before, byte = states[owner], trie.byte[places]
        states = next_state[before, byte]
        counts = counts[owner] + ((before == counted) & (byte != except_byte))
        kept = (states >= 0) & alive[states]  # whichever state -1 means there
        places, states, counts = places[kept], states[kept], counts[kept]
        found.append((places, states, counts))
    places, states, counts = (np.concatenate(parts) for parts in zip(*found, strict=True))
    return places, states, counts


def walk_by_levels(
    trie: FlatTrie,
    next_state: Ints,
    label: Ints,
    alive: NDArray[np.bool_],
    state: int,
    positions: tuple[int, ...],
) -> tuple[Ints, Ints, Ints]:
    """Find the tokens that pass.

    Args:
        trie: The vocabulary's.
        next_state: By state and byte, -1 where there is none. Shape: (S, 256).
        label: By state, -1 where no text ends. Shape: (S,).
        alive: Whether a state may be reached. Shape: (S,).
        state: At each of the positions.
        positions: Where to begin; tokens that end there are not meant.

    Returns:
        Ids of the tokens that pass; the positions with longer tokens where a text has ended; its labels.
    """
    places, states, _ = trace_by_levels(trie, next_state, alive, state, positions, (-1, -1))
    runs, _ = ranges(trie.token_begin[places], trie.token_begin[places + 1])
    ended = label[states]
    leaves = (ended >= 0) & (trie.end[places] > places + 1)
    return trie.tokens[runs], places[leaves], ended[leaves]


def ranges(first: Ints, behind: Ints) -> tuple[Ints, Ints]:
    """Write out ranges one after the other: their numbers, and which range each comes from."""
    length = behind - first
    owner = np.repeat(np.arange(len(first), dtype=np.int32), length)
    shift = first - (np.cumsum(length, dtype=np.int32) - length)
    return np.arange(len(owner), dtype=np.int32) + shift[owner], owner


logger = logging.getLogger(__name__)

# Below so many prefixes a loop in Python is quicker than the first NumPy operations.
FEW_PLACES = 24


class TransitionTable(NamedTuple):
    """An automaton as the walks read it.

    Rows are written when a walk first needs them: automata of counted patterns have 100,000 states, of which
    the tokens behind one meet some hundreds.

    Attributes:
        next_state: By state and byte, -1 where there is none, for states whose row is written. Shape:
            (S, 256), int32.
        is_written: By state, whether it is. Shape: (S,), uint8.
        edges: First byte, last byte and next state, by state. Shape: (E, 3), int32, read-only.
        edge_begin: Where those of each state begin. Shape: (S + 1,), int32, read-only.
        label: By state, -1 where no text ends. Shape: (S,), int32, contiguous, read-only.
        alive: Whether a state may be reached. Shape: (S,), bool, read-only.
    """

    next_state: NDArray[np.int32]
    is_written: NDArray[np.uint8]
    edges: NDArray[np.int32]
    edge_begin: NDArray[np.int32]
    label: NDArray[np.int32]
    alive: NDArray[np.bool_]

    @staticmethod
    def of_automaton(automaton: ByteDfa) -> TransitionTable:
        """The table of an automaton, nothing of which has been met."""
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
        """The table of some of the texts; rows are shared.

        Args:
            label: As of the table.
            alive: As of the table.
        """
        label.flags.writeable = alive.flags.writeable = False
        rows = (self.next_state, self.is_written, self.edges, self.edge_begin)
        return TransitionTable(*rows, label, alive)

    def written(self) -> NDArray[np.int32]:
        """The next states of all states, whose rows are written now. Shape: (S, 256), int32."""
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
        """Memory of the rows that are written by now, and of the edges."""
        written = int(np.count_nonzero(self.is_written))
        arrays = self.is_written.nbytes + self.edges.nbytes + self.edge_begin.nbytes
        return int(arrays + written * self.next_state[0].nbytes)


class Steps(Protocol):
    """An automaton, read byte by byte or as a table."""

    @property
    def table(self) -> TransitionTable:
        """The whole of it."""

    def step(self, state: int, byte: int) -> int:
        """The state after one byte, -1 if it is not allowed."""

    def label(self, state: int) -> int:
        """What the text written so far is, -1 where it is not a whole text."""


class TableWalk(NamedTuple):
    """What a walk has met.

    Attributes:
        tokens: Ids of the tokens that pass, in any order; None where `mask` holds them.
        mask: The same as a packed mask. Shape: (ceil(V / 32),), uint32.
        exits: Positions of the flat trie with longer tokens, where a text has ended, by its label.
    """

    tokens: Sequence[int] | None
    mask: NDArray[np.uint32] | None
    exits: dict[int, list[int]]


Walk = Callable[[TransitionTable, int, tuple[int, ...]], TableWalk]
Trace = Callable[[TransitionTable, int, tuple[int, ...], tuple[int, int]], tuple[Ints, Ints, Ints]]


class TableWalker:
    """Walks one vocabulary's trie.

    Args:
        vocabulary: Whose trie.
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.vocabulary = vocabulary
        self._large: Walk = self.walk_levels
        self._trace: Trace = self.trace_levels
        self._compiled_bytes: int | None = None

    def warm_up(self) -> None:
        """Compile the loops where numba is there and works; build what NumPy's walks need where not."""
        if self._compiled_bytes is not None:
            return
        try:
            from decoding.grammar.leaves.numba_walk import CompiledWalk

            compiled = CompiledWalk(self.vocabulary)
        except Exception as error:  # an installation that does not fit together fails in ways of its own
            if not isinstance(error, ImportError):
                logger.warning("numba is installed but does not work: %r; tokens are found with NumPy", error)
            _ = self.vocabulary.trie.children
            return
        self._compiled_bytes, self._large, self._trace = compiled.num_bytes, compiled, compiled.trace

    @property
    def num_bytes(self) -> int:
        """Memory of what walks keep beside the trie."""
        return self._compiled_bytes or 0

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
        self, table: TransitionTable, state: int, positions: tuple[int, ...], begin: tuple[int, int]
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
        self, table: TransitionTable, state: int, positions: tuple[int, ...], begin: tuple[int, int]
    ) -> tuple[Ints, Ints, Ints]:
        """Trace with NumPy."""
        return trace_by_levels(self.vocabulary.trie, table.written(), table.alive, state, positions, begin)

    def walk_nodes(self, leaf: Steps, state: int, positions: tuple[int, ...]) -> TableWalk:
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
        return TableWalk(tokens, None, exits)

    def walk_levels(self, table: TransitionTable, state: int, positions: tuple[int, ...]) -> TableWalk:
        """Walk with NumPy."""
        tokens, places, ended = walk_by_levels(
            self.vocabulary.trie, table.written(), table.label, table.alive, state, positions
        )
        exits: dict[int, list[int]] = {}
        for place, label in zip(places.tolist(), ended.tolist(), strict=True):
            exits.setdefault(label, []).append(place)
        if len(tokens) <= FEW_TOKENS:
            return TableWalk(tokens.tolist(), None, exits)
        mask = self.vocabulary.packed(tokens)
        mask.flags.writeable = False
        return TableWalk(None, mask, exits)


_Number = TypeVar("_Number", bound=np.generic)

# Smaller arrays are zeroed sooner than mapped.
_LARGE = 1 << 20


def sparse_zeros(shape: tuple[int, ...], dtype: type[_Number]) -> NDArray[_Number]:
    """Zeros that take memory only where something is written, a small page at a time where that is known.

    Args:
        shape: Of the array.
        dtype: Of its numbers.
    """
    num_bytes = int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
    if num_bytes < _LARGE:
        return np.zeros(shape, dtype)
    memory = mmap.mmap(-1, num_bytes)
    if hasattr(mmap, "MADV_NOHUGEPAGE"):
        memory.madvise(mmap.MADV_NOHUGEPAGE)
    return np.frombuffer(memory, dtype).reshape(shape)
