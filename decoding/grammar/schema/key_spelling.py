"""Keys as automata over bytes: some by name, others by sets, each with its label."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

from decoding.grammar.regular.byte_dfa import ByteDfa
from decoding.grammar.regular.dfa import Dfa
from decoding.grammar.regular.remembered import Remembered
from decoding.grammar.regular.spelling import spell_labelled

Row = list[tuple[int, int, int]]
_BEHIND_ALL_BYTES = 256


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
    base = len(children)
    shifted: dict[int, Row] = {-1: []}
    rows: list[Row] = []
    for place, state in enumerate(below):
        row = shifted.get(state)
        if row is None:
            row = shifted[state] = [
                (first, last, target + base) for first, last, target in classes.rows[state]
            ]
        rows.append(_laid_over(children[place], row))
    rows.extend([(first, last, target + base) for first, last, target in row] for row in classes.rows)
    labels.extend(label if label < 0 else label + len(names) for label in classes.ends)
    # Every place leads to a name, and every state of the classes to a text of theirs.
    return ByteDfa.from_minimal_rows(rows, labels, trimmed=not classes.is_empty)


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
