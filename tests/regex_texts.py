"""Random regular expressions in a syntax that ECMA-262 and Python read alike, and texts to try them on."""

from __future__ import annotations

import itertools
import random

from genret.decoding.grammar.regular.dfa import Dfa

_ATOMS = ("a", "b", "c", "[ab]", "[^a]", "[^ab-]", r"\w", r"\W", r"\d", r"\D", "[a-b-]", "(?:)", r"\-", "-")
_CONDITIONS = ("^", r"\Z", r"\b", r"\B", "(?=a)", "(?!b)")
_LOOKS_BEHIND = tuple(f"({mark}{part})" for mark in ("?<=", "?<!") for part in ("a", "ab", "[ab]-", "^"))
_QUANTIFIERS = ("*", "+", "?", "{2}", "{1,2}", "{2,}", "{0}", "*?", "+?", "??", "{1,2}?")


def random_pattern(rng: random.Random, depth: int = 4, looks_behind: bool = True) -> str:
    """A pattern over a few characters; some of them never match."""
    kind = rng.random()
    if depth <= 0 or kind < 0.3:
        return rng.choice(_ATOMS)
    if kind < 0.4:
        return rng.choice(_CONDITIONS)
    if kind < 0.43 and looks_behind:
        return rng.choice(_LOOKS_BEHIND)
    parts = [random_pattern(rng, depth - 1, looks_behind and kind < 0.93) for _ in range(2)]
    if kind < 0.62:
        return parts[0] + parts[1]
    if kind < 0.76:
        return f"({parts[0]}|{parts[1]})"
    if kind < 0.93:
        return f"(?:{parts[0]}){rng.choice(_QUANTIFIERS)}"
    return f"{rng.choice(('(?=', '(?!'))}{parts[0]})"


def all_texts(alphabet: str, longest: int) -> list[str]:
    """Every text of those characters up to a length, the short ones first."""
    return [
        "".join(chars)
        for length in range(longest + 1)
        for chars in itertools.product(alphabet, repeat=length)
    ]


def random_member(dfa: Dfa, rng: random.Random, longest: int = 60) -> str:
    """A text the automaton accepts, unless it grew longer than wanted; not to be called with an empty one."""
    state = 0
    out: list[str] = []
    while len(out) < longest:
        row = dfa.rows[state]
        if not row or (dfa.ends[state] >= 0 and rng.random() < 0.3):
            break
        first, last, state = rng.choice(row)
        out.append(chr(rng.randint(first, min(last, first + rng.choice((0, 1, 5, 100, 100_000))))))
    return "".join(out)


def mutated(text: str, rng: random.Random) -> list[str]:
    """The text with a character left out, put in and replaced."""
    if not text:
        return ["a", "\n", "é"]
    at = rng.randrange(len(text))
    return [
        text[:at] + text[at + 1 :],
        text[:at] + rng.choice("aA0 -_/.é\n:") + text[at:],
        text[:at] + rng.choice("aZ9$%.é\U0001f600") + text[at + 1 :],
        text + rng.choice("\na0 "),
    ]
