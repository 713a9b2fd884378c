"""How sets of texts are spelled in JSON: as `json.dumps(text, ensure_ascii=False)` does, quotes included.

Constrained texts have this one spelling. Only `spell_any_text` admits every escape that JSON allows.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from decoding.grammar.budget import current_budget
from decoding.grammar.regular.byte_dfa import ByteDfa
from decoding.grammar.regular.dfa import Dfa
from decoding.grammar.regular.minimise import Edge, Row
from decoding.grammar.regular.nfa import Nfa
from decoding.grammar.regular.utf8 import byte_edges

_QUOTE = 0x22
_BACKSLASH = 0x5C
_SHORT_ESCAPES = {0x08: "b", 0x09: "t", 0x0A: "n", 0x0C: "f", 0x0D: "r", _QUOTE: '"', _BACKSLASH: "\\"}
_HEX = b"0123456789abcdef"
_HEX_DIGITS = ((0x30, 0x39), (0x41, 0x46), (0x61, 0x66))


class _Speller:
    """Rows over bytes for rows over code points; states inside a character are interned."""

    def __init__(self) -> None:
        self.rows: list[Row] = []
        self.labels: list[int] = []
        self._inside: dict[Row, int] = {}

    def state(self, row: Row = (), label: int = -1) -> int:
        """A state of its own."""
        self.rows.append(row)
        self.labels.append(label)
        return len(self.rows) - 1

    def inside(self, row: Row) -> int:
        """The state with these edges inside a character."""
        known = self._inside.get(row)
        if known is None:
            known = self._inside[row] = self.state(row)
        return known

    def spelled(self, row: Sequence[Edge], end: int) -> Row:
        """Edges over bytes for edges over code points.

        Args:
            row: Edges over code points, sorted and disjoint.
            end: The state behind the closing quote, -1 where the text does not end.
        """
        plain: list[Edge] = []
        escapes: list[Edge] = []
        controls: list[Edge] = []
        for edge in row:
            first, last, target = edge
            if first > _BACKSLASH:
                plain.append(edge)
            else:
                _escaped(edge, escapes, controls)
                plain.extend(
                    (max(first, low), min(last, high), target)
                    for low, high in ((0x20, 0x21), (0x23, 0x5B), (0x5D, 0x10FFFF))
                    if first <= high and last >= low
                )
        out = byte_edges(plain, self.inside)
        if escapes or controls:
            if controls:
                escapes.append((0x75, 0x75, self._control(controls)))
            escapes.sort()
            out.append((_BACKSLASH, _BACKSLASH, self.inside(tuple(escapes))))
        if end >= 0:
            out.append((_QUOTE, _QUOTE, end))
        out.sort()
        return tuple(out)

    def _control(self, controls: Sequence[Edge]) -> int:
        """The state behind a backslash and `u`: two zeros and two digits of a control character."""
        tens: list[Edge] = []
        for ten in (0, 1):
            digits = [
                (_HEX[code & 15], _HEX[code & 15], target) for code, _, target in controls if code >> 4 == ten
            ]
            if digits:
                tens.append((0x30 + ten, 0x30 + ten, self.inside(tuple(sorted(digits)))))
        zero = self.inside(tuple(tens))
        for _ in range(2):
            zero = self.inside(((0x30, 0x30, zero),))
        return zero


def _escaped(edge: Edge, escapes: list[Edge], controls: list[Edge]) -> None:
    """Add the characters of an edge that are escaped: those with a letter, and other control characters."""
    first, last, target = edge
    for code, letter in _SHORT_ESCAPES.items():
        if first <= code <= last:
            escapes.append((ord(letter), ord(letter), target))
    for code in range(first, min(last, 0x1F) + 1):
        if code not in _SHORT_ESCAPES:
            controls.append((code, code, target))


def spell_texts(dfa: Dfa) -> ByteDfa:
    """Every text of a set in its one spelling, quotes included, with label 0."""
    if dfa.is_empty:
        return ByteDfa.from_rows([[]], [-1])
    return _spelled([(dfa, 0)])


def spell_labelled(parts: Sequence[tuple[Dfa, int]]) -> ByteDfa:
    """Texts of several sets, each with the label of its set.

    Args:
        parts: Sets, and their labels of 0 or more. A text in several of them has the smallest label.
    """
    named = [(dfa, label) for dfa, label in parts if not dfa.is_empty]
    if len(named) == 1:
        return _spelled(named)
    if not named:
        return ByteDfa.from_rows([[]], [-1])
    nfa = Nfa()
    start = nfa.state()
    for dfa, label in named:
        offset, ends = nfa.embed(dfa.rows, [0 if final else -1 for final in dfa.finals])
        nfa.step(start, offset)
        for end in ends:
            nfa.set_label(end, label)
    return _spelled_rows(*nfa.determinise([start]))


def _spelled(parts: Sequence[tuple[Dfa, int]]) -> ByteDfa:
    """One set in its spelling."""
    dfa, label = parts[0]
    return _spelled_rows(dfa.rows, [label if final else -1 for final in dfa.finals])


def _spelled_rows(rows: Sequence[Row], labels: Sequence[int]) -> ByteDfa:
    """A minimal automaton over code points in its spelling."""
    speller = _Speller()
    speller.state()
    ends: dict[int, int] = {}
    for label in labels:
        if label >= 0 and label not in ends:
            ends[label] = speller.state((), label)
    base = len(speller.rows)
    for _ in rows:
        speller.state()
    speller.rows[0] = ((_QUOTE, _QUOTE, base),)
    budget = current_budget()
    for state, row in enumerate(rows):
        moved = [(first, last, base + target) for first, last, target in row]
        speller.rows[base + state] = speller.spelled(moved, ends.get(labels[state], -1))
        if not state & 255:
            # Its size is linear in that of the set, which has been within bounds.
            budget.check_time()
    return ByteDfa.from_rows(speller.rows, speller.labels)


def spell_literals(texts: Sequence[bytes]) -> ByteDfa:
    """A finite set of JSON texts as they stand, with label 0."""
    return ByteDfa.literals((text, 0) for text in texts)


@cache
def spell_any_text() -> ByteDfa:
    """Every JSON string, with every escape that JSON allows; surrogates only as pairs."""
    speller = _Speller()
    start, inside, end = speller.state(), speller.state(), speller.state((), 0)
    any_hex = tuple((first, last, inside) for first, last in _HEX_DIGITS)
    last_one = speller.inside(any_hex)
    last_two = speller.inside(tuple((first, last, last_one) for first, last in _HEX_DIGITS))
    last_three = speller.inside(tuple((first, last, last_two) for first, last in _HEX_DIGITS))
    # The second half of a pair: \uDC00 to \uDFFF.
    low_three = speller.inside(((0x43, 0x46, last_two), (0x63, 0x66, last_two)))
    low_four = speller.inside(((0x44, 0x44, low_three), (0x64, 0x64, low_three)))
    low_u = speller.inside(((0x75, 0x75, low_four),))
    low_backslash = speller.inside(((_BACKSLASH, _BACKSLASH, low_u),))
    high_one = speller.inside(tuple((first, last, low_backslash) for first, last in _HEX_DIGITS))
    high_two = speller.inside(tuple((first, last, high_one) for first, last in _HEX_DIGITS))
    # Behind the D of \uD: 0 to 7 is a character, 8 to B the first half of a pair.
    behind_d = speller.inside(
        (
            (0x30, 0x37, last_two),
            (0x38, 0x39, high_two),
            (0x41, 0x42, high_two),
            (0x61, 0x62, high_two),
        )
    )
    four = speller.inside(
        (
            (0x30, 0x39, last_three),
            (0x41, 0x43, last_three),
            (0x44, 0x44, behind_d),
            (0x45, 0x46, last_three),
            (0x61, 0x63, last_three),
            (0x64, 0x64, behind_d),
            (0x65, 0x66, last_three),
        )
    )
    letters: list[Edge] = [(ord(letter), ord(letter), inside) for letter in '"/\\bfnrt']
    escape = speller.inside(tuple(sorted([*letters, (0x75, 0x75, four)])))
    chars: list[Edge] = [(0x20, 0x21, inside), (0x23, 0x5B, inside), (0x5D, 0xD7FF, inside)]
    row = byte_edges([*chars, (0xE000, 0x10FFFF, inside)], speller.inside)
    row += [(_QUOTE, _QUOTE, end), (_BACKSLASH, _BACKSLASH, escape)]
    speller.rows[start] = ((_QUOTE, _QUOTE, inside),)
    speller.rows[inside] = tuple(sorted(row))
    return ByteDfa.from_rows(speller.rows, speller.labels)
