"""Spells sets of texts in JSON, quotes included.

Constrained texts have the one spelling of `json.dumps(text, ensure_ascii=False)`. Only `spell_any_text`
accepts every escape that JSON allows.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, lru_cache

from genret.decoding.grammar.compile_options import current_budget
from genret.decoding.grammar.regular.byte_dfa import ByteDfa, MakeState, byte_edges
from genret.decoding.grammar.regular.dfa import Dfa
from genret.decoding.grammar.regular.minimise import SIZE_PER_STATE, Edge, Row
from genret.decoding.grammar.regular.nfa import Nfa
from genret.decoding.grammar.regular.product import Combination, product

BETWEEN = -2
"""Label of the states before the opening quote and between two characters; those within one have none."""
_QUOTE = 0x22
_BACKSLASH = 0x5C
_SHORT_ESCAPES = {0x08: "b", 0x09: "t", 0x0A: "n", 0x0C: "f", 0x0D: "r", _QUOTE: '"', _BACKSLASH: "\\"}
_HEX = b"0123456789abcdef"
# Templates of shapes with more edges are not kept for other sets.
_SMALL_SHAPE = 32
_HEX_DIGITS = ((0x30, 0x39), (0x41, 0x46), (0x61, 0x66))

# Rows of inner states, and a row, over bytes. Numbers of states: first those of the targets, then inner ones.
_Template = tuple[tuple[Row, ...], Row]


def _template(shape: Row, end: int) -> _Template:
    """The states inside characters, each behind those it leads to, and edges over bytes.

    The edges over code points lead to targets that are numbered from 0; `end` is the state behind the closing
    quote, -1 if the text does not end.
    """
    num_targets = max(end, max((target for _, _, target in shape), default=-1)) + 1
    inner: dict[Row, int] = {}

    def inside(row: Row) -> int:
        return inner.setdefault(row, num_targets + len(inner))

    plain: list[Edge] = []
    escapes: list[Edge] = []
    controls: list[Edge] = []
    for edge in shape:
        first, last, target = edge
        if first > _BACKSLASH:
            plain.append(edge)
            continue
        _escaped(edge, escapes, controls)
        plain.extend(
            (max(first, low), min(last, high), target)
            for low, high in ((0x20, 0x21), (0x23, 0x5B), (0x5D, 0x10FFFF))
            if first <= high and last >= low
        )
    out = byte_edges(plain, inside)
    if controls:
        escapes.append((0x75, 0x75, _behind_u(controls, inside)))
    if escapes:
        out.append((_BACKSLASH, _BACKSLASH, inside(tuple(sorted(escapes)))))
    if end >= 0:
        out.append((_QUOTE, _QUOTE, end))
    return tuple(inner), tuple(sorted(out))


_kept_template = lru_cache(maxsize=512)(_template)


def _behind_u(controls: Sequence[Edge], inside: MakeState) -> int:
    """The state behind a backslash and `u`: two zeros and two digits of a control character."""
    tens: list[Edge] = []
    for ten in (0, 1):
        digits = [
            (_HEX[code & 15], _HEX[code & 15], target) for code, _, target in controls if code >> 4 == ten
        ]
        if digits:
            tens.append((0x30 + ten, 0x30 + ten, inside(tuple(sorted(digits)))))
    zero = inside(tuple(tens))
    for _ in range(2):
        zero = inside(((0x30, 0x30, zero),))
    return zero


class _Speller:
    """Rows over bytes for rows over code points; states inside a character are interned."""

    def __init__(self) -> None:
        self.rows: list[Row] = []
        self.labels: list[int] = []
        self.inner: dict[Row, int] = {}
        self._templates: dict[tuple[Row, int], _Template] = {}

    def state(self, row: Row = (), label: int = -1) -> int:
        self.rows.append(row)
        self.labels.append(label)
        return len(self.rows) - 1

    def inside(self, row: Row) -> int:
        known = self.inner.get(row)
        if known is None:
            known = self.inner[row] = self.state(row)
        return known

    def _template(self, shape: Row, end: int) -> _Template:
        if len(shape) <= _SMALL_SHAPE:
            return _kept_template(shape, end)
        known = self._templates.get((shape, end))
        if known is None:
            known = self._templates[shape, end] = _template(shape, end)
        return known

    def spelled(self, row: Sequence[Edge], base: int, end: int) -> Row:
        """Edges over bytes for edges over code points, with `base` added to the states they lead to.

        `end` is the state behind the closing quote, -1 if the text does not end.
        """
        numbers: dict[int, int] = {}
        shape = [(first, last, numbers.setdefault(target, len(numbers))) for first, last, target in row]
        targets = [base + target for target in numbers]
        if end >= 0:
            targets.append(end)
        inner, top = self._template(tuple(shape), len(numbers) if end >= 0 else -1)
        for inner_row in inner:
            targets.append(self.inside(tuple([(f, t, targets[n]) for f, t, n in inner_row])))
        return tuple([(first, last, targets[number]) for first, last, number in top])


def _escaped(edge: Edge, escapes: list[Edge], controls: list[Edge]) -> None:
    """Add the edges of escaped characters: those with a letter, and other control characters."""
    first, last, target = edge
    for code, letter in _SHORT_ESCAPES.items():
        if first <= code <= last:
            escapes.append((ord(letter), ord(letter), target))
    for code in range(first, min(last, 0x1F) + 1):
        if code not in _SHORT_ESCAPES:
            controls.append((code, code, target))


def spell_texts(dfa: Dfa) -> ByteDfa:
    """Every text of a set in its one spelling, quotes included, with label 0, and `BETWEEN` on the way."""
    return spell_labelled([(dfa, 0)])


def spell_labelled(parts: Sequence[tuple[Dfa, int]]) -> ByteDfa:
    """Texts of several sets in their one spelling, each with the label (0 or more) of its set.

    A text in several sets has the smallest label.
    """
    named = [(dfa, label) for dfa, label in parts if not dfa.is_empty]
    if not named:
        return ByteDfa.literals([])
    if len(named) == 1:
        dfa, label = named[0]
        return _spelled_rows(dfa.rows, [label if end >= 0 else -1 for end in dfa.ends])
    nfa = Nfa()
    start = nfa.state()
    for dfa, label in named:
        offset, ends = nfa.embed(dfa.rows, dfa.ends)
        nfa.step(start, offset)
        for end in ends:
            nfa.labels[end] = label
    return _spelled_rows(*nfa.determinise(start))


def written_with(automaton: ByteDfa, writable: ByteDfa | None) -> ByteDfa:
    """The texts of an automaton that can be written (None: all); `BETWEEN` stays."""
    if writable is None:
        return automaton
    both = Combination(lambda left, right: left if right >= 0 or left == BETWEEN else -1, False, False)
    return ByteDfa(*product((automaton.rows, automaton.ends), (writable.rows, writable.ends), both))


def _spelled_rows(rows: Sequence[Row], labels: Sequence[int]) -> ByteDfa:
    """A minimal automaton over code points in its spelling, minimal as well.

    States between characters differ, as those of the set do and every text has one spelling; states within
    characters are interned.
    """
    speller = _Speller()
    speller.state((), BETWEEN)
    ends: dict[int, int] = {}
    for label in labels:
        if label >= 0 and label not in ends:
            ends[label] = speller.state((), label)
    base = len(speller.rows)
    for _ in rows:
        speller.state((), BETWEEN)
    speller.rows[0] = ((_QUOTE, _QUOTE, base),)
    budget = current_budget()
    for state, row in enumerate(rows):
        speller.rows[base + state] = speller.spelled(row, base, ends.get(labels[state], -1))
        if not state & 63 or len(row) > _SMALL_SHAPE:
            # It is larger than the set, whose size has been within bounds, by a factor only.
            budget.check_states(len(speller.rows) // SIZE_PER_STATE)
    return ByteDfa.from_minimal_rows(speller.rows, speller.labels)


@cache
def spell_any_text() -> ByteDfa:
    """Every JSON string, with every escape that JSON allows; surrogates only as pairs.

    The state between characters has the label `BETWEEN`.
    """
    speller = _Speller()
    start, inside, end = speller.state(), speller.state((), BETWEEN), speller.state((), 0)

    def before_hex(target: int) -> int:
        return speller.inside(tuple((first, last, target) for first, last in _HEX_DIGITS))

    last_two = before_hex(before_hex(inside))
    last_three = before_hex(last_two)
    # The second half of a pair: \uDC00 to \uDFFF.
    low_three = speller.inside(((0x43, 0x46, last_two), (0x63, 0x66, last_two)))
    low_four = speller.inside(((0x44, 0x44, low_three), (0x64, 0x64, low_three)))
    low_u = speller.inside(((0x75, 0x75, low_four),))
    low_backslash = speller.inside(((_BACKSLASH, _BACKSLASH, low_u),))
    high_two = before_hex(before_hex(low_backslash))
    # Behind the D of \uD: 0 to 7 is a character, 8 to B the first half of a pair.
    behind_d = speller.inside(
        ((0x30, 0x37, last_two), (0x38, 0x39, high_two), (0x41, 0x42, high_two), (0x61, 0x62, high_two))
    )
    other_digits = ((0x30, 0x39), (0x41, 0x43), (0x45, 0x46), (0x61, 0x63), (0x65, 0x66))
    first_digits = [(first, last, last_three) for first, last in other_digits]
    four = speller.inside(tuple(sorted([*first_digits, (0x44, 0x44, behind_d), (0x64, 0x64, behind_d)])))
    letters: list[Edge] = [(ord(letter), ord(letter), inside) for letter in '"/\\bfnrt']
    escape = speller.inside(tuple(sorted([*letters, (0x75, 0x75, four)])))
    chars: list[Edge] = [(0x20, 0x21, inside), (0x23, 0x5B, inside), (0x5D, 0xD7FF, inside)]
    row = byte_edges([*chars, (0xE000, 0x10FFFF, inside)], speller.inside)
    row += [(_QUOTE, _QUOTE, end), (_BACKSLASH, _BACKSLASH, escape)]
    speller.rows[start] = ((_QUOTE, _QUOTE, inside),)
    speller.rows[inside] = tuple(sorted(row))
    return ByteDfa.from_rows(speller.rows, speller.labels)
