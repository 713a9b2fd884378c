"""Builds parse stacks, which share what they have in common (a graph-structured stack), and steps them.

The bytes of a JSON text decide how deep it is nested, so all NFA threads of one text stand at one depth. A
*segment* is the positions of all threads at one depth, with links to their parents in the segment below; a
stack of segments determinises the automaton. A byte's effect on a segment depends on nothing below, except
that when values end, the segment below goes on with those of its positions that the values were in. So steps
are kept by segment and shared by all stacks.

While a value is being written inside, equal positions with different parents stay apart, because the value
decides which of them goes on; otherwise they are one position with all parents.
"""

from __future__ import annotations

from dataclasses import dataclass
from operator import attrgetter
from typing import final

from genret.decoding.grammar.automaton.containers import DONE, DocumentKind, ValueKinds
from genret.decoding.grammar.automaton.nodes import UNREAD, ScalarKind, ThreadPosition
from genret.decoding.grammar.shapes import ValueNode

Survivors = tuple[tuple[int, int], ...]
"""A value that ended: (index of the entry below that it was in, the value's label), ascending, each once."""
Entry = tuple[ThreadPosition, tuple[int, ...]]
"""A position, and the indexes of the entries below that it is in."""

# Measured with their share of the tables.
_STACK_BYTES = 220
_NUMBER_BYTES = 40
_SEGMENT_BYTES = 750
_STEP_BYTES = 110
_FIRST = (0,)


@final
@dataclass(slots=True, eq=False)
class Pop:
    """The value of the segment has ended; the segment below goes on."""

    survivors: Survivors
    is_consumed: bool  # Whether the byte ended the values; otherwise it is still to be read


@final
@dataclass(slots=True, eq=False)
class Push:
    """A value begins inside: the changed segment, and the new segment on top of it."""

    below: StackSegment
    top: StackSegment


@final
class StackSegment:
    """Positions with the indexes of their parents in the segment below. Equal only to itself."""

    __slots__ = ("_completions", "_out", "_segments", "ended", "entries", "is_done", "leaf", "steps")

    def __init__(self, entries: tuple[Entry, ...], segments: StackSegments) -> None:
        self.entries = entries  # Ascending
        self.steps: dict[int, StackSegment | Push | Pop | None] = {}  # Known effects of bytes
        self._completions: dict[Survivors, StackSegment] = {}
        self._segments = segments
        self._out: object = UNREAD
        node, parents = entries[0]
        kind = node.kind
        self.ended: Survivors = ()  # Values that end here without another byte
        self.leaf: ScalarKind | None = None  # Kind of the only position, if it is in a leaf
        if type(kind) is not ScalarKind:
            # Only the document's position is in nothing.
            self.is_done = not parents and node.phase == DONE  # Whether the document has ended
            return
        self.is_done = False
        if len(entries) == 1:
            self.leaf = kind
        ended = {(parent, node.label) for node, parents in entries if node.label >= 0 for parent in parents}
        self.ended = tuple(sorted(ended))

    @property
    def out(self) -> tuple[int, ...] | None:
        """Bytes that may be allowed, ascending; None if some position has too many to list."""
        if self._out is UNREAD:
            self._out = self._find_out()
        return self._out  # type: ignore[return-value]

    def step(self, byte: int) -> StackSegment | Push | Pop | None:
        """Read one byte; None: no position lets it through."""
        steps = self.steps
        if byte not in steps:
            steps[byte] = self._segments.find_step(self, byte)
        return steps[byte]

    def complete(self, survivors: Survivors) -> StackSegment:
        """The segment behind the value inside."""
        try:
            return self._completions[survivors]
        except KeyError:
            segment = self._completions[survivors] = self._segments.find_completion(self, survivors)
            return segment

    def clear(self) -> None:
        """Forget the effects of bytes."""
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


