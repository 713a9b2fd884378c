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


class CountedLeaf:
    """Strings of a range of lengths, of any content and spelling."""

    is_shared = False
    num_bytes = 0

    def __init__(self, least: int, most: int | None) -> None:
        self.key: Hashable = ("counted", least, most)
        self._of = spell_any_text()
        self._body = self._of.step(0, ord('"'))
        self._least = least
        self._most = most
        self._states: list[tuple[int, int]] = [(0, -1)]
        self._numbers = {(0, -1): 0}

    def step(self, state: int, byte: int) -> int:
        inner, count = self._states[state]
        if inner == self._body and byte == ord('"'):
            after = self._of.step(inner, byte) if count >= self._least else -1
        elif inner == self._body and count == self._most:
            after = -1
        else:
            after = self._of.step(inner, byte)
            count += after == self._body
        if after < 0:
            return -1
        if self._most is None:
            count = min(count, self._least)
        if (after, count) not in self._numbers:
            self._numbers[after, count] = len(self._states)
            self._states.append((after, count))
        return self._numbers[after, count]

    def edges(self, state: int) -> Mapping[int, int]:
        inner = self._states[state][0]
        steps = {
            byte: self.step(state, byte)
            for first, last, _ in self._of.rows[inner]
            for byte in range(first, last + 1)
        }
        return {byte: after for byte, after in steps.items() if after >= 0}

    def label(self, state: int) -> int:
        return self._of.ends[self._states[state][0]]

    def goes_on(self, state: int) -> bool:
        return self.label(state) < 0

    def shortest(self, state: int) -> bytes:
        inner, count = self._states[state]
        if self.label(state) >= 0:
            return b""
        opened = self._of.shortest(inner)[: -1 if inner else None] if inner != self._body else b""
        if inner == 0:
            return b'"' + b" " * self._least + b'"'
        count += inner != self._body
        return opened + b" " * (self._least - count) + b'"'

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

    def texts(self, texts: TextSet) -> FakeLeaf | CountedLeaf:
        if texts.is_everything:
            return self._any_text
        if texts.lengths is not None:
            return CountedLeaf(*texts.lengths)
        if texts not in self._kept:
            self._kept[texts] = self._leaf(spell_texts(texts.automaton()))
        return self._kept[texts]

    def literal_keys(self, names: Iterable[tuple[str, int]]) -> FakeLeaf:
        return self._leaf(ByteDfa.literals((spelled(name), label) for name, label in names))

    def keys(self, automaton: ByteDfa, allowed: frozenset[int]) -> FakeLeaf:
        ends = [label if label in allowed else -1 for label in automaton.ends]
        return self._leaf(ByteDfa.from_minimal_rows(automaton.rows, ends))

    def remembering(self, leaf: FakeLeaf | CountedLeaf) -> RememberingLeaf:
        if leaf is self._any_text:
            leaf = self._leaf(spell_texts(TextSet.everything().automaton()))
        if isinstance(leaf, CountedLeaf):
            leaf = self._leaf(spell_texts(TextSet.of(*leaf.key[1:]).automaton()))
        return RememberingLeaf(leaf, self._texts)

    def excluding(self, leaf: RememberingLeaf, used: frozenset[int]) -> RememberingLeaf | None:
        texts = [text for text, label in self._texts.items() if label in used]
        left = (
            leaf.of.automaton - ByteDfa.literals((text, 0) for text in texts) if texts else leaf.of.automaton
        )
        return None if left.is_empty else RememberingLeaf(self._leaf(left), self._texts)
