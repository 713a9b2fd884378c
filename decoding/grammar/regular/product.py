"""Combines two deterministic automata, read side by side.

Where states have many edges, symbols are first grouped into classes; a class is then one edge.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from genret.decoding.grammar.compile_options import current_budget
from genret.decoding.grammar.regular.minimise import (
    SIZE_PER_STATE,
    Edge,
    Row,
    canonical,
    explored,
    joined,
    symbols_by_target,
)
from genret.decoding.grammar.regular.ranges import Ranges, atoms

# Classes of symbols pay from so many edges per state on.
_MANY_EDGES = 4


Automaton = tuple[Sequence[Row], Sequence[int]]
"""Rows, and labels of the states, -1 where no text ends."""


class Combination(NamedTuple):
    """A Boolean combination of two languages."""

    label: Callable[[int, int], int]  # Label of a text by its labels on both sides, -1 for no label
    left_alone: bool  # Whether a text may go on where only the left side can follow
    right_alone: bool  # Whether a text may go on where only the right side can follow


UNION = Combination(lambda left, right: left if left >= 0 else right, True, True)
INTERSECTION = Combination(lambda left, right: left if right >= 0 else -1, False, False)
DIFFERENCE = Combination(lambda left, right: left if right < 0 else -1, True, False)


def product(left: Automaton, right: Automaton, how: Combination) -> tuple[list[Row], list[int]]:
    """The smallest automaton of a combination of two languages."""
    parts = None
    (left_rows, left_labels), (right_rows, right_labels) = left, right
    num_edges = sum(map(len, left_rows)) + sum(map(len, right_rows))
    if num_edges > _MANY_EDGES * (len(left_rows) + len(right_rows)):
        parts, (left_rows, right_rows) = over_classes([left_rows, right_rows])
    rows, labels = canonical(*pairs((left_rows, left_labels), (right_rows, right_labels), how))
    return (rows if parts is None else over_symbols(rows, parts)), labels


def pairs(
    left_side: Automaton, right_side: Automaton, how: Combination
) -> tuple[list[list[Edge]], list[int]]:
    """The automaton of all pairs of states that are met, not minimal; a side that cannot follow is -1."""
    left_rows, left_labels = left_side
    right_rows, right_labels = right_side

    def expand(pair: tuple[int, int]) -> tuple[int, list[tuple[int, int, tuple[int, int]]]]:
        left, right = pair
        left_row, left_label = (left_rows[left], left_labels[left]) if left >= 0 else ((), -1)
        right_row, right_label = (right_rows[right], right_labels[right]) if right >= 0 else ((), -1)
        edges = together(left_row, right_row, how.left_alone, how.right_alone)
        return how.label(left_label, right_label), edges

    return explored((0, 0), expand)


def together(
    left: Row, right: Row, left_alone: bool, right_alone: bool
) -> list[tuple[int, int, tuple[int, int]]]:
    """The edges of a pair of states; a target of -1 is a side that cannot follow."""
    if not right:
        return [(first, last, (target, -1)) for first, last, target in left] if left_alone else []
    if not left:
        return [(first, last, (-1, target)) for first, last, target in right] if right_alone else []
    out: list[tuple[int, int, tuple[int, int]]] = []
    i = j = 0
    num_left, num_right = len(left), len(right)
    position = 0
    while i < num_left and j < num_right:
        left_first, left_last, left_target = left[i]
        right_first, right_last, right_target = right[j]
        if left_first < position:
            left_first = position
        if right_first < position:
            right_first = position
        if left_first < right_first:
            last = left_last if left_last < right_first else right_first - 1
            if left_alone:
                out.append((left_first, last, (left_target, -1)))
        elif right_first < left_first:
            last = right_last if right_last < left_first else left_first - 1
            if right_alone:
                out.append((right_first, last, (-1, right_target)))
        else:
            last = left_last if left_last < right_last else right_last
            out.append((left_first, last, (left_target, right_target)))
        position = last + 1
        if left_last < position:
            i += 1
        if right_last < position:
            j += 1
    if left_alone:
        for first, last, target in left[i:]:
            out.append((max(first, position), last, (target, -1)))
    if right_alone:
        for first, last, target in right[j:]:
            out.append((max(first, position), last, (-1, target)))
    return out


# Ranges of symbols by class; classes are numbered by their first symbol.
Parts = list[list[tuple[int, int]]]


def over_classes(automata: Sequence[Sequence[Row]]) -> tuple[Parts, list[list[Row]]]:
    """The largest classes of symbols that no edge of the automata cuts, and the rows over these classes."""
    numbers: dict[Ranges, int] = {}
    grouped: list[list[list[tuple[int, int]]]] = []
    check_time = current_budget().check_time
    for rows in automata:
        edges: list[list[tuple[int, int]]] = []
        for row in rows:
            if not len(edges) & 255:
                check_time()
            sets = symbols_by_target(row).items()
            edges.append([(numbers.setdefault(symbols, len(numbers)), target) for target, symbols in sets])
        grouped.append(edges)
    parts, members = atoms(list(numbers)) if numbers else ([], [])
    out: list[list[Row]] = []
    for group in grouped:
        rows_over: list[Row] = []
        for pairs in group:
            if not len(rows_over) & 255:
                check_time()
            over = [(part, part, target) for number, target in pairs for part in members[number]]
            rows_over.append(tuple(sorted(over)))
        out.append(rows_over)
    return parts, out


def over_symbols(rows: Sequence[Row], parts: Parts) -> list[Row]:
    """Rows over symbols for rows over classes. Raises AutomatonLimitError for too many edges."""
    out: list[Row] = []
    check = current_budget().check_states
    size = 0
    for row in rows:
        if not len(out) & 15:
            check(size // SIZE_PER_STATE)
        edges = [
            (first, last, target)
            for low, high, target in row
            for part in range(low, high + 1)
            for first, last in parts[part]
        ]
        edges.sort()
        size += len(edges)
        out.append(joined(edges))
    return out
