"""Formats of names of hosts and of people: hostname, email, and the same beyond ASCII."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

from decoding.grammar.regular.dfa import Dfa
from decoding.grammar.regular.format_addresses import IPV4, MARK, behind, ipv6, whole_with
from decoding.grammar.regular.minimise import Edge
from decoding.grammar.regular.ranges import Ranges, complement, intersection, union

LONGEST_LABEL = 63
"""Characters."""

SHORT_LABEL, LONG_UNITS, UNITS = 15, 4, 15
"""A label of up to 15 characters and its dot count as one unit of 16 characters, a longer one as four.

A name of 15 units has at most 239 characters; 253 are allowed.
"""

_LOWER: Ranges = ((0x30, 0x39), (0x61, 0x7A))
_UPPER: Ranges = ((0x41, 0x5A),)
_HYPHEN, _DOT = 0x2D, 0x2E

LETTERS: Ranges = (
    (0xDF, 0xF6),
    (0xF8, 0xFF),
    (0x3B1, 0x3C9),
    (0x430, 0x44F),
    (0x451, 0x45C),
    (0x3041, 0x3096),
    (0x30A1, 0x30FA),
    (0x4E00, 0x9FA5),
    (0xAC00, 0xD7A3),
)
"""Latin, Greek, Cyrillic, kana, Han and Hangul letters that are allowed everywhere in a label.

All are written from left to right, and none composes with a letter in front of it.
"""


class _InName(NamedTuple):
    """Where the reading of a name stands.

    Attributes:
        units: Taken by earlier labels; a multiple of four once the label is long.
        cost: Characters of the label so far, as they would be in ASCII.
        hyphen: Whether the last character was one.
        prefix: How many characters of `xn--` the label so far consists of, 0 if it is something else.
        kind: Of the label, one of the following.
    """

    units: int
    cost: int
    hyphen: bool
    prefix: int
    kind: int


_OPEN, _ASCII, _INTERNATIONAL = range(3)
"""Kinds of labels: it may become either, only ASCII, letters beyond ASCII among it."""

COST_OF_LETTER, COST_OF_FIRST = 7, 12
"""Most characters Punycode needs for one more letter of the basic plane in a label as short as these are,

