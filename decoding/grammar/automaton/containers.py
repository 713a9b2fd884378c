"""Defines the kinds of containers: punctuation, whitespace and inner values of arrays, objects, the document.

The rules of JSON are in `moves` of each kind: a comma only if another member may follow, a closing bracket
only if the container can close. Reading, masks and the search for shortest ends all use it.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from itertools import count
from typing import Generic, NamedTuple, TypeVar

from genret.decoding.grammar.automaton.nodes import (
    BLANK,
    LINE_BREAK,
    START,
    Pushes,
    ScalarKind,
    ThreadPosition,
    Whitespace,
)
from genret.decoding.grammar.compile_options import GrammarOptions
from genret.decoding.grammar.leaves.leaf import Leaf
from genret.decoding.grammar.shapes import ArrayShape, ObjectShape, Option, Shape, ValueNode

QUOTE, COMMA, COLON = 0x22, 0x2C, 0x3A
OPEN_ARRAY, CLOSE_ARRAY, OPEN_OBJECT, CLOSE_OBJECT = 0x5B, 0x5D, 0x7B, 0x7D
NUMBER_STARTS = frozenset(b"-0123456789")
# All bytes that a JSON value can begin with, ascending.
_VALUE_STARTS = tuple(sorted(b'"-0123456789[fnt{'))

# Places of containers. OPENED: a first member or the closing bracket follows. MEMBER, behind a comma: only a
# member follows. INSIDE, INSIDE_KEY: a value, a key is being written.
OPENED, MEMBER, INSIDE_KEY, BEFORE_COLON, VALUE, INSIDE, BEHIND = range(7)
IS_BEHIND_SEPARATOR = (False, True, False, False, True, False, False)
DONE = BEHIND
_BLANKS = frozenset((BLANK, LINE_BREAK))


class ValueStarts:
    """The beginnings of a value node, by first byte."""

    __slots__ = ("_children", "_kinds", "_out", "value")

    def __init__(self, value: ValueNode, kinds: ValueKinds) -> None:
        self.value = value
        self._kinds = kinds
        self._children: dict[int, tuple[ThreadPosition, ...]] = {}
        self._out: tuple[int, ...] | None = None

    def children(self, byte: int) -> tuple[ThreadPosition, ...]:
        """The positions behind the first byte of the value."""
        children = self._children.get(byte)
        if children is None:
            children = self._children[byte] = tuple(self._find(byte))
        return children

    @property
    def out_bytes(self) -> tuple[int, ...]:
        """The bytes that the value can begin with, ascending."""
        out = self._out
        if out is None:
            value = self.value
            found = {OPEN_ARRAY} if value.arrays else set()
            if value.objects:
                found.add(OPEN_OBJECT)
            for leaf in value.leaves:
                found.update(_first_bytes(leaf))
            out = self._out = tuple(sorted(found))
        return out

    def _find(self, byte: int) -> Iterable[ThreadPosition]:
        kinds, value = self._kinds, self.value
        if byte not in _VALUE_STARTS:
            return []
        is_number = byte in NUMBER_STARTS
        found: dict[ThreadPosition, None] = {}
        if byte in (OPEN_ARRAY, OPEN_OBJECT):
            for shape in value.arrays if byte == OPEN_ARRAY else value.objects:
                found[kinds.container(shape).node(OPENED, shape.start())] = None
        for leaf in value.leaves:
            state = leaf.step(0, byte)
            if state >= 0:
                found[kinds.leaf(leaf, is_number).node(state)] = None
        return found


class Moves(NamedTuple):
    """The ways on from a position of a container, without whitespace."""

    # Reading of each byte: the position behind a comma or a colon, the key that a quote begins, 0 for the
    # bracket that closes the container.
    punctuation: Mapping[int, ThreadPosition | Pushes | int]
    options: tuple[Option, ...] = ()  # Values that may begin here


class _Container:
    """The positions of one container, by place, progress, label of the key and whitespace."""

    __slots__ = ("_kinds", "_nodes", "_whitespace")

    def __init__(self, kinds: ValueKinds) -> None:
        self._kinds = kinds
        self._whitespace = kinds.whitespace
        self._nodes: dict[tuple[int, Hashable, int, int], ThreadPosition] = {}

    def node(
        self, phase: int, progress: Hashable, key_label: int = -1, blanks: int = START
    ) -> ThreadPosition:
        """The position at a place."""
        key = (phase, progress, key_label, blanks)
        node = self._nodes.get(key)
        if node is None:
            number = next(self._kinds.numbers)
            node = self._nodes[key] = ThreadPosition(number, self, phase, progress, key_label, blanks)
        return node

    def clear(self) -> None:
        """Forget all positions."""
        self._nodes = {}

    def keep(self, node: ThreadPosition) -> None:
        self._nodes[node.phase, node.progress, node.key_label, node.blanks] = node

    def read(self, node: ThreadPosition, byte: int) -> ThreadPosition | Pushes | int | None:
        """Read one byte: whitespace, or one of `moves`."""
        if byte in _BLANKS:
            blanks = self._whitespace.after(node.blanks, byte, IS_BEHIND_SEPARATOR[node.phase])
            return None if blanks is None else self.node(node.phase, node.progress, node.key_label, blanks)
        if self._whitespace.is_spaced and self.must_be_blank(node):
            return None
        punctuation, options = self.moves(node)
        reading = punctuation.get(byte)
        return self._begin(options, byte) if reading is None and options else reading

    def moves(self, node: ThreadPosition) -> Moves:
        """The ways on from a position, without whitespace."""
        raise NotImplementedError

    def out_bytes(self, node: ThreadPosition) -> tuple[int, ...]:
        """Whitespace, then punctuation and beginnings of values."""
        is_behind_separator = IS_BEHIND_SEPARATOR[node.phase]
        blanks = self._whitespace.bytes_at(node.blanks, is_behind_separator)
        if self.must_be_blank(node):
            return blanks
        punctuation, options = self.moves(node)
        first = self._first_bytes(options) if options else ()
        return blanks + (tuple(sorted((*first, *punctuation))) if punctuation else first)

    def must_be_blank(self, node: ThreadPosition) -> bool:
        """Whether a position allows only whitespace."""
        return self._whitespace.must_come(node.blanks, IS_BEHIND_SEPARATOR[node.phase])

    def after(self, node: ThreadPosition, label: int) -> ThreadPosition:
        """The position behind the value inside."""
        raise NotImplementedError

    def _begin(self, options: tuple[Option, ...], byte: int) -> Pushes | None:
        """Begin a value with its first byte: one parent for each progress that the options lead to."""
        if len(options) == 1:
            ((value, progress),) = options
            children = self._kinds.starts(value).children(byte)
            return ((self.node(INSIDE, progress), children),) if children else None
        begun: dict[ThreadPosition, dict[ThreadPosition, None]] = {}
        for value, progress in options:
            children = self._kinds.starts(value).children(byte)
            if children:
                begun.setdefault(self.node(INSIDE, progress), {}).update(dict.fromkeys(children))
        return tuple((parent, tuple(children)) for parent, children in begun.items()) or None

    def _first_bytes(self, options: Iterable[Option]) -> tuple[int, ...]:
        starts = [self._kinds.starts(value).out_bytes for value, _ in options]
        return starts[0] if len(starts) == 1 else tuple(sorted({byte for out in starts for byte in out}))


S = TypeVar("S", bound=Shape)


class _ShapeKind(_Container, Generic[S]):
    """Containers of one shape."""

    __slots__ = ("_options", "shape")

    def __init__(self, shape: S, kinds: ValueKinds) -> None:
        super().__init__(kinds)
        self.shape = shape
        self._options: dict[tuple[Hashable, int], tuple[Option, ...]] = {}

    def clear(self) -> None:
        """Forget all positions, and the options of members."""
        super().clear()
        self._options = {}

    def after(self, node: ThreadPosition, label: int) -> ThreadPosition:
        """The position before a key's colon, or behind a value."""
        if node.phase == INSIDE_KEY:
            return self.node(BEFORE_COLON, node.progress, label)
        return self.node(BEHIND, self.shape.after_value(node.progress, label))


