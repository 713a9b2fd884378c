"""Automata over bytes: their one form, their operations, their labels."""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from decoding.grammar.regular.byte_dfa import ByteDfa
from decoding.grammar.regular.nfa import Nfa

TEXTS = [bytes(text) for length in range(5) for text in itertools.product(b"ab{", repeat=length)]
SETS = st.dictionaries(st.sampled_from(TEXTS), st.integers(0, 2), max_size=10)


@settings(max_examples=100, deadline=None)
@given(SETS, SETS)
def test_labelled_sets(left: dict[bytes, int], right: dict[bytes, int]) -> None:
    one, other = ByteDfa.literals(left.items()), ByteDfa.literals(right.items())
    for combined, expected in (
        (one | other, {**right, **left}),
        (one & other, {text: label for text, label in left.items() if text in right}),
        (one - other, {text: label for text, label in left.items() if text not in right}),
    ):
        assert {text: combined.label_of(text) for text in TEXTS} == {
            text: expected.get(text, -1) for text in TEXTS
        }
        assert combined.count() == len(expected)
        assert combined.is_finite
        assert combined.digest == ByteDfa.literals(expected.items()).digest
        assert combined.is_empty == (not expected)
        if expected:
            assert combined.shortest() == min(expected, key=lambda text: (len(text), text))
    joined = {a + b for a in left for b in right}
    assert one.then(other).count() == len(joined)
    assert all(one.then(other).accepts(text) for text in joined)


@settings(max_examples=50, deadline=None)
@given(SETS)
def test_table_and_rows_say_the_same(texts: dict[bytes, int]) -> None:
    dfa = ByteDfa.literals(texts.items())
    assert dfa.table.shape == (dfa.num_states, 256)
    assert dfa.table.dtype == dfa.labels.dtype == np.int32
    assert not dfa.table.flags.writeable
    for state in range(dfa.num_states):
        assert [dfa.step(state, byte) for byte in range(256)] == dfa.table[state].tolist()
    assert dfa.labels.tolist() == list(dfa.ends)
    assert ByteDfa.from_table(dfa.table, dfa.ends).digest == dfa.digest
    for state in range(dfa.num_states):
        if not dfa.is_empty:
            end = state
            for byte in dfa.shortest(state):
                end = dfa.step(end, byte)
            assert dfa.ends[end] >= 0


def test_labels_keep_states_apart() -> None:
    apart = ByteDfa.literals([(b"ax", 0), (b"bx", 1)])
    alike = ByteDfa.literals([(b"ax", 0), (b"bx", 0)])
    assert (apart.num_states, alike.num_states) == (5, 3)
    assert apart.digest != alike.digest
    with pytest.raises(ValueError, match="one label"):
        ByteDfa.literals([(b"a", 0), (b"a", 1)])
    with pytest.raises(ValueError, match="0 or more"):
        ByteDfa.literals([(b"a", -1)])


def test_the_empty_language() -> None:
    empty = ByteDfa.literals([])
    assert empty.is_empty
    assert empty.num_states == 1
    assert empty.count() == 0
    assert not empty.accepts(b"")
    with pytest.raises(ValueError, match="empty"):
        empty.shortest()


def test_endless_languages() -> None:
    digits = ByteDfa.from_rows([[(48, 57, 1)], [(48, 57, 1), (44, 44, 0)]], [-1, 0])
    assert not digits.is_finite
    assert digits.count() is None
    assert digits.accepts(b"1,22,3")
    assert not digits.accepts(b"1,")
    assert digits.shortest() == b"0"


def test_the_smallest_label_wins_where_pieces_meet() -> None:
    nfa = Nfa()
    start = nfa.state()
    for text, label in ((b"ab", 2), (b"ab", 1), (b"ac", 2)):
        at = start
        for byte in text:
            following = nfa.state()
            nfa.edge(at, ((byte, byte),), following)
            at = following
        nfa.set_label(at, label)
    dfa = ByteDfa.from_nfa(nfa, start)
    assert (dfa.label_of(b"ab"), dfa.label_of(b"ac")) == (1, 2)


def test_ten_thousand_literals() -> None:
    rng = random.Random(2)
    texts = {
        bytes(rng.choices(range(97, 107), k=rng.randint(2, 12))): rng.randint(0, 3) for _ in range(10_000)
    }
    dfa = ByteDfa.literals(texts.items())
    assert dfa.count() == len(texts)
    assert all(dfa.label_of(text) == label for text, label in texts.items())
