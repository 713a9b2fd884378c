"""Sets of texts against sets that are written out."""

from __future__ import annotations

import itertools
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from decoding.grammar.compile_options import AutomatonLimitError, CompileLimits, compile_budget
from decoding.grammar.errors import CompileTimeoutError
from decoding.grammar.regular.dfa import Dfa
from decoding.grammar.regular.regex_compiler import compile_pattern
from tests.regex_texts import all_texts, random_pattern

TEXTS = all_texts("abc", 4)
WINDOW = Dfa.of_texts(TEXTS)
CHARS = st.sampled_from("ab\x00\x7fé\ud7ff\ue000\uffff\U00010000\U0010ffff")
FINITE = st.sets(st.text(CHARS, max_size=5), max_size=12)


def written_out(dfa: Dfa) -> set[str]:
    """Its texts among those of the window."""
    return {text for text in TEXTS if dfa.accepts(text)}


@settings(max_examples=60, deadline=None)
@given(FINITE, FINITE)
def test_finite_sets_are_sets(left: set[str], right: set[str]) -> None:
    one, other = Dfa.of_texts(left), Dfa.of_texts(right)
    assert set((one & other).texts()) == left & right
    assert set((one | other).texts()) == left | right
    assert set((one - other).texts()) == left - right
    assert one.count() == len(left)
    assert (one == other) == (left == right)
    assert one.is_empty == (not left)
    assert (one - other).is_empty == left.issubset(right)
    assert (one & other).is_empty == left.isdisjoint(right)
    assert list(one.texts()) == sorted(left, key=lambda text: (len(text), text))
    assert one.shortest() == min(left, key=lambda text: (len(text), text), default=None)
    lengths = [len(text) for text in left]
    assert one.lengths() == ((min(lengths), max(lengths)) if lengths else None)
    assert set(one.then(other).texts()) == {a + b for a, b in itertools.product(left, right)}
    assert all(one.accepts(text) for text in left)
    assert not any(one.accepts(text) for text in right - left)


@settings(max_examples=80, deadline=None)
@given(st.integers(0, 2**32), st.integers(0, 2**32))
def test_boolean_laws_hold_for_patterns(seed: int, other_seed: int) -> None:
    one = compile_pattern(random_pattern(random.Random(seed), 3))
    other = compile_pattern(random_pattern(random.Random(other_seed), 3))
    left, right = written_out(one), written_out(other)
    everything = set(TEXTS)
    assert written_out(one & other) == left & right
    assert written_out(one | other) == left | right
    assert written_out(one - other) == left - right
    assert written_out(~one) == everything - left
    assert ~~one == one
    assert ~(one & other) == ~one | ~other
    assert one - other == one & ~other
    assert (one & other) | (one - other) == one
    assert hash(one | other) == hash(other | one)
    assert (one | other) == (other | one)
    assert one & ~one == Dfa.nothing()
    assert one | ~one == Dfa.everything()
    assert set((one & WINDOW).texts()) == left


@pytest.mark.parametrize("least", [0, 1, 2])
@pytest.mark.parametrize("most", [0, 1, 2, 3, None])
def test_repetition_is_concatenation_many_times(least: int, most: int | None) -> None:
    part = Dfa.of_texts(["", "a", "bc"]) if least else Dfa.of_texts(["a", "bc"])
    expected: set[str] = set()
    step = {""}
    for times in range((5 if most is None else most) + 1):
        if times >= least:
            expected |= step
        step = {text + piece for text in step for piece in part.texts()}
    found = written_out(part.repeated(least, most))
    assert found == {text for text in expected if text in set(TEXTS)}


def test_repetition_of_nothing() -> None:
    assert Dfa.nothing().repeated() == Dfa.of_texts([""])
    assert Dfa.nothing().repeated(1).is_empty
    assert Dfa.of_texts(["a"]).repeated(3, 2).is_empty


def test_lengths_count_code_points() -> None:
    three = Dfa.of_lengths(3, 3)
    assert three.accepts("a\U0001f600é")
    assert not three.accepts("ab")
    assert three.count() == (0x110000 - 0x800) ** 3
    assert Dfa.of_lengths(2, None).lengths() == (2, None)
    assert Dfa.of_lengths(0, None) == Dfa.everything()
    assert Dfa.of_lengths(3, 2) == Dfa.nothing()
    assert Dfa.of_lengths(0, 5) - Dfa.of_lengths(2, 4) == Dfa.of_lengths(0, 1) | Dfa.of_lengths(5, 5)
    assert ~Dfa.of_lengths(0, 3) == Dfa.of_lengths(4, None)


def test_surrogates_are_in_no_text() -> None:
    assert not Dfa.everything().accepts("\ud800")
    with pytest.raises(ValueError, match="surrogates"):
        Dfa.of_texts(["a", "x\udfff"])
    assert Dfa.of_chars([(0xD700, 0xE001)]).count() == 0x100 + 2


def test_texts_of_an_endless_set_come_in_order() -> None:
    texts = list(itertools.islice(compile_pattern("^(ab|c)*$").texts(), 6))
    assert texts == ["", "c", "ab", "cc", "abc", "cab"]
    assert repr(compile_pattern("^a+$")) == "Dfa(2 states: 'a', 'aa', 'aaa', ...)"


def test_ten_thousand_texts() -> None:
    rng = random.Random(1)
    texts = {"".join(rng.choices("abcdefgh é", k=rng.randint(3, 20))) for _ in range(10_000)}
    dfa = Dfa.of_texts(texts)
    assert dfa.count() == len(texts)
    assert all(dfa.accepts(text) for text in texts)
    assert dfa == Dfa.of_texts(sorted(texts, reverse=True))


def test_equal_automata_made_in_different_ways_are_equal() -> None:
    made = [
        compile_pattern("^(a|b)*abb$"),
        Dfa.of_texts(["a", "b"]).repeated().then(Dfa.of_texts(["abb"])),
        compile_pattern("^[ab]*$") & compile_pattern("abb$"),
        ~(~compile_pattern("^[ab]+$") | ~compile_pattern("abb$")),
    ]
    assert len(set(made)) == 1
    assert made[0].num_states == 4


def test_too_many_states_are_refused() -> None:
    with compile_budget(CompileLimits(automaton_states=100)):
        assert Dfa.of_lengths(0, 99).num_states == 100
        with pytest.raises(AutomatonLimitError):
            Dfa.of_lengths(0, 100)
        with pytest.raises(AutomatonLimitError):
            compile_pattern("(a|b)*a(a|b){9}$")
        with pytest.raises(AutomatonLimitError):
            Dfa.of_texts(["ab"]).repeated(60, 61)
    with compile_budget(CompileLimits(seconds=0.0)), pytest.raises(CompileTimeoutError):
        compile_pattern("a")
