"""Defines the positions of NFA threads within one value, and the rules of whitespace.

A position is in a leaf's text, or at one place of an array, an object or the document. It knows nothing of
what encloses it. Reading a byte, it

- goes on within its value: another `ThreadPosition`;
- begins a value inside: `Pushes`, its own next positions and, for each, those inside;
- ends its value with this byte: an int, the label of the value (0 for containers);
- or dies: None.

Every byte means the same of these for all positions that the same text leads to, because the bytes alone
decide how deep a JSON text is nested.

The whitespace read at a place of a container is one int, part of the position's identity: `START` before any,
`CLOSED` when no more may come, otherwise the number of blanks that may still follow a line break.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field
from typing import Protocol

from genret.decoding.grammar.compile_options import GrammarOptions
from genret.decoding.grammar.leaves.leaf import Leaf

START = 0
CLOSED = -1
BLANK = 0x20
LINE_BREAK = 0x0A


class Whitespace:
    """The whitespace rules of one grammar."""

    __slots__ = ("_max_indent", "is_free", "is_spaced")

    def __init__(self, options: GrammarOptions) -> None:
        self.is_free = options.whitespace == "flexible"  # Whitespace may, but need not, stand anywhere
        self.is_spaced = options.whitespace == "spaced"  # A blank must stand behind every comma and colon
        self._max_indent = options.max_indent

    def after(self, state: int, byte: int, is_behind_separator: bool) -> int | None:
        """Read one byte of whitespace, `BLANK` or `LINE_BREAK`; None if it is not allowed."""
        if state == CLOSED:
            return None
        if not self.is_free:
            return CLOSED if self.is_spaced and is_behind_separator and byte == BLANK else None
        if byte == BLANK:
            return state - 1 if state > 1 else CLOSED
        if state == START:
            return self._max_indent or CLOSED
        return None

    def must_come(self, state: int, is_behind_separator: bool) -> bool:
        """Whether only whitespace may stand at the place now."""
        return self.is_spaced and is_behind_separator and state == START

    def bytes_at(self, state: int, is_behind_separator: bool) -> tuple[int, ...]:
        """The bytes of whitespace that may stand at the place now."""
        if state == CLOSED:
            return ()
        if self.is_free:
            return (LINE_BREAK, BLANK) if state == START else (BLANK,)
        return (BLANK,) if self.is_spaced and is_behind_separator else ()


Pushes = tuple[tuple["ThreadPosition", tuple["ThreadPosition", ...]], ...]

UNREAD = object()


class ValueKind(Protocol):
    """The rules for one kind of value."""

    def read(self, node: ThreadPosition, byte: int) -> ThreadPosition | Pushes | int | None:
        """Read a byte at a position of this kind."""

    def out_bytes(self, node: ThreadPosition) -> tuple[int, ...] | None:
        """The bytes that may be allowed at a position, ascending; None if they are too many to list."""

    def after(self, node: ThreadPosition, label: int) -> ThreadPosition:
        """The position behind the value inside."""

    def keep(self, node: ThreadPosition) -> None:
        """Know a position again after everything was forgotten."""


@dataclass(slots=True, eq=False, repr=False)
class ThreadPosition:
    """A position within one value. Equal only to itself: made once by its kind."""

    id: int  # Number in the order of making, for sorting that does not depend on hashes
    kind: ValueKind
    phase: int  # Place of a container; 0 in leaves
    progress: Hashable  # Of the container's shape; in a leaf its state
    key_label: int = -1  # Label of the key whose value comes next in an object; -1 elsewhere
    blanks: int = START  # Whitespace read at the place
    label: int = -1  # Label of the text so far if it is a whole leaf, else -1
    _out: object = field(default=UNREAD, init=False)
    _readings: dict[int, ThreadPosition | Pushes | int | None] = field(default_factory=dict, init=False)
    _after: dict[int, ThreadPosition] = field(default_factory=dict, init=False)

    @property
    def out(self) -> tuple[int, ...] | None:
        """Bytes that may be allowed, ascending; None if they are too many to list."""
        if self._out is UNREAD:
            self._out = self.kind.out_bytes(self)
        return self._out  # type: ignore[return-value]

    def read(self, byte: int) -> ThreadPosition | Pushes | int | None:
        """Read one byte."""
        reading = self._readings.get(byte, UNREAD)
        if reading is UNREAD:
            reading = self._readings[byte] = self.kind.read(self, byte)
        return reading  # type: ignore[return-value]

    def after(self, label: int) -> ThreadPosition:
        """The position behind the value inside, which had this label."""
        node = self._after.get(label)
        if node is None:
            node = self._after[label] = self.kind.after(self, label)
        return node

    def clear(self) -> None:
        """Forget what has been read."""
        self._readings = {}
        self._after = {}


class ScalarKind:
    """The texts of a leaf that are numbers, or those that are not.

    Numbers end where something else begins, all others with their last byte.
    """

    __slots__ = ("_nodes", "_numbers", "is_number", "leaf")

    def __init__(self, leaf: Leaf, is_number: bool, numbers: Iterator[int]) -> None:
        self.leaf = leaf
        self.is_number = is_number
        self._numbers = numbers
        self._nodes: dict[int, ThreadPosition] = {}

    def node(self, state: int) -> ThreadPosition:
        """The position of a state of the leaf."""
        node = self._nodes.get(state)
        if node is None:
            label = self.leaf.label(state)
            node = self._nodes[state] = ThreadPosition(next(self._numbers), self, 0, state, -1, START, label)
        return node

    def clear(self) -> None:
        """Forget all positions."""
        self._nodes = {}

    def keep(self, node: ThreadPosition) -> None:
        """Know a position again."""
        self._nodes[node.progress] = node  # type: ignore[index]

    def read(self, node: ThreadPosition, byte: int) -> ThreadPosition | int | None:
        """Follow the leaf's automaton; a text that is no number ends when nothing can follow."""
        leaf = self.leaf
        state = leaf.step(node.progress, byte)  # type: ignore[arg-type]
        if state < 0:
            return None
        if not self.is_number and not leaf.goes_on(state):
            return leaf.label(state)
        return self.node(state)

    def out_bytes(self, node: ThreadPosition) -> tuple[int, ...] | None:
        """The bytes that the leaf lists."""
        edges = self.leaf.edges(node.progress)  # type: ignore[arg-type]
        return None if edges is None else tuple(sorted(edges))

    def after(self, node: ThreadPosition, label: int) -> ThreadPosition:
        """Not possible: nothing begins inside a leaf."""
        raise TypeError("a leaf has no values inside")