class ObjectKind(_ShapeKind[ObjectShape]):
    """Objects of one shape."""

    __slots__ = ()

    def moves(self, node: ThreadPosition) -> Moves:
        """Colon and value behind a key; otherwise another key, a comma before one, or the end."""
        phase, shape, progress = node.phase, self.shape, node.progress
        if phase == VALUE:
            key = (progress, node.key_label)
            options = self._options.get(key)
            if options is None:
                options = self._options[key] = shape.after_key(*key)
            return Moves({}, options)
        if phase == BEFORE_COLON:
            return Moves({COLON: self.node(VALUE, progress, node.key_label)})
        punctuation: dict[int, ThreadPosition | Pushes | int] = {}
        keys = shape.keys(progress)
        if keys is not None and phase == BEHIND:
            punctuation[COMMA] = self.node(MEMBER, progress)
        elif keys is not None:
            first = self._kinds.leaf(keys, False).node(keys.step(0, QUOTE))
            punctuation[QUOTE] = ((self.node(INSIDE_KEY, progress), (first,)),)
        if phase != MEMBER and shape.can_close(progress):
            punctuation[CLOSE_OBJECT] = 0
        return Moves(punctuation)


class ArrayKind(_ShapeKind[ArrayShape]):
    """Arrays of one shape."""

    __slots__ = ()

    def moves(self, node: ThreadPosition) -> Moves:
        """An item, a comma before one, or the end."""
        phase, shape, progress = node.phase, self.shape, node.progress
        options = self._options.get((progress, 0))
        if options is None:
            options = self._options[progress, 0] = shape.items(progress)
        punctuation: dict[int, ThreadPosition | Pushes | int] = {}
        if phase != MEMBER and shape.can_close(progress):
            punctuation[CLOSE_ARRAY] = 0
        if phase != BEHIND:
            return Moves(punctuation, options)
        if options:
            punctuation[COMMA] = self.node(MEMBER, progress)
        return Moves(punctuation)


