"""A compiled schema: value nodes whose containers are state machines over keys, values and closing brackets.

The automaton knows nothing of JSON Schema; it asks a shape which keys or items may come, what their values
may be, and whether the container may be closed. What a shape has to remember between its members is its
*progress*, a hashable value that only the shape understands.

A value node is a union: a text is allowed if any of its alternatives allows it. Alternatives may begin alike
(two object shapes share `{"`), the automaton follows all that are still possible. Every alternative can be
completed: shapes and leaves without any text are left out, and a progress that is ever returned can reach
`can_close`.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from decoding.grammar.leaves.leaf import Leaf


class Option(NamedTuple):
    """One way to go on with a member.

    Attributes:
        value: What the member's value may be.
        progress: Of the container, once the value is written.
    """

    value: ValueNode
    progress: Hashable


class ObjectShape(Protocol):
    """A state machine over the members of objects."""

    def start(self) -> Hashable:
        """Progress behind `{`."""

    def can_close(self, progress: Hashable) -> bool:
        """Whether `}` may follow."""

    def keys(self, progress: Hashable) -> Leaf | None:
        """The keys that may follow, quotes included, labelled; None when no member may follow.

        The same object for equal choices of keys.
        """

    def after_key(self, progress: Hashable, label: int) -> tuple[Option, ...]:
        """Ways to go on behind a key with that label; never empty for a label that `keys` can give."""

    def after_value(self, progress: Hashable, label: int) -> Hashable:
        """Progress once the value of an `Option` with that progress is written.

        Args:
            progress: The option's.
            label: Of the leaf the value was, 0 for containers.
        """

    def shortest(self, progress: Hashable) -> int:
        """Fewest bytes of compact JSON that close the object from between two members, `}` included."""


class ArrayShape(Protocol):
    """A state machine over the items of arrays."""

    def start(self) -> Hashable:
        """Progress behind `[`."""

    def can_close(self, progress: Hashable) -> bool:
        """Whether `]` may follow."""

    def items(self, progress: Hashable) -> tuple[Option, ...]:
        """What the next item may be; empty when none may follow."""

    def after_value(self, progress: Hashable, label: int) -> Hashable:
        """As `ObjectShape.after_value`."""

    def shortest(self, progress: Hashable) -> int:
        """Fewest bytes of compact JSON that close the array from between two items, `]` included."""


@dataclass(slots=True, eq=False)
class ValueNode:
    """What may stand at one place for a value. Equal only to itself; filled once, then never changed.

    Attributes:
        leaves: Scalar alternatives: literals, numbers, strings.
        arrays: Array alternatives.
        objects: Object alternatives.
        shortest: Fewest bytes of compact JSON that any value here takes.
    """

    leaves: tuple[Leaf, ...] = ()
    arrays: tuple[ArrayShape, ...] = ()
    objects: tuple[ObjectShape, ...] = ()
    shortest: int = 0
