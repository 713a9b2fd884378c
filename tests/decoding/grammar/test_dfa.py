"""Automata over code points and bytes, and sets of texts, against written-out sets; their smallest form."""

from __future__ import annotations

import hashlib
import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from genret.decoding.grammar.compile_options import AutomatonLimitError, CompileLimits, compile_budget
from genret.decoding.grammar.errors import CompileTimeoutError
from genret.decoding.grammar.regular.automaton import Automaton
from genret.decoding.grammar.regular.byte_dfa import ByteDfa
from genret.decoding.grammar.regular.dfa import ENDLESS, Dfa
from genret.decoding.grammar.regular.minimise import Edge, canonical
from genret.decoding.grammar.regular.regex_compiler import compile_pattern
from genret.decoding.grammar.regular.text_set import TextSet
from tests.own_process import outputs_by_hash_seed
from tests.regex_texts import all_texts, random_pattern

TEXTS = all_texts("abc", 4)
WINDOW = Dfa.of_texts(TEXTS)
CHARS = st.sampled_from("ab\x00\x7fé\ud7ff\ue000\uffff\U00010000\U0010ffff")
FINITE = st.sets(st.text(CHARS, max_size=5), max_size=12)


def has_exactly(dfa: Dfa, texts: set[str]) -> bool:
    return dfa.count() == len(texts) and all(map(dfa.accepts, texts))


def check_operations(one: Any, other: Any, window: list[str]) -> None:
    """Hold the operations of `Dfa` or `TextSet` to those of sets of the texts in a window."""

    def inside(texts: Any) -> set[str]:
        return {text for text in window if texts.accepts(text)}

    left, right = inside(one), inside(other)
    assert inside(one & other) == left & right
    assert inside(one | other) == left | right
    assert inside(one - other) == left - right
    assert inside(~one) == set(window) - left


def check_laws(one: Any, other: Any) -> None:
    """Hold the operations of `Dfa` or `TextSet` to Boolean laws."""
    assert ~~one == one
    assert ~(one & other) == ~one | ~other
    assert one - other == one & ~other
    assert (one & other) | (one - other) == one
    assert one & other == other & one
    assert one | other == other | one
    assert hash(one | other) == hash(other | one)
    assert (one & ~one).is_empty
    assert (one | ~one).is_everything


@settings(max_examples=60, deadline=None)
@given(FINITE, FINITE)
def test_finite_sets_are_sets(left: set[str], right: set[str]) -> None:
    one, other = Dfa.of_texts(left), Dfa.of_texts(right)
    assert has_exactly(one & other, left & right)
    assert has_exactly(one | other, left | right)
    assert has_exactly(one - other, left - right)
    assert one.count() == len(left)
    assert (one == other) == (left == right)
    assert one.is_empty == (not left)
    assert (one - other).is_empty == left.issubset(right)
    assert (one & other).is_empty == left.isdisjoint(right)
    assert one.shortest() == min(left, key=lambda text: (len(text), text), default=None)
    lengths = [len(text) for text in left]
    assert one.lengths() == ((min(lengths), max(lengths)) if lengths else None)
    assert all(one.accepts(text) for text in left)
    assert not any(one.accepts(text) for text in right - left)


@settings(max_examples=80, deadline=None)
@given(st.integers(0, 2**32), st.integers(0, 2**32))
def test_boolean_laws_hold_for_patterns(seed: int, other_seed: int) -> None:
    one = compile_pattern(random_pattern(random.Random(seed), 3))
    other = compile_pattern(random_pattern(random.Random(other_seed), 3))
    check_operations(one, other, TEXTS)
    check_laws(one, other)
    assert one & ~one == Dfa.nothing()
    assert one | ~one == Dfa.everything()
    assert has_exactly(one & WINDOW, set(filter(one.accepts, TEXTS)))


def test_lengths_count_code_points() -> None:
    three = Dfa.of_lengths(((3, 3),))
    assert three.accepts("a\U0001f600é")
    assert not three.accepts("ab")
    assert three.count() == (0x110000 - 0x800) ** 3
    assert Dfa.of_lengths(((2, ENDLESS),)).lengths() == (2, None)
    assert Dfa.of_lengths(((0, ENDLESS),)) == Dfa.everything()
    assert Dfa.of_lengths(()) == Dfa.nothing()
    outside = Dfa.of_lengths(((0, 5),)) - Dfa.of_lengths(((2, 4),))
    assert outside == Dfa.of_lengths(((0, 1), (5, 5)))
    assert outside | Dfa.of_lengths(((7, ENDLESS),)) == Dfa.of_lengths(((0, 1), (5, 5), (7, ENDLESS)))
    assert ~Dfa.of_lengths(((0, 3),)) == Dfa.of_lengths(((4, ENDLESS),))


def test_surrogates_are_in_no_text() -> None:
    assert not Dfa.everything().accepts("\ud800")
    assert not TextSet.everything().accepts("a\ud800")
    with pytest.raises(ValueError, match="surrogates"):
        Dfa.of_texts(["a", "x\udfff"])
    assert compile_pattern(r"^[\uD700-\uE001]$").count() == 0x100 + 2


