"""Defines a compiled schema: value nodes whose containers are state machines over their members.

The automaton knows nothing of JSON Schema; it asks a shape which keys or items may come, what their values
may be, and whether the container may be closed. What a shape has to remember between its members is its
*progress*, a hashable value that only the shape understands.

A value node is a union: a text is allowed if any of its alternatives allows it. Alternatives may begin alike
(two object shapes share `{"`), the automaton follows all that are still possible. Every alternative can be
completed: shapes and leaves without any text are left out, and a progress that is ever returned can reach
`can_close`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from genret.decoding.grammar.leaves.leaf import Leaf

Progress = Any
"""A hashable value that only its shape understands."""
ENDLESS = 1 << 40
"""Bytes of what cannot be written at all; sums of it stay above every real size."""


class Option(NamedTuple):
    """One way to go on with a member: its value, and the container's progress once that is written."""

    value: ValueNode
    progress: Progress


class Shape:
    """A state machine over the members of a container. Sizes are of compact JSON."""

    __slots__ = ()

    def cost(self) -> int:
        """Fewest bytes of such a container, as far as the values in it are known; `ENDLESS`: none."""
        raise NotImplementedError

    def seal(self) -> None:
        """Settle, once all values are known, what may come where. To be called before all that follows."""

    def start(self) -> Progress:
        """Progress behind the opening bracket."""
        return 0

    def can_close(self, progress: Progress) -> bool:
        """Whether the closing bracket may follow."""
        raise NotImplementedError

    def after_value(self, progress: Progress, label: int) -> Progress:
        """Progress once the value of an `Option`, with the option's progress, is written.

        `label` is that of the leaf that the value was, 0 for containers.
        """
        return progress

    def shortest(self, progress: Progress) -> int:
        """Fewest bytes that close the container from between two members, the bracket included."""
        raise NotImplementedError


class ObjectShape(Shape):
    """A shape of objects."""

    __slots__ = ()

    def keys(self, progress: Progress) -> Leaf | None:
        """The keys that may follow, quotes included, labelled; None when no member may follow.

        Equal choices of keys are the same object.
        """
        raise NotImplementedError

    def after_key(self, progress: Progress, label: int) -> tuple[Option, ...]:
        """The ways to go on behind a key; never empty for a label that `keys` can give."""
        raise NotImplementedError


class ArrayShape(Shape):
    """A shape of arrays."""

    __slots__ = ()

    def items(self, progress: Progress) -> tuple[Option, ...]:
        """The ways to go on with an item; none when none may follow."""
        raise NotImplementedError


@dataclass(slots=True, eq=False)
class ValueNode:
    """The alternatives allowed at one place. Equal only to itself; filled once, then never changed."""

    leaves: tuple[Leaf, ...] = ()  # Literals, numbers, strings
    arrays: tuple[ArrayShape, ...] = ()
    objects: tuple[ObjectShape, ...] = ()
    shortest: int = 0  # Fewest bytes of compact JSON that any value here takes
