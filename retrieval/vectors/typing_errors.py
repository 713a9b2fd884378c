"""Queries like those of people: texts of the catalogue with a letter wrong, or with a word left out."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

_LETTERS = "abcdefghijklmnopqrstuvwxyz"


def damaged(texts: Sequence[str], seed: int) -> list[str]:
    """Return every other text with a letter changed, dropped or doubled, the others without a word.

    A text of one word keeps it and gets a wrong letter; an empty one stays empty.
    """
    random = Random(seed)
    return [_shortened(text, random) if i % 2 else _mistyped(text, random) for i, text in enumerate(texts)]


def _mistyped(text: str, random: Random) -> str:
    if not text:
        return text
    at = random.randrange(len(text))
    put = random.choice(("", text[at] * 2, random.choice(_LETTERS)))
    return text[:at] + put + text[at + 1 :]


def _shortened(text: str, random: Random) -> str:
    words = text.split()
    if len(words) < 2:
        return _mistyped(text, random)
    del words[random.randrange(len(words))]
    return " ".join(words)
