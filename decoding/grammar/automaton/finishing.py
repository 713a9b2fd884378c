"""Bounds the tokens that it takes to end a text from any state, by the shortest ways to end it.

Of the ways of fewest bytes the first in byte order is taken. Whitespace costs nothing here and is written
only where it must be, so that what shapes say of compact JSON is exact. A shortest text has the property that
behind each of its bytes its rest is the shortest text again, which is what lets a budget be kept to the
token. Bounds are kept by state.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from decoding.grammar.automaton.configurations import ParseStack, ParseStacks
from decoding.grammar.automaton.containers import (
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
from decoding.grammar.automaton.levels import ByteCount, StackSegment, StackSegments
from decoding.grammar.automaton.nodes import ScalarKind, ThreadPosition
from decoding.grammar.automaton.token_masks import Walk
from decoding.grammar.compile_options import check_time
from decoding.grammar.leaves.leaf import Leaf
from decoding.grammar.shapes import Option
from decoding.grammar.token_trie import fewest_tokens
from decoding.grammar.vocabulary import Vocabulary

_BOUND_BYTES = 200
# Completions of more bytes are not written out to be counted in tokens: a schema may ask for 10^9 items.
_LONGEST_WRITTEN = 1 << 16


class Budgets:
    """Bounds on the tokens that end texts.

    Args:
        vocabulary: Whose tokens.
        levels: Of the grammar.
        frames: Of the grammar.
        configurations: Of the grammar.
        memory: Counts what is kept.
    """

    def __init__(
        self,
        vocabulary: Vocabulary,
        levels: StackSegments,
        frames: ValueKinds,
        configurations: ParseStacks,
        memory: ByteCount,
    ) -> None:
        self._vocabulary = vocabulary
        self._levels = levels
        self._configurations = configurations
        self._memory = memory
        self._finishing = ShortestEndings(frames, configurations, memory)
        self._enough: dict[ParseStack, int] = {}
        self._most: dict[ParseStack, int | None] = {}

    def clear(self) -> None:
        """Forget what has been found."""
        self._finishing.clear()
        self._enough = {}
        self._most = {}

    def enough(self, configuration: ParseStack) -> int:
        """Tokens of the shortest completion, end token included; `cheap_bound` where that is very long.

        Raises:
            VocabularyError: no tokens write it.
        """
        found = self._enough.get(configuration)
        if found is None:
            if self._finishing.distance(configuration) > _LONGEST_WRITTEN:
                return self.cheap_bound(configuration)
            text = self._finishing.text(configuration)
            found = self._enough[configuration] = fewest_tokens(text, self._vocabulary.root) + 1
            self._memory.num_bytes += _BOUND_BYTES
        return found

    def cheap_bound(self, configuration: ParseStack) -> int:
        """No less than `enough`, and found without writing the completion.

        Every token writes a byte, and there is a blank for a comma or a colon at most.
        """
        return 2 * self._finishing.distance(configuration) + 1

    def most_behind(self, configuration: ParseStack) -> int | None:
        """No allowed token leads to where `enough` is more; None where no bound is known."""
        if configuration in self._most:
            return self._most[configuration]
        walk = Walk(
            self._levels, self._configurations, configuration, self._vocabulary.root, is_recorded=True
        )
        farthest = self._finishing.farthest(walk)
        most = self._most[configuration] = None if farthest is None else 2 * farthest + 1
        self._memory.num_bytes += _BOUND_BYTES
        return most

    def fitting(self, configuration: ParseStack, tokens: NDArray[np.int64], left: int) -> NDArray[np.bool_]:
        """Behind which of some allowed tokens `enough` is less than `left`. Shape: (n,), bool."""
        end, bytes_of = self._vocabulary.end_token_id, self._vocabulary.bytes_of
        known: dict[ParseStack, bool] = {}
        fits = []
        for token in tokens.tolist():
            if token == end:
                fits.append(left > 0)
                continue
            after = self._configurations.after(configuration, bytes_of(token) or b"")
            assert after is not None  # the token is allowed
            found = known.get(after)
            if found is None:
                found = known[after] = self.cheap_bound(after) < left or self.enough(after) < left
            fits.append(found)
        return np.array(fits, dtype=np.bool_)


_BLANK, _COMMA, _COLON, _QUOTE = b" ", b",", b":", b'"'
# What follows a key takes at least this: a colon, a value, a closing bracket.
_BEHIND_KEY = 3
# What follows a value: a closing bracket, or nothing at the end of the document.
_BEHIND_VALUE = 0
_KEPT_TEXT = 2000
# Places of a leaf looked at for an end that is better than the one that was found. Behind free keys, each of
# which has a label of its own, there would be no end of them; what is found is then an upper bound.
_ENOUGH_PLACES = 1024
_ENTRY_BYTES = 150


@runtime_checkable
class BoundedLeaf(Leaf, Protocol):
    """A leaf that knows how far its states can be from a final one."""

    @property
    def farthest(self) -> int:
        """No state has a longer shortest text, in bytes."""

    @property
    def labels(self) -> Collection[int]:
        """All labels that texts have."""


class ShortestEnding(NamedTuple):
    """A shortest way on.

    Attributes:
        cost: Bytes of it without whitespace.
        text: The first bytes of it; empty at the end.
    """

    cost: int
    text: bytes


_AT_END = ShortestEnding(0, b"")
_NO_WAY = ShortestEnding(1 << 60, b"")


class ShortestEndings:
    """Shortest ways of one grammar.

    Args:
        frames: Of the grammar.
        configurations: Of the grammar.
        memory: Counts what is kept.
    """

    def __init__(self, frames: ValueKinds, configurations: ParseStacks, memory: ByteCount) -> None:
        self._frames = frames
        self._configurations = configurations
        self._closings: dict[ThreadPosition, ShortestEnding] = {}
        # Nodes whose closing is being looked for, by depth, and the lowest of them that was met again.
        self._open: dict[ThreadPosition, int] = {}
        self._lowest_met = _NO_WAY.cost
        self._outside: dict[ParseStack, tuple[int, ...]] = {}
        self._texts: dict[ParseStack, bytes] = {}
        self._memory = memory

    def clear(self) -> None:
        """Forget what has been found."""
        self._closings = {}
        self._outside = {}
        self._texts = {}

    def distance(self, configuration: ParseStack) -> int:
        """Fewest bytes that end the text, whitespace left out."""
        return self._way(configuration.level, configuration.below).cost

    def farthest(self, walk: Walk) -> int | None:
        """No token of a recorded walk leads farther from an end, in bytes without whitespace.

        None where that is not known, because a leaf does not know how far its states can be.
        """
        most = 0
        for level, below in set(walk.places or ()):
            most = max(most, self._way(level, below).cost)
        for (node, parents), below in walk.leaves:
            assert type(node.frame) is ScalarKind  # containers know no tokens
            leaf = node.frame.leaf
            if not isinstance(leaf, BoundedLeaf):
                return None
            entries, outside = below.level.entries, self._outside_of_entries(below)
            behind = [
                min(self._closing(entries[p][0].after(label)).cost + outside[p] for p in parents)
                for label in leaf.labels
            ]
            most = max(most, leaf.farthest + max(behind))
        return most

    def text(self, configuration: ParseStack) -> bytes:
        """The shortest text that ends the document."""
        written = bytearray()
        passed: list[tuple[ParseStack, int]] = []
        while True:
            check_time()
            known = self._texts.get(configuration)
            if known is not None:
                written += known
                break
            if configuration.level.leaf is None:
                passed.append((configuration, len(written)))
            way = self._way(configuration.level, configuration.below)
            if not way.text:
                break
            # Where several threads are alive, the byte decides which of them are left.
            run = way.text if len(configuration.level.entries) == 1 else way.text[:1]
            following = self._configurations.after(configuration, run)
            assert following is not None  # it is a way on
            configuration = following
            written += run
        text = bytes(written)
        # Many texts in leaves go on in the same way behind them. Long ends would be kept at a high price.
        if len(text) <= _KEPT_TEXT:
            self._texts.update((place, text[begin:]) for place, begin in passed)
            self._memory.num_bytes += len(passed) * (_ENTRY_BYTES + len(text))
        return text

    def _way(self, level: StackSegment, below: ParseStack | None) -> ShortestEnding:
        """The best way on of all threads: the shortest, of those the first in byte order."""
        if below is None:
            ways = [self._closing(node) for node, _ in level.entries]
        else:
            outside = self._outside_of(below, level)
            ways = []
            for (node, parents), rest in zip(level.entries, outside, strict=True):
                if type(node.frame) is ScalarKind:
                    ways.append(self._leaf_way(node.frame.leaf, node, parents, below))
                else:
                    way = self._closing(node)
                    ways.append(ShortestEnding(way.cost + rest, way.text))
        return ways[0] if len(ways) == 1 else min(ways)

    def _leaf_way(
        self, leaf: Leaf, node: ThreadPosition, parents: tuple[int, ...], below: ParseStack
    ) -> ShortestEnding:
        """End a leaf's text, and go on behind it in the parent where that is shortest."""
        entries = below.level.entries
        outside = self._outside_of_entries(below)
        state: int = node.progress  # type: ignore[assignment]

        def behind(label: int) -> ShortestEnding:
            return min(
                ShortestEnding(way.cost + outside[parent], way.text)
                for parent in parents
                for way in (self._closing(entries[parent][0].after(label)),)
            )

        is_key = any(entries[parent][0].phase != INSIDE for parent in parents)
        floor = _BEHIND_KEY if is_key else _BEHIND_VALUE
        expected = None if is_key else min(outside[p] + self._untouched(entries[p][0]) for p in parents)
        cost, text, label = _best_ending(leaf, state, lambda label: behind(label).cost, floor, expected)
        return ShortestEnding(cost, text or behind(label).text)

    def _untouched(self, node: ThreadPosition) -> int:
        """What closing costs behind a value as far as its label makes no difference."""
        frame = node.frame
        if isinstance(frame, ObjectKind | ArrayKind):
            return frame.shape.shortest(node.progress)
        return 0

    def _outside_of(self, below: ParseStack, level: StackSegment) -> list[int]:
        """What follows when a container at each entry of a level has been closed."""
        if type(level.entries[0][0].frame) is ScalarKind:
            return [0] * len(level.entries)
        outside = self._outside_of_entries(below)
        entries = below.level.entries
        return [
            min(self._closing(entries[parent][0].after(0)).cost + outside[parent] for parent in parents)
            for _, parents in level.entries
        ]

    def _outside_of_entries(self, configuration: ParseStack) -> tuple[int, ...]:
        """The same for the entries of a configuration's own level; kept, and found from the bottom up."""
        found = self._outside.get(configuration)
        if found is not None:
            return found
        missing = [configuration]
        while missing[-1].below is not None and missing[-1].below not in self._outside:
            missing.append(missing[-1].below)
        for place in reversed(missing):
            if place.below is None:
                self._outside[place] = (0,) * len(place.level.entries)
            else:
                self._outside[place] = tuple(self._outside_of(place.below, place.level))
        return self._outside[configuration]

    def _closing(self, node: ThreadPosition) -> ShortestEnding:
        """The shortest way to close the container that a node stands in.

        A shortest way never leads through another container that stands where this one does: closing that one
        alone would take as much. While a node is being looked at, ways through it are therefore no ways; what
        was found without them is kept only where nothing is being looked at any more.
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
        frame = node.frame
        if isinstance(frame, DocumentKind):
            options = frame.moves(node).options
            return self._begin_value(frame, options) if options else _AT_END
        if not isinstance(frame, ObjectKind | ArrayKind):
            raise TypeError("only containers are closed")
        if frame.must_be_blank(node):
            return ShortestEnding(self._written(node, frame).cost, _BLANK)
        return self._written(node, frame)

    def _written(self, node: ThreadPosition, frame: ObjectKind | ArrayKind) -> ShortestEnding:
        shape, progress = frame.shape, node.progress
        punctuation, options = frame.moves(node)
        for closing in (CLOSE_ARRAY, CLOSE_OBJECT):
            if closing in punctuation:
                return ShortestEnding(1, bytes((closing,)))
        if COMMA in punctuation:
            return ShortestEnding(shape.shortest(progress), _COMMA)
        colon = punctuation.get(COLON)
        if type(colon) is ThreadPosition:
            return ShortestEnding(1 + self._closing(colon).cost, _COLON)
        if options:
            return self._begin_value(frame, options)
        assert type(frame) is ObjectKind
        keys = frame.shape.keys(progress)
        assert keys is not None  # an object that cannot be closed goes on

        def behind_key(label: int) -> int:
            return self._closing(frame.node(BEFORE_COLON, progress, label)).cost

        # What the shape counts from behind a member includes a comma.
        least = shape.shortest(progress) - 1
        return ShortestEnding(_best_ending(keys, 0, behind_key, _BEHIND_KEY, None, least)[0], _QUOTE)

    def _begin_value(
        self, frame: ObjectKind | ArrayKind | DocumentKind, options: tuple[Option, ...]
    ) -> ShortestEnding:
        """Write the value that leads to the shortest end, and close behind it."""
        ways = []
        for value, progress in options:
            inside = frame.node(INSIDE, progress)
            expected = self._untouched(inside)

            def behind(label: int, inside: ThreadPosition = inside) -> int:
                return self._closing(inside.after(label)).cost

            for leaf in value.leaves:
                cost, text, _ = _best_ending(leaf, 0, behind, _BEHIND_VALUE, expected)
                ways.append(ShortestEnding(cost, text[:1]))
            for array in value.arrays:
                if ways and array.shortest(array.start()) + behind(0) > min(ways).cost:
                    continue
                opened = self._frames.array(array).node(OPENED, array.start())
                ways.append(ShortestEnding(1 + self._closing(opened).cost + behind(0), b"["))
            for shape in value.objects:
                if ways and shape.shortest(shape.start()) + behind(0) > min(ways).cost:
                    continue
                opened = self._frames.object(shape).node(OPENED, shape.start())
                ways.append(ShortestEnding(1 + self._closing(opened).cost + behind(0), b"{"))
        return min(ways)


def _best_ending(
    leaf: Leaf,
    state: int,
    behind: Callable[[int], int],
    floor: int,
    expected: int | None,
    least: int = 0,
) -> tuple[int, bytes, int]:
    """Find how a leaf's text ends best, if what follows depends on its label.

    Args:
        leaf: The leaf.
        state: Where its text stands.
        behind: What follows costs, by label.
        floor: It never costs less.
        expected: What follows costs if the label makes no difference; None: it does.
        least: The text with what follows never costs less.

    Returns:
        (cost with what follows, text to write, label), the cheapest, of those the first in byte order.
    """
    if expected is not None:
        text = leaf.shortest(state)
        label = leaf.label(_follow(leaf, state, text))
        if behind(label) <= expected:
            return len(text) + behind(label), text, label
    best: tuple[int, bytes, int] | None = None
    labels: set[int] = set()
    reached: dict[int, bytes] = {state: b""}
    frontier = [state]
    while frontier:
        if best is not None and len(reached[frontier[0]]) + floor > best[0]:
            break
        following: list[int] = []
        for place in frontier:
            check_time()
            text = reached[place]
            label = leaf.label(place)
            if label >= 0 and label not in labels:
                labels.add(label)
                found = (len(text) + behind(label), text, label)
                best = found if best is None else min(best, found)
            if best is not None and (best[0] <= least or len(reached) > _ENOUGH_PLACES):
                return best
            edges = leaf.edges(place)
            for byte in range(256) if edges is None else sorted(edges):
                after = leaf.step(place, byte)
                if after >= 0 and after not in reached:
                    reached[after] = text + bytes((byte,))
                    following.append(after)
        frontier = following
    assert best is not None  # every state of a leaf can reach a final one
    return best


def _follow(leaf: Leaf, state: int, text: bytes) -> int:
    for byte in text:
        state = leaf.step(state, byte)
    return state
