"""Leaves that remember their texts and leave some out: against plain differences of sets."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from decoding.grammar.leaves.distinct_leaf import DistinctLeaf, DistinctSlotLeaf, Texts
from decoding.grammar.leaves.leaf import Leaf, TitleSlotLeaf, TitleSlotName
from decoding.grammar.leaves.leaf_factory import Leaves
from decoding.grammar.regular.dfa import Dfa
from decoding.grammar.regular.number_set import NumberSet
from decoding.grammar.regular.text_set import TextSet
from decoding.grammar.vocabulary import Vocabulary
from tests.leaf_oracle import oracle_tokens, walked_tokens

PIECES = [
    b"ab",
    b'a"',
    b'ab"',
    b'ab",',
    b'b"]',
    b'"a',
    b"12",
    b"1,",
    b"12]",
    b"23",
    b'"]',
    "é".encode(),
    b'\\n"',
]
VOCABULARY = Vocabulary([None, *[bytes([byte]) for byte in range(256)], *PIECES], 0, 300)
WORDS = ["", "a", "ab", "abc", "b", "bb", "é", "ef", "e", "x\ny", *"cdfghijklmnop"]


def language(leaf: Leaf, limit: int = 8) -> set[bytes]:
    """All texts of a leaf of up to so many bytes; checks that no state is a dead end."""
    found = set()
    waiting = [(b"", 0)]
    for text, state in waiting:
        if leaf.label(state) >= 0:
            found.add(text)
        steps = [(byte, leaf.step(state, byte)) for byte in range(256)]
        steps = [(byte, after) for byte, after in steps if after >= 0]
        assert leaf.goes_on(state) == bool(steps)
        edges = leaf.edges(state)
        assert edges is None or edges == dict(steps)
        rest = leaf.shortest(state)
        assert run(leaf, rest, state) >= 0
        if len(text) < limit:
            waiting.extend((text + bytes([byte]), after) for byte, after in steps)
    return found


def run(leaf: Leaf, text: bytes, state: int = 0) -> int:
    """The label of a text, -1 if it is not in the leaf."""
    for byte in text:
        state = leaf.step(state, byte)
        if state < 0:
            return -1
    return leaf.label(state)


def words(leaves: Leaves) -> Leaf:
    return leaves.texts(TextSet.of(automaton=Dfa.of_texts(WORDS)))


def small_numbers(leaves: Leaves) -> Leaf:
    return leaves.numbers(NumberSet.of_values([1, 2, 10, 11, 12, 123, 23, 3, 4, 5, 6, 7, 8, 9, -1]), True)


@pytest.mark.parametrize("make", [words, small_numbers])
@pytest.mark.parametrize("seed", range(4))
def test_excluding_is_the_difference_of_sets(make: object, seed: int) -> None:
    leaves = Leaves(VOCABULARY)
    base = make(leaves)  # type: ignore[operator]
    texts = Texts()
    leaf = leaves.remembering(base, texts)
    everything = language(base)
    assert language(leaf) == everything
    order = np.random.default_rng(seed).permutation(sorted(everything, key=repr)).tolist()
    for number, text in enumerate(order):
        label = run(leaf, text)
        assert texts.bytes_of(label) == text
        left = everything - set(order[: number + 1])
        following = leaves.excluding(leaf, frozenset({label}))
        if not left:
            assert following is None
            return
        assert following is not None
        assert language(following) == left
        assert following.shortest(0) == min(left, key=lambda one: (len(one), one))
        for state in (0, following.step(0, min(left)[0])):
            expected = oracle_tokens(VOCABULARY, following, state)
            assert walked_tokens(following, state, VOCABULARY.root) == expected
        leaf = following
    raise AssertionError("the last one was never left out")


@pytest.mark.parametrize("is_warm", [False, True])
def test_strings_of_any_content_can_be_left_out(is_warm: bool) -> None:
    leaves = Leaves(VOCABULARY)
    if is_warm:
        leaves.warm_up()
    texts = Texts()
    leaf = leaves.remembering(leaves.texts(TextSet.everything()), texts)
    for written in ('""', '"a"', '"ab"', '"é"', '"abab"'):
        leaf = leaves.excluding(leaf, frozenset({run(leaf, written.encode())}))  # type: ignore[assignment]
        assert leaf is not None
        assert run(leaf, written.encode()) == -1
    assert leaf.shortest(0) == b'" "'
    assert run(leaf, b'"aba"') >= 0
    assert run(leaf, b'"\\/"') == -1  # one spelling for a text
    for prefix in (b'"', b'"a', b'"ab', b'"aba', b'"\xc3', b'"x'):
        state = 0
        for byte in prefix:
            state = leaf.step(state, byte)
        expected = oracle_tokens(VOCABULARY, leaf, state)
        assert walked_tokens(leaf, state, VOCABULARY.root) == expected
        for node_prefix in (b'"', b"a"):
            node = VOCABULARY.root.children[node_prefix[0]]
            expected = oracle_tokens(VOCABULARY, leaf, state, node_prefix)
            assert walked_tokens(leaf, state, node) == expected


def test_strings_of_bounded_length_can_be_left_out() -> None:
    leaves = Leaves(VOCABULARY)
    leaf = leaves.remembering(leaves.texts(TextSet.of(0, 1)), Texts())
    empty = run(leaf, b'""')
    rest = leaves.excluding(leaf, frozenset({empty}))
    assert rest is not None
    assert rest.shortest(0) == b'" "'
    assert run(rest, b'"a"') >= 0
    only_empty = leaves.remembering(leaves.texts(TextSet.of(0, 0)), leaf.writings.texts)
    assert leaves.excluding(only_empty, frozenset({empty})) is None


def test_equal_texts_of_different_leaves_have_equal_labels() -> None:
    leaves = Leaves(VOCABULARY)
    texts = Texts()
    first = leaves.remembering(words(leaves), texts)
    second = leaves.remembering(leaves.texts(TextSet.of(automaton=Dfa.of_texts(["zz", "ab", "b"]))), texts)
    assert run(first, b'"ab"') == run(second, b'"ab"') >= 0
    assert len({run(second, b'"zz"'), run(second, b'"b"'), run(second, b'"ab"')}) == 3
    without = leaves.excluding(second, frozenset({run(first, b'"a"'), run(first, b'"b"')}))
    assert without is not None
    assert language(without) == {b'"zz"', b'"ab"'}
    assert leaves.remembering(words(leaves), texts) is first
    assert leaves.excluding(second, frozenset({run(first, b'"a"'), run(first, b'"b"')})) is without


class FixedHole:
    """A set of three texts, as a hole."""

    def __init__(self, leaves: Leaves) -> None:
        self._leaf = leaves.texts(TextSet.of(automaton=Dfa.of_texts(["Paris", "Parma", "Rome"])))
        self.name = TitleSlotName("titles")
        self.key = "hole"
        self.num_bytes = 0
        self.is_shared = True
        self.is_empty = False
        for method in ("step", "edges", "label", "goes_on", "shortest", "tokens"):
            setattr(self, method, getattr(self._leaf, method))

    def members(self, state: int) -> tuple[int, ...]:
        return (state,) if self._leaf.label(state) >= 0 else ()


def test_holes_stay_holes() -> None:
    leaves = Leaves(VOCABULARY)
    hole = FixedHole(leaves)
    leaf = leaves.remembering(hole, Texts())  # type: ignore[arg-type]
    assert isinstance(leaf, DistinctSlotLeaf)
    assert isinstance(leaf, TitleSlotLeaf)
    without = leaves.excluding(leaf, frozenset({run(leaf, b'"Paris"')}))
    assert isinstance(without, DistinctSlotLeaf)
    assert language(without) == {b'"Parma"', b'"Rome"'}
    assert without.name == TitleSlotName("titles")
    state = 0
    for byte in b'"Rome"':
        assert without.members(state) == ()
        state = without.step(state, byte)
    assert len(without.members(state)) == 1
    others = frozenset({run(leaf, b'"Parma"'), run(leaf, b'"Rome"')})
    assert leaves.excluding(without, others) is None


def test_threads_number_texts_alike() -> None:
    texts = Texts()
    barrier = threading.Barrier(8)
    answers: list[list[int]] = []

    def number() -> None:
        barrier.wait()
        answers.append([texts.number(texts.place_of(b"%d" % n)) for n in range(500)])

    threads = [threading.Thread(target=number) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(answers) == 8
    assert all(answer == answers[0] for answer in answers)
    assert sorted(answers[0]) == list(range(500))
    assert [texts.bytes_of(label) for label in answers[0]] == [b"%d" % n for n in range(500)]


def test_memory_is_told() -> None:
    leaves = Leaves(VOCABULARY)
    leaf = leaves.remembering(leaves.texts(TextSet.everything()), Texts())
    before = leaf.num_bytes
    assert run(leaf, b'"abcdefghij"') >= 0
    assert leaf.num_bytes > before
    assert not leaf.is_shared
    assert type(leaf) is DistinctLeaf
