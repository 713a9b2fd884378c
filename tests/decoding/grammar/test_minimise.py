"""The smallest automaton against Moore's algorithm, and its numbering."""

from __future__ import annotations

import hashlib
import os
import random
import subprocess
import sys
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from decoding.grammar import compile_options as budget
from decoding.grammar.compile_options import CompileLimits, compile_budget
from decoding.grammar.regular.dfa_texts import bottom_up
from decoding.grammar.regular.minimise import Edge, canonical

SYMBOLS = 6


def random_automaton(rng: random.Random, states: int) -> tuple[list[list[Edge]], list[int]]:
    """Edges over single symbols and labels."""
    rows: list[list[Edge]] = []
    for _ in range(states):
        chosen = sorted(rng.sample(range(SYMBOLS), rng.randint(0, SYMBOLS)))
        rows.append([(symbol, symbol, rng.randrange(states)) for symbol in chosen])
    return rows, [rng.choice((-1, -1, 0, 1)) for _ in range(states)]


def label_of(rows: list[list[Edge]] | list[tuple[Edge, ...]], labels: list[int], text: list[int]) -> int:
    """Label of a text."""
    state = 0
    for symbol in text:
        for first, last, target in rows[state]:
            if first <= symbol <= last:
                state = target
                break
        else:
            return -1
    return labels[state]


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


@settings(max_examples=300, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 14))
def test_smallest_and_the_same_language(seed: int, states: int) -> None:
    rng = random.Random(seed)
    rows, labels = random_automaton(rng, states)
    small, small_labels = canonical(rows, labels)
    size = moore_size(rows, labels)
    assert len(small) == max(1, size)
    for _ in range(60):
        text = [rng.randrange(SYMBOLS) for _ in range(rng.randint(0, 10))]
        assert label_of(small, small_labels, text) == label_of(rows, labels, text)
    assert canonical(small, small_labels) == (small, small_labels)


@settings(max_examples=300, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 12))
def test_cycles_of_one_state(seed: int, states: int) -> None:
    rng = random.Random(seed)
    rows: list[list[Edge]] = []
    for state in range(states):
        near = range(state, min(states, state + 3))
        chosen = sorted(rng.sample(range(3), rng.randint(1, 3)))
        rows.append([(symbol, symbol, rng.choice(near)) for symbol in chosen])
    labels = [rng.choice((-1, 0, 0)) for _ in range(states)]
    small, small_labels = canonical(rows, labels)
    assert len(small) == max(1, moore_size(rows, labels))
    for _ in range(40):
        text = [rng.randrange(3) for _ in range(rng.randint(0, 8))]
        assert label_of(small, small_labels, text) == label_of(rows, labels, text)


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 2**32), st.integers(2, 10))
def test_numbering_does_not_depend_on_the_numbers_before(seed: int, states: int) -> None:
    rng = random.Random(seed)
    rows, labels = random_automaton(rng, states)
    order = [0, *rng.sample(range(1, states), states - 1)]
    place = {state: number for number, state in enumerate(order)}
    moved = [[(first, last, place[target]) for first, last, target in rows[state]] for state in order]
    assert canonical(moved, [labels[state] for state in order]) == canonical(rows, labels)


def test_touching_edges_to_one_state_are_joined() -> None:
    rows: list[list[Edge]] = [[(0, 3, 1), (4, 4, 2), (6, 9, 1)], [], []]
    assert canonical(rows, [-1, 0, 0]) == ([((0, 4, 1), (6, 9, 1)), ()], [-1, 0])


def test_no_text_at_all() -> None:
    assert canonical([[(0, 5, 1)], [(0, 5, 0)]], [-1, -1]) == ([()], [-1])


def test_a_long_chain_that_ends_in_a_loop_is_quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """By how often the clock is looked at: round by round it would take 800 times as many steps."""
    looks = 0

    def look() -> float:
        nonlocal looks
        looks += 1
        return 0.0

    length = 800
    rows: list[list[Edge]] = [[(97, 97, state + 1)] for state in range(length)]
    rows.append([(97, 97, length), (98, 98, length + 1)])
    rows.append([(98, 98, length)])
    labels = [-1] * length + [0, 0]
    monkeypatch.setattr(budget, "time", SimpleNamespace(monotonic=look))
    with compile_budget(CompileLimits()):
        small, _ = canonical(rows, labels)
    assert looks < 60
    assert len(small) == length + 2
    assert bottom_up(small) is None


_PROGRAM = """
import hashlib
from decoding.grammar.regular.regex_compiler import compile_pattern
from decoding.grammar.regular.json_spelling import spell_any_text, spell_texts
digest = hashlib.sha256()
for pattern in ("(a|b)*abb", "^((?!foo).)*$", r"\\bfoo\\b|bar", "^[^x]{2,9}$", r"(?i)straße|\\d+"):
    dfa = compile_pattern(pattern)
    digest.update(repr((dfa.rows, dfa.finals)).encode())
    digest.update(spell_texts(dfa).digest)
digest.update(spell_any_text().digest)
print(digest.hexdigest())
"""


def test_numbering_is_the_same_in_every_process() -> None:
    found = {
        subprocess.run(
            [sys.executable, "-c", _PROGRAM],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
        for seed in ("0", "1", "12345")
    }
    assert len(found) == 1
    assert len(found.pop()) == hashlib.sha256().digest_size * 2
