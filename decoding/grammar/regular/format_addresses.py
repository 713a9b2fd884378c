"""Formats of numeric addresses: ipv4, ipv6."""

from __future__ import annotations

from functools import lru_cache

from decoding.grammar.regular.dfa import Dfa
from decoding.grammar.regular.minimise import Edge
from decoding.grammar.regular.ranges import Ranges
from decoding.grammar.regular.regex_compiler import compile_pattern

IPV4 = (
    r"(?:(?:25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])\.){3}(?:25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])"
)

_GROUP = "[0-9A-Fa-f]{1,4}"
_LAST_32_BITS = f"(?:{_GROUP}:{_GROUP}|{IPV4})"


def _ipv6() -> str:
    """All forms of RFC 3986: eight groups, or `::` with at most seven groups around it."""
    forms = [f"(?:{_GROUP}:){{6}}{_LAST_32_BITS}"]
    for before in range(8):
        head = f"(?:{_GROUP}:){{0,{before - 1}}}{_GROUP}" if before else ""
        left = f"(?:{head})?" if before else ""
        after = 7 - before
        if after >= 2:
            forms.append(f"{left}::(?:{_GROUP}:){{{after - 2}}}{_LAST_32_BITS}")
        elif after == 1:
            forms.append(f"{left}::{_GROUP}")
        else:
            forms.append(f"{left}::")
    return "(?:" + "|".join(forms) + ")"


MARK = "\uffff"
"""A place in patterns of `whole_with`; no format but those of mail and of pointers allows it as itself."""


def whole(pattern: str) -> Dfa:
    """The texts that a regular expression matches as a whole."""
    return compile_pattern(f"^(?:{pattern})$")


def behind(left: Dfa, joint: Ranges, right: Dfa) -> Dfa:
    """Texts of one set, one character of some, and a text of another set.

    Nothing in the left set may have such a character right behind another text of the set.
    """
    offset = len(left.rows)
    rows: list[list[Edge]] = []
    for row, final in zip(left.rows, left.finals, strict=True):
        through = [(first, last, offset) for first, last in joint] if final else []
        rows.append(sorted([*row, *through]))
    rows += [[(first, last, target + offset) for first, last, target in row] for row in right.rows]
    return Dfa.from_rows(rows, [*([False] * offset), *right.finals])


def whole_with(pattern: str, inserted: Dfa) -> Dfa:
    """As `whole`, where every `MARK` in the pattern stands for a text of a set.

    Putting the set's automaton in place of the mark is much cheaper than writing an expression for it there.
    Where a mark stands, nothing else may begin as the set's texts do; behind it, nothing as they go on.
    """
    marked = whole(pattern)
    mark = ord(MARK)
    rows = [list(row) for row in marked.rows]
    finals = list(marked.finals)
    for state, row in enumerate(marked.rows):
        targets = [target for first, _, target in row if first == mark]
        for target in targets:
            offset = len(rows)
            shifted = [[(first, last, to + offset) for first, last, to in part] for part in inserted.rows]
            for inner, ends in zip(shifted, inserted.finals, strict=True):
                rows.append(sorted([*inner, *marked.rows[target]]) if ends else inner)
                finals.append(ends and marked.finals[target])
            rows[state] = sorted([*(edge for edge in row if edge[0] != mark), *shifted[0]])
    return Dfa.from_rows(rows, finals)


def ipv4() -> Dfa:
    """Four decimal numbers up to 255 without leading zeros."""
    return whole(IPV4)


@lru_cache(maxsize=1)
def ipv6() -> Dfa:
    """RFC 4291 without a zone: groups, one `::` at most, possibly an IPv4 address at the end."""
    return whole(_ipv6())
