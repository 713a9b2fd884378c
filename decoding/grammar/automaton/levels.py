"""Builds levels of the parse stack: all threads' nodes at one depth of nesting, with their parents below.

The bytes of a JSON text decide how deep it is nested, so all threads that read the same text stand at one
depth, and a stack of levels determinises the automaton: alternatives run side by side without multiplying.
What a byte does to a level depends on nothing below, except that where values end the level below goes on
with those of its nodes that the survivors were in. So steps are kept by level and shared by all stacks.

While a value is being written inside, nodes of a level that are equal but stand in different parents stay
apart, because which of them goes on is decided by the value; otherwise they are one node with all parents.
"""

from __future__ import annotations

from typing import Any, final

from decoding.grammar.automaton.containers import DONE, DocumentKind, ValueKinds
from decoding.grammar.automaton.nodes import ScalarKind, ThreadPosition
from decoding.grammar.shapes import ValueNode

# A value that ended: (node of the level below that it was in, the value's label), ascending, each once.
Survivors = tuple[tuple[int, int], ...]
Entry = tuple[ThreadPosition, tuple[int, ...]]

# What a level, a node and an entry of a dictionary take, measured with their share of the tables.
_LEVEL_BYTES = 750
_STEP_BYTES = 110
_FIRST = (0,)


@final
class Pop:
    """The value of the level has ended; the level below goes on.

    Attributes:
        survivors: How.
        is_consumed: Whether the byte ended it; otherwise it ended before, and the byte is still to be read.
    """

    __slots__ = ("is_consumed", "survivors")

    def __init__(self, survivors: Survivors, is_consumed: bool) -> None:
        self.survivors = survivors
        self.is_consumed = is_consumed


@final
class Push:
    """A value begins inside: what the level turns into, and the new level on top of it."""

    __slots__ = ("below", "top")

    def __init__(self, below: StackSegment, top: StackSegment) -> None:
        self.below = below
        self.top = top


@final
class StackSegment:
    """Nodes with the indices of their parents in the level below. Equal only to itself.

    Attributes:
        entries: The nodes with their parents, ascending by node and parents.
        steps: What bytes do, as far as they have been read.
        is_done: Whether the document has ended.
        leaf: The frame of the only node, where it is in a leaf; None otherwise.
        ended: How the value ends here if it does without another byte; () if it cannot.
        out: The bytes that may be allowed, ascending; None where some node has too many to list.
    """

    __slots__ = ("_completions", "_levels", "ended", "entries", "is_done", "leaf", "out", "steps")

    out: tuple[int, ...] | None
    steps: dict[int, StackSegment | Push | Pop | None]
    _completions: dict[Survivors, StackSegment]

    def __init__(self, entries: tuple[Entry, ...], levels: StackSegments) -> None:
        self.entries = entries
        self._levels = levels
        node, parents = entries[0]
        frame = node.frame
        self.ended: Survivors = ()
        self.leaf: ScalarKind | None = None
        if type(frame) is not ScalarKind:
            # Only the document's node is in nothing.
            self.is_done = not parents and node.phase == DONE
            return
        self.is_done = False
        if len(entries) > 1:
            self.ended = _ended(entries)
            return
        self.leaf = frame
        label = node.label
        if label >= 0:
            self.ended = ((parents[0], label),) if len(parents) == 1 else tuple([(p, label) for p in parents])

    # Called only for a slot that is still empty, so that every later reading is a plain attribute.
    def __getattr__(self, name: str) -> Any:
        if name == "out":
            out = self.out = self._find_out()
            return out
        if name in ("steps", "_completions"):
            setattr(self, name, {})
            return getattr(self, name)
        raise AttributeError(name)

    def step(self, byte: int) -> StackSegment | Push | Pop | None:
        """Read one byte; None: no node lets it through."""
        try:
            return self.steps[byte]
        except KeyError:
            step = self.steps[byte] = self._levels.find_step(self, byte)
            return step

    def complete(self, survivors: Survivors) -> StackSegment:
        """What the level turns into when the value inside has ended."""
        try:
            return self._completions[survivors]
        except KeyError:
            level = self._completions[survivors] = self._levels.find_completion(self, survivors)
            return level

    def clear(self) -> None:
        """Forget what bytes do."""
        self.steps = {}
        self._completions = {}
        for node, _ in self.entries:
            node.clear()

    def _find_out(self) -> tuple[int, ...] | None:
        entries = self.entries
        if len(entries) == 1:
            return entries[0][0].out
        found: set[int] = set()
        for node, _ in entries:
            out = node.out
            if out is None:
                return None
            found.update(out)
        return tuple(sorted(found))


