"""Words and letter trigrams of texts, as numbers.

Texts are compared without case, accents and punctuation. Everything is computed for many texts at once: a
block of texts is one array of characters, and no loop of Python sees a word.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

UIntArray = npt.NDArray[np.uint32]
IntArray = npt.NDArray[np.int64]

# Changes with anything that changes the terms of a text: what is stored was made by the same rules.
TERMS_VERSION = 1

# Of longer texts this beginning counts, in characters: a megabyte of different words takes seconds.
MAX_TEXT = 1 << 14

_SPACE, _LINE = 32, 10
# Marks of Latin, Greek, Cyrillic, Hebrew and Arabic; the vowel signs of other scripts are letters.
_MARKS = re.compile("[\u0300-\u036f\u0591-\u05bd\u064b-\u065f]+")
_APOSTROPHES = re.compile("['’ʼ`]+")
# Blanks and punctuation: ASCII, Latin-1, general, CJK, full width; some of other scripts is in `_LETTERS`.
_BREAKS = re.compile("[^\n0-9A-Za-z\u00c0-\u1fff\u2070-\u2fff\u3040-\ufeff\uff10-\uff19\uff21-\U0010ffff]+")
_LETTERS = {
    "ø": "o",
    "ł": "l",
    "đ": "d",
    "ð": "d",
    "þ": "th",
    "æ": "ae",
    "œ": "oe",
    "ı": "i",
    "ς": "σ",
    "ß": "ss",
} | dict.fromkeys("×÷،؛؟۔।॥", " ")
# They are rare, and to look for them costs a fifth of `str.translate`.
_RARE = re.compile(f"[{''.join(_LETTERS)}]")
# Hashes from the first on, below the second.
Span = tuple[int, int]
ALL_HASHES: Span = (0, 1 << 32)
_ODD = np.uint64(0x9E3779B97F4A7C15)


@dataclass(frozen=True, slots=True, eq=False)
class Terms:
    """The different terms of some texts, with the text that has each.

    Attributes:
        term: Hashes, rising per text. Shape: (n,), uint32.
        text: Number of the text, never falling. Shape: (n,), int64.
    """

    term: UIntArray
    text: IntArray


def fold(text: str) -> str:
    """Return a text as it is compared: small letters without accents, words with one blank between them.

    Line breaks stay: they separate the texts of a block.
    """
    if not text.isascii():
        # An acute accent that stands alone is typed for an apostrophe; taken apart it would be a blank.
        text = _MARKS.sub("", unicodedata.normalize("NFKD", text.replace("´", "'")))
        text = unicodedata.normalize("NFC", _APOSTROPHES.sub("", text))
    text = _APOSTROPHES.sub("", text).lower()
    if not text.isascii():
        text = _RARE.sub(lambda found: _LETTERS[found.group()], text)
    return _BREAKS.sub(" ", text)


def fold_all(texts: Sequence[str]) -> list[str]:
    """Return many texts as they are compared; of texts of punctuation alone the punctuation stays."""
    if not texts:
        return []
    joined = "\n".join(text[:MAX_TEXT].replace("\n", " ") for text in texts)
    folded = [text.strip() for text in fold(joined).split("\n")]
    return [text or " ".join(raw[:MAX_TEXT].lower().split()) for text, raw in zip(folded, texts, strict=True)]


class Characters:
    """The characters of folded texts, from which terms of both kinds are made.

    Args:
        folded: As `fold_all` returns them.
    """

    def __init__(self, folded: Sequence[str]) -> None:
        block = "\n" + "\n".join(folded) + "\n"
        codes = np.array([block]).view(np.uint32).astype(np.uint64)
        is_line = codes == _LINE
        self._inside = ~(is_line | (codes == _SPACE))
        self._codes = np.where(is_line, np.uint64(_SPACE), codes)
        self._text = np.cumsum(is_line, dtype=np.int64) - 1

    def words(self, hashes: Span = ALL_HASHES) -> Terms:
        """Return the words whose hashes are in a span."""
        inside = self._inside
        begins = np.flatnonzero(inside[1:] & ~inside[:-1]) + 1
        if not len(begins):
            return Terms(np.empty(0, np.uint32), np.empty(0, np.int64))
        at = np.arange(len(inside))
        word = np.cumsum(inside & ~np.concatenate([[False], inside[:-1]])) - 1
        place = np.where(inside, at - begins[np.maximum(word, 0)], 0)
        powers = _powers(int(place.max(initial=0)) + 1)
        parts = np.where(inside, (self._codes + np.uint64(1)) * powers[place], np.uint64(0))
        return _distinct(_mixed(np.add.reduceat(parts, begins)), self._text[begins], hashes)

    def letters(self, hashes: Span = ALL_HASHES) -> Terms:
        """Return the runs of three characters around each letter: words have a blank at each end.

        Args:
            hashes: Those wanted.
        """
        middle = np.flatnonzero(self._inside)
        codes = self._codes
        packed: npt.NDArray[np.uint64] = codes[middle - 1] << np.uint64(42)
        packed |= (codes[middle] << np.uint64(21)) | codes[middle + 1]
        return _distinct(_mixed(packed), self._text[middle], hashes)


def _powers(count: int) -> npt.NDArray[np.uint64]:
    powers = np.full(count, np.uint64(0x100000001B3))
    powers[0] = 1
    return np.multiply.accumulate(powers)


def _mixed(keys: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    keys = (keys ^ (keys >> np.uint64(29))) * _ODD
    return (keys ^ (keys >> np.uint64(32))) & np.uint64(0xFFFFFFFF)


def _distinct(term: npt.NDArray[np.uint64], text: IntArray, hashes: Span) -> Terms:
    if hashes != ALL_HASHES:
        kept = (term >= np.uint64(hashes[0])) & (term < np.uint64(hashes[1]))
        term, text = term[kept], text[kept]
    pairs = (text.astype(np.uint64) << np.uint64(32)) | term
    pairs.sort()  # `np.unique` hashes first, which takes ten times as long
    pairs = pairs[np.concatenate([[True], pairs[1:] != pairs[:-1]])[: len(pairs)]]
    return Terms(pairs.astype(np.uint32), (pairs >> np.uint64(32)).astype(np.int64))
