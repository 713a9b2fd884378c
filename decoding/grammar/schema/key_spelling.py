"""Keys as automata over bytes: some by name, others by sets, each with its label."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from decoding.grammar.regular.byte_dfa import ByteDfa
from decoding.grammar.regular.dfa import Dfa
from decoding.grammar.regular.spelling import spell_labelled

Row = list[tuple[int, int, int]]


@lru_cache(maxsize=64)
def spelled_classes(classes: tuple[Dfa, ...]) -> ByteDfa:
    """Keys of some disjoint sets in their spelling, labelled by the number of their set."""
    return spell_labelled([(keys, label) for label, keys in enumerate(classes)])


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
    rows = [
        _laid_over(children[place], classes.rows[state] if state >= 0 else (), base)
        for place, state in enumerate(below)
    ]
    rows.extend([(first, last, target + base) for first, last, target in row] for row in classes.rows)
    labels.extend(label if label < 0 else label + len(names) for label in classes.ends)
    return ByteDfa.from_minimal_rows(rows, labels)


def _laid_over(children: dict[int, int], row: Sequence[tuple[int, int, int]], base: int) -> Row:
    """The edges of a place in the trie: its own, and those of the automaton below for all other bytes."""
    edges: Row = [(byte, byte, child) for byte, child in children.items()]
    for first, last, target in row:
        begin = first
        for byte in sorted(byte for byte in children if first <= byte <= last):
            if begin < byte:
                edges.append((begin, byte - 1, target + base))
            begin = byte + 1
        if begin <= last:
            edges.append((begin, last, target + base))
    edges.sort()
    return edges