class DocumentKind(_Container):
    """The one value of a text. Nothing stands before or behind it."""

    __slots__ = ("_options",)

    def __init__(self, value: ValueNode, kinds: ValueKinds) -> None:
        super().__init__(kinds)
        self._whitespace = Whitespace(GrammarOptions(whitespace="compact"))
        self._options = (Option(value, None),)

    def moves(self, node: ThreadPosition) -> Moves:
        """The value, once."""
        return Moves({}, self._options if node.phase == OPENED else ())

    def after(self, node: ThreadPosition, label: int) -> ThreadPosition:
        """The end behind the value."""
        return self.node(DONE, None)


class ValueKinds:
    """The value kinds of one grammar, one for each leaf and shape."""

    def __init__(self, options: GrammarOptions) -> None:
        self.whitespace = Whitespace(options)
        self.numbers = count()  # For new positions
        self.own_leaves: dict[Hashable, Leaf] = {}  # Leaves that no other grammar has, by key
        self._leaves: dict[tuple[Hashable, bool], ScalarKind] = {}
        self._containers: dict[int, ArrayKind | ObjectKind] = {}
        self._starts: dict[int, ValueStarts] = {}

    def leaf(self, leaf: Leaf, is_number: bool) -> ScalarKind:
        """The kind of a leaf."""
        key = (leaf.key, is_number)
        kind = self._leaves.get(key)
        if kind is None:
            kind = self._leaves[key] = ScalarKind(leaf, is_number, self.numbers)
            self._own(leaf)
        return kind

    def clear(self, kept: set[ThreadPosition]) -> None:
        """Forget all positions but some, and everything that can be found again."""
        for known in (*self._leaves.values(), *self._containers.values()):
            known.clear()
        self._leaves = {}
        self._starts = {}
        self.own_leaves = {}
        for node in kept:
            kind = node.kind
            kind.keep(node)
            if type(kind) is ScalarKind:
                self._leaves[kind.leaf.key, kind.is_number] = kind
                self._own(kind.leaf)

    def drop(self) -> None:
        """Let go of all kinds, at the end."""
        self.clear(set())
        self._containers = {}

    def _own(self, leaf: Leaf) -> None:
        if not leaf.is_shared:
            self.own_leaves[leaf.key] = leaf

    # Shapes and value nodes are known by `id`; the kinds hold them, so no id is used twice.
    def container(self, shape: ArrayShape | ObjectShape) -> ArrayKind | ObjectKind:
        """The kind of a shape."""
        kind = self._containers.get(id(shape))
        if kind is None:
            kind = ArrayKind(shape, self) if isinstance(shape, ArrayShape) else ObjectKind(shape, self)
            self._containers[id(shape)] = kind
        return kind

    def starts(self, value: ValueNode) -> ValueStarts:
        """The beginnings of a value node."""
        starts = self._starts.get(id(value))
        if starts is None:
            starts = self._starts[id(value)] = ValueStarts(value, self)
        return starts


def _first_bytes(leaf: Leaf) -> Iterable[int]:
    edges = leaf.edges(0)
    return [byte for byte in _VALUE_STARTS if leaf.step(0, byte) >= 0] if edges is None else edges
