"""Deterministic automata over code points: regular sets of texts, with the Boolean operations."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence

from genret.decoding.grammar.compile_options import current_budget
from genret.decoding.grammar.regular.dfa_texts import (
    automaton_of,
    count_texts,
    longest_length,
    rows_bytes,
    shortest_text,
    texts_by_length,
)
from genret.decoding.grammar.regular.minimise import Edge, Row, canonical, renumbered
from genret.decoding.grammar.regular.nfa import Nfa
from genret.decoding.grammar.regular.product import DIFFERENCE, INTERSECTION, UNION, Combination, product
from genret.decoding.grammar.regular.ranges import SCALAR_VALUES, scalar

# Texts longer than this check the clock one by one.
_LONG_TEXT = 10_000


class Dfa:
    """A regular set of texts of Unicode scalar values (no surrogates).

    Immutable, minimal and numbered canonically: equal sets are equal objects (`==`, `hash`). Every operation
    raises `AutomatonLimitError` when the result has too many states.

    Attributes:
        rows: By state, edges (first, last, next): sorted, disjoint, none that could be joined.
        finals: By state, whether a text may end there.
    """

    __slots__ = ("_hash", "finals", "rows")

    def __init__(self, rows: Sequence[Row], finals: Sequence[bool]) -> None:
        """Not to be called: rows must be minimal and canonical, as the other constructors make them."""
        self.rows = tuple(rows)
        self.finals = tuple(finals)
        self._hash = hash((self.rows, self.finals))

    @staticmethod
    def from_rows(rows: Sequence[Sequence[Edge]], finals: Sequence[bool]) -> Dfa:
        """Any deterministic automaton, start 0.

        Args:
            rows: For every state its edges (first, last, next), sorted and disjoint, without surrogates.
            finals: For every state whether a text may end there.
        """
        return Dfa.from_canonical(*canonical(rows, [0 if final else -1 for final in finals]))

    @staticmethod
    def from_canonical(rows: Sequence[Row], labels: Sequence[int]) -> Dfa:
        """The automaton with the rows and labels that `canonical` has made."""
        return Dfa(rows, [label >= 0 for label in labels])

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
        return Dfa.from_canonical(*automaton_of(symbols, [0] * len(ordered)))

    @staticmethod
    def of_chars(ranges: Iterable[tuple[int, int]]) -> Dfa:
        """Texts of one code point out of some ranges; surrogates among them are ignored."""
        chars = scalar(ranges)
        if not chars:
            return _NOTHING
        return Dfa((tuple((first, last, 1) for first, last in chars), ()), (False, True))

    @staticmethod
    def of_lengths(least: int, most: int | None) -> Dfa:
        """All texts of `least` to `most` code points; None is no bound."""
        if most is not None and most < least:
            return _NOTHING
        top = least if most is None else most
        current_budget().check_states(top + 1)
        rows = [_any_char(state + 1) for state in range(top)]
        rows.append(_any_char(top) if most is None else ())
        return Dfa(rows, [state >= least for state in range(top + 1)])

    def __and__(self, other: Dfa) -> Dfa:
        if self is other or other.is_everything or self.is_empty:
            return self
        if self.is_everything or other.is_empty:
            return other
        return self._combined(other, INTERSECTION)

    def __or__(self, other: Dfa) -> Dfa:
        if self is other or self.is_everything or other.is_empty:
            return self
        if self.is_empty or other.is_everything:
            return other
        return self._combined(other, UNION)

    def __sub__(self, other: Dfa) -> Dfa:
        if self.is_empty or other.is_empty:
            return self
        if self.is_everything:
            return ~other
        return self._combined(other, DIFFERENCE)

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
        labels = [-1 if final else 0 for final in self.finals]
        if needs_sink:
            current_budget().check_states(sink + 1)
            rows.append(_any_char(sink))
            labels.append(0)
        return Dfa.from_canonical(*renumbered(rows, labels))

    def _combined(self, other: Dfa, how: Combination) -> Dfa:
        left, right = (self.rows, self.labels()), (other.rows, other.labels())
        return Dfa.from_canonical(*product(left, right, how))

    def labels(self) -> list[int]:
        """By state, 0 where a text may end, else -1."""
        return [0 if final else -1 for final in self.finals]

    def then(self, *others: Dfa) -> Dfa:
        """Texts of this set followed by texts of the others, in order."""
        parts = [part for part in (self, *others) if part != _EMPTY_TEXT]
        if any(part.is_empty for part in parts):
            return _NOTHING
        if len(parts) <= 1:
            return parts[0] if parts else _EMPTY_TEXT
        nfa = Nfa()
        start = joint = nfa.state()
        for part in parts:
            joint = nfa.append(joint, part.rows, part.labels())
        nfa.labels[joint] = 0
        return Dfa.from_canonical(*nfa.determinise(start))

    def repeated(self, least: int = 0, most: int | None = None) -> Dfa:
        """Concatenations of `least` to `most` texts of the set; None is no bound."""
        if most is not None and most < least:
            return _NOTHING
        if self.is_empty:
            return _EMPTY_TEXT if least == 0 else _NOTHING
        current_budget().check_states((most if most is not None else least) * max(1, len(self.rows) - 1))
        nfa = Nfa()
        start = joint = nfa.state()
        end = nfa.state(label=0)
        copied = (self.rows, self.labels())
        for _ in range(least):
            joint = nfa.append(joint, *copied)
        if most is None:
            loop = nfa.state()
            nfa.step(joint, loop)
            nfa.step(nfa.append(loop, *copied), loop)
            joint = loop
        else:
            for _ in range(most - least):
                nfa.step(joint, end)
                joint = nfa.append(joint, *copied)
        nfa.step(joint, end)
        return Dfa.from_canonical(*nfa.determinise(start))

    @property
    def is_empty(self) -> bool:
        """Whether the set has no text."""
        return len(self.rows) == 1 and not self.finals[0]

    @property
    def is_everything(self) -> bool:
        """Whether the set has every text."""
        return len(self.rows) == 1 and self.finals[0] and self.rows[0] == _EVERY_CHAR

    @property
    def num_states(self) -> int:
        """The number of live states."""
        return 0 if self.is_empty else len(self.rows)

    def is_universal(self, state: int) -> bool:
        """Whether every text is accepted from a state."""
        return self.finals[state] and self.rows[state] == _any_char(state)

    def step(self, state: int, code_point: int) -> int:
        """The state behind one more code point, -1 for none."""
        row = self.rows[state]
        index = bisect_right(row, (code_point, 0x110000, 0)) - 1
        if index >= 0 and row[index][1] >= code_point:
            return row[index][2]
        return -1

    def accepts(self, text: str) -> bool:
        """Whether the set has the text."""
        state = 0
        for char in text:
            state = self.step(state, ord(char))
            if state < 0:
                return False
        return self.finals[state]

    @property
    def num_bytes(self) -> int:
        """Approximate memory."""
        return rows_bytes(self.rows)

    def lengths(self) -> tuple[int, int | None] | None:
        """Code points of a shortest and of a longest text (None: unbounded); None for the empty set."""
        if self.is_empty:
            return None
        return len(shortest_text(self.rows, self.finals, 0)), longest_length(self.rows)

    def count(self, most: int | None = None) -> int | None:
        """Count the texts, at most up to `most`; None: infinitely many."""
        return count_texts(self.rows, self.finals, most)

    def shortest(self) -> str | None:
        """The first of the shortest texts in code point order; None for the empty set."""
        if self.is_empty:
            return None
        return "".join(map(chr, shortest_text(self.rows, self.finals, 0)))

    def texts(self) -> Iterator[str]:
        """Iterate over all texts, short ones first; endless for an infinite set."""
        return texts_by_length(self.rows, self.finals)

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if not isinstance(other, Dfa):
            return NotImplemented
        return self._hash == other._hash and self.finals == other.finals and self.rows == other.rows

    def __hash__(self) -> int:
        return self._hash

    def __repr__(self) -> str:
        shown: list[str] = []
        for text in self.texts():
            if len(shown) == 3:
                shown.append("...")
                break
            shown.append(repr(text))
        return f"Dfa({self.num_states} states: {', '.join(shown)})"


_EVERY_CHAR: Row = tuple((first, last, 0) for first, last in SCALAR_VALUES)
_NOTHING = Dfa(((),), (False,))
_EMPTY_TEXT = Dfa(((),), (True,))
_EVERYTHING = Dfa((_EVERY_CHAR,), (True,))


def _any_char(target: int) -> Row:
    return tuple((first, last, target) for first, last in SCALAR_VALUES)


def _filled(row: Row, sink: int) -> Row:
    """A row whose gaps lead to a sink."""
    out: list[Edge] = []
    for low, high in SCALAR_VALUES:
        position = low
        for first, last, target in row:
            if low <= first <= high:
                if position < first:
                    out.append((position, first - 1, sink))
                out.append((first, last, target))
                position = last + 1
        if position <= high:
            out.append((position, high, sink))
    return tuple(out)
