"""A leaf over the table of an automaton: patterns, formats, numbers, sets of keys, strings of any kind."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from decoding.grammar.leaves.leaf import LeafTokens
from decoding.grammar.leaves.table_walk import Table, TableWalker
from decoding.grammar.leaves.token_cache import TokenCache
from decoding.grammar.vocabulary.token_node import TokenNode

# States with more bytes than these are walked under the table.
MAX_LISTED_EDGES = 8


class DfaLeaf:
    """A trimmed automaton over bytes (`decoding.grammar.leaves.leaf.Leaf`).

    Args:
        key: Equal for equal automata.
        table: Next state by state and byte, -1 where there is none. Shape: (S, 256), int32.
        labels: Label of the text that ends in a state, -1 where none does. Shape: (S,), int32.
        walker: Of the vocabulary.
        is_shared: Whether it belongs to no single grammar.
    """

    def __init__(
        self,
        key: Hashable,
        table: NDArray[np.int32],
        labels: NDArray[np.int32],
        walker: TableWalker,
        is_shared: bool = False,
    ) -> None:
        self.key = key
        self.is_shared = is_shared
        self._table = Table.of(table, labels)
        self._walker = walker
        # Memory views hand out plain ints, at a third of the time of an array's element.
        self._next = self._table.next_state.reshape(-1).data
        self._labels = self._table.label.data
        self._edges: dict[int, dict[int, int] | None] = {}
        self._tokens = TokenCache()

    @property
    def num_bytes(self) -> int:
        """Memory of the table and of the tokens found so far."""
        return self._table.next_state.nbytes + self._table.label.nbytes + self._tokens.num_bytes

    def step(self, state: int, byte: int) -> int:
        """The state after one byte, -1 if it is not allowed."""
        return self._next[state << 8 | byte]

    def edges(self, state: int) -> Mapping[int, int] | None:
        """All allowed bytes and the states they lead to, where they are few."""
        try:
            return self._edges[state]
        except KeyError:
            row = self._table.next_state[state]
            (allowed,) = np.nonzero(row >= 0)
            few = len(allowed) <= MAX_LISTED_EDGES
            edges = dict(zip(allowed.tolist(), row[allowed].tolist(), strict=True)) if few else None
            self._edges[state] = edges
            return edges

    def label(self, state: int) -> int:
        """What the text written so far is, -1 where it is not a whole text."""
        return self._labels[state]

    def goes_on(self, state: int) -> bool:
        """Whether any byte is allowed in the state."""
        return self.edges(state) != {}

    def shortest(self, state: int) -> bytes:
        """A shortest text that leads from the state to a final one."""
        written = bytearray()
        distance = self._distance
        while distance[state]:
            row = self._table.next_state[state]
            (allowed,) = np.nonzero(row >= 0)
            nearer = (
                byte for byte in allowed.tolist() if distance[self.step(state, byte)] == distance[state] - 1
            )
            byte = next(nearer)
            written.append(byte)
            state = self.step(state, byte)
        return bytes(written)

    def tokens(self, state: int, node: TokenNode) -> LeafTokens | None:
        """The tokens below a node that pass, None where `edges` lists all bytes."""
        place = (state, node.positions)
        found = self._tokens.get(place)
        if found is None:
            if self.edges(state) is not None:
                return None
            found = self._tokens.put(place, self._walker.tokens(self._table, state, node))
        return found

    @cached_property
    def _distance(self) -> list[int]:
        """Fewest bytes from each state to a final one."""
        table = self._table.next_state
        source, byte = np.nonzero(table >= 0)
        pairs = np.unique(table[source, byte].astype(np.int64) * len(table) + source)
        target, source = np.divmod(pairs, len(table))
        begin = np.searchsorted(target, np.arange(len(table) + 1)).tolist()
        sources = source.tolist()
        distance = [-1] * len(table)
        reached = np.flatnonzero(self._table.label >= 0).tolist()
        for state in reached:
            distance[state] = 0
        for state in reached:  # grows while it is read: breadth first
            for before in sources[begin[state] : begin[state + 1]]:
                if distance[before] < 0:
                    distance[before] = distance[state] + 1
                    reached.append(before)
        return distance
