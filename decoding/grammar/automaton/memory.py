"""What a grammar holds, counted as it grows."""

from __future__ import annotations


class Memory:
    """A running count, shared by the tables of one grammar.

    Attributes:
        num_bytes: Of everything that is held.
    """

    __slots__ = ("num_bytes",)

    def __init__(self) -> None:
        self.num_bytes = 0