def test_too_many_states_are_refused() -> None:
    with compile_budget(CompileLimits(automaton_states=100)):
        assert Dfa.of_lengths(((0, 99),)).num_states == 100
        with pytest.raises(AutomatonLimitError):
            Dfa.of_lengths(((0, 100),))
        with pytest.raises(AutomatonLimitError):
            compile_pattern("(a|b)*a(a|b){9}$")
        with pytest.raises(AutomatonLimitError):
            compile_pattern("^(ab){60,61}$")
    with compile_budget(CompileLimits(seconds=0.0)), pytest.raises(CompileTimeoutError):
        compile_pattern("a")


BYTE_TEXTS = [text.encode() for text in all_texts("ab{", 4)]
BYTE_SETS = st.dictionaries(st.sampled_from(BYTE_TEXTS), st.integers(0, 2), max_size=10)


@settings(max_examples=100, deadline=None)
@given(BYTE_SETS, BYTE_SETS)
def test_labelled_sets(left: dict[bytes, int], right: dict[bytes, int]) -> None:
    one, other = ByteDfa.literals(left.items()), ByteDfa.literals(right.items())
    for combined, expected in (
        (one | other, {**right, **left}),
        (one & other, {text: label for text, label in left.items() if text in right}),
        (one - other, {text: label for text, label in left.items() if text not in right}),
    ):
        assert {text: combined.label_of(text) for text in BYTE_TEXTS} == {
            text: expected.get(text, -1) for text in BYTE_TEXTS
        }
        assert combined.count() == len(expected)
        assert combined.is_finite
        assert combined.digest == ByteDfa.literals(expected.items()).digest
        assert combined.is_empty == (not expected)
        if expected:
            assert combined.shortest() == min(expected, key=lambda text: (len(text), text))


def test_labels_keep_states_apart() -> None:
    apart = ByteDfa.literals([(b"ax", 0), (b"bx", 1)])
    alike = ByteDfa.literals([(b"ax", 0), (b"bx", 0)])
    assert (apart.num_states, alike.num_states) == (5, 3)
    assert apart.digest != alike.digest
    with pytest.raises(ValueError, match="one label"):
        ByteDfa.literals([(b"a", 0), (b"a", 1)])
    with pytest.raises(ValueError, match="0 or more"):
        ByteDfa.literals([(b"a", -1)])
    with pytest.raises(ValueError, match="no text"):
        ByteDfa.literals([]).shortest()


SYMBOLS = 6


def random_automaton(rng: random.Random, states: int) -> tuple[list[list[Edge]], list[int]]:
    """Edges over single symbols and labels."""
    rows: list[list[Edge]] = []
    for _ in range(states):
        chosen = sorted(rng.sample(range(SYMBOLS), rng.randint(0, SYMBOLS)))
        rows.append([(symbol, symbol, rng.randrange(states)) for symbol in chosen])
    return rows, [rng.choice((-1, -1, 0, 1)) for _ in range(states)]


def moore_size(rows: list[list[Edge]], labels: list[int]) -> int:
    """States of the smallest complete automaton, without its dead state."""
    states = len(rows) + 1
    table = [[states - 1] * SYMBOLS for _ in range(states)]
    for state, row in enumerate(rows):
        for first, last, target in row:
            for symbol in range(first, last + 1):
                table[state][symbol] = target
    classes = [*labels, -1]
    while True:
        keys = [(classes[state], *(classes[target] for target in table[state])) for state in range(states)]
        names = {key: number for number, key in enumerate(sorted(set(keys)))}
        following = [names[key] for key in keys]
        if len(set(following)) == len(set(classes)):
            break
        classes = following
    reached = {0}
    stack = [0]
    while stack:
        for target in table[stack.pop()]:
            if target not in reached:
                reached.add(target)
                stack.append(target)
    return len({classes[state] for state in reached} - {classes[states - 1]})


def with_loops(rng: random.Random, states: int) -> tuple[list[list[Edge]], list[int]]:
    """Edges to the state itself and the next two: cycles of one state."""
    rows: list[list[Edge]] = []
    for state in range(states):
        near = range(state, min(states, state + 3))
        chosen = sorted(rng.sample(range(3), rng.randint(1, 3)))
        rows.append([(symbol, symbol, rng.choice(near)) for symbol in chosen])
    return rows, [rng.choice((-1, 0, 0)) for _ in range(states)]


