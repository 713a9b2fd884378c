"""Builds configurations, the parse stacks of levels, each made once, and finds the bytes that they force.

A configuration is a level on top of another configuration, so that stacks share what they have in common and
equal stacks are one object. Those that a token leads to are states and get a number.
"""

from __future__ import annotations

from decoding.grammar.automaton.levels import ByteCount, Pop, Push, StackSegment, StackSegments
from decoding.grammar.automaton.nodes import ScalarKind

# Measured with their share of the tables.
_CONFIGURATION_BYTES = 220
_NUMBER_BYTES = 40


class ParseStack:
    """A level on a stack. Equal only to itself: made by `ParseStacks`.

    Attributes:
        level: On top.
        below: The rest of the stack; None under the document's level.
        state: Its number; -1 until it has one.
    """

    __slots__ = ("below", "level", "state")

    def __init__(self, level: StackSegment, below: ParseStack | None) -> None:
        self.level = level
        self.below = below
        self.state = -1

    @property
    def is_complete(self) -> bool:
        """Whether the text so far is a whole document."""
        level = self.level
        if level.is_done:
            return True
        below = self.below
        if not level.ended or below is None or below.below is not None:
            return False
        return below.level.complete(level.ended).is_done


class ParseStacks:
    """The configurations of one grammar.

    Args:
        levels: Of the grammar.
        memory: Counts what configurations take.

    Attributes:
        start: Of the empty text.
        by_state: Those with a number, by number.
    """

    def __init__(self, levels: StackSegments, memory: ByteCount) -> None:
        self._memory = memory
        self._levels = levels
        self._known: dict[tuple[StackSegment, ParseStack | None], ParseStack] = {}
        self.by_state: list[ParseStack | None] = []
        self.start = self.of(levels.start, None)

    def of(self, level: StackSegment, below: ParseStack | None) -> ParseStack:
        """The configuration of a level on a stack."""
        key = (level, below)
        configuration = self._known.get(key)
        if configuration is None:
            configuration = self._known[key] = ParseStack(level, below)
            self._memory.num_bytes += _CONFIGURATION_BYTES
        return configuration

    def clear(self) -> set[StackSegment]:
        """Forget which configurations there are, but for those with a number and what they stand on.

        What is left is counted anew.

        Returns:
            The levels of those that are left.
        """
        kept: dict[ParseStack, None] = {self.start: None}
        for configuration in self.by_state:
            while configuration is not None and configuration not in kept:
                kept[configuration] = None
                configuration = configuration.below
        self._known = {(configuration.level, configuration.below): configuration for configuration in kept}
        self._memory.num_bytes += _CONFIGURATION_BYTES * len(kept) + _NUMBER_BYTES * len(self.by_state)
        return {configuration.level for configuration in kept}

    def number(self, configuration: ParseStack) -> int:
        """Its state, given to it when first asked for."""
        state = configuration.state
        if state < 0:
            by_state = self.by_state
            state = configuration.state = len(by_state)
            by_state.append(configuration)
            self._memory.num_bytes += _NUMBER_BYTES
        return state

    def after(self, configuration: ParseStack, text: bytes) -> ParseStack | None:
        """Read some bytes; None where they are not allowed."""
        level, below = configuration.level, configuration.below
        place, end = 0, len(text)
        while place < end:
            byte = text[place]
            steps = level.steps
            if byte in steps:
                step = steps[byte]
            elif level.leaf is not None:
                # Levels of all states on the way would be made for nothing.
                step, place = self._through_leaf(level, level.leaf, text, place)
            else:
                step = level.step(byte)
            if type(step) is StackSegment:
                level = step
                place += 1
            elif type(step) is Push:
                below = self.of(step.below, below)
                level = step.top
                place += 1
            elif type(step) is Pop:
                assert below is not None  # the document's level never pops
                level = below.level.complete(step.survivors)
                below = below.below
                if step.is_consumed:
                    place += 1
            else:
                return None
        return self.of(level, below)

    def _through_leaf(
        self, level: StackSegment, frame: ScalarKind, text: bytes, place: int
    ) -> tuple[StackSegment | Pop | None, int]:
        """Read bytes as long as they belong to a leaf: the last step taken, and the place of its byte."""
        node, parents = level.entries[0]
        leaf, is_number = frame.leaf, frame.is_number
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
                return self._levels.level(((frame.node(after), parents),)), place
            state = after
            place += 1


def forced(configurations: ParseStacks, start: ParseStack, limit: int) -> bytes:
    """Follow the only byte that is allowed, as long as there is only one and the text cannot end.

    Args:
        configurations: Of the grammar.
        start: Where to begin.
        limit: Most bytes.
    """
    written = bytearray()
    configuration = start
    while len(written) < limit and not configuration.is_complete:
        allowed = _allowed(configuration)
        if allowed is None or len(allowed) != 1:
            break
        following = configurations.after(configuration, bytes(allowed))
        assert following is not None  # a level lists nothing that is not allowed
        configuration = following
        written += bytes(allowed)
    return bytes(written)


def _allowed(configuration: ParseStack) -> tuple[int, ...] | None:
    """The bytes that may come next; None where they are too many to list."""
    level, below = configuration.level, configuration.below
    out = level.out
    if out is None or not level.ended:
        return out
    assert below is not None  # values are in something
    behind = below.level.complete(level.ended).out
    return None if behind is None else out + behind
