"""Deterministic automata over code points: regular sets of texts, with the Boolean operations."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from genret.decoding.grammar.compile_options import current_budget
from genret.decoding.grammar.regular.automaton import Automaton
from genret.decoding.grammar.regular.dfa_texts import automaton_of, longest_length
from genret.decoding.grammar.regular.minimise import Row, renumbered
from genret.decoding.grammar.regular.ranges import SCALAR_VALUES, Ranges, complement

# Texts longer than this check the clock one by one.
_LONG_TEXT = 10_000

ENDLESS = 1 << 62
"""No bound, in ranges of lengths; far above the length of any text."""


class Dfa(Automaton):
    """A regular set of texts of Unicode scalar values (no surrogates); the label of its texts is 0.

    Equal sets are equal objects (`==`, `hash`). Every operation raises `AutomatonLimitError` when the result
    has too many states.
    """

    __slots__ = ("_hash", "_lengths")

    def __init__(self, rows: Sequence[Row], ends: Sequence[int]) -> None:
        """See `Automaton`."""
        super().__init__(rows, ends)
        self._hash = hash((self.rows, self.ends))
        self._lengths: tuple[int, int | None] | None = None

    @staticmethod
    def nothing() -> Dfa:
        """No text."""
        return _NOTHING

    @staticmethod
    def everything() -> Dfa:
        """All texts."""
        return _EVERYTHING

    @staticmethod
    def of_texts(texts: Iterable[str]) -> Dfa:
        """The given texts. Raises ValueError for a text with a surrogate."""
        ordered = sorted(set(texts))
        symbols: list[list[int]] = []
        check_time = current_budget().check_time
        for text in ordered:
            if not len(symbols) & 63 or len(text) > _LONG_TEXT:
                check_time()
            if not text.isascii() and any("\ud800" <= char <= "\udfff" for char in text):
                raise ValueError(f"texts must not contain surrogates, got {text!a}")
            symbols.append(list(map(ord, text)))
        if not ordered:
            return _NOTHING
        return Dfa(*automaton_of(symbols, [0] * len(ordered)))

    @staticmethod
    def of_lengths(ranges: Ranges) -> Dfa:
        """All texts of some lengths in code points; the last of them may be `ENDLESS`."""
        if not ranges:
            return _NOTHING
        endless = ranges[-1][1] == ENDLESS
        top = ranges[-1][0] if endless else ranges[-1][1]
        current_budget().check_states(top + 1)
        rows = [_any_char(state + 1) for state in range(top)]
        rows.append(_any_char(top) if endless else ())
        ends = [-1] * (top + 1)
        for first, last in ranges:
            ends[first : last + 1] = [0] * (min(last, top) + 1 - first)
        return Dfa(rows, ends)

    def __and__(self, other: Dfa) -> Dfa:
        if self is other or other.is_everything or self.is_empty:
            return self
        if self.is_everything or other.is_empty:
            return other
        return super().__and__(other)

    def __or__(self, other: Dfa) -> Dfa:
        if self is other or self.is_everything or other.is_empty:
            return self
        if self.is_empty or other.is_everything:
            return other
        return super().__or__(other)

    def __sub__(self, other: Dfa) -> Dfa:
        if self.is_empty or other.is_empty:
            return self
        if self.is_everything:
            return ~other
        return super().__sub__(other)

    def __invert__(self) -> Dfa:
        if self.is_empty:
            return _EVERYTHING
        sink = len(self.rows)
        rows: list[Row] = []
        needs_sink = False
        for row in self.rows:
            filled = _filled(row, sink)
            needs_sink = needs_sink or len(filled) != len(row)
            rows.append(filled)
        labels = [-1 if label >= 0 else 0 for label in self.ends]
        if needs_sink:
            current_budget().check_states(sink + 1)
            rows.append(_any_char(sink))
            labels.append(0)
        return Dfa(*renumbered(rows, labels))

    @property
    def is_everything(self) -> bool:
        """Whether the set has every text."""
        return self.is_universal(0)

    def is_universal(self, state: int) -> bool:
        """Whether every text is accepted from a state."""
        return self.ends[state] >= 0 and self.rows[state] == _any_char(state)

    def accepts(self, text: str) -> bool:
        """Whether the set has the text."""
        return self.label_of(map(ord, text)) >= 0

    def lengths(self) -> tuple[int, int | None] | None:
        """Code points of a shortest and of a longest text (None: unbounded); None for the empty set."""
        if self._lengths is None and not self.is_empty:
            self._lengths = len(self._shortest()), longest_length(self.rows)
        return self._lengths

    def shortest(self) -> str | None:
        """The first of the shortest texts in code point order; None for the empty set."""
        return None if self.is_empty else "".join(map(chr, self._shortest()))

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if not isinstance(other, Dfa):
            return NotImplemented
        return self._hash == other._hash and self.ends == other.ends and self.rows == other.rows

    def __hash__(self) -> int:
        return self._hash

    def __repr__(self) -> str:
        return f"Dfa({self.num_states} states, shortest {self.shortest()!r})"


_NOTHING = Dfa(((),), (-1,))


def _any_char(target: int) -> Row:
    return tuple((first, last, target) for first, last in SCALAR_VALUES)


_EVERYTHING = Dfa((_any_char(0),), (0,))


def _filled(row: Row, sink: int) -> Row:
    """A row whose gaps lead to a sink."""
    gaps = complement(tuple((first, last) for first, last, _ in row))
    return tuple(sorted([*row, *((first, last, sink) for first, last in gaps)]))