@pytest.mark.parametrize(("made", "symbols"), [(random_automaton, SYMBOLS), (with_loops, 3)])
@settings(max_examples=300, deadline=None)
@given(seed=st.integers(0, 2**32), states=st.integers(1, 14))
def test_smallest_and_the_same_language(made: Any, symbols: int, seed: int, states: int) -> None:
    rng = random.Random(seed)
    rows, labels = made(rng, states)
    small, small_labels = canonical(rows, labels)
    assert len(small) == max(1, moore_size(rows, labels))
    for _ in range(60):
        text = [rng.randrange(symbols) for _ in range(rng.randint(0, 10))]
        assert Automaton(small, small_labels).label_of(text) == Automaton(rows, labels).label_of(text)  # type: ignore[arg-type]
    assert canonical(small, small_labels) == (small, small_labels)


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 2**32), st.integers(2, 10))
def test_numbering_does_not_depend_on_the_numbers_before(seed: int, states: int) -> None:
    rng = random.Random(seed)
    rows, labels = random_automaton(rng, states)
    order = [0, *rng.sample(range(1, states), states - 1)]
    place = {state: number for number, state in enumerate(order)}
    moved = [[(first, last, place[target]) for first, last, target in rows[state]] for state in order]
    assert canonical(moved, [labels[state] for state in order]) == canonical(rows, labels)


_PROGRAM = """
import hashlib
from genret.decoding.grammar.regular.regex_compiler import compile_pattern
from genret.decoding.grammar.regular.json_spelling import spell_any_text, spell_texts
digest = hashlib.sha256()
for pattern in ("(a|b)*abb", "^((?!foo).)*$", r"\\bfoo\\b|bar", "^[^x]{2,9}$", r"(?i)straße|\\d+"):
    dfa = compile_pattern(pattern)
    digest.update(repr((dfa.rows, dfa.ends)).encode())
    digest.update(spell_texts(dfa).digest)
digest.update(spell_any_text().digest)
print(digest.hexdigest())
"""


def test_numbering_is_the_same_in_every_process() -> None:
    (digest,) = outputs_by_hash_seed(_PROGRAM)
    assert len(digest.strip()) == hashlib.sha256().digest_size * 2


DASHED = all_texts("ab-", 5)


@st.composite
def text_sets(draw: st.DrawFn) -> TextSet:
    """By lengths, by a pattern, by some texts, or by lengths and a pattern."""
    least = draw(st.integers(0, 4))
    most = draw(st.none() | st.integers(0, 6))
    kind = draw(st.sampled_from(("lengths", "pattern", "texts", "both")))
    if kind == "lengths":
        return TextSet.of(least, most)
    if kind == "texts":
        return TextSet.of(automaton=Dfa.of_texts(draw(st.sets(st.sampled_from(DASHED), max_size=6))))
    dfa = compile_pattern(random_pattern(random.Random(draw(st.integers(0, 2**32))), 2))
    return TextSet.of(automaton=dfa) if kind == "pattern" else TextSet.of(least, most, dfa)


def test_lengths_beside_an_automaton_are_counted_in_it_where_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("genret.decoding.grammar.regular.text_set._FEW_STATES", -1)
    rng = random.Random(4)
    for _ in range(200):
        dfa, other = (compile_pattern(random_pattern(rng, 2)) for _ in range(2))
        least, most = sorted(rng.choices(range(6), k=2))
        one, two = TextSet.of(least, most, dfa), TextSet.of(1, None, other)
        assert one.is_empty == one.automaton().is_empty
        for text in DASHED:
            assert one.accepts(text) == (dfa.accepts(text) and least <= len(text) <= most)
            assert two.accepts(text) == (other.accepts(text) and text != "")
        check_operations(one, two, DASHED)


@settings(max_examples=200, deadline=None)
@given(text_sets(), text_sets())
def test_boolean_operations(one: TextSet, other: TextSet) -> None:
    check_operations(one, other, DASHED)
    check_laws(one, other)


@settings(max_examples=100, deadline=None)
@given(text_sets())
def test_answers_agree_with_the_automaton(texts: TextSet) -> None:
    dfa = texts.automaton()
    assert texts.is_empty == dfa.is_empty
    assert texts.is_everything == dfa.is_everything
    assert [text for text in DASHED if texts.accepts(text) != dfa.accepts(text)] == []
    assert TextSet.of(automaton=dfa) == texts


def test_lengths_stay_two_numbers() -> None:
    assert TextSet.of(0, 65536).lengths == ((0, 65536),)
    assert (TextSet.of(3, None) & TextSet.of(0, 10**12)).lengths == ((3, 10**12),)
    assert (TextSet.of(3, 7) | TextSet.of(5, None)).lengths == ((3, ENDLESS),)
    assert (~TextSet.of(0, 10**9)).lengths == ((10**9 + 1, ENDLESS),)
    assert TextSet.of(3, 2).is_empty
    assert TextSet.of().is_everything
    assert TextSet.of(2, 3, Dfa.everything()).lengths == ((2, 3),)
    assert TextSet.of(automaton=Dfa.of_texts(["a"])).is_of_any_length
    assert (TextSet.of(automaton=Dfa.of_texts(["a"])) | TextSet.everything()).is_everything
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


def test_only_an_automaton_that_counts_too_far_is_refused() -> None:
    with pytest.raises(AutomatonLimitError):
        TextSet.of(0, 10**6, compile_pattern("^[a-z]+$")).automaton()
    with pytest.raises(AutomatonLimitError):
        TextSet.of(0, 10**6).automaton()