def _ended(entries: tuple[Entry, ...]) -> Survivors:
    """The values that end without another byte."""
    ended = {(parent, node.label) for node, parents in entries if node.label >= 0 for parent in parents}
    return tuple(sorted(ended))


class StackSegments:
    """The levels of one grammar.

    Args:
        value: What the document may be.
        frames: Of the grammar.
        memory: Counts what levels and their steps take.

    Attributes:
        frames: As given.
    """

    def __init__(self, value: ValueNode, frames: ValueKinds, memory: ByteCount) -> None:
        self.frames = frames
        self._memory = memory
        self._levels: dict[tuple[Entry, ...], StackSegment] = {}
        self._document = DocumentKind(value, frames)
        self.start = self.level(((self._document.node(0, None), ()),))

    def level(self, entries: tuple[Entry, ...]) -> StackSegment:
        """The level of some entries, which are in order and in which no two could be one."""
        level = self._levels.get(entries)
        if level is None:
            level = self._levels[entries] = StackSegment(entries, self)
            self._memory.num_bytes += _LEVEL_BYTES
        return level

    def clear(self, kept: set[StackSegment]) -> None:
        """Forget which levels there are, but for some, and what bytes do. What is left is counted anew."""
        self._memory.num_bytes += _LEVEL_BYTES * len(kept)
        self._levels = {level.entries: level for level in kept}
        for level in kept:
            level.clear()
        self.frames.clear({node for level in kept for node, _ in level.entries})

    def drop(self) -> None:
        """Let go of everything, at the end: levels, nodes and frames know each other."""
        self._levels = {}
        del self.start
        self._document.clear()
        self.frames.drop()

    def find_step(self, level: StackSegment, byte: int) -> StackSegment | Push | Pop | None:
        """Read a byte in every node; nothing is looked up."""
        self._memory.num_bytes += _STEP_BYTES
        entries = level.entries
        if len(entries) == 1:
            node, parents = entries[0]
            reading = node.read(byte)
            if type(reading) is ThreadPosition:
                return self.level(((reading, parents),))
            if type(reading) is tuple and len(reading) == 1:
                ((under, children),) = reading
                if len(children) > 1:
                    children = tuple(sorted(children, key=_number))
                above = tuple([(child, _FIRST) for child in children])
                return Push(self.level(((under, parents),)), self.level(above))
            if type(reading) is int:
                return Pop(tuple([(parent, reading) for parent in parents]), True)
        moved: dict[ThreadPosition, set[int]] = {}
        pushed: dict[Entry, list[ThreadPosition]] = {}
        popped: set[tuple[int, int]] = set()
        for node, parents in entries:
            reading = node.read(byte)
            if reading is None:
                continue
            if type(reading) is ThreadPosition:
                moved.setdefault(reading, set()).update(parents)
            elif type(reading) is int:
                popped.update((parent, reading) for parent in parents)
            else:
                for below, children in reading:  # type: ignore[union-attr]
                    pushed.setdefault((below, parents), []).extend(children)
        # By construction only one of the three has anything in it.
        if moved:
            return self._merged(moved)
        if pushed:
            return self._push(pushed)
        if popped:
            return Pop(tuple(sorted(popped)), True)
        return Pop(level.ended, False) if level.ended else None

    def find_completion(self, level: StackSegment, survivors: Survivors) -> StackSegment:
        """Go on behind the value inside; nothing is looked up."""
        self._memory.num_bytes += _STEP_BYTES
        if len(survivors) == 1:
            ((index, label),) = survivors
            node, parents = level.entries[index]
            return self.level(((node.after(label), parents),))
        moved: dict[ThreadPosition, set[int]] = {}
        for index, label in survivors:
            node, parents = level.entries[index]
            moved.setdefault(node.after(label), set()).update(parents)
        return self._merged(moved)

    def _merged(self, moved: dict[ThreadPosition, set[int]]) -> StackSegment:
        nodes = sorted(moved, key=_number)
        return self.level(tuple((node, tuple(sorted(moved[node]))) for node in nodes))

    def _push(self, pushed: dict[Entry, list[ThreadPosition]]) -> Push:
        below = sorted(pushed, key=_entry_order)
        inside: dict[ThreadPosition, set[int]] = {}
        for index, entry in enumerate(below):
            for child in pushed[entry]:
                inside.setdefault(child, set()).add(index)
        return Push(self.level(tuple(below)), self._merged(inside))


def _number(node: ThreadPosition) -> int:
    return node.id


def _entry_order(entry: Entry) -> tuple[int, tuple[int, ...]]:
    return entry[0].id, entry[1]


class ByteCount:
    """A running count, shared by the tables of one grammar.

    Attributes:
        num_bytes: Of everything that is held.
    """

    __slots__ = ("num_bytes",)

    def __init__(self) -> None:
        self.num_bytes = 0
