"""Errors of regular expressions; whoever knows the schema adds where the pattern stands."""

from __future__ import annotations

from decoding.grammar.errors import GrammarError


class PatternError(GrammarError):
    """A text is not a regular expression.

    Args:
        reason: What is wrong, as one clause.
        pattern: The whole expression.
        position: Where, in characters from 0.
    """

    def __init__(self, reason: str, pattern: str, position: int) -> None:
        super().__init__(f"{reason} at position {position} of {_shown(pattern)}")
        self.reason = reason
        self.pattern = pattern
        self.position = position


class UnsupportedPatternError(PatternError):
    """A regular expression uses what is not regular, not clear or not supported here."""


def _shown(pattern: str) -> str:
    """A pattern in a message, cut where it is long."""
    return repr(pattern if len(pattern) <= 120 else pattern[:117] + "...")
