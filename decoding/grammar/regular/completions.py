"""Finds how few characters more complete a text, from every state of an automaton, given how many must come.

What may follow when characters are counted: a state with `least` more characters to come and at most `most`
can be completed exactly if its fewest characters that are `least` or more are no more than `most`. Lengths
need not be without gaps for that, and no state need be there once per length.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from genret.decoding.grammar.compile_options import current_budget
from genret.decoding.grammar.regular.byte_dfa import ByteDfa
from genret.decoding.grammar.regular.dfa import ENDLESS, Dfa

CHARACTER = 1 << 32
"""Cost of a character that is to be written; costs are characters first, then bytes."""
NO_WAY = 1 << 60
"""Cost where no text with so many characters ends; costs above it are the same."""
_QUOTE = ord('"')
# Numbers of a table that count as one state of the budget.
_COSTS_PER_STATE = 64

_Longs = NDArray[np.int64]


class _Ways(NamedTuple):
    """Ways between states that end a character or a text, by their first state."""

    first: _Longs
    begin: _Longs
    target: _Longs
    cost: _Longs

    @staticmethod
    def of(ways: _Longs) -> _Ways:
        """Ways of rows (first state, last state, cost), the cheapest of those that are alike."""
        order = np.lexsort(ways.T[::-1])
        ways = ways[order]
        is_new = np.ones(len(ways), np.bool_)
        is_new[1:] = (ways[1:, :2] != ways[:-1, :2]).any(axis=1)
        source, target, cost = ways[is_new].T
        first, begin = np.unique(source, return_index=True)
        return _Ways(first, begin, target, cost)

    def before(self, costs: _Longs) -> _Longs:
        """The cheapest costs one way earlier, for costs by state in the last dimension."""
        found = np.full_like(costs, NO_WAY)
        if len(self.first):
            sums = np.minimum(costs[..., self.target] + self.cost, NO_WAY)
            found[..., self.first] = np.minimum.reduceat(sums, self.begin, axis=-1)
        return found


class CompletionCosts:
    """The costs of the cheapest completions of one automaton that begin so many characters or more.

    Args:
        table: Cost by number of characters and state. Shape: (A, S), int64.
        period: Number of last rows that repeat for more characters, but for `gain`; 0 if none are known to.
        gain: Cost by which each repeat is higher.
        most: Largest number of characters that will be asked for.
    """

    def __init__(self, table: _Longs, period: int, gain: int, most: int) -> None:
        self._table = table
        self._view = table.data
        self._first = len(table) - period
        self._period = period
        self._gain = gain
        known = table[table < NO_WAY] & CHARACTER - 1
        repeats = -(-max(most - len(table) + 1, 0) // max(period, 1))
        self.dearest = int(known.max(initial=0)) + repeats * (gain & CHARACTER - 1)
        """At least the bytes of the dearest that `most` characters or fewer ask for."""
        self.farthest = int(table[0][table[0] < NO_WAY].max(initial=0)) >> 32
        """Most characters, where none need come."""

    @property
    def num_bytes(self) -> int:
        """Memory of the table."""
        return self._table.nbytes

    @property
    def settled(self) -> int:
        """From so many characters on, every one more costs the same in every state; huge if they do not."""
        return self._first if self._period == 1 else NO_WAY

    def of(self, least: int, state: int) -> int:
        """The cost with `least` characters or more."""
        if least < len(self._table):
            return self._view[least, state]
        repeats, rest = divmod(least - self._first, self._period)
        return self._view[self._first + rest, state] + repeats * self._gain

    def fewest(self, least: int, state: int) -> int:
        """The characters of the cheapest completion with `least` or more; for none more than any bound."""
        cost = self.of(least, state)
        return cost >> 32 if cost < NO_WAY else ENDLESS + 1

    def of_all(self, least: _Longs, states: _Longs) -> _Longs:
        """The same for many. Shapes: (n,)."""
        repeats, rest = np.divmod(np.maximum(least - self._first, 0), max(self._period, 1))
        beyond = least >= len(self._table)
        found = self._table[np.where(beyond, self._first + rest, least), states]
        return found + np.where(beyond, repeats * self._gain, 0)


class Completions:
    """Ways to complete the texts of an automaton.

    `edges` are first state, last state and cost of each step, (E, 3), int64; `is_end` says whether a text may
    end in a state, (S,), bool.
    """

    def __init__(self, edges: _Longs, is_end: NDArray[np.bool_]) -> None:
        self._is_end = is_end
        begins = edges[:, 2] >= CHARACTER
        is_between = is_end.copy()
        is_between[edges[begins, 0]] = True
        within = _Ways.of(edges[~is_between[edges[:, 0]]])
        length = np.diff(np.append(within.begin, len(within.target)))
        number = np.zeros(len(is_end), np.int64)
        number[within.first] = np.arange(len(within.first))
        ways = edges
        while len(unfinished := np.flatnonzero(~is_between[ways[:, 1]])):
            # A step that ends within a character goes on with each step from there.
            rows = ways[unfinished]
            following = number[rows[:, 1]]
            repeats = length[following]
            owner = np.repeat(np.arange(len(rows)), repeats)
            step = np.arange(len(owner)) - np.repeat(np.cumsum(repeats) - repeats, repeats)
            step += within.begin[following][owner]
            longer = np.stack(
                [rows[owner, 0], within.target[step], rows[owner, 2] + within.cost[step]], axis=1
            )
            ways = np.concatenate([np.delete(ways, unfinished, axis=0), longer])
        from_between = is_between[ways[:, 0]]
        self._all = _Ways.of(ways[from_between])
        self._characters = _Ways.of(ways[from_between & (ways[:, 2] >= CHARACTER)])
        self._within = _Ways.of(ways[~from_between])

    @staticmethod
    def of_characters(dfa: Dfa) -> Completions:
        """The ways of an automaton over code points."""
        steps = {(state, edge[2], CHARACTER + 1) for state, row in enumerate(dfa.rows) for edge in row}
        edges = np.array(sorted(steps), dtype=np.int64).reshape(-1, 3)
        return Completions(edges, np.array(dfa.is_final))

    @staticmethod
    def of_bytes(automaton: ByteDfa, is_between: NDArray[np.bool_]) -> Completions:
        """The ways of an automaton of strings, whose characters begin in the states `is_between`."""
        source = np.repeat(np.arange(automaton.num_states), np.diff(automaton.edge_begin))
        first, _, target = automaton.edges.T
        begins = is_between[source] & (first != _QUOTE)
        return Completions(
            np.stack([source, target, np.where(begins, CHARACTER + 1, 1)], axis=1), automaton.labels >= 0
        )

    def costs(self, least: int) -> CompletionCosts:
        """Find the costs for up to so many characters, or until they repeat.

        Raises AutomatonLimitError for a table that is too large.
        """
        check = current_budget().check_states
        row = np.where(self._is_end, 0, NO_WAY)
        while not np.array_equal(row, nearer := np.minimum(row, self._all.before(row))):
            check(0)
            row = nearer
        rows = [row]
        # Repeats of the row marked last, at one less than a power of two, are looked for.
        marked = period = gain = 0
        while len(rows) <= least and not period:
            check(len(rows) * len(row) // _COSTS_PER_STATE)
            row = self._characters.before(row)
            known = row < NO_WAY
            gains = (row - rows[marked])[known]
            if np.array_equal(known, rows[marked] < NO_WAY) and (gains == gains[:1]).all():
                period, gain = len(rows) - marked, int(gains[0]) if len(gains) else 0
            else:
                rows.append(row)
                if len(rows) == 2 * marked + 2:
                    marked = len(rows) - 1
        table = np.array(rows)
        inside = self._within.before(table)
        return CompletionCosts(np.minimum(table, inside), period, gain, least)
