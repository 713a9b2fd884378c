"""Regular expressions as trees."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from decoding.grammar.regular.nfa import Condition
from decoding.grammar.regular.regex_classes import CharClass


@dataclass(frozen=True, slots=True)
class Chars:
    """One character of a class."""

    chars: CharClass


@dataclass(frozen=True, slots=True)
class Concatenation:
    """All of them, one behind the other; of none: the empty text."""

    items: tuple[Node, ...] = ()


@dataclass(frozen=True, slots=True)
class Alternation:
    """Any of them."""

    options: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Repetition:
    """`least` to `most` of it; None is no bound."""

    item: Node
    least: int
    most: int | None


@dataclass(frozen=True, slots=True)
class Assertion:
    """A condition on the place in the text.

    Attributes:
        condition: The condition.
        loose: Whether another reading of the pattern also lets the end be in front of a last line feed.
    """

    condition: Condition
    loose: bool = False


@dataclass(frozen=True, slots=True)
class Look:
    """What must, or must not, be ahead of or behind the place in the text.

    Attributes:
        part: What is looked for.
        ahead: Whether it is looked for ahead.
        negative: Whether it must not be there.
        position: Of it in the pattern, for messages.
    """

    part: Node
    ahead: bool
    negative: bool
    position: int


Node = Chars | Concatenation | Alternation | Repetition | Assertion | Look


def any_part(node: Node, wanted: Callable[[Node], bool]) -> bool:
    """Whether a tree has a part, be it inside of what it looks for, that is wanted."""
    if wanted(node):
        return True
    if isinstance(node, Concatenation):
        return any(any_part(item, wanted) for item in node.items)
    if isinstance(node, Alternation):
        return any(any_part(option, wanted) for option in node.options)
    if isinstance(node, Repetition):
        return any_part(node.item, wanted)
    return isinstance(node, Look) and any_part(node.part, wanted)
