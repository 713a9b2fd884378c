"""What deterministic automata hold: how many texts, and how short and how long they are."""

from __future__ import annotations

from collections.abc import Sequence

from decoding.grammar.budget import current_budget
from decoding.grammar.regular.minimise import Row

# One state of 256 looks at the clock: a state may have hundreds of edges.
_CHECKED_BITS = 255
# A row and its place, and an edge with the numbers in it, measured with tracemalloc.
_STATE_BYTES = 90
_EDGE_BYTES = 140


def rows_bytes(rows: Sequence[Row]) -> int:
    """Memory of an automaton, about."""
    return _STATE_BYTES * len(rows) + _EDGE_BYTES * sum(map(len, rows))


def bottom_up(rows: Sequence[Row]) -> list[int] | None:
    """All states, each behind those it leads to; None if there is a cycle."""
    missing, sources = _sources(rows)
    order = [state for state, number in enumerate(missing) if not number]
    check_time = current_budget().check_time
    for state in order:
        if not state & _CHECKED_BITS:
            check_time()
        for source in sources[state]:
            missing[source] -= 1
            if not missing[source]:
                order.append(source)
    return order if len(order) == len(rows) else None


def _sources(rows: Sequence[Row]) -> tuple[list[int], list[list[int]]]:
    """By state, how many states it leads to, and which states lead to it, each once."""
    numbers: list[int] = []
    sources: list[list[int]] = [[] for _ in rows]
    check_time = current_budget().check_time
    for state, row in enumerate(rows):
        if not state & _CHECKED_BITS:
            check_time()
        targets = {target for _, _, target in row}
        numbers.append(len(targets))
        for target in targets:
            sources[target].append(state)
    return numbers, sources


def count_texts(rows: Sequence[Row], is_end: Sequence[bool], most: int | None = None) -> int | None:
    """How many texts there are; None: infinitely many.

    Args:
        rows: Edges of every state; every state can be reached and can reach an end.
        is_end: Whether a text may end in a state.
        most: Where to stop counting, for numbers have as many digits as the longest text has symbols.
    """
    order = bottom_up(rows)
    if order is None:
        return None
    counts = [0] * len(rows)
    for state in order:
        total = sum([(last - first + 1) * counts[target] for first, last, target in rows[state]])
        total += is_end[state]
        counts[state] = total if most is None or total < most else most
    return counts[0]


def distances(rows: Sequence[Row], is_end: Sequence[bool]) -> list[int]:
    """By state, the fewest symbols that end a text; -1 where none do."""
    _, sources = _sources(rows)
    found = [0 if end else -1 for end in is_end]
    order = [state for state, end in enumerate(is_end) if end]
    check_time = current_budget().check_time
    for number, state in enumerate(order):
        if not number & _CHECKED_BITS:
            check_time()
        for source in sources[state]:
            if found[source] < 0:
                found[source] = found[state] + 1
                order.append(source)
    return found


def shortest_text(rows: Sequence[Row], is_end: Sequence[bool], start: int) -> list[int]:
    """The first in the order of symbols of the shortest texts that end from a state, which some text does.

    States are met in the order of the first of their shortest texts, so that the first end is the one that
    is looked for; what lies behind it is never visited.
    """
    reached_by: dict[int, tuple[int, int]] = {start: (-1, -1)}
    order = [start]
    check_time = current_budget().check_time
    for number, state in enumerate(order):
        if not number & _CHECKED_BITS:
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


def longest_length(rows: Sequence[Row]) -> int | None:
    """Symbols of a longest text; None if there is none. Every state can reach an end."""
    order = bottom_up(rows)
    if order is None:
        return None
    heights = [0] * len(rows)
    for state in order:
        heights[state] = max([heights[target] + 1 for _, _, target in rows[state]], default=0)
    return heights[0]
