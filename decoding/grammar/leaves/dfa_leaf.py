"""A leaf over an automaton: patterns, formats, numbers, enums, sets of keys, strings of any kind."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Hashable
from functools import cached_property

from decoding.grammar.leaves.leaf import Exit, LeafTokens
from decoding.grammar.leaves.models import StateModels, is_like
from decoding.grammar.leaves.table_walk import FEW_PLACES, Table, TableWalker
from decoding.grammar.leaves.token_cache import TokenCache
from decoding.grammar.regular.byte_dfa import ByteDfa
from decoding.grammar.vocabulary.token_node import TokenNode

# States with more bytes than these are walked under the table.
MAX_LISTED_EDGES = 8
_BEHIND_ALL_BYTES = 256
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
        strings: All strings, spelled in one way, and their state between two characters: tokens of states
            that go on like these are theirs.
    """

    def __init__(
        self,
        automaton: ByteDfa,
        walker: TableWalker,
        is_shared: bool = False,
        strings: tuple[DfaLeaf, int] | None = None,
    ) -> None:
        self.key: Hashable = ("automaton", automaton.digest)
        self.is_shared = is_shared
        self.automaton = automaton
        self._walker = walker
        self._strings = strings
        self._labels = automaton.ends
        self._edges: list[dict[int, int] | None] = [None] * automaton.num_states
        self._is_known = bytearray(automaton.num_states)
        self._tokens = TokenCache()

    @property
    def num_bytes(self) -> int:
        """Memory of the automaton and of the tokens found so far."""
        table = 0
        if "table" in self.__dict__:
            table = self.table.num_row_bytes + self.table.num_bytes
        return _STATE_BYTES * len(self._labels) + table + self._tokens.num_bytes

    @cached_property
    def table(self) -> Table:
        """The automaton as walks read it."""
        return Table.of_automaton(self.automaton)

    def step(self, state: int, byte: int) -> int:
        """The state after one byte, -1 if it is not allowed."""
        edges = self.edges(state)
        if edges is not None:
            return edges.get(byte, -1)
        row = self.automaton.rows[state]
        place = bisect_right(row, (byte, _BEHIND_ALL_BYTES, 0))
        if not place:
            return -1
        _, last, after = row[place - 1]
        return after if byte <= last else -1

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
        return self._from_start if not state else self._measured(state)

    @cached_property
    def _from_start(self) -> bytes:
        # Compiling asks for this one only, and most states are farther from the start than the nearest end.
        return self.automaton.shortest()

    def _measured(self, state: int) -> bytes:
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
            found = self._by_model(state, node) if node.num_below > FEW_PLACES else None
            found = self._tokens.put(place, found or self._walker.tokens(self, state, node))
        return found

    def _by_model(self, state: int, node: TokenNode) -> LeafTokens | None:
        """The tokens of a state that treats nearly all texts as another one does."""
        model = self.models.of(state)
        if model < 0:
            return None
        if model == state:
            return self._as_strings(state, node)
        known = self.tokens(model, node)
        return None if known is None else self.models.tokens(state, model, node, known)

    def _as_strings(self, state: int, node: TokenNode) -> LeafTokens | None:
        """The tokens of a state behind which any text may come."""
        if self._strings is None:
            return None
        strings, body = self._strings
        label = self._string_labels.get(state)
        if label is None:
            label = is_like(
                self.automaton.rows, self._labels, state, (strings.automaton.rows, strings._labels, body)
            )
            self._string_labels[state] = label
        found = strings.tokens(body, node) if label >= 0 else None
        if found is None or not label:
            return found
        return LeafTokens(found.few, found.many, tuple([Exit(label, rest) for _, rest in found.exits]))

    @cached_property
    def models(self) -> StateModels:
        """Which of its states treat nearly all texts as others do."""
        automaton, vocabulary = self.automaton, self._walker.vocabulary
        label = self._labels.__getitem__
        return StateModels(automaton.rows, label, _is_alive, vocabulary, overlay=automaton.overlay)

    @cached_property
    def _string_labels(self) -> dict[int, int]:
        return {}

    @cached_property
    def _distances(self) -> list[int]:
        return self.automaton.distances()


def _is_alive(state: int) -> bool:
    """Every state of an automaton can reach the end of a text."""
    return True
