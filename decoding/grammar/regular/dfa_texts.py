"""Builds the smallest automaton of a list of texts; counts and measures the texts of an automaton."""

from __future__ import annotations

from collections.abc import Sequence

from genret.decoding.grammar.compile_options import current_budget
from genret.decoding.grammar.regular.minimise import CHECKED_BITS, Edge, Row, joined, renumbered


def automaton_of(texts: Sequence[Sequence[int]], labels: Sequence[int]) -> tuple[list[Row], list[int]]:
    """Canonical rows and labels of a finite set of sequences of symbols.

    States with the same future are made once, ends first, so nothing is left to merge. Texts are sorted, at
    least one, without repeats; labels are 0 or more.
    """
    known: dict[tuple[int, Row], int] = {}
    out_rows: list[Row] = []
    out_labels: list[int] = []
    # Its size is linear in that of the texts, which are part of the schema: time alone can run out.
    check_time = current_budget().check_time
    # The states of the last text, outermost first: edges that are settled, and the label.
    edges: list[list[Edge]] = [[]]
    ends: list[int] = [-1]
    path: Sequence[int] = ()

    def settle(depth: int) -> None:
        """Make the states of the last text below a depth."""
        while len(edges) > depth + 1:
            row = edges.pop()
            key = (ends.pop(), joined(row) if len(row) > 1 else tuple(row))
            state = known.get(key)
            if state is None:
                state = known[key] = len(out_rows)
                out_rows.append(key[1])
                out_labels.append(key[0])
            if not len(edges) & 4095:
                check_time()
            symbol = path[len(edges) - 1]
            edges[-1].append((symbol, symbol, state))

    for number, (text, label) in enumerate(zip(texts, labels, strict=True)):
        if not number & 63:
            check_time()
        common = 0
        limit = min(len(path), len(text))
        while common < limit and path[common] == text[common]:
            common += 1
        settle(common)
        path = text
        for _ in range(len(text) - common):
            edges.append([])
            ends.append(-1)
        ends[-1] = label
    settle(0)
    out_rows.append(joined(edges[0]))
    out_labels.append(ends[0])
    return renumbered(out_rows, out_labels, start=len(out_rows) - 1, trimmed=True)


def bottom_up(rows: Sequence[Row]) -> list[int] | None:
    """All states, each behind those it leads to; None if there is a cycle."""
    missing, sources = _sources(rows)
    order = [state for state, number in enumerate(missing) if not number]
    check_time = current_budget().check_time
    for state in order:
        if not state & CHECKED_BITS:
            check_time()
        for source in sources[state]:
            missing[source] -= 1
            if not missing[source]:
                order.append(source)
    return order if len(order) == len(rows) else None


def _sources(rows: Sequence[Row]) -> tuple[list[int], list[list[int]]]:
    """By state, the number of different states it leads to, and the states that lead to it."""
    numbers: list[int] = []
    sources: list[list[int]] = [[] for _ in rows]
    check_time = current_budget().check_time
    for state, row in enumerate(rows):
        if not state & CHECKED_BITS:
            check_time()
        targets = {target for _, _, target in row}
        numbers.append(len(targets))
        for target in targets:
            sources[target].append(state)
    return numbers, sources


def count_texts(rows: Sequence[Row], is_end: Sequence[bool]) -> int | None:
    """Count the texts; None: infinitely many. Every state can be reached and can reach an end."""
    order = bottom_up(rows)
    if order is None:
        return None
    counts = [0] * len(rows)
    for state in order:
        total = sum([(last - first + 1) * counts[target] for first, last, target in rows[state]])
        counts[state] = total + is_end[state]
    return counts[0]


def distances(rows: Sequence[Row], is_end: Sequence[bool]) -> list[int]:
    """By state, the fewest symbols that end a text; -1 if none do."""
    _, sources = _sources(rows)
    found = [0 if end else -1 for end in is_end]
    order = [state for state, end in enumerate(is_end) if end]
    check_time = current_budget().check_time
    for number, state in enumerate(order):
        if not number & CHECKED_BITS:
            check_time()
        for source in sources[state]:
            if found[source] < 0:
                found[source] = found[state] + 1
                order.append(source)
    return found


def shortest_text(rows: Sequence[Row], is_end: Sequence[bool], start: int) -> list[int]:
    """The first, in the order of symbols, of the shortest texts from a state. Raises ValueError for none.

    States are met in the order of the first of their shortest texts, so the search stops at the first end.
    """
    reached_by: dict[int, tuple[int, int]] = {start: (-1, -1)}
    order = [start]
    check_time = current_budget().check_time
    for number, state in enumerate(order):
        if not number & CHECKED_BITS:
            check_time()
        if is_end[state]:
            break
        for first, _, target in rows[state]:
            if target not in reached_by:
                reached_by[target] = (state, first)
                order.append(target)
    else:
        raise ValueError("no text ends from the state")
    out: list[int] = []
    while state != start:
        state, symbol = reached_by[state]
        out.append(symbol)
    out.reverse()
    return out


def nearest_text(rows: Sequence[Row], distances: Sequence[int], state: int) -> bytes:
    """The first of the shortest texts from a state of an automaton over bytes, by the states' distances."""
    written = bytearray()
    while distances[state]:
        nearer = distances[state] - 1
        byte, state = next((byte, target) for byte, _, target in rows[state] if distances[target] == nearer)
        written.append(byte)
    return bytes(written)


def longest_length(rows: Sequence[Row]) -> int | None:
    """The symbols of a longest text; None if lengths are unbounded. Every state can reach an end."""
    order = bottom_up(rows)
    if order is None:
        return None
    heights = [0] * len(rows)
    for state in order:
        heights[state] = max([heights[target] + 1 for _, _, target in rows[state]], default=0)
    return heights[0]
