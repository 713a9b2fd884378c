"""A leaf over an automaton: patterns, formats, numbers, enums, sets of keys, strings of any kind."""

from __future__ import annotations

from collections.abc import Hashable
from functools import cached_property

from decoding.grammar.leaves.leaf import LeafTokens
from decoding.grammar.leaves.table_walk import Table, TableWalker
from decoding.grammar.leaves.token_cache import TokenCache
from decoding.grammar.regular.byte_dfa import ByteDfa
from decoding.grammar.vocabulary.token_node import TokenNode

# States with more bytes than these are walked under the table.
MAX_LISTED_EDGES = 8
# A row of the automaton and its edges as tuples, and a listed state, measured with tracemalloc.
_STATE_BYTES = 300


class DfaLeaf:
    """An automaton over bytes (`decoding.grammar.leaves.leaf.Leaf`).

    The table that walks need is made when the first state with many bytes is asked for its tokens: most
    automata of schemas have none.

    Args:
        automaton: Not of the empty language.
        walker: Of the vocabulary.
        is_shared: Whether it belongs to no single grammar.
    """

    def __init__(self, automaton: ByteDfa, walker: TableWalker, is_shared: bool = False) -> None:
        self.key: Hashable = ("automaton", automaton.digest)
        self.is_shared = is_shared
        self.automaton = automaton
        self._walker = walker
        self._labels = automaton.ends
        self._edges: list[dict[int, int] | None] = [None] * automaton.num_states
        self._is_known = bytearray(automaton.num_states)
        self._tokens = TokenCache()

    @property
    def num_bytes(self) -> int:
        """Memory of the automaton and of the tokens found so far."""
        # The table belongs to the automaton and stays there.
        table = self.table.next_state.nbytes if "table" in self.__dict__ else 0
        return _STATE_BYTES * len(self._labels) + table + self._tokens.num_bytes

    @cached_property
    def table(self) -> Table:
        """The automaton as walks read it."""
        return Table.of(self.automaton.table, self.automaton.labels)

    @cached_property
    def _next(self) -> memoryview:
        # A memory view hands out plain ints, at a third of the time of an array's element.
        return self.table.next_state.reshape(-1).data

    def step(self, state: int, byte: int) -> int:
        """The state after one byte, -1 if it is not allowed."""
        edges = self.edges(state)
        if edges is not None:
            return edges.get(byte, -1)
        after: int = self._next[state << 8 | byte]
        return after

    def edges(self, state: int) -> dict[int, int] | None:
        """All allowed bytes and the states they lead to, where they are few."""
        if not self._is_known[state]:
            row = self.automaton.rows[state]
            if len(row) <= MAX_LISTED_EDGES:
                listed = {byte: target for first, last, target in row for byte in range(first, last + 1)}
                if len(listed) <= MAX_LISTED_EDGES:
                    self._edges[state] = listed
            self._is_known[state] = True
        return self._edges[state]

    def label(self, state: int) -> int:
        """What the text written so far is, -1 where it is not a whole text."""
        return self._labels[state]

    def goes_on(self, state: int) -> bool:
        """Whether any byte is allowed in the state."""
        return bool(self.automaton.rows[state])

    def shortest(self, state: int) -> bytes:
        """A shortest text that leads from the state to a final one, of those the first in byte order."""
        written = bytearray()
        distances = self._distances
        while distances[state]:
            nearer = distances[state] - 1
            for byte, _, target in self.automaton.rows[state]:  # ascending by byte
                if distances[target] == nearer:
                    written.append(byte)
                    state = target
                    break
        return bytes(written)

    @cached_property
    def farthest(self) -> int:
        """No state has a longer shortest text, in bytes."""
        return max(self._distances)

    @cached_property
    def labels(self) -> frozenset[int]:
        """All labels that texts have."""
        return frozenset(label for label in self._labels if label >= 0)

    def tokens(self, state: int, node: TokenNode) -> LeafTokens | None:
        """The tokens below a node that pass, None where `edges` lists all bytes."""
        place = (state, node.positions)
        found = self._tokens.get(place)
        if found is None:
            if self.edges(state) is not None:
                return None
            found = self._tokens.put(place, self._walker.tokens(self.table, state, node))
        return found

    @cached_property
    def _distances(self) -> list[int]:
        return self.automaton.distances()
