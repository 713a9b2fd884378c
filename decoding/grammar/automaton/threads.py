"""Finds the tokens that a single thread lets through without making nodes and levels: a fast path of `Walk`.

Almost every place that tokens pass on their way, behind a comma or in front of a key, is passed by one
thread only. What it does there is what its frame says; only where it splits in two do levels have to be made,
so that alternatives run in lockstep. What tokens write of the whitespace at one place, and where they may go
on behind it, is found once for all grammars and kept with the place in the trie.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import NamedTuple, Protocol

from decoding.grammar.automaton.configurations import Configuration, Configurations
from decoding.grammar.automaton.containers import (
    BEFORE_COLON,
    BEHIND,
    CLOSE_ARRAY,
    CLOSE_OBJECT,
    COLON,
    COMMA,
    DONE,
    INSIDE,
    INSIDE_KEY,
    IS_BEHIND_SEPARATOR,
    MEMBER,
    NUMBER_STARTS,
    OPEN_ARRAY,
    OPEN_OBJECT,
    OPENED,
    QUOTE,
    VALUE,
    ArrayFrame,
    DocumentFrame,
    Frames,
    ObjectFrame,
)
from decoding.grammar.automaton.cursor import Enclosing, made
from decoding.grammar.automaton.levels import Entry, Level, Levels
from decoding.grammar.automaton.nodes import START, LeafFrame, Whitespace
from decoding.grammar.leaves.leaf import Leaf, LeafTokens, SparseLeaf
from decoding.grammar.shapes import Option
from decoding.grammar.token_trie import TokenNode

_ONLY = (0,)
_Container = ArrayFrame | ObjectFrame | DocumentFrame


Below = Enclosing | Configuration | None
# A place of the trie with the container's frame, phase, progress, key label and blanks there, its parents,
# what is below, and how much higher than the start's it is.
_Place = tuple[TokenNode, _Container, int, Hashable, int, int, tuple[int, ...], Below, int]


class WholeWalk(Protocol):
    """The walk that threads are a part of: takes tokens, and goes on where they meet or split."""

    tokens: list[int]
    inside: list[LeafTokens]
    configurations: Configurations

    def follow(
        self, node: TokenNode, level: Level, out: tuple[int, ...], below: Configuration | None, height: int
    ) -> None:
        """Follow every byte that a level lists."""

    def look_at(self, height: int) -> None:
        """Count the levels down to one that is so much higher than the start's."""

    def go_on_behind(
        self, node: TokenNode, parents: tuple[int, ...], label: int, below: Configuration, height: int
    ) -> None:
        """Go on at a place of the trie behind a value that has ended."""


