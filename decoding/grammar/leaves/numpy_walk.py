"""Walking a trie under the table of an automaton with NumPy, all nodes of one depth at a time."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from decoding.grammar.vocabulary.flat_trie import FlatTrie

Ints = NDArray[np.int32]


def trace_by_levels(
    trie: FlatTrie,
    next_state: Ints,
    alive: NDArray[np.bool_],
    state: int,
    positions: tuple[int, ...],
    begin: tuple[int, int],
) -> tuple[Ints, Ints, Ints]:
    """Follow the table down from some positions.

    Args:
        trie: The vocabulary's.
        next_state: By state and byte, -1 where there is none. Shape: (S, 256).
        alive: Whether a state may be reached. Shape: (S,).
        state: At each of the positions.
        positions: Where to begin.
        begin: A state, and a byte: what leads out of the state, except by the byte, is counted.

    Returns:
        The positions below that the table lets through, the state at each, and the count on the way to it.
    """
    child_begin, child = trie.children
    places = np.array(positions, dtype=np.int32)
    states = np.full(len(places), state, dtype=np.int32)
    counts = np.zeros(len(places), dtype=np.int32)
    found = [(places[:0], states[:0], counts[:0])]
    counted, except_byte = begin
    while len(places):
        runs, owner = ranges(child_begin[places], child_begin[places + 1])
        places = child[runs]
        before, byte = states[owner], trie.byte[places]
        states = next_state[before, byte]
        counts = counts[owner] + ((before == counted) & (byte != except_byte))
        kept = (states >= 0) & alive[states]  # whichever state -1 means there
        places, states, counts = places[kept], states[kept], counts[kept]
        found.append((places, states, counts))
    places, states, counts = (np.concatenate(parts) for parts in zip(*found, strict=True))
    return places, states, counts


def walk_by_levels(
    trie: FlatTrie,
    next_state: Ints,
    label: Ints,
    alive: NDArray[np.bool_],
    state: int,
    positions: tuple[int, ...],
) -> tuple[Ints, Ints, Ints]:
    """Find the tokens that pass.

    Args:
        trie: The vocabulary's.
        next_state: By state and byte, -1 where there is none. Shape: (S, 256).
        label: By state, -1 where no text ends. Shape: (S,).
        alive: Whether a state may be reached. Shape: (S,).
        state: At each of the positions.
        positions: Where to begin; tokens that end there are not meant.

    Returns:
        Ids of the tokens that pass; the positions with longer tokens where a text has ended; its labels.
    """
    places, states, _ = trace_by_levels(trie, next_state, alive, state, positions, (-1, -1))
    runs, _ = ranges(trie.token_begin[places], trie.token_begin[places + 1])
    ended = label[states]
    leaves = (ended >= 0) & (trie.end[places] > places + 1)
    return trie.tokens[runs], places[leaves], ended[leaves]


def ranges(first: Ints, behind: Ints) -> tuple[Ints, Ints]:
    """Write out ranges one after the other: their numbers, and which range each comes from."""
    length = behind - first
    owner = np.repeat(np.arange(len(first), dtype=np.int32), length)
    shift = first - (np.cumsum(length, dtype=np.int32) - length)
    return np.arange(len(owner), dtype=np.int32) + shift[owner], owner
