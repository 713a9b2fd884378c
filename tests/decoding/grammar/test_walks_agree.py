"""Random automata over random vocabularies of characters: every way of walking finds the same tokens."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from decoding.grammar.leaves.dfa_leaf import DfaLeaf
from decoding.grammar.leaves.restricted_keys import LabelledKeys, RestrictedKeys
from decoding.grammar.leaves.table_walk import TableWalk, TableWalker
from decoding.grammar.regular.byte_dfa import ByteDfa, byte_edges
from decoding.grammar.regular.minimise import Row
from decoding.grammar.vocabulary import Vocabulary

# Of one to four bytes, several of them with the same first bytes.
CHARACTERS = 'ab-"\\\n\x7f\x80\xbf\xe9\u07ff\u0800\u0fff\u4e00\u4e01\ud7ff\ue000\uffff\U00010000\U0010ffff'
TEXTS = st.text(alphabet=CHARACTERS, min_size=1, max_size=6).map(str.encode)
CUT = st.tuples(TEXTS, st.integers(0, 3), st.integers(0, 3)).map(lambda cut: cut[0][cut[1] :][: 9 - cut[2]])
# Characters, parts of them at both ends, and bytes that are none.
TOKENS = st.one_of(TEXTS, CUT.filter(bool), st.binary(min_size=1, max_size=3))
# Whose characters a state treats alike.
RANGES = [(0x20, 0x2C), (0x2D, 0x2D), (0x2E, 0x60), (0x61, 0x61), (0x62, 0x7F), (0x80, 0xE8), (0xE9, 0xE9)]
RANGES += [(0xEA, 0x7FF), (0x800, 0xFFF), (0x1000, 0x4DFF), (0x4E00, 0x4E00), (0x4E01, 0xD7FF)]
RANGES += [(0xE000, 0xFFFF), (0x10000, 0x3FFFF), (0x40000, 0x10FFFF)]
NUM_STATES = 4
# One target for most characters, others for some.
TARGETS = st.tuples(
    st.integers(-1, NUM_STATES - 1),
    st.dictionaries(st.integers(0, len(RANGES) - 1), st.integers(-1, NUM_STATES - 1), max_size=4),
)


def automaton_of(targets: list[tuple[int, dict[int, int]]], labels: list[int]) -> ByteDfa:
    """The automaton whose states lead to these over ranges of characters."""
    rows: list[list[tuple[int, int, int]]] = [[] for _ in targets]

    def make_state(row: Row) -> int:
        rows.append(list(row))
        return len(rows) - 1

    for state, (common, others) in enumerate(targets):
        leads = [(*ends, others.get(place, common)) for place, ends in enumerate(RANGES)]
        rows[state] = byte_edges([edge for edge in leads if edge[2] >= 0], make_state)
    return ByteDfa.from_rows(rows, labels + [-1] * (len(rows) - len(labels)))


def comparable(walked: TableWalk) -> tuple[list[int], dict[int, list[int]]]:
    tokens, mask, exits = walked
    if tokens is None:
        assert mask is not None
        tokens = np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little")).tolist()
    return sorted(set(tokens)), {label: sorted(places) for label, places in exits.items()}


@settings(max_examples=40, deadline=None)
@given(
    targets=st.lists(TARGETS, min_size=NUM_STATES, max_size=NUM_STATES),
    labels=st.lists(st.sampled_from([-1, -1, 0, 1]), min_size=NUM_STATES, max_size=NUM_STATES),
    tokens=st.lists(TOKENS, min_size=1, max_size=150),
)
def test_all_ways_of_walking_agree(
    targets: list[tuple[int, dict[int, int]]], labels: list[int], tokens: list[bytes]
) -> None:
    module = pytest.importorskip("decoding.grammar.leaves.numba_walk")
    automaton = automaton_of(targets, labels)
    tokens = [bytes([byte]) for byte in range(256)] + tokens  # else some could not be written
    vocabulary = Vocabulary([None, *tokens], 0, len(tokens) + 1)
    walker = TableWalker(vocabulary)
    walk = module.CompiledWalk(vocabulary)
    keys = LabelledKeys(DfaLeaf(automaton, walker))
    leaves: list[DfaLeaf | RestrictedKeys] = [
        keys.leaf,
        RestrictedKeys(keys, 0b01, walker),
        RestrictedKeys(keys, 0b10, walker),
    ]
    inner = [place for place, end in enumerate(vocabulary.trie.end_view) if end > place + 1]
    for leaf in leaves:
        for state in range(automaton.num_states):
            if leaf is not keys.leaf and not leaf.goes_on(state):
                continue
            for positions in ((0,), tuple(inner[:: max(len(inner) // 3, 1)])):
                expected = comparable(walker.walk_nodes(leaf, state, positions))
                assert comparable(walk(leaf.table, state, positions)) == expected
                assert comparable(walk(leaf.table, state, positions)) == expected  # with rows written
    for state in range(automaton.num_states):
        fresh = DfaLeaf(automaton, walker)
        expected = comparable(walker.walk_nodes(fresh, state, (0,)))
        assert comparable(walker.walk_levels(fresh.table, state, (0,))) == expected
        allowed = [token for token, text in enumerate(tokens, 1) if _passes(automaton, state, text)]
        assert expected[0] == allowed


def _passes(automaton: ByteDfa, state: int, text: bytes) -> bool:
    for byte in text:
        state = automaton.step(state, byte)
        if state < 0:
            return False
    return True
