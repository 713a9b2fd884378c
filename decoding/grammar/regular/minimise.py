"""Computes the one smallest deterministic automaton of a language.

States are rows of edges `(first, last, next)`: sorted, disjoint, inclusive ranges of symbols. A state's label
is -1 if no text ends there. State 0 is the start; the others are numbered breadth-first from low to high
symbols.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import TypeVar

from genret.decoding.grammar.compile_options import current_budget
from genret.decoding.grammar.regular.ranges import Ranges, atoms

Edge = tuple[int, int, int]
Row = tuple[Edge, ...]

# One state of 256 checks the clock: a state may have hundreds of edges.
CHECKED_BITS = 255
# Steps of the refinement between two checks of the clock.
_CHECKED_STEPS = 5_000

# Edges, and members of sets of states, allowed per state of the budget.
SIZE_PER_STATE = 32
# Edges and members between two checks of the budget.
_CHECKED_SIZE = 64

_Key = TypeVar("_Key", bound=Hashable)


def explored(
    start: _Key,
    expand: Callable[[_Key], tuple[int, Iterable[tuple[int, int, _Key]]]],
    weigh: Callable[[_Key], int] | None = None,
) -> tuple[list[list[Edge]], list[int]]:
    """The rows and labels of all states that one leads to. Raises AutomatonLimitError for too many.

    `expand` tells the label of a state and its edges, sorted and disjoint, by its description; equal
    descriptions are one state. The size of a description, by `weigh`, counts as edges do.
    """
    numbers = {start: 0}
    order = [start]
    rows: list[list[Edge]] = []
    labels: list[int] = []
    size = checked = 0
    check = current_budget().check_states
    for key in order:  # grows while it is walked
        if weigh is not None:
            size += weigh(key)
        if size >= checked:
            check(max(len(order), size // SIZE_PER_STATE))
            checked = size + _CHECKED_SIZE
        label, edges = expand(key)
        row: list[Edge] = []
        for first, last, target in edges:
            number = numbers.setdefault(target, len(order))
            if number == len(order):
                order.append(target)
            row.append((first, last, number))
        size += len(row)
        rows.append(row)
        labels.append(label)
    check(len(order))
    return rows, labels


def canonical(rows: Sequence[Sequence[Edge]], labels: Sequence[int]) -> tuple[list[Row], list[int]]:
    """Trim, minimise and number an automaton; the automaton of no text is one state without edges.

    Ranges that touch and lead to the same state may be apart in `rows`.
    """
    check_time = current_budget().check_time
    check_time()
    live = _live_states(rows, labels)
    if not live[0]:
        return [()], [-1]
    check_time()
    return _numbered(rows, labels, live, _refined_classes(rows, labels, live))


def _live_states(rows: Sequence[Sequence[Edge]], labels: Sequence[int]) -> list[bool]:
    """By state, whether it can be reached and can reach the end of a text."""
    sources: list[list[int]] = [[] for _ in rows]
    reached = [False] * len(rows)
    reached[0] = True
    stack = [0]
    ends: list[int] = []
    check_time = current_budget().check_time
    while stack:
        state = stack.pop()
        if not state & CHECKED_BITS:
            check_time()
        if labels[state] >= 0:
            ends.append(state)
        for _, _, target in rows[state]:
            sources[target].append(state)
            if not reached[target]:
                reached[target] = True
                stack.append(target)
    live = [False] * len(rows)
    for state in ends:
        live[state] = True
    while ends:
        state = ends.pop()
        if not state & CHECKED_BITS:
            check_time()
        for source in sources[state]:
            if not live[source]:
                live[source] = True
                ends.append(source)
    return live


def joined(edges: Sequence[tuple[int, int, _Key]]) -> tuple[tuple[int, int, _Key], ...]:
    """Sorted edges; those that touch and lead to the same state are joined."""
    out: list[tuple[int, int, _Key]] = []
    last_end = -2
    last_target: _Key | None = None
    for edge in edges:
        first, last, target = edge
        if first == last_end + 1 and target == last_target:
            out[-1] = (out[-1][0], last, target)
        else:
            out.append(edge)
        last_end = last
        last_target = target
    return tuple(out)


def symbols_by_target(row: Sequence[Edge]) -> dict[int, Ranges]:
    """The sets of symbols of a state's edges, by the state they lead to."""
    found: dict[int, list[tuple[int, int]]] = {}
    for first, last, target in row:
        ranges = found.get(target)
        if ranges is None:
            found[target] = [(first, last)]
        elif ranges[-1][1] == first - 1:
            ranges[-1] = (ranges[-1][0], last)
        else:
            ranges.append((first, last))
    return {target: tuple(ranges) for target, ranges in found.items()}