class Threads:
    """Single threads of one walk.

    Args:
        walk: Takes what is found, and walks on where a thread splits.
        levels: Of the grammar.
    """

    __slots__ = ("_frames", "_levels", "_waiting", "_walk")

    def __init__(self, walk: WholeWalk, levels: Levels) -> None:
        self._walk = walk
        self._levels = levels
        self._frames: Frames = levels.frames
        self._waiting: list[_Place] = []

    def follow(self, node: TokenNode, entry: Entry, below: Configuration | None, height: int) -> None:
        """Walk from the only entry of a level."""
        place, parents = entry
        frame = place.frame
        if type(frame) is LeafFrame:
            state: int = place.progress  # type: ignore[assignment]
            leaf = frame.leaf
            if type(leaf) is SparseLeaf and not frame.is_number:
                self._texts(node, leaf, state, parents, below, height)
            else:
                self._leaf(node, leaf, state, frame.is_number, parents, below, height)
        else:
            begin = (node, frame, place.phase, place.progress, place.key_label, place.blanks)
            self._waiting.append((*begin, parents, below, height))  # type: ignore[arg-type]
        waiting = self._waiting
        while waiting:
            found = waiting.pop()
            kind = type(found[1])
            if kind is ObjectFrame:
                self._object(*found)  # type: ignore[arg-type]
            elif kind is ArrayFrame:
                self._array(*found)  # type: ignore[arg-type]
            elif found[2] != DONE:
                self._document(*found)  # type: ignore[arg-type]

    def _object(
        self,
        node: TokenNode,
        frame: ObjectFrame,
        phase: int,
        progress: Hashable,
        key_label: int,
        blanks: int,
        parents: tuple[int, ...],
        below: Below,
        height: int,
    ) -> None:
        tokens, whitespace, shape = self._walk.tokens, self._frames.whitespace, frame.shape
        gap = gap_at(node, whitespace, blanks, IS_BEHIND_SEPARATOR[phase])
        tokens += gap.tokens
        children = gap.rest.children
        if phase == BEFORE_COLON:
            child = children.get(COLON)
            if child is None:
                return
            tokens += child.tokens
            node, phase, blanks = child, VALUE, START
            gap = gap_at(child, whitespace, START, True)
            tokens += gap.tokens
            children = gap.rest.children
        if not children:
            return
        if phase == VALUE:
            options = frame.options_at(progress, key_label)
            if not self._begin(gap.rest, frame, options, parents, below, height):
                self._split(node, frame, phase, progress, key_label, blanks, parents, below, height)
            return
        if phase != MEMBER:
            child = children.get(CLOSE_OBJECT)
            if child is not None and shape.can_close(progress):
                tokens += child.tokens
                if child.children:
                    self._end(child, 0, parents, below, height)
        keys = shape.keys(progress)
        if keys is None:
            return
        if phase == BEHIND:
            child = children.get(COMMA)
            if child is None:
                return
            tokens += child.tokens
            gap = gap_at(child, whitespace, START, True)
            tokens += gap.tokens
            children = gap.rest.children
        child = children.get(QUOTE)
        if child is not None:
            tokens += child.tokens
            if child.children:
                inside = made(Enclosing, (frame, INSIDE_KEY, progress, parents, below))
                self._leaf(child, keys, keys.step(0, QUOTE), False, _ONLY, inside, height + 1)

    def _array(
        self,
        node: TokenNode,
        frame: ArrayFrame,
        phase: int,
        progress: Hashable,
        key_label: int,
        blanks: int,
        parents: tuple[int, ...],
        below: Below,
        height: int,
    ) -> None:
        tokens, whitespace = self._walk.tokens, self._frames.whitespace
        gap = gap_at(node, whitespace, blanks, phase == MEMBER)
        tokens += gap.tokens
        children = gap.rest.children
        if phase != MEMBER:
            child = children.get(CLOSE_ARRAY)
            if child is not None and frame.shape.can_close(progress):
                tokens += child.tokens
                if child.children:
                    self._end(child, 0, parents, below, height)
        options = frame.options_at(progress)
        if not options:
            return
        if phase == BEHIND:
            child = children.get(COMMA)
            if child is None:
                return
            tokens += child.tokens
            node, phase, blanks = child, MEMBER, START
            gap = gap_at(child, whitespace, START, True)
            tokens += gap.tokens
            children = gap.rest.children
        if children and not self._begin(gap.rest, frame, options, parents, below, height):
            self._split(node, frame, phase, progress, key_label, blanks, parents, below, height)

    def _document(
        self,
        node: TokenNode,
        frame: DocumentFrame,
        phase: int,
        progress: Hashable,
        key_label: int,
        blanks: int,
        parents: tuple[int, ...],
        below: Below,
        height: int,
    ) -> None:
        if not self._begin(node, frame, frame.value_options, parents, below, height):
            self._split(node, frame, phase, progress, key_label, blanks, parents, below, height)

    def _begin(
        self,
        node: TokenNode,
        frame: _Container,
        options: tuple[Option, ...],
        parents: tuple[int, ...],
        below: Below,
        height: int,
    ) -> bool:
        """Begin a value right behind a node of the trie; False, and nothing done, if the thread may split."""
        if len(options) != 1:
            return False
        ((value, progress),) = options
        if not self._frames.is_single(value):
            return False
        inside = made(Enclosing, (frame, INSIDE, progress, parents, below))
        children, tokens, height = node.children, self._walk.tokens, height + 1
        for array in value.arrays:
            child = children.get(OPEN_ARRAY)
            if child is not None:
                tokens += child.tokens
                at = (child, self._frames.array(array), OPENED, array.start(), -1, START, _ONLY)
                self._waiting.append((*at, inside, height))
        for shape in value.objects:
            child = children.get(OPEN_OBJECT)
            if child is not None:
                tokens += child.tokens
                place = (child, self._frames.object(shape), OPENED, shape.start(), -1, START, _ONLY)
                self._waiting.append((*place, inside, height))
        for leaf in value.leaves:
            if type(leaf) is SparseLeaf and not leaf.has_numbers:
                self._texts(node, leaf, 0, _ONLY, inside, height)
                continue
            edges = leaf.edges(0)
            if edges is None:
                self._take(leaf, 0, node, _ONLY, inside, height)
            else:
                self._first_bytes(leaf, edges, children, inside, height)
        return True

    def _first_bytes(
        self,
        leaf: Leaf,
        edges: Mapping[int, int],
        children: Mapping[int, TokenNode],
        inside: Enclosing,
        height: int,
    ) -> None:
        """Begin a leaf that lists what it begins with."""
        for byte, state in edges.items():
            child = children.get(byte)
            if child is None:
                continue
            self._walk.tokens += child.tokens
            if child.children:
                self._leaf(child, leaf, state, byte in NUMBER_STARTS, _ONLY, inside, height)

    def _leaf(
        self,
        root: TokenNode,
        leaf: Leaf,
        start: int,
        is_number: bool,
        parents: tuple[int, ...],
        below: Below,
        height: int,
    ) -> None:
        """Walk one leaf, and go on behind its ends."""
        if type(leaf) is SparseLeaf and not is_number:
            self._texts(root, leaf, start, parents, below, height)
            return
        tokens = self._walk.tokens
        edges_of, goes_on = leaf.edges, leaf.goes_on
        waiting: list[tuple[TokenNode, int]] = [(root, start)]
        while waiting:
            node, state = waiting.pop()
            if is_number and (label := leaf.label(state)) >= 0:
                self._end(node, label, parents, below, height)
            edges = edges_of(state)
            if edges is None:
                self._take(leaf, state, node, parents, below, height)
                continue
            children = node.children
            for byte in edges if len(edges) <= len(children) else children:
                child = children.get(byte)
                after = edges.get(byte)
                if child is None or after is None:
                    continue
                tokens += child.tokens
                if not child.children:
                    continue
                if is_number or goes_on(after):
                    waiting.append((child, after))
                else:
                    self._end(child, leaf.label(after), parents, below, height)

    def _texts(
        self,
        root: TokenNode,
        leaf: SparseLeaf,
        start: int,
        parents: tuple[int, ...],
        below: Below,
        height: int,
    ) -> None:
        """Walk a leaf of a few texts: keys and literals, which most places of most schemas are."""
        tokens, rows, node = self._walk.tokens, leaf.rows, root
        if leaf.only is not None:
            for byte in leaf.only[start:]:
                child = node.children.get(byte)
                if child is None:
                    return
                tokens += child.tokens
                node = child
            if node.children:
                self._end(node, leaf.labels[-1], parents, below, height)
            return
        labels = leaf.labels
        waiting: list[tuple[TokenNode, int]] = []
        state = start
        while True:
            row, children = rows[state], node.children
            # Where the texts have parted there is one way on.
            while len(row) == 1:
                (byte,) = row
                child = children.get(byte)
                if child is None:
                    break
                tokens += child.tokens
                children = child.children
                if not children:
                    break
                state = row[byte]
                row = rows[state]
                if not row:
                    self._end(child, labels[state], parents, below, height)
            else:
                for byte in row if len(row) <= len(children) else children:
                    child = children.get(byte)
                    after = row.get(byte)
                    if child is None or after is None:
                        continue
                    tokens += child.tokens
                    if not child.children:
                        continue
                    if rows[after]:
                        waiting.append((child, after))
                    else:
                        self._end(child, labels[after], parents, below, height)
            if not waiting:
                return
            node, state = waiting.pop()

    def _take(
        self,
        leaf: Leaf,
        state: int,
        node: TokenNode,
        parents: tuple[int, ...],
        below: Below,
        height: int,
    ) -> None:
        """Take the tokens that a leaf knows."""
        found = leaf.tokens(state, node)
        if found is not None:
            self._walk.inside.append(found)
            for label, rest in found.exits:
                self._end(rest, label, parents, below, height)

    def _end(self, node: TokenNode, label: int, parents: tuple[int, ...], below: Below, height: int) -> None:
        """Go on at a place of the trie behind a value that has ended."""
        height -= 1
        if type(below) is Enclosing:
            frame, phase, progress, parents, below = below
        else:
            assert type(below) is Configuration  # values are in something
            if len(parents) > 1:
                self._walk.go_on_behind(node, parents, label, below, height + 1)
                return
            self._walk.look_at(height)
            place, parents = below.level.entries[parents[0]]
            frame, phase, progress = place.frame, place.phase, place.progress  # type: ignore[assignment]
            below = below.below
        if type(frame) is DocumentFrame:
            return
        waiting = self._waiting
        if phase == INSIDE_KEY:
            waiting.append((node, frame, BEFORE_COLON, progress, label, START, parents, below, height))
        else:
            after = frame.shape.after_value(progress, label)  # type: ignore[union-attr]
            waiting.append((node, frame, BEHIND, after, -1, START, parents, below, height))

    def _split(
        self,
        node: TokenNode,
        frame: _Container,
        phase: int,
        progress: Hashable,
        key_label: int,
        blanks: int,
        parents: tuple[int, ...],
        below: Below,
        height: int,
    ) -> None:
        """Go on with levels, at a place whose next value may begin in several ways at once."""
        level = self._levels.level(((frame.node(phase, progress, key_label, blanks), parents),))
        out = level.out
        assert out is not None  # containers list their bytes
        self._walk.follow(node, level, out, self._walk.configurations.made(below), height)


