"""Bounds the tokens that it takes to end a text from any state, by the shortest completions.

Of the completions of fewest bytes the first in byte order is taken. Whitespace costs nothing here and is
written only where it is required, so the bounds of shapes, for compact JSON, are exact. Behind each byte of a
shortest completion the rest is again the shortest completion, which lets a budget be kept to the token.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable
from functools import reduce
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from genret.decoding.grammar.automaton.containers import (
    BEFORE_COLON,
    CLOSE_ARRAY,
    CLOSE_OBJECT,
    COLON,
    COMMA,
    INSIDE,
    OPENED,
    ArrayKind,
    DocumentKind,
    ObjectKind,
    ValueKinds,
)
from genret.decoding.grammar.automaton.nodes import ScalarKind, ThreadPosition
from genret.decoding.grammar.automaton.parse_stacks import ByteCount, ParseStack, ParseStacks, StackSegment
from genret.decoding.grammar.automaton.token_masks import Walk
from genret.decoding.grammar.compile_options import check_time
from genret.decoding.grammar.leaves.distinct_leaf import DistinctLeaf
from genret.decoding.grammar.leaves.leaf import Leaf
from genret.decoding.grammar.shapes import ArrayShape, ObjectShape, Option
from genret.decoding.grammar.token_trie import fewest_tokens
from genret.decoding.grammar.vocabulary import Vocabulary

_BOUND_BYTES = 200
# Longer completions are not written out to be counted in tokens: a schema may ask for 10^9 items.
_LONGEST_WRITTEN = 1 << 16


class Budgets:
    """Bounds on the tokens that end the texts of one grammar; kept by stack."""

    def __init__(
        self, vocabulary: Vocabulary, kinds: ValueKinds, stacks: ParseStacks, memory: ByteCount
    ) -> None:
        self._vocabulary = vocabulary
        self._stacks = stacks
        self._memory = memory
        self._finishing = ShortestEndings(kinds, stacks, memory)
        self._enough: dict[ParseStack, int] = {}
        self._most: dict[ParseStack, int | None] = {}

    def clear(self) -> None:
        """Forget all results."""
        self._finishing.clear()
        self._enough = {}
        self._most = {}

    def enough(self, stack: ParseStack) -> int:
        """Tokens of the shortest completion, end token included; `cheap_bound` if that is very long.

        Raises VocabularyError if no tokens write it.
        """
        found = self._enough.get(stack)
        if found is None:
            if self._finishing.distance(stack) > _LONGEST_WRITTEN:
                return self.cheap_bound(stack)
            text = self._finishing.text(stack)
            found = self._enough[stack] = fewest_tokens(text, self._vocabulary.root) + 1
            self._memory.num_bytes += _BOUND_BYTES
        return found

    def cheap_bound(self, stack: ParseStack) -> int:
        """An upper bound of `enough`, found without writing the completion.

        Every token writes a byte, and a comma or a colon takes one blank at most.
        """
        return 2 * self._finishing.distance(stack) + 1

    def most_behind(self, stack: ParseStack) -> int | None:
        """The most that `enough` can be behind an allowed token; None if no bound is known."""
        if stack in self._most:
            return self._most[stack]
        walk = Walk(self._stacks, stack, self._vocabulary.root, is_recorded=True)
        farthest = self._finishing.farthest(walk)
        most = self._most[stack] = None if farthest is None else 2 * farthest + 1
        self._memory.num_bytes += _BOUND_BYTES
        return most

    def fitting(self, stack: ParseStack, tokens: NDArray[np.int64], left: int) -> NDArray[np.bool_]:
        """Whether `enough` is less than `left` behind each of some allowed tokens. Shape: (n,), bool."""
        end, bytes_of = self._vocabulary.end_token_id, self._vocabulary.bytes_of
        known: dict[Hashable, bool] = {}
        fits = []
        for token in tokens.tolist():
            if token == end:
                fits.append(left > 0)
                continue
            text = bytes_of(token) or b""
            group = _group(stack, text)
            found = None if group is None else known.get(group)
            if found is None:
                after = self._stacks.after(stack, text)
                assert after is not None  # the token is allowed
                group = after if group is None else group
                found = known.get(group)
                if found is None:
                    found = known[group] = self.cheap_bound(after) < left or self.enough(after) < left
            fits.append(found)
        return np.array(fits, dtype=np.bool_)


def _group(stack: ParseStack, text: bytes) -> Hashable:
    """A key that tokens share if the same is left behind them; None where only the stack behind can tell.

    Items that must differ have a state for each text, but for any text that nothing else wants or has used
    up, the same bytes are left.
    """
    kind = stack.segment.leaf
    if kind is not None and isinstance(kind.leaf, DistinctLeaf):
        state: int = stack.segment.entries[0][0].progress  # type: ignore[assignment]
        inner = kind.leaf.if_apart(state, text)
        if inner >= 0:
            return inner
    return None


_BLANK, _COMMA, _COLON, _QUOTE = b" ", b",", b":", b'"'
# Fewest bytes behind a key (a colon, a value, a closing bracket) and behind a value.
_BEHIND_KEY = 3
_BEHIND_VALUE = 0
_KEPT_TEXT = 2000
# States of a leaf searched for a better end than the one found. Free keys, each with a label of its own, have
# endlessly many; the result is then an upper bound.
_ENOUGH_PLACES = 1024
_ENTRY_BYTES = 150


@runtime_checkable
class BoundedLeaf(Leaf, Protocol):
    """A leaf that knows how far its states can be from a final one."""

    @property
    def farthest(self) -> int:
        """Bytes of the longest of the states' shortest texts."""

    @property
    def labels(self) -> Collection[int]:
        """All labels that texts have."""


