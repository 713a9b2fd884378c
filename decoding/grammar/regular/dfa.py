"""Deterministic automata over code points: regular sets of texts, with the Boolean operations."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence

from decoding.grammar.compile_options import current_budget
from decoding.grammar.regular.dfa_texts import (
    automaton_of,
    count_texts,
    longest_length,
    rows_bytes,
    shortest_text,
    texts_by_length,
)
from decoding.grammar.regular.minimise import Edge, Row, canonical, renumbered, turned
from decoding.grammar.regular.nfa import Nfa
from decoding.grammar.regular.product import product
from decoding.grammar.regular.ranges import SCALAR_VALUES, scalar

_Label = Callable[[int, int], int]
_NOT_ACCEPTED = -1
_ACCEPTED = 0
# A longer text looks at the clock alone.
_LONG_TEXT = 10_000


class Dfa:
    """A regular set of texts of Unicode scalar values (no surrogates).

    Immutable, minimal and numbered canonically: equal sets are equal objects (`==`, `hash`). Every operation
    raises `AutomatonLimitError` when the result has too many states.
    """

    __slots__ = ("_finals", "_hash", "_rows")

    def __init__(self, rows: Sequence[Row], finals: Sequence[bool]) -> None:
        """Not to be called: the other constructors make what is given here minimal and canonical."""
        self._rows = tuple(rows)
        self._finals = tuple(finals)
        self._hash = hash((self._rows, self._finals))

    @staticmethod
    def from_rows(rows: Sequence[Sequence[Edge]], finals: Sequence[bool]) -> Dfa:
        """Any deterministic automaton, start 0.

        Args:
            rows: For every state its edges (first, last, next), sorted and disjoint, without surrogates.
            finals: For every state whether a text may end there.
        """
        return _made(*canonical(rows, [_ACCEPTED if final else _NOT_ACCEPTED for final in finals]))

    @staticmethod
    def from_nfa(nfa: Nfa, start: int) -> Dfa:
        """What a nondeterministic automaton over code points accepts: texts that end in a labelled state."""
        return _made(*nfa.determinise([start]))

    @staticmethod
    def from_canonical(rows: Sequence[Row], labels: Sequence[int]) -> Dfa:
        """What `canonical` has made: rows, and labels that are 0 or more where a text may end."""
        return _made(rows, labels)

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
        """A finite set. Raises ValueError for a text with a surrogate."""
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
        rows, labels = automaton_of(symbols, [0] * len(ordered))
        return _made(*_started_at_last(rows, labels))

    @staticmethod
    def of_chars(ranges: Iterable[tuple[int, int]]) -> Dfa:
        """Texts of one code point out of some ranges; surrogates among them do not count."""
        chars = scalar(ranges)
        if not chars:
            return _NOTHING
        return Dfa((tuple((first, last, 1) for first, last in chars), ()), (False, True))

    @staticmethod
    def of_lengths(least: int, most: int | None) -> Dfa:
        """All texts of that many code points; None is no bound."""
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
        return self._combined(other, _both, left_alone=False, right_alone=False)

    def __or__(self, other: Dfa) -> Dfa:
        if self is other or self.is_everything or other.is_empty:
            return self
        if self.is_empty or other.is_everything:
            return other
        return self._combined(other, _either, left_alone=True, right_alone=True)

    def __sub__(self, other: Dfa) -> Dfa:
        if self.is_empty or other.is_empty:
            return self
        if self.is_everything:
            return ~other
        return self._combined(other, _only_left, left_alone=True, right_alone=False)

    def __invert__(self) -> Dfa:
        if self.is_empty:
            return _EVERYTHING
        sink = len(self._rows)
        rows: list[Row] = []
        needs_sink = False
        for row in self._rows:
            filled = _filled(row, sink)
            needs_sink = needs_sink or len(filled) != len(row)
            rows.append(filled)
        labels = [_NOT_ACCEPTED if final else _ACCEPTED for final in self._finals]
        if needs_sink:
            current_budget().check_states(sink + 1)
            rows.append(_any_char(sink))
            labels.append(_ACCEPTED)
        return _made(*renumbered(rows, labels))

    def _combined(self, other: Dfa, label: _Label, *, left_alone: bool, right_alone: bool) -> Dfa:
        """A Boolean combination."""
        return _made(
            *product(
                self._rows,
                self._finals,
                other._rows,
                other._finals,
                label,
                left_alone=left_alone,
                right_alone=right_alone,
            )
        )

    def then(self, *others: Dfa) -> Dfa:
        """Texts of this set with texts of the others behind them, in order."""
        parts = [part for part in (self, *others) if part != _EMPTY_TEXT]
        if any(part.is_empty for part in parts):
            return _NOTHING
        if len(parts) <= 1:
            return parts[0] if parts else _EMPTY_TEXT
        nfa = Nfa()
        start = joint = nfa.state()
        for part in parts:
            joint = _appended(nfa, joint, part)
        nfa.set_label(joint, _ACCEPTED)
        return Dfa.from_nfa(nfa, start)

    def repeated(self, least: int = 0, most: int | None = None) -> Dfa:
        """`least` to `most` texts of the set, one behind the other; None is no bound."""
        if most is not None and most < least:
            return _NOTHING
        if self.is_empty:
            return _EMPTY_TEXT if least == 0 else _NOTHING
        current_budget().check_states((most if most is not None else least) * max(1, len(self._rows) - 1))
        nfa = Nfa()
        start = joint = nfa.state()
        end = nfa.state(_ACCEPTED)
        for _ in range(least):
            joint = _appended(nfa, joint, self)
        if most is None:
            loop = nfa.state()
            nfa.step(joint, loop)
            nfa.step(_appended(nfa, loop, self), loop)
            joint = loop
        else:
            for _ in range(most - least):
                nfa.step(joint, end)
                joint = _appended(nfa, joint, self)
        nfa.step(joint, end)
        return Dfa.from_nfa(nfa, start)

    @property
    def rows(self) -> tuple[Row, ...]:
        """For every state its edges (first, last, next): sorted, disjoint, none that could be joined."""
        return self._rows

    @property
    def finals(self) -> tuple[bool, ...]:
        """For every state whether a text may end there."""
        return self._finals

    @property
    def is_empty(self) -> bool:
        """Whether there is no text in it."""
        return len(self._rows) == 1 and not self._finals[0]

    @property
    def is_everything(self) -> bool:
        """Whether every text is in it."""
        return len(self._rows) == 1 and self._finals[0] and self._rows[0] == _EVERY_CHAR

    @property
    def num_states(self) -> int:
        """Live states."""
        return 0 if self.is_empty else len(self._rows)

    def is_universal(self, state: int) -> bool:
        """Whether every text is accepted from a state."""
        return self._finals[state] and self._rows[state] == _any_char(state)

    def step(self, state: int, code_point: int) -> int:
        """The state behind one more code point, -1 if there is none."""
        row = self._rows[state]
        index = bisect_right(row, (code_point, 0x110000, 0)) - 1
        if index >= 0 and row[index][1] >= code_point:
            return row[index][2]
        return -1

    def accepts(self, text: str) -> bool:
        """Whether the text is in it."""
        state = 0
        for char in text:
            state = self.step(state, ord(char))
            if state < 0:
                return False
        return self._finals[state]

    @property
    def num_bytes(self) -> int:
        """Memory it takes, about."""
        return rows_bytes(self._rows)

    def lengths(self) -> tuple[int, int | None] | None:
        """Code points of a shortest and of a longest text (None: there is none); None if it is empty."""
        if self.is_empty:
            return None
        return len(shortest_text(self._rows, self._finals, 0)), longest_length(self._rows)

    def count(self, most: int | None = None) -> int | None:
        """How many texts are in it, or `most` where they are as many or more; None: infinitely many."""
        return count_texts(self._rows, self._finals, most)

    def shortest(self) -> str | None:
        """The first of the shortest texts in code point order; None if it is empty."""
        if self.is_empty:
            return None
        return "".join(map(chr, shortest_text(self._rows, self._finals, 0)))

    def texts(self) -> Iterator[str]:
        """All texts, the short ones first; endless where there are infinitely many."""
        return texts_by_length(self._rows, self._finals)

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if not isinstance(other, Dfa):
            return NotImplemented
        return self._hash == other._hash and self._finals == other._finals and self._rows == other._rows

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
    """Edges over all code points to one state."""
    return tuple((first, last, target) for first, last in SCALAR_VALUES)


def _made(rows: Sequence[Row], labels: Sequence[int]) -> Dfa:
    """From rows and labels that are minimal and canonical."""
    return Dfa(rows, [label >= 0 for label in labels])


def _both(left: int, right: int) -> int:
    """Label of a text in both sets; a side's label is 1 for accepted, 0 or -1 for not."""
    return _ACCEPTED if left > 0 and right > 0 else _NOT_ACCEPTED


def _either(left: int, right: int) -> int:
    """Label of a text in one of the sets."""
    return _ACCEPTED if left > 0 or right > 0 else _NOT_ACCEPTED


def _only_left(left: int, right: int) -> int:
    """Label of a text in the left set alone."""
    return _ACCEPTED if left > 0 and right <= 0 else _NOT_ACCEPTED


def _started_at_last(rows: Sequence[Row], labels: Sequence[int]) -> tuple[list[Row], list[int]]:
    """The canonical automaton of minimal rows without dead states whose start is the last one."""
    return renumbered(turned(rows), labels[::-1], trimmed=True)


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


def _appended(nfa: Nfa, joint: int, part: Dfa) -> int:
    """Put an automaton behind a state. Returns the state behind it."""
    start, ends = nfa.embed(part.rows, [0 if final else -1 for final in part.finals])
    nfa.step(joint, start)
    behind = nfa.state()
    for end in ends:
        nfa.step(end, behind)
    return behind