class Gap(NamedTuple):
    """The whitespace that tokens write at one place.

    Attributes:
        tokens: Those that write nothing else before they end.
        rest: What others write behind it, none of it included, as one place of the trie: punctuation is read
            once for all the ways to write the whitespace.
    """

    tokens: tuple[int, ...]
    rest: TokenNode


def gap_at(node: TokenNode, whitespace: Whitespace, blanks: int, is_behind_separator: bool) -> Gap:
    """The whitespace behind a node of the trie; kept with the node, for all grammars.

    Args:
        node: Where the whitespace begins, or goes on.
        whitespace: The rules.
        blanks: What has been read of it.
        is_behind_separator: Whether it is behind a comma or a colon.
    """
    # One number: a tuple would be made and hashed at every place of every walk.
    key = whitespace.rules << 32 | blanks + 1 << 1 | is_behind_separator
    gap: Gap | None = node.gaps.get(key)
    if gap is None:
        gap = node.gaps[key] = _find(node, whitespace, blanks, is_behind_separator)
    return gap


def _find(node: TokenNode, whitespace: Whitespace, blanks: int, is_behind_separator: bool) -> Gap:
    tokens: list[int] = []
    places: list[TokenNode] = []
    waiting = [(node, blanks)]
    while waiting:
        place, state = waiting.pop()
        if not whitespace.must_come(state, is_behind_separator):
            places.append(place)
        for byte in whitespace.bytes_at(state, is_behind_separator):
            child = place.children.get(byte)
            after = whitespace.after(state, byte, is_behind_separator)
            if child is not None and after is not None:
                tokens += child.tokens
                waiting.append((child, after))
    going_on = [place for place in places if place.children]
    if len(going_on) == 1:
        return Gap(tuple(tokens), going_on[0])
    positions = sorted({position for place in going_on for position in place.positions})
    return Gap(tuple(tokens), TokenNode(node.trie, tuple(positions), has_tokens=False))
