"""Nondeterministic automata, and the subset construction that makes them deterministic.

Steps without a symbol may have a condition on where in the text they are taken, so that anchors and word
boundaries of regular expressions can stand anywhere.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import IntEnum

from decoding.grammar.compile_options import current_budget
from decoding.grammar.regular.minimise import SIZE_PER_STATE, Edge, Row, canonical
from decoding.grammar.regular.product import over_symbols
from decoding.grammar.regular.ranges import Ranges, atoms, contains


class Condition(IntEnum):
    """When a step without a symbol may be taken."""

    ALWAYS = 0
    AT_BEGIN = 1
    AT_END = 2
    AT_WORD_BOUNDARY = 3
    INSIDE_OR_OUTSIDE_WORD = 4


class Side(IntEnum):
    """What is on one side of a place in the text."""

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
        self._edges: list[list[tuple[int, int]]] = []
        self._steps: list[list[tuple[int, int]]] = []
        self._labels: list[int] = []
        self._charsets: dict[Ranges, int] = {}
        self._conditions: set[int] = set()

    def state(self, label: int = -1) -> int:
        """A new state; texts that end in it have the label."""
        self._edges.append([])
        self._steps.append([])
        self._labels.append(label)
        if not len(self._labels) & 4095:
            current_budget().check_time()
        return len(self._labels) - 1

    @property
    def num_states(self) -> int:
        """States so far."""
        return len(self._labels)

    def edge(self, source: int, symbols: Ranges, target: int) -> None:
        """An edge over a set of symbols; over the empty set it is none."""
        if symbols:
            self._edges[source].append((self._charsets.setdefault(symbols, len(self._charsets)), target))

    def step(self, source: int, target: int, condition: int = Condition.ALWAYS) -> None:
        """A step without a symbol."""
        self._steps[source].append((target, condition))
        self._conditions.add(condition)

    def embed(self, rows: Sequence[Row], labels: Sequence[int]) -> tuple[int, list[int]]:
        """Copy a deterministic automaton. Returns its start and the states where texts end, unlabelled."""
        offset = len(self._labels)
        for _ in rows:
            self.state()
        for state, row in enumerate(rows, start=offset):
            by_target: dict[int, list[tuple[int, int]]] = {}
            for first, last, target in row:
                by_target.setdefault(target, []).append((first, last))
            for target, ranges in by_target.items():
                self.edge(state, tuple(ranges), offset + target)
        return offset, [offset + state for state, label in enumerate(labels) if label >= 0]

    @property
    def charsets(self) -> list[Ranges]:
        """The sets of symbols of its edges, by number."""
        return list(self._charsets)

    @property
    def edges(self) -> list[list[tuple[int, int]]]:
        """By state, edges as (number of a set of symbols, next state)."""
        return self._edges

    @property
    def steps(self) -> list[list[tuple[int, int]]]:
        """By state, steps as (next state, condition)."""
        return self._steps

    @property
    def labels(self) -> list[int]:
        """By state, the label of texts that end there, -1 where none do."""
        return self._labels

    @property
    def conditions(self) -> set[int]:
        """All conditions of steps."""
        return self._conditions

    def set_label(self, state: int, label: int) -> None:
        """Texts that end in the state have the label."""
        self._labels[state] = label

    def determinise(
        self,
        starts: Iterable[int],
        word: Ranges = (),
        before: int = Side.EDGE,
        behind: int = Side.EDGE,
        absorbing: int = -1,
    ) -> tuple[list[Row], list[int]]:
        """The smallest deterministic automaton of the same language.

        Args:
            starts: States before the first symbol.
            word: The symbols that words are made of, for conditions on word boundaries.
            before: What stands in front of the text.
            behind: What stands behind it.
            absorbing: A state that has been reached for good once it is reached: it reads everything.

        Returns:
            Rows and labels; where texts of several labels are equal, the smallest label.
        """
        subsets = _Subsets(self, word, before, behind, absorbing)
        rows, labels = canonical(*subsets.build(starts))
        return over_symbols(rows, subsets.parts), labels


class _Subsets:
    """One run of the subset construction."""

    def __init__(self, nfa: Nfa, word: Ranges, before: int, behind: int, absorbing: int) -> None:
        self._nfa = nfa
        self._before = before
        self._behind = behind
        self._absorbing = absorbing
        self._minds_end = Condition.AT_END in nfa.conditions
        self._minds_words = bool(
            nfa.conditions & {Condition.AT_WORD_BOUNDARY, Condition.INSIDE_OR_OUTSIDE_WORD}
        )
        charsets = nfa.charsets
        num_charsets = len(charsets)
        if self._minds_words and word and word not in charsets:
            charsets.append(word)
        self.parts, members = atoms(charsets) if charsets else ([], [])
        self._members = members[:num_charsets]
        self._part_is_word = [contains(word, ranges[0][0]) for ranges in self.parts]
        self._closures: dict[tuple[int, int, int], frozenset[int]] = {}
        # Where there are many states their closures are not kept one by one: they may be all alike and long.
        self._is_small = nfa.num_states <= 512
        self._ends = [bool(edges) or label >= 0 for edges, label in zip(nfa.edges, nfa.labels, strict=True)]

    def build(self, starts: Iterable[int]) -> tuple[list[list[Edge]], list[int]]:
        """Rows over classes of symbols and labels, not yet minimal."""
        first = (frozenset(starts), self._before)
        numbers: dict[tuple[frozenset[int], int], int] = {first: 0}
        order = [first]
        rows: list[list[Edge]] = []
        labels: list[int] = []
        check = current_budget().check_states
        size = 0
        for kernel, before in order:
            size += len(kernel)
            check(max(len(order), size // SIZE_PER_STATE))
            ending = self._closure(kernel, before, self._behind)
            found = [self._nfa.labels[state] for state in ending if self._nfa.labels[state] >= 0]
            labels.append(min(found) if found else -1)
            row: list[Edge] = []
            for part, targets in self._successors(kernel, before, ending).items():
                after = Side.OTHER
                if self._minds_words and self._part_is_word[part]:
                    after = Side.WORD
                if self._absorbing in targets:
                    targets = {self._absorbing}
                    after = Side.OTHER
                key = (frozenset(targets), int(after))
                number = numbers.setdefault(key, len(order))
                if number == len(order):
                    order.append(key)
                row.append((part, part, number))
            row.sort()
            size += len(row)
            rows.append(row)
        return rows, labels

    def _successors(self, kernel: frozenset[int], before: int, ending: frozenset[int]) -> dict[int, set[int]]:
        """The states behind one more symbol, by class of symbols."""
        out: dict[int, set[int]] = {}
        if self._minds_words:
            sides: tuple[int, ...] = (Side.WORD, Side.OTHER)
        else:
            sides = (Side.OTHER,)
        for side in sides:
            states = ending
            if self._minds_words or self._minds_end:
                states = self._closure(kernel, before, side)
            wants_word = side == Side.WORD
            for state in states:
                for charset, target in self._nfa.edges[state]:
                    for part in self._members[charset]:
                        if not self._minds_words or self._part_is_word[part] == wants_word:
                            targets = out.get(part)
                            if targets is None:
                                out[part] = {target}
                            else:
                                targets.add(target)
        return out

    def _closure(self, kernel: frozenset[int], before: int, behind: int) -> frozenset[int]:
        """All states with edges or labels that steps without a symbol lead to."""
        if len(kernel) > 1 and self._is_small:
            return frozenset().union(*[self._one_closure(at, before, behind) for at in kernel])
        if len(kernel) > 1:
            return self._walked(kernel, before, behind)
        return self._one_closure(next(iter(kernel)), before, behind)

    def _one_closure(self, state: int, before: int, behind: int) -> frozenset[int]:
        """The closure of one state, kept."""
        key = (state, before, behind)
        known = self._closures.get(key)
        if known is None:
            known = self._walked((state,), before, behind)
            if self._is_small:
                self._closures[key] = known
        return known

    def _walked(self, kernel: Iterable[int], before: int, behind: int) -> frozenset[int]:
        """As `_closure`, step by step."""
        steps = self._nfa.steps
        seen = set(kernel)
        stack = list(seen)
        while stack:
            for target, condition in steps[stack.pop()]:
                if target not in seen and (not condition or holds(condition, before, behind)):
                    seen.add(target)
                    stack.append(target)
        return frozenset([state for state in seen if self._ends[state]])
