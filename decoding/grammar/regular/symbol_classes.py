"""Automata over classes of symbols: a class of many ranges is one edge while automata are combined."""

from __future__ import annotations

from collections.abc import Sequence

from decoding.grammar.budget import current_budget
from decoding.grammar.regular.minimise import SIZE_PER_STATE, Row, joined
from decoding.grammar.regular.ranges import Ranges, atoms

# Ranges of symbols by class; classes are numbered by their first symbol.
Parts = list[list[tuple[int, int]]]


def over_classes(automata: Sequence[Sequence[Row]]) -> tuple[Parts, list[list[Row]]]:
    """The same automata over the largest classes of symbols that none of their edges cuts.

    Args:
        automata: Rows over symbols.

    Returns:
        The classes, and the rows over them.
    """
    numbers: dict[Ranges, int] = {}
    grouped: list[list[list[tuple[int, int]]]] = []
    check_time = current_budget().check_time
    for rows in automata:
        edges: list[list[tuple[int, int]]] = []
        for row in rows:
            if not len(edges) & 255:
                check_time()
            by_target: dict[int, list[tuple[int, int]]] = {}
            for first, last, target in row:
                ranges = by_target.get(target)
                if ranges is None:
                    by_target[target] = [(first, last)]
                else:
                    ranges.append((first, last))
            edges.append(
                [
                    (numbers.setdefault(tuple(ranges), len(numbers)), target)
                    for target, ranges in by_target.items()
                ]
            )
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
    """Rows over symbols for rows over classes.

    Raises:
        AutomatonLimitError: they have too many edges.
    """
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
