"""The automaton of JSON strings of any content, with numbers for its main states."""

from __future__ import annotations

from typing import NamedTuple

from decoding.grammar.regular.byte_dfa import ByteDfa
from decoding.grammar.regular.dfa import Dfa
from decoding.grammar.regular.spelling import spell_any_text, spell_texts

QUOTE = ord('"')


class Strings(NamedTuple):
    """All strings, of those that can be written.

    A string's characters begin where a byte other than the quote leads out of `body`.

    Attributes:
        automaton: Starts in state 0, before the opening quote.
        body: The state between two characters.
        done: The state behind the closing quote.
    """

    automaton: ByteDfa
    body: int
    done: int


def all_strings(writable: ByteDfa | None = None, canonical: bool = False) -> Strings:
    """The automaton of all JSON strings.

    Args:
        writable: The texts that can be written at all, the quote among them; None: all.
        canonical: Whether every text has one spelling, or every escape of JSON is allowed.
    """
    automaton = spell_texts(Dfa.everything()) if canonical else spell_any_text()
    if writable is not None:
        automaton = automaton & writable
    body = automaton.step(0, QUOTE)
    return Strings(automaton, body, automaton.step(body, QUOTE))