class StackSegments:
    """The segments of one grammar, whose document is of the node `value`."""

    def __init__(self, value: ValueNode, kinds: ValueKinds, memory: ByteCount) -> None:
        self.kinds = kinds
        self._memory = memory
        self._segments: dict[tuple[Entry, ...], StackSegment] = {}
        self._document = DocumentKind(value, kinds)
        self.start = self.segment(((self._document.node(0, None), ()),))

    def segment(self, entries: tuple[Entry, ...]) -> StackSegment:
        """The segment of some entries, which are in order and cannot be joined."""
        segment = self._segments.get(entries)
        if segment is None:
            segment = self._segments[entries] = StackSegment(entries, self)
            self._memory.num_bytes += _SEGMENT_BYTES
        return segment

    def clear(self, kept: set[StackSegment]) -> None:
        """Forget all but some segments, and the effects of bytes; count the rest anew."""
        self._memory.num_bytes += _SEGMENT_BYTES * len(kept)
        self._segments = {segment.entries: segment for segment in kept}
        for segment in kept:
            segment.clear()
        self.kinds.clear({node for segment in kept for node, _ in segment.entries})

    def drop(self) -> None:
        """Let go of everything, at the end: segments, positions and kinds refer to each other."""
        self._segments = {}
        del self.start
        self._document.clear()
        self.kinds.drop()

    def find_step(self, segment: StackSegment, byte: int) -> StackSegment | Push | Pop | None:
        """Read a byte at every position, without a look into `steps`."""
        self._memory.num_bytes += _STEP_BYTES
        entries = segment.entries
        if len(entries) == 1:
            node, parents = entries[0]
            reading = node.kind.read(node, byte)  # kept in `steps` of the segment
            if type(reading) is ThreadPosition:
                return self.segment(((reading, parents),))
            if type(reading) is tuple and len(reading) == 1:
                ((under, children),) = reading
                if len(children) > 1:
                    children = tuple(sorted(children, key=_number))
                above = tuple([(child, _FIRST) for child in children])
                return Push(self.segment(((under, parents),)), self.segment(above))
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
        # Every byte means the same for all positions, so only one of the three is not empty.
        if moved:
            return self._merged(moved)
        if pushed:
            return self._push(pushed)
        if popped:
            return Pop(tuple(sorted(popped)), True)
        return Pop(segment.ended, False) if segment.ended else None

    def find_completion(self, segment: StackSegment, survivors: Survivors) -> StackSegment:
        """Go on behind the value inside, without a look at what is known."""
        self._memory.num_bytes += _STEP_BYTES
        if len(survivors) == 1:
            ((index, label),) = survivors
            node, parents = segment.entries[index]
            return self.segment(((node.after(label), parents),))
        moved: dict[ThreadPosition, set[int]] = {}
        for index, label in survivors:
            node, parents = segment.entries[index]
            moved.setdefault(node.after(label), set()).update(parents)
        return self._merged(moved)

    def _merged(self, moved: dict[ThreadPosition, set[int]]) -> StackSegment:
        nodes = sorted(moved, key=_number)
        return self.segment(tuple((node, tuple(sorted(moved[node]))) for node in nodes))

    def _push(self, pushed: dict[Entry, list[ThreadPosition]]) -> Push:
        below = sorted(pushed, key=lambda entry: (entry[0].id, entry[1]))
        inside: dict[ThreadPosition, set[int]] = {}
        for index, entry in enumerate(below):
            for child in pushed[entry]:
                inside.setdefault(child, set()).add(index)
        return Push(self.segment(tuple(below)), self._merged(inside))


_number = attrgetter("id")


@dataclass(slots=True, eq=False)
class ByteCount:
    """A running count of bytes, shared by the tables of one grammar."""

    num_bytes: int = 0


@dataclass(slots=True, eq=False)
class ParseStack:
    """A segment on a stack. Equal only to itself: made by `ParseStacks`."""

    segment: StackSegment  # Top segment
    below: ParseStack | None  # Rest of the stack; None under the document's segment
    state: int = -1  # Number of the stack; -1 until it has one

    @property
    def is_complete(self) -> bool:
        """Whether the text so far is a whole document."""
        segment = self.segment
        if segment.is_done:
            return True
        below = self.below
        if not segment.ended or below is None or below.below is not None:
            return False
        return below.segment.complete(segment.ended).is_done


