"""Finds the leaves that wrote the strings of a finished text.

The text is read once more, this time with the way to every position. Then the ways to the end are followed
back: a string counts only if it lies on one of them, not if an alternative wrote it and died later.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import NamedTuple

from genret.decoding.grammar.automaton.containers import INSIDE_KEY, ArrayKind, DocumentKind, ValueKinds
from genret.decoding.grammar.automaton.nodes import ScalarKind, ThreadPosition
from genret.decoding.grammar.leaves.leaf import TitleSlotLeaf
from genret.decoding.grammar.schema.schema_document import escaped_step
from genret.decoding.grammar.shapes import ValueNode


class TracedString(NamedTuple):
    """A string that a title slot wrote.

    Attributes:
        pointer: JSON pointer of the string in the text.
        leaf: Leaf of the title slot.
        state: Final state of the leaf.
        begin: Index of the opening quote.
        end: Index behind the closing quote.
    """

    pointer: str
    leaf: TitleSlotLeaf
    state: int
    begin: int
    end: int


class _Vertex:
    """A position at one moment, and the ways to it.

    Attributes:
        node: Position; in a leaf, the one behind its first byte.
        state: State of the leaf, which is followed without new positions.
        parents: Vertices of the segment below that contain it.
        before: Vertices that led here: the last one in the same value, or the one in which a value was begun,
            with the value's last.
        string: String of a title slot that ends here.
    """

    __slots__ = ("before", "node", "parents", "state", "string")

    def __init__(self, node: ThreadPosition, parents: list[_Vertex]) -> None:
        self.node = node
        self.state: int = node.progress if type(node.kind) is ScalarKind else 0  # type: ignore[assignment]
        self.parents = parents
        self.before: list[tuple[_Vertex, _Vertex | None]] = []
        self.string: TracedString | None = None


class _TracedSegment:
    """The living vertices at one depth.

    Attributes:
        step: Step to the value inside: an index, or a key as JSON pointers spell it; -1 before the first.
        begin: Index of the value's first byte.
    """

    __slots__ = ("begin", "step", "vertices")

    def __init__(self, vertices: list[_Vertex], begin: int) -> None:
        self.vertices = vertices
        self.step: int | str = -1
        self.begin = begin


class Tracer:
    """Reads one text.

    Args:
        value: Value node of the text.
        kinds: Value kinds of the grammar.
        text: The text.
    """

    def __init__(self, value: ValueNode, kinds: ValueKinds, text: bytes) -> None:
        document = DocumentKind(value, kinds)
        self._text = text
        self._stack = [_TracedSegment([_Vertex(document.node(0, None), [])], 0)]
        self._place = 0

    def strings(self) -> list[TracedString] | None:
        """The strings that title slots wrote, in order; None if the text is no whole document."""
        for place, byte in enumerate(self._text):
            self._place = place
            if not self._read(byte):
                return None
        self._place = len(self._text)
        if len(self._stack) == 2 and self._is_leaf():
            self._end_number()
        (done, *above) = self._stack
        if above or not done.vertices or done.vertices[0].node.read(0x30) is not None:
            return None
        if not all(vertex.before for vertex in done.vertices):
            return None
        found = {vertex.string for vertex in self._alive(done.vertices) if vertex.string is not None}
        return sorted(found, key=lambda string: (string.begin, repr(string.leaf.name)))

    def _is_leaf(self) -> bool:
        vertices = self._stack[-1].vertices
        return bool(vertices) and type(vertices[0].node.kind) is ScalarKind

    def _read(self, byte: int) -> bool:
        """Read one byte. Returns whether anything is alive behind it."""
        if self._is_leaf():
            if self._read_in_leaf(byte):
                return True
            if not self._end_number():
                return False
        return self._read_in_container(byte)

    def _read_in_leaf(self, byte: int) -> bool:
        moved: list[_Vertex] = []
        ended: list[tuple[_Vertex, int]] = []
        for vertex in self._stack[-1].vertices:
            kind = vertex.node.kind
            assert type(kind) is ScalarKind  # a segment is in leaves, or it is not
            state = kind.leaf.step(vertex.state, byte)
            if state < 0:
                continue
            if kind.is_number or kind.leaf.goes_on(state):
                moved.append(vertex)
            else:
                ended.append((vertex, kind.leaf.label(state)))
            vertex.state = state
        if moved:
            self._stack[-1].vertices = moved
        elif ended:
            self._pop(ended, self._place + 1)
        return bool(moved or ended)

    def _end_number(self) -> bool:
        ended = []
        for vertex in self._stack[-1].vertices:
            kind = vertex.node.kind
            assert type(kind) is ScalarKind  # asked for of leaves only
            label = kind.leaf.label(vertex.state)
            if label >= 0:
                ended.append((vertex, label))
        if ended:
            self._pop(ended, self._place)
        return bool(ended)

    def _read_in_container(self, byte: int) -> bool:
        moved: dict[ThreadPosition, _Vertex] = {}
        closed: list[tuple[_Vertex, int]] = []
        below: dict[tuple[ThreadPosition, tuple[int, ...]], _Vertex] = {}
        inside: dict[ThreadPosition, _Vertex] = {}
        for vertex in self._stack[-1].vertices:
            reading = vertex.node.read(byte)
            if reading is None:
                continue
            if type(reading) is ThreadPosition:
                self._reach(moved, reading, vertex.parents, (vertex, None))
            elif type(reading) is int:
                closed.append((vertex, reading))
            else:
                for node, children in reading:  # type: ignore[union-attr]
                    # Equal positions with different parents stay apart while a value is open inside.
                    key = (node, tuple(map(id, vertex.parents)))
                    parent = below.setdefault(key, _Vertex(node, vertex.parents))
                    parent.before.append((vertex, None))
                    for child in children:
                        self._reach(inside, child, [parent], None)
        if moved:
            self._stack[-1].vertices = list(moved.values())
        elif below:
            self._push(list(below.values()), list(inside.values()))
        elif closed:
            self._pop(closed, self._place + 1)
        return bool(moved or below or closed)

    def _reach(
        self,
        reached: dict[ThreadPosition, _Vertex],
        node: ThreadPosition,
        parents: list[_Vertex],
        before: tuple[_Vertex, _Vertex | None] | None,
    ) -> None:
        vertex = reached.get(node)
        if vertex is None:
            vertex = reached[node] = _Vertex(node, list(parents))
        else:
            vertex.parents += [parent for parent in parents if parent not in vertex.parents]
        if before is not None:
            vertex.before.append(before)

    def _push(self, below: list[_Vertex], inside: list[_Vertex]) -> None:
        segment = self._stack[-1]
        segment.vertices = below
        if type(below[0].node.kind) is ArrayKind:
            segment.step = int(segment.step) + 1
        self._stack.append(_TracedSegment(inside, self._place))

    def _pop(self, ended: list[tuple[_Vertex, int]], end: int) -> None:
        segment = self._stack.pop()
        below = self._stack[-1]
        behind: dict[ThreadPosition, _Vertex] = {}
        for vertex, label in ended:
            kind = vertex.node.kind
            if type(kind) is ScalarKind and isinstance(kind.leaf, TitleSlotLeaf):
                pointer = "".join([f"/{around.step}" for around in self._stack[1:]])
                vertex.string = TracedString(pointer, kind.leaf, vertex.state, segment.begin, end)
            for parent in vertex.parents:
                self._reach(behind, parent.node.after(label), parent.parents, (parent, vertex))
        if below.vertices[0].node.phase == INSIDE_KEY:
            below.step = escaped_step(str(json.loads(self._text[segment.begin : end])))
        below.vertices = list(behind.values())

    def _alive(self, ends: list[_Vertex]) -> Iterator[_Vertex]:
        """The vertices on ways to the end, each only within the parent with which it led there."""
        waiting: list[tuple[_Vertex, _Vertex | None]] = [(vertex, None) for vertex in ends]
        seen = set(waiting)
        while waiting:
            vertex, parent = waiting.pop()
            yield vertex
            for before, inside in vertex.before:
                if parent is not None and parent not in before.parents:
                    continue
                found = [(before, parent)] if inside is None else [(before, parent), (inside, before)]
                waiting += [pair for pair in found if pair not in seen]
                seen.update(found)
