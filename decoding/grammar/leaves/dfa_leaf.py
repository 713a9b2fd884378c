"""Makes a leaf of an automaton: patterns, formats, numbers, enums, sets of keys, strings of any kind.

The tokens of most states are nearly those of another state, their *model*, which treats nearly all texts
alike. Behind the opening quote of a key, for example, nearly every text is a key that the schema does not
name. So nearly all tokens are those of any string, which all grammars share, and only the bytes along the
named keys have to be looked at.

`RestrictedKeys` are the keys of an object that may still come: an automaton over all its keys, with some
labels left out.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Hashable, Sequence
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from genret.decoding.grammar.leaves.leaf import Exit, LeafTokens, TokenCache
from genret.decoding.grammar.leaves.table_walk import FEW_PLACES, TableWalker, TransitionTable
from genret.decoding.grammar.regular.byte_dfa import ByteDfa
from genret.decoding.grammar.regular.dfa_texts import distances, nearest_text, shortest_text
from genret.decoding.grammar.regular.product import together
from genret.decoding.grammar.token_trie import TokenNode
from genret.decoding.grammar.vocabulary import Vocabulary

MAX_LISTED_EDGES = 8
"""Most bytes that are listed; states with more are walked under the table."""
# A row of the automaton and its edges as tuples, and a listed state, measured with tracemalloc.
_STATE_BYTES = 300


class DfaLeaf:
    """An automaton over bytes as a leaf (`Leaf`).

    The table for walks is made when tokens of a state with many bytes are first asked for: most automata of
    schemas have no such state.

    Args:
        automaton: Automaton of a language that is not empty.
        strings: Leaf of all strings, spelled in one way, and its state between two characters, whose tokens
            are used for states with the same texts.
    """

    def __init__(
        self,
        automaton: ByteDfa,
        walker: TableWalker,
        is_shared: bool = False,
        strings: tuple[DfaLeaf, int] | None = None,
    ) -> None:
        self.key: Hashable = ("automaton", automaton.digest)
        self.is_shared = is_shared
        self.automaton = automaton
        self._walker = walker
        self._strings = strings
        self._labels = [max(label, -1) for label in automaton.ends]  # whatever stands between characters
        self._edges: dict[int, dict[int, int] | None] = {}
        self._tokens = TokenCache()
        self._string_labels: dict[int, int] = {}

    @property
    def num_bytes(self) -> int:
        """Memory of the automaton and of the tokens found so far."""
        table = 0
        if "table" in self.__dict__:
            table = self.table.num_row_bytes + self.table.num_bytes
        return _STATE_BYTES * len(self._labels) + table + self._tokens.size

    @cached_property
    def table(self) -> TransitionTable:
        """The automaton as walks read it."""
        return TransitionTable.of_automaton(self.automaton)

    def step(self, state: int, byte: int) -> int:
        """The state after one byte, -1 if it is not allowed."""
        edges = self.edges(state)
        if edges is not None:
            return edges.get(byte, -1)
        return self.automaton.step(state, byte)

    def edges(self, state: int) -> dict[int, int] | None:
        """All allowed bytes and the states they lead to, if they are few."""
        if state not in self._edges:
            self._edges[state] = self._listed(state)
        return self._edges[state]

    def _listed(self, state: int) -> dict[int, int] | None:
        listed: dict[int, int] = {}
        for first, last, target in self.automaton.rows[state]:
            if self.is_alive(target):
                if len(listed) + last - first >= MAX_LISTED_EDGES:
                    return None
                listed.update(dict.fromkeys(range(first, last + 1), target))
        return listed

    def label(self, state: int) -> int:
        """Label of the text written so far, -1 if it is no whole text."""
        return self._labels[state]

    def goes_on(self, state: int) -> bool:
        """Whether any byte is allowed in the state."""
        return bool(self.automaton.rows[state])

    def is_alive(self, state: int) -> bool:
        """Whether a state can reach the end of an allowed text: every state of an automaton can."""
        return True

    def shortest(self, state: int) -> bytes:
        """A shortest text that leads from the state to a final one, of those the first in byte order."""
        if not state:
            return self._from_start
        return nearest_text(self.automaton.rows, self._distances, state)

    @cached_property
    def _from_start(self) -> bytes:
        # Compiling asks for this one only, and most states are farther from the start than the nearest end.
        return bytes(shortest_text(self.automaton.rows, self._ends, 0))

    @cached_property
    def farthest(self) -> int:
        """Bytes of the longest of the states' shortest texts."""
        return max(self._distances)

    @cached_property
    def labels(self) -> frozenset[int]:
        """All labels that texts have."""
        return frozenset(map(self.label, range(self.automaton.num_states))) - {-1}

    def tokens(self, state: int, node: TokenNode) -> LeafTokens | None:
        """The tokens below a node that pass; None if `edges` lists all bytes."""
        place = (state, node.positions)
        found = self._tokens.get(place)
        if found is None:
            if self.edges(state) is not None:
                return None
            found = self._nearly(state, node) if node.num_below > FEW_PLACES else None
            found = self._tokens.put(place, found or self._walker.tokens(self, state, node))
        return found

    def _nearly(self, state: int, node: TokenNode) -> LeafTokens | None:
        """The tokens of a state that treats nearly all texts as another does; None: they differ too much."""
        model = self.models.of(state)
        if model < 0 or not self.is_alive(model):
            return None
        if model == state:
            return self._as_strings(state, node)
        known = self.tokens(model, node)
        return None if known is None else self.models.tokens(state, model, node, known)

    def _as_strings(self, state: int, node: TokenNode) -> LeafTokens | None:
        """The tokens of a state behind which any text may come."""
        if self._strings is None:
            return None
        strings, body = self._strings
        label = self._string_labels.get(state)
        if label is None:
            label = _label_of_like(self.automaton, state, strings.automaton, body)
            self._string_labels[state] = label
        found = strings.tokens(body, node) if label >= 0 else None
        if found is None or not label:
            return found
        return LeafTokens(found.few, found.many, tuple([Exit(label, rest) for _, rest in found.exits]))

    @cached_property
    def models(self) -> StateModels:
        """The models of the states."""
        return StateModels(self, self._walker.vocabulary)

    @cached_property
    def _distances(self) -> list[int]:
        """Fewest bytes from each state to the end of an allowed text, -1 for none."""
        return distances(self.automaton.rows, self._ends)

    @property
    def _ends(self) -> list[bool]:
        return [label >= 0 for label in map(self.label, range(self.automaton.num_states))]


