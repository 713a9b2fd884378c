"""What deterministic automata hold: how many texts, and how short and how long they are."""

from __future__ import annotations

from collections.abc import Sequence

from decoding.grammar.regular.minimise import Row


def bottom_up(rows: Sequence[Row]) -> list[int] | None:
    """All states, each behind those it leads to; None if there is a cycle."""
    missing = [len({target for _, _, target in row}) for row in rows]
    sources: list[set[int]] = [set() for _ in rows]
    for state, row in enumerate(rows):
        for _, _, target in row:
            sources[target].add(state)
    order = [state for state, number in enumerate(missing) if not number]
    for state in order:
        for source in sources[state]:
            missing[source] -= 1
            if not missing[source]:
                order.append(source)
    return order if len(order) == len(rows) else None


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
    sources: list[list[int]] = [[] for _ in rows]
    for state, row in enumerate(rows):
        for _, _, target in row:
            sources[target].append(state)
    found = [0 if end else -1 for end in is_end]
    order = [state for state, end in enumerate(is_end) if end]
    for state in order:
        for source in sources[state]:
            if found[source] < 0:
                found[source] = found[state] + 1
                order.append(source)
    return found


def shortest_text(rows: Sequence[Row], is_end: Sequence[bool], start: int) -> list[int]:
    """The first in the order of symbols of the shortest texts that end from a state, which some text does."""
    left = distances(rows, is_end)
    out: list[int] = []
    state = start
    while left[state]:
        for first, _, target in rows[state]:
            if left[target] == left[state] - 1:
                out.append(first)
                state = target
                break
    return out


def longest_length(rows: Sequence[Row]) -> int | None:
    """Symbols of a longest text; None if there is none. Every state can reach an end."""
    order = bottom_up(rows)
    if order is None:
        return None
    heights = [0] * len(rows)
    for state in order:
        heights[state] = max((heights[target] + 1 for _, _, target in rows[state]), default=0)
    return heights[0]
