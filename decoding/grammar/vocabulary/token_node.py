"""A node of a trie over token bytes, made on demand."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol


class TokenNode(Protocol):
    """The bytes some tokens begin with."""

    @property
    def tokens(self) -> tuple[int, ...]:
        """Ids of the tokens that end here, ascending. Several tokens may have the same bytes."""

    @property
    def children(self) -> Mapping[int, TokenNode]:
        """The next byte of longer tokens, and the node it leads to, ascending by byte."""