# Limits on the bytes in which a pair of states differs, and on those of all pairs together.
_MOST_BYTES = 128
_MOST_LOOKED_AT = 1500
_CLEARED_ONE_BY_ONE = 500

# A byte with the next states from the state and from its model, -1 for none.
_Difference = tuple[int, int, int]


class StateModels:
    """Models of the states of one leaf.

    `others` are models of the same automaton with other labels and living states; findings about its rows are
    shared.
    """

    def __init__(self, leaf: DfaLeaf, vocabulary: Vocabulary, others: StateModels | None = None) -> None:
        self._rows = leaf.automaton.rows
        self._label = leaf.label
        self._is_alive = leaf.is_alive
        self._vocabulary = vocabulary
        self._models: dict[int, int] = {} if others is None else others._models
        self._differences: dict[tuple[int, int], list[_Difference] | None]
        self._differences = {} if others is None else others._differences

    def of(self, state: int) -> int:
        """The model of a state, -1 for none: the state most bytes lead to, if they lead back to it."""
        model = self._models.get(state)
        if model is None:
            model = self._most_common(state)
            if model >= 0 and model != state and self._most_common(model) != model:
                model = -1
            self._models[state] = model
        return model

    def tokens(self, state: int, model: int, node: TokenNode, known: LeafTokens) -> LeafTokens | None:
        """The tokens below a node from a state on, by those of its model; None: they differ too much."""
        if is_nested(node):
            return None
        cleared: list[int] = []
        ended: dict[int, int] = {}  # labels by place
        waiting = [(node, state, model)]
        num_bytes = 0
        while waiting:
            place, left, right = waiting.pop()
            differences = self._differing(left, right)
            if differences is None:
                return None
            num_bytes += len(differences)
            if num_bytes > _MOST_LOOKED_AT:
                return None
            children = place.children
            for byte, after, expected in differences:
                child = children.get(byte)
                if child is None or expected < 0 or not self._is_alive(expected):
                    if child is not None and after >= 0 and self._is_alive(after):
                        return None
                    continue
                if after < 0 or not self._is_alive(after):
                    cleared += child.positions
                    continue
                if self._label(after) != self._label(expected):
                    ended.update(dict.fromkeys(child.positions, self._label(after)))
                waiting.append((child, after, expected))
        return self._changed(known, cleared, ended) if cleared or ended else known

    def _most_common(self, state: int) -> int:
        """The state with a loop that most bytes lead to, of equals the first; -1 for none."""
        counts: dict[int, int] = {}
        for first, last, target in self._rows[state]:
            counts[target] = counts.get(target, 0) + last - first + 1
        looped = [target for target in counts if any(edge[2] == target for edge in self._rows[target])]
        return max(looped, key=lambda target: (counts[target], -target), default=-1)

    def _differing(self, left: int, right: int) -> list[_Difference] | None:
        """The bytes that lead to different states; None: they are too many."""
        key = (left, right)
        if key in self._differences:
            return self._differences[key]
        found: list[_Difference] = []
        for first, last, (after, expected) in together(self._rows[left], self._rows[right], True, True):
            if after == expected:
                continue
            if len(found) + last - first >= _MOST_BYTES:
                self._differences[key] = None
                return None
            found += [(byte, after, expected) for byte in range(first, last + 1)]
        self._differences[key] = found
        return found

    def _changed(self, known: LeafTokens, cleared: list[int], ended: dict[int, int]) -> LeafTokens:
        """Tokens without those below some places, and with other labels of texts that end at others."""
        few, many = without(known, cleared, self._vocabulary) if cleared else (known.few, known.many)
        end = self._vocabulary.trie.end_view
        by_label: dict[int, list[int]] = {}
        for exit in known.exits:
            positions = [p for p in exit.rest.positions if p not in ended]
            for place in cleared:
                del positions[bisect_left(positions, place) : bisect_left(positions, end[place])]
            by_label[exit.label] = positions
        for place, label in ended.items():
            if label >= 0 and end[place] > place + 1:
                by_label.setdefault(label, []).append(place)
        rest = self._vocabulary.rest
        exits = tuple(Exit(label, rest(by_label[label])) for label in sorted(by_label) if by_label[label])
        return LeafTokens(few, many, exits)