class ShortestEnding(NamedTuple):
    """A shortest completion: its bytes without whitespace, and its first bytes, empty at the end."""

    cost: int
    text: bytes


_AT_END = ShortestEnding(0, b"")
_NO_WAY = ShortestEnding(1 << 60, b"")


class ShortestEndings:
    """Shortest completions of the texts of one grammar."""

    def __init__(self, kinds: ValueKinds, stacks: ParseStacks, memory: ByteCount) -> None:
        self._kinds = kinds
        self._stacks = stacks
        self._closings: dict[ThreadPosition, ShortestEnding] = {}
        # Depths of the positions being looked at, and the lowest of these that was met again.
        self._open: dict[ThreadPosition, int] = {}
        self._lowest_met = _NO_WAY.cost
        self._outside: dict[ParseStack, tuple[int, ...]] = {}
        self._texts: dict[ParseStack, bytes] = {}
        self._memory = memory

    def clear(self) -> None:
        """Forget all results."""
        self._closings = {}
        self._outside = {}
        self._texts = {}

    def distance(self, stack: ParseStack) -> int:
        """Fewest bytes that end the text, without whitespace."""
        return self._way(stack.segment, stack.below).cost

    def farthest(self, walk: Walk) -> int | None:
        """The most bytes, without whitespace, to an end behind any token of a recorded walk.

        None if a leaf does not know how far its states can be from a final one.
        """
        most = 0
        for segment, below in set(walk.places or ()):
            most = max(most, self._way(segment, below).cost)
        for (node, parents), below in walk.leaves:
            assert type(node.kind) is ScalarKind  # containers know no tokens
            leaf = node.kind.leaf
            if not isinstance(leaf, BoundedLeaf):
                return None
            entries, outside = below.segment.entries, self._outside_of_entries(below)
            behind = [
                min(self._closing(entries[p][0].after(label)).cost + outside[p] for p in parents)
                for label in leaf.labels
            ]
            most = max(most, leaf.farthest + max(behind))
        return most

    def text(self, stack: ParseStack) -> bytes:
        """The shortest text that ends the document."""
        written = bytearray()
        passed: list[tuple[ParseStack, int]] = []
        while True:
            check_time()
            known = self._texts.get(stack)
            if known is not None:
                written += known
                break
            if stack.segment.leaf is None:
                passed.append((stack, len(written)))
            way = self._way(stack.segment, stack.below)
            if not way.text:
                break
            # If several threads are alive, the byte decides which of them are left.
            run = way.text if len(stack.segment.entries) == 1 else way.text[:1]
            following = self._stacks.after(stack, run)
            assert following is not None  # it is a way on
            stack = following
            written += run
        text = bytes(written)
        # Many leaves have the same text behind them. Long ends are too large to keep.
        if len(text) <= _KEPT_TEXT:
            self._texts.update((place, text[begin:]) for place, begin in passed)
            self._memory.num_bytes += len(passed) * (_ENTRY_BYTES + len(text))
        return text

    def _way(self, segment: StackSegment, below: ParseStack | None) -> ShortestEnding:
        """The best completion of all threads: the shortest, of those the first in byte order."""
        if below is None:
            ways = [self._closing(node) for node, _ in segment.entries]
        else:
            outside = self._outside_of(below, segment)
            ways = []
            for (node, parents), rest in zip(segment.entries, outside, strict=True):
                if type(node.kind) is ScalarKind:
                    ways.append(self._leaf_way(node.kind.leaf, node, parents, below))
                else:
                    way = self._closing(node)
                    ways.append(ShortestEnding(way.cost + rest, way.text))
        return ways[0] if len(ways) == 1 else min(ways)

    def _leaf_way(
        self, leaf: Leaf, node: ThreadPosition, parents: tuple[int, ...], below: ParseStack
    ) -> ShortestEnding:
        """End a leaf's text, and go on behind it in the parent with the shortest completion."""
        entries = below.segment.entries
        outside = self._outside_of_entries(below)
        state: int = node.progress  # type: ignore[assignment]

        def behind(label: int) -> ShortestEnding:
            closings = [(self._closing(entries[parent][0].after(label)), parent) for parent in parents]
            return min(ShortestEnding(way.cost + outside[parent], way.text) for way, parent in closings)

        is_key = any(entries[parent][0].phase != INSIDE for parent in parents)
        floor = _BEHIND_KEY if is_key else _BEHIND_VALUE
        expected = None if is_key else min(outside[p] + self._untouched(entries[p][0]) for p in parents)
        cost, text, label = _best_ending(leaf, state, lambda label: behind(label).cost, floor, expected)
        return ShortestEnding(cost, text or behind(label).text)

    def _untouched(self, node: ThreadPosition) -> int:
        """Cost of closing behind a value whose label makes no difference."""
        kind = node.kind
        if isinstance(kind, ObjectKind | ArrayKind):
            return kind.shape.shortest(node.progress)
        return 0

    def _outside_of(self, below: ParseStack, segment: StackSegment) -> list[int]:
        """Cost of what follows the container at each entry of a segment."""
        if type(segment.entries[0][0].kind) is ScalarKind:
            return [0] * len(segment.entries)
        outside = self._outside_of_entries(below)
        entries = below.segment.entries
        return [
            min(self._closing(entries[parent][0].after(0)).cost + outside[parent] for parent in parents)
            for _, parents in segment.entries
        ]

    def _outside_of_entries(self, stack: ParseStack) -> tuple[int, ...]:
        """The same for a stack's own segment; kept, and found from the bottom up."""
        found = self._outside.get(stack)
        if found is not None:
            return found
        missing = [stack]
        while missing[-1].below is not None and missing[-1].below not in self._outside:
            missing.append(missing[-1].below)
        for place in reversed(missing):
            if place.below is None:
                self._outside[place] = (0,) * len(place.segment.entries)
            else:
                self._outside[place] = tuple(self._outside_of(place.below, place.segment))
        return self._outside[stack]

    def _closing(self, node: ThreadPosition) -> ShortestEnding:
        """The shortest way to close the container of a position.

        A shortest way never leads through another container at the same position: closing that one alone
        would cost as much. So while a position is being looked at, ways through it are excluded; results
        without them are kept only when nothing is being looked at any more.
        """
        way = self._closings.get(node)
        if way is not None:
            return way
        depth = self._open.get(node)
        if depth is not None:
            self._lowest_met = min(self._lowest_met, depth)
            return _NO_WAY
        met_before, self._lowest_met = self._lowest_met, _NO_WAY.cost
        depth = self._open[node] = len(self._open)
        try:
            way = self._find_closing(node)
        finally:
            del self._open[node]
            met, self._lowest_met = self._lowest_met, min(met_before, self._lowest_met)
        if met >= depth:
            self._closings[node] = way
            self._lowest_met = met_before
        return way

    def _find_closing(self, node: ThreadPosition) -> ShortestEnding:
        kind = node.kind
        if isinstance(kind, DocumentKind):
            options = kind.moves(node).options
            return self._begin_value(kind, options) if options else _AT_END
        if not isinstance(kind, ObjectKind | ArrayKind):
            raise TypeError("only containers are closed")
        way = self._written(node, kind)
        return way._replace(text=_BLANK) if kind.must_be_blank(node) else way

    def _written(self, node: ThreadPosition, kind: ObjectKind | ArrayKind) -> ShortestEnding:
        shape, progress = kind.shape, node.progress
        punctuation, options = kind.moves(node)
        for closing in (CLOSE_ARRAY, CLOSE_OBJECT):
            if closing in punctuation:
                return ShortestEnding(1, bytes((closing,)))
        if COMMA in punctuation:
            return ShortestEnding(shape.shortest(progress), _COMMA)
        colon = punctuation.get(COLON)
        if type(colon) is ThreadPosition:
            return ShortestEnding(1 + self._closing(colon).cost, _COLON)
        if options:
            return self._begin_value(kind, options)
        assert type(kind) is ObjectKind
        keys = kind.shape.keys(progress)
        assert keys is not None  # an object that cannot be closed goes on

        def behind_key(label: int) -> int:
            return self._closing(kind.node(BEFORE_COLON, progress, label)).cost

        # Behind a member, the shape's count includes a comma.
        least = shape.shortest(progress) - 1
        return ShortestEnding(_best_ending(keys, 0, behind_key, _BEHIND_KEY, None, least)[0], _QUOTE)

    def _begin_value(
        self, kind: ObjectKind | ArrayKind | DocumentKind, options: tuple[Option, ...]
    ) -> ShortestEnding:
        """Write the value that leads to the shortest end, and close behind it."""
        ways = []
        for value, progress in options:
            inside = kind.node(INSIDE, progress)
            expected = self._untouched(inside)

            def behind(label: int, inside: ThreadPosition = inside) -> int:
                return self._closing(inside.after(label)).cost

            for leaf in value.leaves:
                cost, text, _ = _best_ending(leaf, 0, behind, _BEHIND_VALUE, expected)
                ways.append(ShortestEnding(cost, text[:1]))
            shapes: tuple[ArrayShape | ObjectShape, ...] = (*value.arrays, *value.objects)
            for shape in shapes:
                if ways and shape.shortest(shape.start()) + behind(0) > min(ways).cost:
                    continue
                opened = self._kinds.container(shape).node(OPENED, shape.start())
                bracket = b"[" if isinstance(shape, ArrayShape) else b"{"
                ways.append(ShortestEnding(1 + self._closing(opened).cost + behind(0), bracket))
        return min(ways)