class ParseStacks:
    """The parse stacks of one grammar. Those that a token leads to are states and get a number."""

    def __init__(self, segments: StackSegments, memory: ByteCount) -> None:
        self.segments = segments
        self.memory = memory
        self._known: dict[tuple[StackSegment, ParseStack | None], ParseStack] = {}
        self.by_state: list[ParseStack | None] = []  # Stacks with a number, by number
        self.start = self.of(segments.start, None)  # Stack of the empty text

    def of(self, segment: StackSegment, below: ParseStack | None) -> ParseStack:
        """The stack of a segment on another stack."""
        key = (segment, below)
        stack = self._known.get(key)
        if stack is None:
            stack = self._known[key] = ParseStack(segment, below)
            self.memory.num_bytes += _STACK_BYTES
        return stack

    def clear(self) -> set[StackSegment]:
        """Forget all stacks but those with a number and those below them; count the rest anew.

        Returns:
            The segments that are left.
        """
        kept: dict[ParseStack, None] = {self.start: None}
        for stack in self.by_state:
            while stack is not None and stack not in kept:
                kept[stack] = None
                stack = stack.below
        self._known = {(stack.segment, stack.below): stack for stack in kept}
        self.memory.num_bytes += _STACK_BYTES * len(kept) + _NUMBER_BYTES * len(self.by_state)
        return {stack.segment for stack in kept}

    def number(self, stack: ParseStack) -> int:
        """The state of a stack, assigned on first use."""
        state = stack.state
        if state < 0:
            by_state = self.by_state
            state = stack.state = len(by_state)
            by_state.append(stack)
            self.memory.num_bytes += _NUMBER_BYTES
        return state

    def after(self, stack: ParseStack, text: bytes) -> ParseStack | None:
        """Read some bytes; None if they are not allowed."""
        segment, below = stack.segment, stack.below
        place, end = 0, len(text)
        while place < end:
            byte = text[place]
            steps = segment.steps
            if byte in steps:
                step = steps[byte]
            elif segment.leaf is not None:
                # Makes no segments for the states on the way.
                step, place = self._through_leaf(segment, segment.leaf, text, place)
            else:
                step = segment.step(byte)
            if type(step) is StackSegment:
                segment = step
                place += 1
            elif type(step) is Push:
                below = self.of(step.below, below)
                segment = step.top
                place += 1
            elif type(step) is Pop:
                assert below is not None  # the document's segment never pops
                segment = below.segment.complete(step.survivors)
                below = below.below
                if step.is_consumed:
                    place += 1
            else:
                return None
        return self.of(segment, below)

    def _through_leaf(
        self, segment: StackSegment, kind: ScalarKind, text: bytes, place: int
    ) -> tuple[StackSegment | Pop | None, int]:
        """Read bytes while they belong to a leaf: the last step taken, and the place of its byte."""
        node, parents = segment.entries[0]
        leaf, is_number = kind.leaf, kind.is_number
        state: int = node.progress  # type: ignore[assignment]
        last = len(text) - 1
        while True:
            after = leaf.step(state, text[place])
            if after < 0:
                label = leaf.label(state)
                pop = Pop(tuple([(parent, label) for parent in parents]), False) if label >= 0 else None
                return pop, place
            if not is_number and not leaf.goes_on(after):
                label = leaf.label(after)
                return Pop(tuple([(parent, label) for parent in parents]), True), place
            if place == last:
                return self.segments.segment(((kind.node(after), parents),)), place
            state = after
            place += 1


def forced(stacks: ParseStacks, start: ParseStack, limit: int) -> bytes:
    """Follow the only allowed byte, up to `limit` bytes, while there is just one and the text cannot end."""
    written = bytearray()
    stack = start
    while len(written) < limit and not stack.is_complete:
        allowed = _allowed(stack)
        if allowed is None or len(allowed) != 1:
            break
        following = stacks.after(stack, bytes(allowed))
        assert following is not None  # a segment lists nothing that is not allowed
        stack = following
        written += bytes(allowed)
    return bytes(written)


def _allowed(stack: ParseStack) -> tuple[int, ...] | None:
    """The bytes that may come next; None if they are too many to list."""
    segment, below = stack.segment, stack.below
    out = segment.out
    if out is None or not segment.ended:
        return out
    assert below is not None  # values are in something
    behind = below.segment.complete(segment.ended).out
    return None if behind is None else out + behind
