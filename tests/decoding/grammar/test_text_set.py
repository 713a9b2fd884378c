"""Sets of texts by length, by automaton and by both."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from genret.decoding.grammar.compile_options import AutomatonLimitError
from genret.decoding.grammar.regular.dfa import Dfa
from genret.decoding.grammar.regular.regex_compiler import compile_pattern
from genret.decoding.grammar.regular.text_set import TextSet
from tests.regex_texts import all_texts, random_pattern

TEXTS = all_texts("ab-", 5)


@st.composite
def text_sets(draw: st.DrawFn) -> TextSet:
    """By lengths, by a pattern, by some texts, or by lengths and a pattern."""
    least = draw(st.integers(0, 4))
    most = draw(st.none() | st.integers(0, 6))
    kind = draw(st.sampled_from(("lengths", "pattern", "texts", "both")))
    if kind == "lengths":
        return TextSet.of(least, most)
    if kind == "texts":
        return TextSet.of(automaton=Dfa.of_texts(draw(st.sets(st.sampled_from(TEXTS), max_size=6))))
    dfa = compile_pattern(random_pattern(random.Random(draw(st.integers(0, 2**32))), 2))
    return TextSet.of(automaton=dfa) if kind == "pattern" else TextSet.of(least, most, dfa)


def written_out(texts: TextSet) -> set[str]:
    """Its texts among those of the window."""
    return {text for text in TEXTS if texts.accepts(text)}


@settings(max_examples=200, deadline=None)
@given(text_sets(), text_sets())
def test_boolean_operations(one: TextSet, other: TextSet) -> None:
    left, right = written_out(one), written_out(other)
    assert written_out(one & other) == left & right
    assert written_out(one | other) == left | right
    assert written_out(one - other) == left - right
    assert written_out(~one) == set(TEXTS) - left
    assert ~~one == one
    assert hash(one & other) == hash(other & one)
    assert one & other == other & one
    assert one | other == other | one
    assert (one - one).is_empty
    assert (one | ~one).is_everything
    assert one - other == one & ~other


@settings(max_examples=100, deadline=None)
@given(text_sets())
def test_answers_agree_with_the_automaton(texts: TextSet) -> None:
    dfa = texts.automaton()
    assert texts.is_empty == dfa.is_empty
    assert texts.is_everything == dfa.is_everything
    assert texts.count() == dfa.count()
    assert written_out(texts) == {text for text in TEXTS if dfa.accepts(text)}
    assert TextSet.of(automaton=dfa) == texts


def test_lengths_stay_two_numbers() -> None:
    assert TextSet.of(0, 65536).lengths == (0, 65536)
    assert (TextSet.of(3, None) & TextSet.of(0, 10**12)).lengths == (3, 10**12)
    assert (TextSet.of(3, 7) | TextSet.of(5, None)).lengths == (3, None)
    assert (~TextSet.of(0, 10**9)).lengths == (10**9 + 1, None)
    assert TextSet.of(3, 2).is_empty
    assert TextSet.of(3, 2).lengths is None
    assert TextSet.of().is_everything
    assert TextSet.of(2, 3, Dfa.everything()).lengths == (2, 3)
    assert TextSet.of(automaton=Dfa.of_texts(["a"])).lengths is None
    assert (TextSet.of(automaton=Dfa.of_texts(["a"])) | TextSet.everything()).lengths == (0, None)
    assert TextSet.of(0, 0) == TextSet.of(automaton=Dfa.of_texts([""]))


def test_nothing_is_counted_that_the_automaton_bounds() -> None:
    dates = compile_pattern(r"^\d{4}-\d\d$")
    assert TextSet.of(0, 10**9, dates).automaton() == dates
    assert TextSet.of(7, 7, dates).automaton() == dates
    assert TextSet.of(8, 10**9, dates).is_empty
    names = compile_pattern("^[a-z]+$")
    assert TextSet.of(1, None, names).automaton() == names
    assert TextSet.of(0, 90, names) - TextSet.of(4, None) == TextSet.of(
        automaton=compile_pattern("^[a-z]{1,3}$")
    )
    long = TextSet.of(10**9, None)
    assert long - TextSet.of(automaton=dates) == long


def test_counting_too_far_is_refused() -> None:
    with pytest.raises(AutomatonLimitError):
        TextSet.of(0, 10**6, compile_pattern("^[a-z]+$"))
    with pytest.raises(AutomatonLimitError):
        TextSet.of(0, 10**6).automaton()


def test_surrogates_are_in_no_text() -> None:
    assert not TextSet.everything().accepts("a\ud800")
    assert TextSet.everything().accepts("\U0001f600")


@settings(max_examples=60, deadline=None)
@given(text_sets(), st.integers(0, 10**7))
def test_counting_may_stop_early(texts: TextSet, most: int) -> None:
    total = texts.count()
    expected = None if total is None else min(total, most)
    assert texts.count(most) == expected
    assert texts.automaton().count(most) == expected


def test_counting_far_sets_stops_early() -> None:
    assert TextSet.of(0, 10**9).count(100) == 100
    assert TextSet.of(0, 10**9).count(1) == 1
    assert TextSet.of(5, None).count(100) is None
    assert TextSet.of(3, 2).count(100) == 0
