"""Nondeterministic automata, and the subset construction that makes them deterministic.

Steps without a symbol may be conditional on the place in the text: anchors and word boundaries of patterns.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import IntEnum

from genret.decoding.grammar.compile_options import current_budget
from genret.decoding.grammar.regular.minimise import Row, canonical, explored, symbols_by_target
from genret.decoding.grammar.regular.product import over_symbols
from genret.decoding.grammar.regular.ranges import Ranges, atoms, contains


class Condition(IntEnum):
    """When a step without a symbol may be taken."""

    ALWAYS = 0
    AT_BEGIN = 1
    AT_END = 2
    AT_WORD_BOUNDARY = 3
    INSIDE_OR_OUTSIDE_WORD = 4


class Side(IntEnum):
    """The kind of character, or edge, on one side of a place in the text."""

    EDGE = 0
    WORD = 1
    OTHER = 2


def holds(condition: int, before: int, behind: int) -> bool:
    """Whether a condition holds between two sides."""
    if condition == Condition.AT_BEGIN:
        return before == Side.EDGE
    if condition == Condition.AT_END:
        return behind == Side.EDGE
    boundary = (before == Side.WORD) != (behind == Side.WORD)
    return boundary == (condition == Condition.AT_WORD_BOUNDARY) or condition == Condition.ALWAYS


class Nfa:
    """States made one by one, edges over sets of symbols, and steps without a symbol."""

    def __init__(self) -> None:
        # By state: (number of a set of symbols, next state); (next state, condition); label of an ended text.
        self.edges: list[list[tuple[int, int]]] = []
        self.steps: list[list[tuple[int, int]]] = []
        self.labels: list[int] = []
        self.charsets: dict[Ranges, int] = {}  # Numbers of the sets of symbols
        self.conditions: set[int] = set()

    def state(self, label: int = -1) -> int:
        """Add a state; texts that end in it have the label."""
        self.edges.append([])
        self.steps.append([])
        self.labels.append(label)
        if not len(self.labels) & 4095:
            current_budget().check_time()
        return len(self.labels) - 1

    def edge(self, source: int, symbols: Ranges, target: int) -> None:
        """Add an edge over a set of symbols, unless the set is empty."""
        if symbols:
            self.edges[source].append((self.charsets.setdefault(symbols, len(self.charsets)), target))

    def step(self, source: int, target: int, condition: int = Condition.ALWAYS) -> None:
        """Add a step without a symbol."""
        self.steps[source].append((target, condition))
        self.conditions.add(condition)

    def embed(self, rows: Sequence[Row], labels: Sequence[int]) -> tuple[int, list[int]]:
        """Copy a deterministic automaton. Returns its start and the states where texts end, unlabelled."""
        offset = len(self.labels)
        for _ in rows:
            self.state()
        for state, row in enumerate(rows, start=offset):
            for target, symbols in symbols_by_target(row).items():
                self.edge(state, symbols, offset + target)
        return offset, [offset + state for state, label in enumerate(labels) if label >= 0]

    def determinise(
        self, start: int, word: Ranges = (), before: int = Side.EDGE, absorbing: int = -1
    ) -> tuple[list[Row], list[int]]:
        """The smallest deterministic automaton of the same language.

        Args:
            start: State before the first symbol.
            word: Symbols of words, for conditions on word boundaries.
            before: Side of the text's beginning.
            absorbing: A state that reads everything; once reached, it replaces all other states.

        Returns:
            Rows and labels; a text with several labels has the smallest.
        """
        subsets = _Subsets(self, word, absorbing)
        first = (frozenset([start]), before)
        rows, labels = canonical(*explored(first, subsets.expand, lambda key: len(key[0])))
        return over_symbols(rows, subsets.parts), labels


_Subset = tuple[frozenset[int], int]


class _Subsets:
    """Sets of states, each with the side in front of the place, as states over classes of symbols."""

    def __init__(self, nfa: Nfa, word: Ranges, absorbing: int) -> None:
        self._nfa = nfa
        self._absorbing = absorbing
        self._minds_end = Condition.AT_END in nfa.conditions
        self._minds_words = bool(
            nfa.conditions & {Condition.AT_WORD_BOUNDARY, Condition.INSIDE_OR_OUTSIDE_WORD}
        )
        charsets = list(nfa.charsets)
        num_charsets = len(charsets)
        if self._minds_words and word and word not in charsets:
            charsets.append(word)
        self.parts, members = atoms(charsets) if charsets else ([], [])
        self._members = members[:num_charsets]
        self._part_is_word = [contains(word, ranges[0][0]) for ranges in self.parts]
        self._closures: dict[tuple[int, int, int], frozenset[int]] = {}
        # The closures of many states may be all alike and long, so they are not kept.
        self._is_small = len(nfa.labels) <= 512
        self._ends = [bool(edges) or label >= 0 for edges, label in zip(nfa.edges, nfa.labels, strict=True)]

    def expand(self, key: _Subset) -> tuple[int, list[tuple[int, int, _Subset]]]:
        """The label of a set of states and its edges, for `explored`."""
        kernel, before = key
        ending = self._closure(kernel, before, Side.EDGE)
        found = [self._nfa.labels[state] for state in ending if self._nfa.labels[state] >= 0]
        edges: list[tuple[int, int, _Subset]] = []
        for part, targets in sorted(self._successors(kernel, before, ending).items()):
            after = Side.WORD if self._minds_words and self._part_is_word[part] else Side.OTHER
            if self._absorbing in targets:
                targets = {self._absorbing}
                after = Side.OTHER
            edges.append((part, part, (frozenset(targets), int(after))))
        return min(found, default=-1), edges

    def _successors(self, kernel: frozenset[int], before: int, ending: frozenset[int]) -> dict[int, set[int]]:
        """The states behind one more symbol, by class of symbols."""
        out: dict[int, set[int]] = {}
        for side in (Side.WORD, Side.OTHER) if self._minds_words else (Side.OTHER,):
            states = ending
            if self._minds_words or self._minds_end:
                states = self._closure(kernel, before, side)
            wants_word = side == Side.WORD
            for state in states:
                for charset, target in self._nfa.edges[state]:
                    for part in self._members[charset]:
                        if not self._minds_words or self._part_is_word[part] == wants_word:
                            out.setdefault(part, set()).add(target)
        return out

    def _closure(self, kernel: frozenset[int], before: int, behind: int) -> frozenset[int]:
        """All states with edges or labels that steps without a symbol lead to."""
        if len(kernel) > 1 and self._is_small:
            return frozenset().union(*[self._one_closure(at, before, behind) for at in kernel])
        if len(kernel) > 1:
            return self._walked(kernel, before, behind)
        return self._one_closure(next(iter(kernel)), before, behind)

    def _one_closure(self, state: int, before: int, behind: int) -> frozenset[int]:
        key = (state, before, behind)
        known = self._closures.get(key)
        if known is None:
            known = self._walked((state,), before, behind)
            if self._is_small:
                self._closures[key] = known
        return known

    def _walked(self, kernel: Iterable[int], before: int, behind: int) -> frozenset[int]:
        steps = self._nfa.steps
        seen = set(kernel)
        stack = list(seen)
        while stack:
            for target, condition in steps[stack.pop()]:
                if target not in seen and (not condition or holds(condition, before, behind)):
                    seen.add(target)
                    stack.append(target)
        return frozenset([state for state in seen if self._ends[state]])
