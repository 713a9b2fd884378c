"""The texts of an automaton, one by one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from decoding.grammar.regular.measures import longest_length
from decoding.grammar.regular.minimise import Row


def texts_by_length(rows: Sequence[Row], finals: Sequence[bool]) -> Iterator[str]:
    """All texts, the short ones first and those of a length by code points; endless where there are.

    Args:
        rows: Edges over code points of every state; every state but a lonely one can reach a final one.
        finals: Whether a text may end in a state.
    """
    if not any(finals):
        return
    longest = longest_length(rows)
    # Element k: whether exactly k more code points can end a text, by state.
    ends_in: list[list[bool]] = [list(finals)]
    length = 0
    while longest is None or length <= longest:
        if ends_in[length][0]:
            yield from _texts_of(rows, length, ends_in)
        last = ends_in[-1]
        ends_in.append([any(last[target] for _, _, target in row) for row in rows])
        length += 1


def _texts_of(rows: Sequence[Row], length: int, ends_in: list[list[bool]]) -> Iterator[str]:
    """All texts of one length, in code point order."""
    if not length:
        yield ""
        return
    path: list[str] = []
    choices = [_choices(rows[0], ends_in[length - 1])]
    while choices:
        following = next(choices[-1], None)
        if following is None:
            choices.pop()
            if path:
                path.pop()
            continue
        char, target = following
        if len(path) + 1 == length:
            yield "".join(path) + char
            continue
        path.append(char)
        choices.append(_choices(rows[target], ends_in[length - len(path) - 1]))


def _choices(row: Row, allowed: list[bool]) -> Iterator[tuple[str, int]]:
    """Next characters, and the states they lead to, of those that are allowed."""
    for first, last, target in row:
        if allowed[target]:
            for code_point in range(first, last + 1):
                yield chr(code_point), target
