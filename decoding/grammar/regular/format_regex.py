"""The format of regular expressions, as far as it is regular and all dialects agree."""

from __future__ import annotations

from decoding.grammar.regular.dfa import Dfa
from decoding.grammar.regular.format_addresses import MARK, whole, whole_with

DEPTH = 2
"""Deepest nesting of groups."""

_SYNTAX = r"\\^$.*+?()\[\]{}|/"
_ESCAPE = rf"\\[dDwWsS{_SYNTAX}nrtfv]"
_LITERAL = rf"(?:[^{_SYNTAX}\x00-\x1F{MARK}]|/|{_ESCAPE})"
_RANGE = "(?:a-z|A-Z|0-9|a-f|A-F|1-9|0-7)"
# Characters of a class that mean themselves in every dialect and in no pair begin a set operation.
_IN_CLASS = rf"(?:{_RANGE}|[A-Za-z0-9_.,:;@#%!/ '\"]|{_ESCAPE}|\\-)"
_CLASS = rf"\[\^?{_IN_CLASS}+-?\]"


def _counts() -> str:
    """`{m}`, `{m,}`, and `{m,n}` where n has more digits, or the first digits show that it is not smaller."""
    options = ["[0-9]{1,3},?", "[0-9],[1-9][0-9]{1,2}", "[1-9][0-9],[1-9][0-9]{2}"]
    options += [f"{digit},[{digit}-9]" for digit in range(10)]
    options += [f"{digit}[0-9],[{digit + 1}-9][0-9]" for digit in range(1, 9)]
    return "(?:" + "|".join(options) + ")"


def regex() -> Dfa:
    """Alternatives, groups up to `DEPTH` deep, classes, counts, escapes and anchors around it all.

    Left out are looks ahead and behind, references, named groups, properties, escapes by number, ranges but
    the usual ones, long counts, and counts whose bounds look much alike: what dialects read differently, or
    what no automaton can check.
    """
    quantifier = rf"(?:(?:[*+?]|\{{{MARK}\}})\??)?"
    atom = rf"(?:{_LITERAL}|\.|{_CLASS})"
    items = f"(?:{atom}{quantifier})*"
    for _ in range(DEPTH):
        group = rf"\((?:\?:)?{items}(?:\|{items})*\)"
        items = f"(?:(?:{atom}|{group}){quantifier})*"
    return whole_with(rf"(?:\^?{items}\$?)(?:\|\^?{items}\$?)*", whole(_counts()))
