"""The smallest automaton of a finite set, built text by text in sorted order."""

from __future__ import annotations

from collections.abc import Sequence

from decoding.grammar.budget import current_budget
from decoding.grammar.regular.minimise import Edge, Row, joined


def automaton_of(texts: Sequence[Sequence[int]], labels: Sequence[int]) -> tuple[list[Row], list[int]]:
    """Rows and labels of a finite set of sequences of symbols; its start is the last state.

    States that have the same future are made once, so nothing is left to merge; they are numbered by their
    making, ends first.

    Args:
        texts: Sorted, without repeats, at least one.
        labels: Label of each text, 0 or more.
    """
    known: dict[tuple[int, Row], int] = {}
    out_rows: list[Row] = []
    out_labels: list[int] = []
    # Its size is linear in that of the texts, which are part of the schema: time alone can run out.
    check_time = current_budget().check_time
    # The states of the last text, outermost first: edges that are settled, and the label.
    edges: list[list[Edge]] = [[]]
    ends: list[int] = [-1]
    path: Sequence[int] = ()

    def settle(depth: int) -> None:
        """Make the states of the last text below a depth."""
        while len(edges) > depth + 1:
            row = edges.pop()
            key = (ends.pop(), joined(row) if len(row) > 1 else tuple(row))
            state = known.get(key)
            if state is None:
                state = known[key] = len(out_rows)
                out_rows.append(key[1])
                out_labels.append(key[0])
            if not len(edges) & 4095:
                check_time()
            symbol = path[len(edges) - 1]
            edges[-1].append((symbol, symbol, state))

    for number, (text, label) in enumerate(zip(texts, labels, strict=True)):
        if not number & 63:
            check_time()
        common = 0
        limit = min(len(path), len(text))
        while common < limit and path[common] == text[common]:
            common += 1
        settle(common)
        path = text
        for _ in range(len(text) - common):
            edges.append([])
            ends.append(-1)
        ends[-1] = label
    settle(0)
    out_rows.append(joined(edges[0]))
    out_labels.append(ends[0])
    return out_rows, out_labels
