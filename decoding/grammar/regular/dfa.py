"""Deterministic automata over code points: regular sets of texts, with the Boolean operations."""

from __future__ import annotations

from collections.abc import Iterable, Iterator


class Dfa:
    """A regular set of texts of Unicode scalar values (no surrogates).

    Immutable, minimal and numbered canonically: equal sets are equal objects (`==`, `hash`).
    """

    @staticmethod
    def nothing() -> Dfa:
        """No text."""

    @staticmethod
    def everything() -> Dfa:
        """All texts."""

    @staticmethod
    def of_texts(texts: Iterable[str]) -> Dfa:
        """A finite set. Raises ValueError for a text with a surrogate."""

    @staticmethod
    def of_lengths(least: int, most: int | None) -> Dfa:
        """All texts of that many code points; None is no bound."""

    def __and__(self, other: Dfa) -> Dfa: ...

    def __or__(self, other: Dfa) -> Dfa: ...

    def __sub__(self, other: Dfa) -> Dfa: ...

    def __invert__(self) -> Dfa: ...

    @property
    def is_empty(self) -> bool:
        """Whether there is no text in it."""

    @property
    def num_states(self) -> int:
        """Live states."""

    def count(self) -> int | None:
        """How many texts are in it; None: infinitely many."""

    def texts(self) -> Iterator[str]:
        """All texts, the short ones first; endless where there are infinitely many."""

    def accepts(self, text: str) -> bool:
        """Whether the text is in it."""
