"""A single thread that reads bytes: between the ends of tokens no nodes and levels are made of its places."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any, NamedTuple

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
from decoding.grammar.automaton.levels import Entry
from decoding.grammar.automaton.nodes import BLANK, LINE_BREAK, START, LeafFrame, Node
from decoding.grammar.leaves.leaf import SparseLeaf
from decoding.grammar.shapes import Option

_ONLY = (0,)
# What a byte does: the thread goes on; it dies; or more than it may go on, or in more than one way.
GOES_ON, DIES, SPLITS = range(3)


class Enclosing(NamedTuple):
    """A place that a thread began a value at, and of which no level has been made.

    Attributes:
        frame: Of the container, or of the document.
        phase: `INSIDE` or `INSIDE_KEY`.
        progress: Of the container.
        parents: Of the thread in what is below.
        below: What the container is in: another of these, or a configuration; None below the document.
    """

    frame: ObjectFrame | ArrayFrame | DocumentFrame
    phase: int
    progress: Hashable
    parents: tuple[int, ...]
    below: Any


# The constructor of a named tuple takes three times as long.
made = tuple.__new__


class Cursor:
    """One thread.

    Args:
        frames: Of the grammar.
        entry: Where it begins.
        below: The configuration below.

    Attributes:
        parents: Nodes that it is in, of what is below.
        below: What it is in, as in `Enclosing`.
        label: Of the value that ended where the thread splits below; -1 where it splits elsewhere.
    """

    __slots__ = (
        "_blanks",
        "_frame",
        "_frames",
        "_key_label",
        "_phase",
        "_progress",
        "below",
        "label",
        "parents",
    )

    def __init__(self, frames: Frames, entry: Entry, below: Any) -> None:
        node, self.parents = entry
        self._frames = frames
        self._frame: Any = node.frame
        self._phase = node.phase
        self._progress: Any = node.progress
        self._key_label = node.key_label
        self._blanks = node.blanks
        self.below = below
        self.label = -1

    @property
    def node(self) -> Node:
        """Its place."""
        frame = self._frame
        if type(frame) is LeafFrame:
            return frame.node(self._progress)
        return frame.node(self._phase, self._progress, self._key_label, self._blanks)  # type: ignore[no-any-return]

    def read(self, text: bytes, place: int) -> tuple[int, int]:
        """Read bytes from a place on: how that ended, and the place of the byte that was not read."""
        end, whitespace = len(text), self._frames.whitespace
        is_spaced = whitespace.is_spaced
        while place < end:
            byte = text[place]
            frame = self._frame
            kind = type(frame)
            if kind is LeafFrame:
                leaf, state = frame.leaf, self._progress
                if type(leaf) is SparseLeaf and not frame.is_number:
                    done, place = self._read_texts(leaf, state, text, place)
                    if done != GOES_ON:
                        return done, place
                    continue
                after = leaf.step(state, byte)
                if after >= 0:
                    place += 1
                    if frame.is_number or leaf.goes_on(after):
                        self._progress = after
                        continue
                    state = after
                label = leaf.label(state)
                done = DIES if label < 0 else self._end(label)
                if done != GOES_ON:
                    return done, place
                continue
            if kind is DocumentFrame:
                done = DIES if self._phase == DONE else self._begin(frame, frame.value_options, byte)
            elif byte == BLANK or byte == LINE_BREAK:  # noqa: SIM109
                blanks = whitespace.after(self._blanks, byte, IS_BEHIND_SEPARATOR[self._phase])
                if blanks is None:
                    return DIES, place + 1
                self._blanks = blanks
                done = GOES_ON
            elif is_spaced and whitespace.must_come(self._blanks, IS_BEHIND_SEPARATOR[self._phase]):
                return DIES, place + 1
            elif kind is ObjectFrame:
                done = self._read_object(frame, byte)
            else:
                done = self._read_array(frame, byte)
            if done != GOES_ON:
                return done, place if done == SPLITS and self.label < 0 else place + 1
            place += 1
        return GOES_ON, place

    def _read_texts(self, leaf: SparseLeaf, state: int, text: bytes, place: int) -> tuple[int, int]:
        """Read the bytes that belong to one of a few texts."""
        end, only = len(text), leaf.only
        if only is not None:
            rest = len(only) - state
            if not text.startswith(only[state:], place):
                if end - place < rest and only.startswith(text[place:], state):
                    self._progress = state + end - place
                    return GOES_ON, end
                return DIES, place
            return self._end(leaf.labels[-1]), place + rest
        rows = leaf.rows
        row = rows[state]
        while place < end and (after := row.get(text[place], -1)) >= 0:
            place += 1
            state = after
            row = rows[state]
        if row and place == end:
            self._progress = state
            return GOES_ON, place
        label = leaf.labels[state]
        return (DIES if label < 0 else self._end(label)), place

    def _read_object(self, frame: ObjectFrame, byte: int) -> int:
        phase, progress = self._phase, self._progress
        if phase == VALUE:
            return self._begin(frame, frame.options_at(progress, self._key_label), byte)
        if phase == BEFORE_COLON:
            if byte != COLON:
                return DIES
            self._phase, self._blanks = VALUE, START
            return GOES_ON
        if byte == QUOTE:
            keys = None if phase == BEHIND else frame.shape.keys(progress)
            if keys is None:
                return DIES
            self.below = made(Enclosing, (frame, INSIDE_KEY, progress, self.parents, self.below))
            self.parents = _ONLY
            self._frame = self._frames.leaf(keys, False)
            self._progress = keys.step(0, QUOTE)
            return GOES_ON
        if byte == CLOSE_OBJECT and phase != MEMBER:
            return self._end(0) if frame.shape.can_close(progress) else DIES
        if byte == COMMA and phase == BEHIND and frame.shape.keys(progress) is not None:
            self._phase, self._blanks = MEMBER, START
            return GOES_ON
        return DIES

    def _read_array(self, frame: ArrayFrame, byte: int) -> int:
        phase, progress = self._phase, self._progress
        if byte == CLOSE_ARRAY:
            return self._end(0) if phase != MEMBER and frame.shape.can_close(progress) else DIES
        options = frame.options_at(progress)
        if phase == BEHIND:
            if byte != COMMA or not options:
                return DIES
            self._phase, self._blanks = MEMBER, START
            return GOES_ON
        return self._begin(frame, options, byte) if options else DIES

    def _begin(self, frame: Any, options: tuple[Option, ...], byte: int) -> int:
        """Begin a value, if there is one way to."""
        if len(options) != 1 or not self._frames.is_single(options[0].value):
            return SPLITS
        ((value, progress),) = options
        frames = self._frames
        inner: Any
        if byte == OPEN_ARRAY or byte == OPEN_OBJECT:  # noqa: SIM109
            shapes: tuple[Any, ...] = value.arrays if byte == OPEN_ARRAY else value.objects
            if not shapes:
                return DIES
            shape = shapes[0]
            inner = frames.array(shape) if byte == OPEN_ARRAY else frames.object(shape)
            state = shape.start()
            self._phase, self._blanks = OPENED, START
        else:
            for leaf in value.leaves:
                state = leaf.step(0, byte)
                if state >= 0:
                    inner = frames.leaf(leaf, byte in NUMBER_STARTS)
                    break
            else:
                return DIES
        self.below = made(Enclosing, (frame, INSIDE, progress, self.parents, self.below))
        self.parents = _ONLY
        self._key_label = -1
        self._frame, self._progress = inner, state
        return GOES_ON

    def _end(self, label: int) -> int:
        """Go on behind a value that has ended."""
        below = self.below
        frame: Any
        if type(below) is Enclosing:
            frame, phase, progress, self.parents, self.below = below
        elif len(self.parents) > 1:
            self.label = label
            return SPLITS
        else:
            node, self.parents = below.level.entries[self.parents[0]]
            self.below = below.below
            frame, phase, progress = node.frame, node.phase, node.progress
        self._frame = frame
        self._blanks = START
        self._key_label = -1
        if phase == INSIDE_KEY:
            self._phase, self._progress, self._key_label = BEFORE_COLON, progress, label
        elif type(frame) is DocumentFrame:
            self._phase, self._progress = DONE, None
        else:
            self._phase, self._progress = BEHIND, frame.shape.after_value(progress, label)
        return GOES_ON
