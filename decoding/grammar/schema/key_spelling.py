"""Keys as automata over bytes: some by name, others by sets, each with its label."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

from decoding.grammar.budget import current_budget
from decoding.grammar.regular.byte_dfa import ByteDfa, Overlay
from decoding.grammar.regular.dfa import Dfa
from decoding.grammar.regular.minimise import Edge
from decoding.grammar.regular.remembered import Remembered
from decoding.grammar.regular.spelling import spell_labelled

Row = list[tuple[int, int, int]]
_BEHIND_ALL_BYTES = 256
# One place of 256 looks at the clock.
_CHECKED_BITS = 255


def spelled_classes(classes: tuple[Dfa, ...]) -> ByteDfa:
    """Keys of some disjoint sets in their spelling, labelled by the number of their set."""
    return _spelled(classes)


def _spell(classes: tuple[Dfa, ...]) -> ByteDfa:
    return spell_labelled([(keys, label) for label, keys in enumerate(classes)])


def _size(spelled: ByteDfa, classes: tuple[Dfa, ...]) -> int:
    return spelled.num_bytes + sum(keys.num_bytes for keys in classes)


_spelled = Remembered(_spell, _size)


def spelled_keys(names: Sequence[bytes], classes: ByteDfa) -> ByteDfa:
    """Keys given by name, labelled by their number, and others, labelled above those.

    Names are laid over the classes' automaton as a trie, so that nothing has to be minimised: every place in
    the trie leads to a label of its own.

    Args:
        names: Spelled keys, all different.
        classes: Of `spelled_classes`; names that are in it keep the label of the name.
    """
    children: list[dict[int, int]] = [{}]
    below = [0]
    labels = [-1]
    for label, name in enumerate(names):
        place = 0
        for byte in name:
            after = children[place].get(byte)
            if after is None:
                after = children[place][byte] = len(children)
                children.append({})
                labels.append(-1)
                below.append(classes.step(below[place], byte) if below[place] >= 0 else -1)
            place = after
        labels[place] = label
    return _numbered(children, below, labels, classes)


def _numbered(
    children: list[dict[int, int]], below: list[int], labels: list[int], classes: ByteDfa
) -> ByteDfa:
    """Number the states of a trie over classes as automata are numbered, but for those that are not reached.

    Nearly all places lie over few states of the classes. The edges of these are numbered once, and only what
    is laid over them is looked at.

    Args:
        children: Of every place of the trie.
        below: The state of the classes below it, -1 where there is none.
        labels: Of the names that end there, -1 where none does.
        classes: As of `spelled_keys`.
    """
    base, num_names = len(children), 1 + max(labels)
    check_time = current_budget().check_time
    # Of places, and behind them of the classes' states.
    numbers = [0] + [-1] * (base + len(classes.rows) - 1)
    order = [0]
    settled: dict[int, Row] = {-1: []}
    rows: list[tuple[Edge, ...]] = []
    for place in order:
        if not len(rows) & _CHECKED_BITS:
            check_time()
        state = below[place] if place < base else place - base
        row = settled.get(state)
        if row is None:
            row = [(first, last, target + base) for first, last, target in classes.rows[state]]
            if place < base:
                row = _laid_over(children[place], row)
            for _, _, target in row:
                if numbers[target] < 0:
                    numbers[target] = len(order)
                    order.append(target)
            row = [(first, last, numbers[target]) for first, last, target in row]
            targets = [numbers[target + base] for _, _, target in classes.rows[state]]
            if -1 not in targets:
                edges = zip(classes.rows[state], targets, strict=True)
                settled[state] = [(first, last, number) for (first, last, _), number in edges]
        elif place < base:
            over: dict[int, int] = {}
            for byte in sorted(children[place]):
                over[byte] = numbers[children[place][byte]] = len(order)
                order.append(children[place][byte])
            row = _laid_over(over, row)
        rows.append(tuple(row))
    ends = [
        labels[place] if place < base else _above(classes.ends[place - base], num_names) for place in order
    ]
    # Every place leads to a name, and every state of the classes to a text of theirs.
    return ByteDfa.from_canonical_rows(rows, ends, _overlay(children, below, numbers))


def _above(label: int, num_names: int) -> int:
    """The label of a class's text above those of the names."""
    return label if label < 0 else label + num_names


def _overlay(children: list[dict[int, int]], below: list[int], numbers: list[int]) -> Overlay:
    """What was laid over what, by the final numbers."""
    base = len(children)
    return Overlay(
        {numbers[place]: -1 if state < 0 else numbers[base + state] for place, state in enumerate(below)},
        {
            numbers[place]: {byte: numbers[child] for byte, child in following.items()}
            for place, following in enumerate(children)
        },
    )


def _laid_over(children: dict[int, int], row: Row) -> Row:
    """The edges of a place in the trie: its own, and those of the automaton below for all other bytes."""
    for byte in sorted(children):
        place = bisect_right(row, (byte, _BEHIND_ALL_BYTES, 0))
        edges: Row = [(byte, byte, children[byte])]
        begin = place
        if place and row[place - 1][1] >= byte:
            begin = place - 1
            first, last, target = row[begin]
            if first < byte:
                edges.insert(0, (first, byte - 1, target))
            if byte < last:
                edges.append((byte + 1, last, target))
        row = row[:begin] + edges + row[place:]
    return row
