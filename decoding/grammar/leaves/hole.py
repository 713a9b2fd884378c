"""Strings that must come from a set outside the schema, such as the titles of an index."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from decoding.grammar.leaves.leaf import Leaf


@dataclass(frozen=True, slots=True)
class HoleName:
    """Which set a schema asks for.

    Attributes:
        index: `x-genret-index`: name of the index.
        predicate: `x-genret-filter`: which of its entities, as the filter was written; None: all.
    """

    index: str
    predicate: str | None = None


@runtime_checkable
class HoleLeaf(Leaf, Protocol):
    """A leaf whose texts are the members of a set."""

    @property
    def name(self) -> HoleName:
        """What the schema asked for."""

    @property
    def is_empty(self) -> bool:
        """Whether the set has no member; then nothing else may be asked of the leaf."""

    def members(self, state: int) -> tuple[int, ...]:
        """Numbers of the members that a final state stands for, ascending; of an index: its entities."""


class HoleOpener(Protocol):
    """Knows the sets that schemas may name."""

    def __call__(self, name: HoleName) -> HoleLeaf:
        """Return the leaf of a set; the same object for the same name.

        Raises:
            HoleError: there is no such set, or the filter cannot be read; the message says which and why.
        """


class HoleError(Exception):
    """A schema names a set that is not there, or a filter that cannot be read.

    Args:
        message: Which, and why.
        keyword: What is wrong: `x-genret-index` or `x-genret-filter`.
    """

    def __init__(self, message: str, keyword: str = "x-genret-index") -> None:
        super().__init__(message)
        self.keyword = keyword