def _label_of_like(automaton: ByteDfa, state: int, other: ByteDfa, other_state: int) -> int:
    """The one label of the texts from a state on, if another automaton has the same texts from a state on.

    -1 if the texts differ, or have several labels.
    """
    found: dict[int, int] = {state: other_state}
    order = [state]
    labels: set[int] = set()
    for place in order:
        row, other_row = automaton.rows[place], other.rows[found[place]]
        label = automaton.ends[place]
        if len(row) != len(other_row) or (label >= 0) != (other.ends[found[place]] >= 0):
            return -1
        if label >= 0:
            labels.add(label)
        for (*symbols, target), (*other_symbols, other_target) in zip(row, other_row, strict=True):
            if symbols != other_symbols or found.setdefault(target, other_target) != other_target:
                return -1
            if len(found) > len(order):
                order.append(target)
    return labels.pop() if len(labels) == 1 else -1


def without(
    known: LeafTokens, places: Sequence[int], vocabulary: Vocabulary
) -> tuple[tuple[int, ...], NDArray[np.uint32] | None]:
    """Leave out all tokens at some places of the trie and below them. Returns the `few` and `many` left."""
    few, many = known.few, known.many
    trie = vocabulary.trie
    begin, end, tokens = trie.token_begin_view, trie.end_view, trie.tokens_view
    if many is None:
        left_out = {token for p in places for token in tokens[begin[p] : begin[end[p]]]}
        return tuple([token for token in few if token not in left_out]), None
    if sum(begin[end[p]] - begin[p] for p in places) > _CLEARED_ONE_BY_ONE:
        left_out_ids = np.concatenate([trie.tokens[begin[p] : begin[end[p]]] for p in places])
        many = many & ~vocabulary.packed(left_out_ids)
    else:
        many = many.copy()
        octets = many.view(np.uint8).data
        for p in places:
            for token in tokens[begin[p] : begin[end[p]]]:
                octets[token >> 3] &= ~(1 << (token & 7))
    many.flags.writeable = False
    return few, many


def is_nested(node: TokenNode) -> bool:
    """Whether a place of a node is below another one."""
    end = node.trie.end_view
    places = node.positions
    return any(end[places[n]] > places[n + 1] for n in range(len(places) - 1))


# The object itself, without what it finds out.
_LEAF_BYTES = 600
# Most bytes looked at to remove keys from the tokens of all.
_MOST_REMOVED = 4000


class LabelledKeys:
    """An automaton over all keys of an object, with the labels that each state can still reach."""

    def __init__(self, leaf: DfaLeaf) -> None:
        self.leaf = leaf
        rows, ends = leaf.automaton.rows, leaf.automaton.ends
        # By state, a set of labels, bit n for label n.
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
    """The keys of an automaton that have certain labels, bit n of `allowed` for label n (`Leaf`).

    States are those of the automaton of all keys. A state that can reach allowed labels only has its tokens.
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
        return _LEAF_BYTES + 200 * len(self._edges) + table + self._tokens.size

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
        return None if is_nested(node) else self._by_all_keys(state, node) or super()._nearly(state, node)

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
            if num_bytes > _MOST_REMOVED:
                return None
        exits = tuple([exit for exit in known.exits if allowed >> exit.label & 1])
        if not removed:
            return known._replace(exits=exits)
        return LeafTokens(*without(known, removed, self._walker.vocabulary), exits)

    @cached_property
    def models(self) -> StateModels:
        """The models of the states."""
        return StateModels(self, self._walker.vocabulary, self._leaf.models)

    @cached_property
    def table(self) -> TransitionTable:
        """The automaton's table with the allowed states and labels."""
        return self._keys.table(self._allowed)
