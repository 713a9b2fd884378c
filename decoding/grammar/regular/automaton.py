"""Defines what automata over code points and over bytes have in common."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from typing import Self

from genret.decoding.grammar.regular.dfa_texts import count_texts, shortest_text
from genret.decoding.grammar.regular.minimise import Edge, Row, canonical
from genret.decoding.grammar.regular.product import DIFFERENCE, INTERSECTION, UNION, Combination, product

_BEHIND_ALL = 0x110000
# A row and its place, and an edge with the numbers in it, measured with tracemalloc.
_STATE_BYTES = 90
_EDGE_BYTES = 140


class Automaton:
    """A regular language, each text with a label: minimal, numbered canonically, start 0, immutable.

    Every state is reachable and can reach a final one; the empty language is one state without edges or
    label.
    """

    __slots__ = ("ends", "rows")

    def __init__(self, rows: Sequence[Row], ends: Sequence[int]) -> None:
        """Rows and labels must be minimal and canonical; `from_rows` makes them so."""
        # By state, edges (first symbol, last symbol, next state): sorted, disjoint, none that can be joined.
        self.rows = tuple(rows)
        self.ends = tuple(ends)  # By state, the label of the text that ends there, -1 where none does

    @classmethod
    def from_rows(cls, rows: Sequence[Sequence[Edge]], labels: Sequence[int]) -> Self:
        """Any deterministic automaton, start 0, edges sorted and disjoint, without surrogates.

        The label of a state is that of a text that ends there, -1 where none does.
        """
        return cls(*canonical(rows, labels))

    def __or__(self, other: Self) -> Self:
        """Texts of either; a text of both keeps its left label."""
        return self._combined(other, UNION)

    def __and__(self, other: Self) -> Self:
        """Texts of both, with their left labels."""
        return self._combined(other, INTERSECTION)

    def __sub__(self, other: Self) -> Self:
        """Texts that the other one does not have."""
        return self._combined(other, DIFFERENCE)

    def _combined(self, other: Self, how: Combination) -> Self:
        return type(self)(*product((self.rows, self.ends), (other.rows, other.ends), how))

    @property
    def is_empty(self) -> bool:
        """Whether the language has no text."""
        return not self.rows[0] and self.ends[0] < 0

    @property
    def num_states(self) -> int:
        """The number of states, S."""
        return len(self.rows)

    @property
    def num_bytes(self) -> int:
        """Approximate memory."""
        return _STATE_BYTES * len(self.rows) + _EDGE_BYTES * sum(map(len, self.rows))

    def count(self) -> int | None:
        """Count the texts; None: infinitely many."""
        return count_texts(self.rows, self.is_final)

    @property
    def is_final(self) -> list[bool]:
        """By state, whether a text may end there."""
        return [label >= 0 for label in self.ends]

    def step(self, state: int, symbol: int) -> int:
        """The state behind one more symbol, -1 for none."""
        row = self.rows[state]
        place = bisect_right(row, (symbol, _BEHIND_ALL, 0))
        if place:
            _, last, target = row[place - 1]
            if symbol <= last:
                return target
        return -1

    def label_of(self, symbols: Iterable[int]) -> int:
        """Label of a text, -1 if it is not in the language."""
        state = 0
        for symbol in symbols:
            state = self.step(state, symbol)
            if state < 0:
                return -1
        return self.ends[state]

    def _shortest(self) -> list[int]:
        """The first of the shortest texts. Raises ValueError for the empty language."""
        return shortest_text(self.rows, self.is_final, 0)
