"""Leaves without a vocabulary: automata over bytes, for tests that need no token masks."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping

from decoding.grammar.leaves.leaf import LeafTokens
from decoding.grammar.regular.byte_dfa import ByteDfa
from decoding.grammar.regular.number_set import NumberSet
from decoding.grammar.regular.spelling import spell_any_text, spell_texts
from decoding.grammar.regular.text_set import TextSet
from decoding.grammar.vocabulary.token_node import TokenNode
from tests.json_texts import spelled


class FakeLeaf:
    """A leaf over an automaton; lets no tokens through."""

    is_shared = False
    num_bytes = 0

    def __init__(self, automaton: ByteDfa) -> None:
        self.automaton = automaton
        self.key: Hashable = automaton.digest

    def step(self, state: int, byte: int) -> int:
        return self.automaton.step(state, byte)

    def edges(self, state: int) -> Mapping[int, int]:
        return {
            byte: target
            for first, last, target in self.automaton.rows[state]
            for byte in range(first, last + 1)
        }

    def label(self, state: int) -> int:
        return self.automaton.ends[state]

    def goes_on(self, state: int) -> bool:
        return bool(self.automaton.rows[state])

    def shortest(self, state: int) -> bytes:
        return self.automaton.shortest(state)

    def tokens(self, state: int, node: TokenNode) -> LeafTokens | None:
        return None


class RememberingLeaf:
    """A leaf whose labels tell its texts apart."""

    is_shared = False
    num_bytes = 0

    def __init__(self, of: FakeLeaf, labels: dict[bytes, int]) -> None:
        self.of = of
        self.key: Hashable = ("remembering", of.key)
        self._labels = labels
        self._states: list[tuple[int, bytes]] = [(0, b"")]
        self._numbers = {(0, b""): 0}

    def step(self, state: int, byte: int) -> int:
        inner, text = self._states[state]
        after = self.of.step(inner, byte)
        if after < 0:
            return -1
        place = after, text + bytes([byte])
        if place not in self._numbers:
            self._numbers[place] = len(self._states)
            self._states.append(place)
        return self._numbers[place]

    def edges(self, state: int) -> Mapping[int, int]:
        return {byte: self.step(state, byte) for byte in self.of.edges(self._states[state][0])}

    def label(self, state: int) -> int:
        inner, text = self._states[state]
        return -1 if self.of.label(inner) < 0 else self._labels.setdefault(text, len(self._labels))

    def goes_on(self, state: int) -> bool:
        return self.of.goes_on(self._states[state][0])

    def shortest(self, state: int) -> bytes:
        return self.of.shortest(self._states[state][0])

    def tokens(self, state: int, node: TokenNode) -> LeafTokens | None:
        return None


class FakeLeaves:
    """Makes leaves, and keeps them by contents."""

    def __init__(self) -> None:
        self._texts: dict[bytes, int] = {}
        self._kept: dict[Hashable, FakeLeaf] = {}
        self._any_text = FakeLeaf(spell_any_text())

    def _leaf(self, automaton: ByteDfa) -> FakeLeaf:
        assert not automaton.is_empty
        leaf = FakeLeaf(automaton)
        return self._kept.setdefault(leaf.key, leaf)

    def literals(self, bits: int) -> FakeLeaf:
        texts = {1: b"null", 2: b"false", 4: b"true"}
        return self._leaf(ByteDfa.literals((text, 0) for bit, text in texts.items() if bits & bit))

    def numbers(self, numbers: NumberSet, canonical: bool = False) -> FakeLeaf:
        key = (numbers, canonical)
        if key not in self._kept:
            self._kept[key] = self._leaf(numbers.spelled(canonical))
        return self._kept[key]

    def texts(self, texts: TextSet) -> FakeLeaf:
        if texts.is_everything:
            return self._any_text
        if texts not in self._kept:
            self._kept[texts] = self._leaf(spell_texts(texts.automaton()))
        return self._kept[texts]

    def literal_keys(self, names: Iterable[tuple[str, int]]) -> FakeLeaf:
        return self._leaf(ByteDfa.literals((spelled(name), label) for name, label in names))

    def keys(self, automaton: ByteDfa, allowed: frozenset[int]) -> FakeLeaf:
        ends = [label if label in allowed else -1 for label in automaton.ends]
        return self._leaf(ByteDfa.from_rows(automaton.rows, ends))

    def remembering(self, leaf: FakeLeaf) -> RememberingLeaf:
        if leaf is self._any_text:
            leaf = self._leaf(spell_texts(TextSet.everything().automaton()))
        return RememberingLeaf(leaf, self._texts)

    def excluding(self, leaf: RememberingLeaf, used: frozenset[int]) -> RememberingLeaf | None:
        texts = [text for text, label in self._texts.items() if label in used]
        left = (
            leaf.of.automaton - ByteDfa.literals((text, 0) for text in texts) if texts else leaf.of.automaton
        )
        return None if left.is_empty else RememberingLeaf(self._leaf(left), self._texts)
