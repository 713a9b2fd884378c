"""Configurations: stacks of levels, each made once.

A configuration is a level on top of another configuration, so that stacks share what they have in common and
equal stacks are one object. Those that a token leads to are states and get a number.
"""

from __future__ import annotations

from decoding.grammar.automaton.levels import Level, Levels, Pop, Push
from decoding.grammar.automaton.memory import Memory

_CONFIGURATION_BYTES = 300


class Configuration:
    """A level on a stack. Equal only to itself: made by `Configurations`.

    Attributes:
        level: On top.
        below: The rest of the stack; None under the document's level.
        above: Configurations right above this one, by their level.
        state: Its number; -1 until it has one.
    """

    __slots__ = ("above", "below", "level", "state")

    def __init__(self, level: Level, below: Configuration | None) -> None:
        self.level = level
        self.below = below
        self.above: dict[Level, Configuration] = {}
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
        self._bottom: dict[Level, Configuration] = {}
        self.by_state: list[Configuration | None] = []
        self.start = self.of(levels.start, None)

    def of(self, level: Level, below: Configuration | None) -> Configuration:
        """The configuration of a level on a stack."""
        siblings = self._bottom if below is None else below.above
        configuration = siblings.get(level)
        if configuration is None:
            configuration = siblings[level] = Configuration(level, below)
            self._memory.num_bytes += _CONFIGURATION_BYTES
        return configuration

    def number(self, configuration: Configuration) -> int:
        """Its state, given to it when first asked for."""
        if configuration.state < 0:
            configuration.state = len(self.by_state)
            self.by_state.append(configuration)
        return configuration.state

    def after(self, configuration: Configuration, text: bytes) -> Configuration | None:
        """Read some bytes; None where they are not allowed."""
        level, below = configuration.level, configuration.below
        for byte in text:
            while True:
                steps = level.steps
                step = steps[byte] if byte in steps else level.step(byte)
                if type(step) is Level:
                    level = step
                elif type(step) is Push:
                    below = self.of(step.below, below)
                    level = step.top
                elif type(step) is Pop:
                    assert below is not None  # the document's level never pops
                    level = below.level.complete(step.survivors)
                    below = below.below
                    if not step.is_consumed:
                        continue
                else:
                    return None
                break
        return self.of(level, below)