def _charsets(
    rows: Sequence[Sequence[Edge]], live: list[bool]
) -> tuple[list[list[tuple[int, int]]], list[Ranges]]:
    """For every state the live edges into it as (source, number of a set of symbols); and those sets."""
    incoming: list[list[tuple[int, int]]] = [[] for _ in rows]
    numbers: dict[Ranges, int] = {}
    check_time = current_budget().check_time
    for state, row in enumerate(rows):
        if not live[state]:
            continue
        if not state & CHECKED_BITS:
            check_time()
        for target, symbols in symbols_by_target(row).items():
            if live[target]:
                incoming[target].append((state, numbers.setdefault(symbols, len(numbers))))
    return incoming, list(numbers)


def _refined_classes(rows: Sequence[Sequence[Edge]], labels: Sequence[int], live: list[bool]) -> list[int]:
    """The class of every live state by Hopcroft's refinement over classes of symbols: n log n steps."""
    incoming, charsets = _charsets(rows, live)
    _, parts_of = atoms(charsets)
    by_label: dict[int, int] = {}
    classes = [-1] * len(rows)
    blocks: list[set[int]] = []
    for state, label in enumerate(labels):
        if live[state]:
            block = by_label.setdefault(label, len(blocks))
            if block == len(blocks):
                blocks.append(set())
            blocks[block].add(state)
            classes[state] = block
    # The dead state is a block of its own that is never split, so all others are to be tried as splitters.
    waiting = list(range(len(blocks)))
    is_waiting = [True] * len(blocks)
    budget = current_budget()
    steps = 0
    while waiting:
        splitter = waiting.pop()
        is_waiting[splitter] = False
        by_symbol: dict[int, list[int]] = {}
        for target in blocks[splitter]:
            for source, charset in incoming[target]:
                for part in parts_of[charset]:
                    by_symbol.setdefault(part, []).append(source)
        for sources in by_symbol.values():
            steps += len(sources) + 4
            _split(sources, classes, blocks, waiting, is_waiting)
        if steps >= _CHECKED_STEPS:
            steps = 0
            budget.check_time()
    return classes


def _split(
    sources: list[int], classes: list[int], blocks: list[set[int]], waiting: list[int], is_waiting: list[bool]
) -> None:
    """Split every block into the states among the sources and the others."""
    touched: dict[int, list[int]] = {}
    for source in sources:
        touched.setdefault(classes[source], []).append(source)
    for block, hit in touched.items():
        rest = blocks[block]
        if len(hit) == len(rest):
            continue
        rest.difference_update(hit)
        new = len(blocks)
        blocks.append(set(hit))
        for state in hit:
            classes[state] = new
        if is_waiting[block] or len(hit) <= len(rest):
            waiting.append(new)
            is_waiting.append(True)
        else:
            waiting.append(block)
            is_waiting[block] = True
            is_waiting.append(False)


def _numbered(
    rows: Sequence[Sequence[Edge]],
    labels: Sequence[int],
    live: list[bool],
    classes: list[int],
    start: int = 0,
) -> tuple[list[Row], list[int]]:
    """One state per class, numbered breadth-first from low to high symbols."""
    numbers = [-1] * (max(classes) + 1)
    numbers[classes[start]] = 0
    order = [start]
    out_rows: list[Row] = []
    check_time = current_budget().check_time
    for state in order:
        if not len(out_rows) & CHECKED_BITS:
            check_time()
        row: list[Edge] = []
        row_end = row_target = -2
        for first, last, target in rows[state]:
            if not live[target]:
                continue
            found = classes[target]
            number = numbers[found]
            if number < 0:
                number = numbers[found] = len(order)
                order.append(target)
            if number == row_target and first == row_end + 1:
                row[-1] = (row[-1][0], last, number)
            else:
                row.append((first, last, number))
            row_end = last
            row_target = number
        out_rows.append(tuple(row))
    return out_rows, [labels[state] for state in order]


def renumbered(
    rows: Sequence[Sequence[Edge]], labels: Sequence[int], *, start: int = 0, trimmed: bool = False
) -> tuple[list[Row], list[int]]:
    """Trim and number an automaton that is minimal but for dead states.

    With `trimmed` it is known that every state can reach the end of a text; otherwise `start` is 0.
    """
    live = [True] * len(rows) if trimmed else _live_states(rows, labels)
    if not live[start]:
        return [()], [-1]
    return _numbered(rows, labels, live, list(range(len(rows))), start)
