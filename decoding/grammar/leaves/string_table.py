"""The automaton of JSON strings of any content as a table whose main states have fixed numbers."""

from __future__ import annotations

import numpy as np

from decoding.grammar.leaves.table_walk import Table
from decoding.grammar.regular.byte_dfa import ByteDfa
from decoding.grammar.regular.spelling import spell_any_text

# The states before the string, between two of its characters, and behind it; all others are within one.
START, BODY, DONE = 0, 1, 2
QUOTE = ord('"')


def string_table(writable: ByteDfa | None = None) -> Table:
    """The automaton of all JSON strings with every escape.

    A string's characters begin where a byte other than the quote leads out of `BODY`.

    Args:
        writable: The texts that can be written at all, the quote among them; None: all.
    """
    strings = spell_any_text() if writable is None else spell_any_text() & writable
    body = strings.step(0, QUOTE)
    done = strings.step(body, QUOTE)
    others = [state for state in range(strings.num_states) if state not in (0, body, done)]
    order = np.array([0, body, done, *others])
    number = np.full(strings.num_states + 1, -1, dtype=np.int32)
    number[order] = np.arange(len(order))  # the last one stays -1, for "no such state"
    return Table.of(number[strings.table[order]], strings.labels[order])