and for the first one, `xn--` and a delimiter included.
"""


def _names(letters: Ranges = (), dots: Ranges = ((_DOT, _DOT),)) -> Dfa:
    """Names of hosts: labels of letters, digits and hyphens.

    Args:
        letters: Letters beyond ASCII that are allowed in lower-case labels.
        dots: What parts labels.
    """
    start = _InName(0, 0, False, 0, _OPEN if letters else _ASCII)
    numbers = {start: 0}
    order = [start]
    rows: list[list[Edge]] = []
    for state in order:  # grows while it is walked
        row = []
        for ranges, target in _ways_on(state, letters, dots, start):
            number = numbers.setdefault(target, len(order))
            if number == len(order):
                order.append(target)
            row += [(first, last, number) for first, last in ranges]
        rows.append(sorted(row))
    return Dfa.from_rows(rows, [state.cost > 0 and not state.hyphen for state in order])


def _ways_on(
    state: _InName, letters: Ranges, dots: Ranges, start: _InName
) -> Iterator[tuple[Ranges, _InName]]:
    """What may follow, and where it leads."""
    units, cost, hyphen, prefix, kind = state
    if cost and not hyphen:
        after = units + (1 if cost <= SHORT_LABEL else LONG_UNITS)
        if after < UNITS:
            yield dots, start._replace(units=after)
    long_units = -(-units // LONG_UNITS) * LONG_UNITS
    most = LONGEST_LABEL if long_units + LONG_UNITS <= UNITS else SHORT_LABEL
    if cost >= SHORT_LABEL:
        units = long_units
    if cost < most:
        upper = _ASCII if kind == _OPEN else kind
        following = {0: (0x58, 0x78), 1: (0x4E, 0x6E)}.get(cost if cost == prefix else -1, ())
        for code in following:
            kept = upper if code < 0x60 else kind
            if kept != kind or kind != _INTERNATIONAL:
                yield ((code, code),), _InName(units, cost + 1, False, cost + 1, kept)
        lower = _without(_LOWER, following)
        yield lower, _InName(units, cost + 1, False, 0, kind)
        if kind != _INTERNATIONAL:
            capital = _without(_UPPER, following)
            yield capital, _InName(units, cost + 1, False, 0, upper)
        if cost and prefix != 3 and not (hyphen and kind == _INTERNATIONAL):
            doubled = _ASCII if hyphen else kind
            yield ((_HYPHEN, _HYPHEN),), _InName(units, cost + 1, True, 3 if prefix == 2 else 0, doubled)
    if letters and kind != _ASCII:
        more = cost + (COST_OF_LETTER if kind == _INTERNATIONAL else COST_OF_FIRST)
        if more <= most:
            yield (
                letters,
                _InName(long_units if more > SHORT_LABEL else units, more, False, 0, _INTERNATIONAL),
            )


def _without(chars: Ranges, codes: tuple[int, ...]) -> Ranges:
    return intersection(chars, complement(tuple((code, code) for code in codes))) if codes else chars


@lru_cache(maxsize=1)
def hostname() -> Dfa:
    """RFC 1123 names, but no labels that begin with `xn--`, whose Punycode no automaton can check.

    Left out are also names of more than 15 labels, of more than three labels longer than 15 characters, and
    with such a label behind more than eight others: so much less of all lengths has to be remembered.
    """
    return _names()


@lru_cache(maxsize=1)
def idn_hostname() -> Dfa:
    """As `hostname`, with labels of letters of `LETTERS` that are short enough in Punycode.

    Left out are other scripts, among them all that are written from right to left, combining marks, and
    characters whose neighbours decide about them; and labels that might be too long in Punycode.
    """
    return _names(LETTERS, ((_DOT, _DOT), (0x3002, 0x3002), (0xFF0E, 0xFF0E), (0xFF61, 0xFF61)))


_ATOM: Ranges = union(
    ((0x21, 0x21), (0x23, 0x27), (0x2A, 0x2B), (0x2D, 0x2D), (0x2F, 0x39), (0x3D, 0x3D), (0x3F, 0x3F)),
    ((0x41, 0x5A), (0x5E, 0x7E)),
)
_IN_QUOTES: Ranges = ((0x20, 0x21), (0x23, 0x5B), (0x5D, 0x7E))
_QUOTE, _BACKSLASH = 0x22, 0x5C
_AT: Ranges = ((0x40, 0x40),)
_BEYOND_ASCII: tuple[tuple[int, Ranges], ...] = (
    (2, ((0x80, 0x7FF),)),
    (3, ((0x800, 0xD7FF), (0xE000, 0xFFFF))),
    (4, ((0x10000, 0x10FFFF),)),
)
"""Code points by their length in UTF-8."""

LONGEST_LOCAL_PART = 64
"""Bytes."""


def _local_part(international: bool) -> Dfa:
    """What stands in front of the at-sign: words with dots between them, or a text in quotes."""
    beyond = _BEYOND_ASCII if international else ()
    words = [(1, _ATOM), *beyond]
    quoted = [(1, _IN_QUOTES), *beyond]
    start = ("dot", 0)
    numbers = {start: 0}
    order = [start]
    rows: list[list[Edge]] = []
    for kind, length in order:  # grows while it is walked
        ways: list[tuple[Ranges, str, int]] = []
        if kind in ("dot", "word"):
            ways += [(chars, "word", length + more) for more, chars in words]
        if kind == "word":
            ways.append((((_DOT, _DOT),), "dot", length + 1))
        if (kind, length) == start:
            ways.append((((_QUOTE, _QUOTE),), "quoted", 1))
        if kind == "quoted":
            ways += [(chars, "quoted", length + more) for more, chars in quoted]
            ways.append((((_BACKSLASH, _BACKSLASH),), "escape", length + 1))
            ways.append((((_QUOTE, _QUOTE),), "closed", length + 1))
        if kind == "escape":
            ways.append((((0x20, 0x7E),), "quoted", length + 1))
        row = []
        for chars, then, total in ways:
            if total <= LONGEST_LOCAL_PART:
                number = numbers.setdefault((then, total), len(order))
                if number == len(order):
                    order.append((then, total))
                row += [(first, last, number) for first, last in chars]
        rows.append(sorted(row))
    return Dfa.from_rows(rows, [kind in ("word", "closed") for kind, _ in order])


def _literal() -> Dfa:
    return whole_with(rf"\[(?:{IPV4}|IPv6:{MARK})\]", ipv6())


def email() -> Dfa:
    """RFC 5321 mailboxes: words or a quoted text, and a name of `hostname` or an address in brackets."""
    return behind(_local_part(international=False), _AT, hostname() | _literal())


def idn_email() -> Dfa:
    """RFC 6531 mailboxes: as `email`, with anything beyond ASCII, and a name of `idn_hostname`."""
    return behind(_local_part(international=True), _AT, idn_hostname() | _literal())