def _best_ending(
    leaf: Leaf, state: int, behind: Callable[[int], int], floor: int, expected: int | None, least: int = 0
) -> tuple[int, bytes, int]:
    """The cheapest end of a leaf's text, of equals the first in byte order: cost with what follows, text to
    write, label.

    What follows costs `behind(label)`, at least `floor`, and with the text at least `least`. Where the label
    makes no difference it costs `expected`, and where it does, at least as much; for keys, of which this is
    not known, `expected` is None.
    """
    # One end is known at once, and the search of better ones is bounded: between the bytes of a character,
    # keys that are told apart have millions of states before any of them ends.
    text = leaf.shortest(state)
    label = leaf.label(reduce(leaf.step, text, state))
    best = (len(text) + behind(label), text, label)
    if expected is not None:
        if best[0] <= len(text) + expected:
            return best
        floor = expected
    labels = {label}
    reached: dict[int, bytes] = {state: b""}
    frontier = [state]
    while frontier:
        if len(reached[frontier[0]]) + floor > best[0]:
            break
        following: list[int] = []
        for place in frontier:
            check_time()
            text = reached[place]
            label = leaf.label(place)
            if label >= 0 and label not in labels:
                labels.add(label)
                best = min(best, (len(text) + behind(label), text, label))
            if best[0] <= least or len(reached) > _ENOUGH_PLACES:
                return best
            edges = leaf.edges(place)
            for byte in range(256) if edges is None else sorted(edges):
                after = leaf.step(place, byte)
                if after < 0 or after in reached:
                    continue
                begun = text + bytes((byte,))
                if expected is not None:
                    # Where items must differ, almost all texts cost as much: they need not be tried.
                    cost = len(begun) + len(leaf.shortest(after)) + expected
                    if (cost, begun) > (best[0], best[1][: len(begun)]):
                        continue
                reached[after] = begun
                following.append(after)
        frontier = following
    return best
