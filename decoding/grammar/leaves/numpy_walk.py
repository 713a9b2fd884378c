"""Walking a trie under the table of an automaton with NumPy, all nodes of one depth at a time."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from decoding.grammar.vocabulary.flat_trie import FlatTrie

Ints = NDArray[np.int32]


def walk_by_levels(
    trie: FlatTrie, next_state: Ints, label: Ints, state: int, positions: tuple[int, ...]
) -> tuple[Ints, Ints, Ints]:
    """Follow the table down from some positions.

    Args:
        trie: The vocabulary's.
        next_state: By state and byte, -1 where there is none. Shape: (S, 256).
        label: By state, -1 where no text ends. Shape: (S,).
        state: At each of the positions.
        positions: Where to begin; tokens that end there are not meant.

    Returns:
        Ids of the tokens that pass; the positions with longer tokens where a text has ended; its labels.
    """
    child_begin, child = trie.children
    places = np.array(positions, dtype=np.int32)
    states = np.full(len(places), state, dtype=np.int32)
    passed: list[Ints] = []
    exits: list[Ints] = []
    labels: list[Ints] = []
    while len(places):
        places, owner = _ranges(child_begin[places], child_begin[places + 1])
        places = child[places]
        states = next_state[states[owner], trie.byte[places]]
        kept = states >= 0
        places, states = places[kept], states[kept]
        passed.append(places)
        ended = label[states]
        leaves = (ended >= 0) & (trie.end[places] > places + 1)
        exits.append(places[leaves])
        labels.append(ended[leaves])
    there = np.concatenate(passed) if passed else places
    runs, _ = _ranges(trie.token_begin[there], trie.token_begin[there + 1])
    empty = places[:0]
    return trie.tokens[runs], np.concatenate([empty, *exits]), np.concatenate([empty, *labels])


def _ranges(first: Ints, behind: Ints) -> tuple[Ints, Ints]:
    """Write out ranges one after the other: their numbers, and which range each comes from."""
    length = behind - first
    owner = np.repeat(np.arange(len(first), dtype=np.int32), length)
    shift = first - (np.cumsum(length, dtype=np.int32) - length)
    return np.arange(len(owner), dtype=np.int32) + shift[owner], owner
