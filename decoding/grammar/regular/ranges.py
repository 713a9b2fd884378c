"""Sets of code points or bytes as sorted, disjoint, inclusive ranges."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from genret.decoding.grammar.compile_options import current_budget

Ranges = tuple[tuple[int, int], ...]

SCALAR_VALUES: Ranges = ((0, 0xD7FF), (0xE000, 0x10FFFF))


def union(*parts: Iterable[tuple[int, int]]) -> Ranges:
    """Values in any of the parts; their ranges may overlap and come in any order."""
    ordered = sorted(pair for part in parts for pair in part)
    out: list[tuple[int, int]] = []
    for first, last in ordered:
        if out and first <= out[-1][1] + 1:
            if last > out[-1][1]:
                out[-1] = (out[-1][0], last)
        else:
            out.append((first, last))
    return tuple(out)


def intersection(left: Ranges, right: Ranges) -> Ranges:
    """Values in both."""
    out: list[tuple[int, int]] = []
    i = j = 0
    while i < len(left) and j < len(right):
        first = max(left[i][0], right[j][0])
        last = min(left[i][1], right[j][1])
        if first <= last:
            out.append((first, last))
        if left[i][1] < right[j][1]:
            i += 1
        else:
            j += 1
    return tuple(out)


def complement(ranges: Ranges, universe: Ranges = SCALAR_VALUES) -> Ranges:
    """Values of the universe outside the set."""
    gaps: list[tuple[int, int]] = []
    position = universe[0][0]
    for first, last in ranges:
        if position < first:
            gaps.append((position, first - 1))
        position = last + 1
    if position <= universe[-1][1]:
        gaps.append((position, universe[-1][1]))
    return intersection(tuple(gaps), universe)


def scalar(ranges: Iterable[tuple[int, int]]) -> Ranges:
    """The set without surrogates, its ranges sorted and joined."""
    return intersection(union(ranges), SCALAR_VALUES)


def contains(ranges: Ranges, value: int) -> bool:
    """Whether the value is in the set."""
    return any(first <= value <= last for first, last in ranges)


def atoms(sets: Sequence[Ranges]) -> tuple[list[list[tuple[int, int]]], list[list[int]]]:
    """Split the union of distinct sets into the largest parts that no set cuts.

    Returns:
        The sorted ranges of every part, and the parts of every set.
    """
    if len(sets) == 1:
        return [list(sets[0])], [[0]]
    toggles: dict[int, list[int]] = {}
    for index, ranges in enumerate(sets):
        for first, last in ranges:
            toggles.setdefault(first, []).append(index)
            toggles.setdefault(last + 1, []).append(index)
    part_of: dict[frozenset[int], int] = {}
    parts: list[list[tuple[int, int]]] = []
    members: list[list[int]] = [[] for _ in sets]
    active: set[int] = set()
    start = 0
    check_time = current_budget().check_time
    for number, position in enumerate(sorted(toggles)):
        if not number & 255:
            check_time()
        if active:
            key = frozenset(active)
            part = part_of.get(key)
            if part is None:
                part = part_of[key] = len(parts)
                parts.append([])
                for index in key:
                    members[index].append(part)
            parts[part].append((start, position - 1))
        active.symmetric_difference_update(toggles[position])
        start = position
    return parts, members
