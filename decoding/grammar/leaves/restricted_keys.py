"""The keys of an object that may still come: an automaton over all its keys, with some labels left out."""

from __future__ import annotations

from collections.abc import Hashable
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from genret.decoding.grammar.leaves.dfa_leaf import DfaLeaf, StateModels, is_nested, without
from genret.decoding.grammar.leaves.leaf import LeafTokens
from genret.decoding.grammar.leaves.table_walk import TableWalker, TransitionTable
from genret.decoding.grammar.token_trie import TokenNode

# The object itself, without what it finds out.
_LEAF_BYTES = 600
# Most bytes looked at to remove keys from the tokens of all.
_MOST_LOOKED_AT = 4000


class LabelledKeys:
    """An automaton over all keys of an object, with the labels that each state can still reach.

    Attributes:
        reachable: By state, a set of labels, bit n for label n.
    """

    def __init__(self, leaf: DfaLeaf) -> None:
        self.leaf = leaf
        rows, ends = leaf.automaton.rows, leaf.automaton.ends
        self.reachable = reachable = [1 << label if label >= 0 else 0 for label in ends]
        # States are numbered by distance from the start, so few rounds settle everything.
        backwards = range(len(rows) - 1, -1, -1)
        targets = [{target for _, _, target in rows[state]} for state in backwards]
        changes = True
        while changes:
            changes = False
            for state, following in zip(backwards, targets, strict=True):
                labels = reachable[state]
                for target in following:
                    labels |= reachable[target]
                if labels != reachable[state]:
                    reachable[state] = labels
                    changes = True

    @cached_property
    def _words(self) -> NDArray[np.uint64]:
        """`reachable` in words of 64 labels. Shape: (S, W), uint64."""
        num_bytes = 8 * (1 + max(labels.bit_length() for labels in self.reachable) // 64)
        octets = b"".join([labels.to_bytes(num_bytes, "little") for labels in self.reachable])
        return np.frombuffer(octets, dtype="<u8").reshape(len(self.reachable), -1)

    def table(self, allowed: int) -> TransitionTable:
        """The automaton's table with the states and ends of keys with these labels, bit n for label n."""
        whole, words = self.leaf.table, self._words
        num_labels = 64 * words.shape[1]
        octets = (allowed & ((1 << num_labels) - 1)).to_bytes(num_labels // 8, "little")
        alive = (words & np.frombuffer(octets, dtype="<u8")).any(axis=1)
        is_allowed = np.unpackbits(np.frombuffer(octets, dtype=np.uint8), bitorder="little").view(np.bool_)
        labels = np.where((whole.label >= 0) & is_allowed[whole.label], whole.label, np.int32(-1))
        return whole.with_some(labels, alive)


class RestrictedKeys(DfaLeaf):
    """The keys of an automaton that have certain labels (`Leaf`).

    States are those of the automaton of all keys. A state that can reach allowed labels only has its tokens.

    Args:
        keys: All keys.
        allowed: Labels, bit n for label n; at least one that some key has.
        walker: Walker of the vocabulary.
    """

    def __init__(self, keys: LabelledKeys, allowed: int, walker: TableWalker) -> None:
        super().__init__(keys.leaf.automaton, walker)
        self.key: Hashable = ("keys", keys.leaf.key, allowed)
        self._keys = keys  # holds it, so that others find it
        self._leaf = keys.leaf
        self._reachable = keys.reachable
        self._allowed = allowed

    @property
    def num_bytes(self) -> int:
        """Memory beyond the automaton of all keys."""
        table = self.table.num_bytes if "table" in self.__dict__ else 0
        return _LEAF_BYTES + 200 * len(self._edges) + table + self._tokens.num_bytes

    def step(self, state: int, byte: int) -> int:
        """The state after one byte, -1 if it is not allowed."""
        after = self._leaf.step(state, byte)
        return after if after >= 0 and self.is_alive(after) else -1

    def label(self, state: int) -> int:
        """Label of the key written so far, -1 if it is no allowed key."""
        label = self._labels[state]
        return label if label >= 0 and self._allowed >> label & 1 else -1

    def goes_on(self, state: int) -> bool:
        """Whether any byte is allowed in the state."""
        return any(self.is_alive(target) for _, _, target in self.automaton.rows[state])

    def is_alive(self, state: int) -> bool:
        """Whether an allowed key can be reached."""
        return bool(self._reachable[state] & self._allowed)

    def tokens(self, state: int, node: TokenNode) -> LeafTokens | None:
        """The tokens below a node that pass; None if `edges` lists all bytes."""
        if not self._reachable[state] & ~self._allowed and self.edges(state) is None:
            return self._leaf.tokens(state, node)
        return super().tokens(state, node)

    def _nearly(self, state: int, node: TokenNode) -> LeafTokens | None:
        return None if is_nested(node) else self._by_all_keys(state, node) or self._by_model(state, node)

    def _by_all_keys(self, state: int, node: TokenNode) -> LeafTokens | None:
        """The tokens of all keys without those that lead to no allowed key; None: they differ too much."""
        known = self._leaf.tokens(state, node)
        if known is None:
            return None
        rows, reachable, allowed = self.automaton.rows, self._reachable, self._allowed
        removed: list[int] = []
        waiting = [(node, state)]
        num_bytes = 0
        while waiting:
            place, at = waiting.pop()
            children = place.children
            for first, last, target in rows[at]:
                labels = reachable[target]
                num_bytes += 1
                if not labels & ~allowed:
                    continue
                num_bytes += last - first
                for byte in range(first, last + 1):
                    child = children.get(byte)
                    if child is None:
                        continue
                    if labels & allowed:
                        waiting.append((child, target))
                    else:
                        removed += child.positions
            if num_bytes > _MOST_LOOKED_AT:
                return None
        exits = tuple([exit for exit in known.exits if allowed >> exit.label & 1])
        if not removed:
            return known._replace(exits=exits)
        return LeafTokens(*without(known, removed, self._walker.vocabulary), exits)

    @cached_property
    def models(self) -> StateModels:
        """The models of the states."""
        vocabulary = self._walker.vocabulary
        return StateModels(self.automaton, self.label, self.is_alive, vocabulary, self._leaf.models)

    @cached_property
    def table(self) -> TransitionTable:
        """The automaton's table with the allowed states and labels."""
        return self._keys.table(self._allowed)
