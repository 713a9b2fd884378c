"""A reader of bytes whose states are made on demand, turned into a minimal automaton."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import Protocol

from decoding.grammar.budget import current_budget
from decoding.grammar.regular.byte_dfa import ByteDfa
from decoding.grammar.regular.minimise import Edge


class Reader(Protocol):
    """A deterministic automaton over bytes; states are any hashable values."""

    def start(self) -> Hashable:
        """Before the first byte."""

    def edges(self, state: Hashable) -> Iterable[tuple[int, int, Hashable]]:
        """First byte, last byte and the state behind them, sorted and disjoint."""

    def is_final(self, state: Hashable) -> bool:
        """Whether the bytes so far are a whole text."""


def automaton_of(reader: Reader) -> ByteDfa:
    """The texts a reader accepts, as a minimal automaton with label 0.

    Raises:
        AutomatonLimitError: It reaches more states than the budget allows.
    """
    budget = current_budget()
    numbers: dict[Hashable, int] = {reader.start(): 0}
    states = list(numbers)
    rows: list[list[Edge]] = []
    for state in states:  # grows while it is walked
        row = []
        for first, last, target in reader.edges(state):
            number = numbers.get(target)
            if number is None:
                number = numbers[target] = len(states)
                states.append(target)
            row.append((first, last, number))
        rows.append(row)
        if not len(rows) & 15:
            budget.check_states(len(states))
    budget.check_states(len(states))
    return ByteDfa.from_rows(rows, [0 if reader.is_final(state) else -1 for state in states])
