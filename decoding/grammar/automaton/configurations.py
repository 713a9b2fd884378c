"""Builds configurations, the parse stacks of levels, each made once, and finds the bytes that they force.

A configuration is a level on top of another configuration, so that stacks share what they have in common and
equal stacks are one object. Those that a token leads to are states and get a number.
"""

from __future__ import annotations

from typing import Any

from decoding.grammar.automaton.cursor import DIES, GOES_ON, Cursor, Enclosing
from decoding.grammar.automaton.levels import Level, Levels, Memory, Pop, Push
from decoding.grammar.automaton.nodes import LeafFrame
from decoding.grammar.leaves.leaf import SparseLeaf

# Measured with their share of the tables.
_CONFIGURATION_BYTES = 220
_NUMBER_BYTES = 40
_MOVE_BYTES = 180

# A level and the bytes read there; or these, and the levels below that are taken from the stack.
_Key = tuple["Level | _Key", "bytes | Level"]


class Configuration:
    """A level on a stack. Equal only to itself: made by `Configurations`.

    Attributes:
        level: On top.
        below: The rest of the stack; None under the document's level.
        state: Its number; -1 until it has one.
    """

    __slots__ = ("below", "level", "state")

    def __init__(self, level: Level, below: Configuration | None) -> None:
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


class Configurations:
    """The configurations of one grammar.

    Args:
        levels: Of the grammar.
        memory: Counts what configurations take.

    Attributes:
        start: Of the empty text.
        by_state: Those with a number, by number.
    """

    def __init__(self, levels: Levels, memory: Memory) -> None:
        self._memory = memory
        self._levels = levels
        self._known: dict[tuple[Level, Configuration | None], Configuration] = {}
        # Where texts lead from the top of a stack: what is pushed on the rest of it, the new top last; ()
        # where the next level down has to be looked at.
        self._moves: dict[_Key, tuple[Level, ...]] = {}
        self.by_state: list[Configuration | None] = []
        self.start = self.of(levels.start, None)

    def of(self, level: Level, below: Configuration | None) -> Configuration:
        """The configuration of a level on a stack."""
        key = (level, below)
        configuration = self._known.get(key)
        if configuration is None:
            configuration = self._known[key] = Configuration(level, below)
            self._memory.num_bytes += _CONFIGURATION_BYTES
        return configuration

    def clear(self) -> set[Level]:
        """Forget which configurations there are, but for those with a number and what they stand on.

        What is left is counted anew.

        Returns:
            The levels of those that are left.
        """
        kept: dict[Configuration, None] = {self.start: None}
        for configuration in self.by_state:
            while configuration is not None and configuration not in kept:
                kept[configuration] = None
                configuration = configuration.below
        self._known = {(configuration.level, configuration.below): configuration for configuration in kept}
        self._moves = {}
        self._memory.num_bytes += _CONFIGURATION_BYTES * len(kept) + _NUMBER_BYTES * len(self.by_state)
        return {configuration.level for configuration in kept}

    def number(self, configuration: Configuration) -> int:
        """Its state, given to it when first asked for."""
        state = configuration.state
        if state < 0:
            by_state = self.by_state
            state = configuration.state = len(by_state)
            by_state.append(configuration)
            self._memory.num_bytes += _NUMBER_BYTES
        return state

    def after(self, configuration: Configuration, text: bytes) -> Configuration | None:
        """Read some bytes; None where they are not allowed."""
        level, below = configuration.level, configuration.below
        if len(level.entries) > 1:
            return self._after_levels(level, below, text, 0)
        frame = level.leaf
        if frame is not None and type(frame.leaf) is SparseLeaf:
            node, parents = level.entries[0]
            state = frame.leaf.within(node.progress, text)  # type: ignore[arg-type]
            if state >= 0:
                return self.of(self._levels.level(((frame.node(state), parents),)), below)
        # A recursive schema comes by the same levels on ever higher stacks.
        moves, stack = self._moves, below
        key: _Key = (level, text)
        while (known := moves.get(key)) is not None:
            if known:
                for level in known:
                    stack = self.of(level, stack)
                return stack
            assert stack is not None  # the move has looked at it
            key, stack = (key, stack.level), stack.below
        return self._after_one(level, below, text)

    def _after_one(self, level: Level, below: Configuration | None, text: bytes) -> Configuration | None:
        """Read bytes with the only thread of a level, as far as it stays the only one."""
        levels = self._levels
        cursor = Cursor(levels.frames, level.entries[0], below)
        done, place = cursor.read(text, 0)
        if done == DIES:
            return None
        inside: tuple[Level, ...] = ()
        stack: Any = cursor.below
        if type(stack) is Enclosing:
            frame, phase, progress, parents, under = stack
            if type(under) is Enclosing:
                stack, inside = self._levels_of(stack)
            else:
                stack, inside = under, (levels.level(((frame.node(phase, progress), parents),)),)
        ground: Configuration | None = stack
        for enclosing in inside:
            stack = self.of(enclosing, stack)
        if cursor.label >= 0:
            assert stack is not None  # values are in something
            survivors = tuple([(parent, cursor.label) for parent in cursor.parents])
            return self._after_levels(stack.level.complete(survivors), stack.below, text, place)
        top = levels.level(((cursor.node, cursor.parents),))
        if done != GOES_ON:
            return self._after_levels(top, stack, text, place)
        key: _Key = (level, text)
        while below is not ground:
            assert below is not None  # what the thread has come to is further down
            self._moves[key] = ()
            self._memory.num_bytes += _MOVE_BYTES
            key, below = (key, below.level), below.below
        self._moves[key] = (*inside, top)
        self._memory.num_bytes += _MOVE_BYTES
        return self.of(top, stack)

    def made(self, below: Enclosing | Configuration | None) -> Configuration | None:
        """What a thread is in, as a configuration."""
        configuration, levels = self._levels_of(below)
        for level in levels:
            configuration = self.of(level, configuration)
        return configuration

    def _levels_of(
        self, below: Enclosing | Configuration | None
    ) -> tuple[Configuration | None, tuple[Level, ...]]:
        """What is a configuration already, and the levels of the places on it, the lowest first."""
        levels: list[Level] = []
        while type(below) is Enclosing:
            frame, phase, progress, parents, below = below
            levels.append(self._levels.level(((frame.node(phase, progress), parents),)))
        configuration: Configuration | None = below  # type: ignore[assignment]
        return configuration, tuple(reversed(levels))

    def _after_levels(
        self, level: Level, below: Configuration | None, text: bytes, place: int
    ) -> Configuration | None:
        """Read bytes from a place on with all threads of a level in lockstep."""
        end = len(text)
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
            if type(step) is Level:
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
        self, level: Level, frame: LeafFrame, text: bytes, place: int
    ) -> tuple[Level | Pop | None, int]:
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


def forced(configurations: Configurations, start: Configuration, limit: int) -> bytes:
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


def _allowed(configuration: Configuration) -> tuple[int, ...] | None:
    """The bytes that may come next; None where they are too many to list."""
    level, below = configuration.level, configuration.below
    out = level.out
    if out is None or not level.ended:
        return out
    assert below is not None  # values are in something
    behind = below.level.complete(level.ended).out
    return None if behind is None else out + behind
