"""Sets of strings as schemas speak of them: a range of lengths, and possibly an automaton."""

from __future__ import annotations

from decoding.grammar.regular.dfa import Dfa


class TextSet:
    """A set of texts. Closed under `&`, `|`, `-`, `~`; hashable; equal sets made alike are equal.

    Lengths stay two numbers as long as nothing else is said, so that `maxLength: 65536` costs nothing.
    """

    @staticmethod
    def of(least: int = 0, most: int | None = None, automaton: Dfa | None = None) -> TextSet:
        """Texts of `least` to `most` code points (None: no bound) that the automaton accepts."""

    @property
    def lengths(self) -> tuple[int, int | None] | None:
        """The bounds, where there is no automaton; None where there is one."""

    def automaton(self) -> Dfa:
        """The set as one automaton. Raises `AutomatonLimitError` when that has too many states."""
