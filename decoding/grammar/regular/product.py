"""Two deterministic automata read side by side."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from decoding.grammar.budget import current_budget
from decoding.grammar.regular.minimise import SIZE_PER_STATE, Edge, Row, canonical
from decoding.grammar.regular.symbol_classes import over_classes, over_symbols

# Edges a state, on an average, from which on classes of symbols pay.
_MANY_EDGES = 4


def product(
    left_rows: Sequence[Row],
    left_labels: Sequence[int],
    right_rows: Sequence[Row],
    right_labels: Sequence[int],
    label: Callable[[int, int], int],
    *,
    left_alone: bool,
    right_alone: bool,
) -> tuple[list[Row], list[int]]:
    """The smallest automaton of a combination of two languages.

    Args:
        left_rows: Edges of one automaton.
        left_labels: Its labels.
        right_rows: Edges of the other.
        right_labels: Its labels.
        label: Label of a text by its labels on both sides, -1 for a side that does not know it.
        left_alone: Whether a text may go on where only the left side can follow.
        right_alone: Whether a text may go on where only the right side can follow.
    """
    parts = None
    left_edges, right_edges = sum(map(len, left_rows)), sum(map(len, right_rows))
    if left_edges + right_edges > _MANY_EDGES * (len(left_rows) + len(right_rows)):
        parts, (left_rows, right_rows) = over_classes([left_rows, right_rows])
    rows, labels = _pairs(
        (left_rows, left_labels), (right_rows, right_labels), label, (left_alone, right_alone)
    )
    small, small_labels = canonical(rows, labels)
    return (small if parts is None else over_symbols(small, parts)), small_labels


def _pairs(
    left_side: tuple[Sequence[Row], Sequence[int]],
    right_side: tuple[Sequence[Row], Sequence[int]],
    label: Callable[[int, int], int],
    alone: tuple[bool, bool],
) -> tuple[list[list[Edge]], list[int]]:
    """The automaton of all pairs of states that are met, not minimal."""
    left_rows, left_labels = left_side
    right_rows, right_labels = right_side
    left_alone, right_alone = alone
    numbers: dict[tuple[int, int], int] = {(0, 0): 0}
    order = [(0, 0)]
    rows: list[list[Edge]] = []
    labels: list[int] = []
    size = 0
    check = current_budget().check_states
    for left, right in order:
        if not len(rows) & 15:
            check(max(len(order), size // SIZE_PER_STATE))
        labels.append(
            label(left_labels[left] if left >= 0 else -1, right_labels[right] if right >= 0 else -1)
        )
        row: list[Edge] = []
        for first, last, pair in together(
            left_rows[left] if left >= 0 else (),
            right_rows[right] if right >= 0 else (),
            left_alone,
            right_alone,
        ):
            number = numbers.setdefault(pair, len(order))
            if number == len(order):
                order.append(pair)
            row.append((first, last, number))
        size += len(row)
        rows.append(row)
    check(len(order))
    return rows, labels


def together(
    left: Row, right: Row, left_alone: bool, right_alone: bool
) -> list[tuple[int, int, tuple[int, int]]]:
    """The edges of a pair of states; -1 for a side that cannot follow."""
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
