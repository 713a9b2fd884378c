"""`WordCounts`: the words of a catalogue's names, and how much likelier each name is than other words.

Weights are natural logarithms of odds. They were chosen on the training parts of labelled texts (see
benchmarks/mention_detection.py), where changing one of them by a fifth makes little difference.
"""

from __future__ import annotations

import math
import re
from array import array
from typing import NamedTuple

from retrieval.linking.finding.characters import A_WORD
from retrieval.linking.finding.options import ENGLISH_STOP_WORDS

# A word with a capital where the name has one, or of a script without capitals.
CAPITAL = 5.0
# For so many words of a name it is known whether they may begin with a small letter.
MAX_SMALL_WORDS = 8
# The words of the names are taken for part of a text with this many other words, each English stop word among
# them so many times. Words that are rarer there than `_MAX_WORD` says all weigh the same.
_OTHER_WORDS, _STOP_WORD_COUNT = 1_000_000, 5_000
_MAX_WORD = 9.0
# What the words of a name must outweigh. One long name costs less than the names inside it.
_NAME = -7.5
# The start of a sentence hides a small letter where the name has a capital.
_HIDDEN_SMALL = -5.0
# The share of small initials of a word inside names, and of a stop word, before any is counted; and how many
# words that stands for.
_SMALL_SHARE, _SMALL_SHARE_STOP, _SMALL_SHARE_COUNT = 0.1, 0.9, 5
_MAX_PART = 6.0
# Digits alone are looked for where at least this share of the names is digits.
_DIGITS_SHARE = 0.05
# Where a smaller share of the names begins with a small letter, a capital at the beginning says nothing.
_SMALL_NAMES_SHARE = 0.01
_PUNCTUATION = re.compile(r"[,():;/!?]")


class Evidence(NamedTuple):
    """What the words of a catalogue say about one spelling of a name.

    Attributes:
        weight: How much likelier the name is than other words; -inf for numbers that are not looked for.
        start: What the capital of the first word adds to that at the start of a sentence.
        part: How much likelier a single word is part of a longer name than a name; 0 for several words.
        small: Bit i is set where word i may begin with a small letter.
        by_custom: Whether the only capital is the one that the catalogue begins all names with.
    """

    weight: float
    start: float
    part: float
    small: int
    by_custom: bool


class WordCounts:
    """Counts the words of all names, then weighs each name. A word is counted in any letter case."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}
        # By the number of a word: occurrences, those without another word up to the next punctuation, and
        # those behind the first word of a name with a small initial and with a capital.
        self._total, self._alone, self._small, self._capital = (array("L") for _ in range(4))
        self._share = array("d")  # of small initials, before any is counted
        self._num_words = self._num_names = self._num_digits = self._num_small_names = 0

    def add(self, name: str) -> None:
        """Count the words of a name, which is folded but for its letter case."""
        self._num_names += 1
        self._num_digits += name.isdecimal()
        self._num_small_names += name[0].islower()
        is_first = True
        for stretch in _PUNCTUATION.split(name):
            words = A_WORD.findall(stretch)
            for word in words:
                number = self._number(word.casefold())
                self._total[number] += 1
                if not is_first:
                    self._small[number] += word[0].islower()
                    self._capital[number] += word[0].isupper()
                is_first = False
            if len(words) == 1:
                self._alone[number] += 1
            self._num_words += len(words)

    def weigh(self, name: str) -> Evidence:
        """Return the evidence for a name that has been counted."""
        words = A_WORD.findall(name)
        if not words:
            return Evidence(_MAX_WORD + _NAME, CAPITAL, 0.0, 0, False)
        numbers = [self._numbers[word.casefold()] for word in words]
        first = numbers[0]
        small = sum(1 << i for i, word in enumerate(words[:MAX_SMALL_WORDS]) if word.islower())
        by_custom = len(words) > 1 and self._is_capital_by_custom(name, first)
        share = self._small_share(first)
        may_hide = len(words) > 1 and not (small & 1 or by_custom)
        return Evidence(
            weight=self._weight(name, numbers),
            start=(1 - share) * CAPITAL + (share * _HIDDEN_SMALL if may_hide else 0.0),
            part=self._part(first) if len(words) == 1 else 0.0,
            small=small | by_custom,
            by_custom=by_custom,
        )

    def _number(self, word: str) -> int:
        number = self._numbers.setdefault(word, len(self._total))
        if number == len(self._total):
            is_stop_word = word in ENGLISH_STOP_WORDS and (len(word) > 1 or word == "a")
            self._total.append(_STOP_WORD_COUNT if is_stop_word else 0)
            self._share.append(_SMALL_SHARE_STOP if is_stop_word else _SMALL_SHARE)
            for counts in (self._alone, self._small, self._capital):
                counts.append(0)
        return number

    def _weight(self, name: str, numbers: list[int]) -> float:
        if name.isdecimal() and self._num_digits < _DIGITS_SHARE * self._num_names:
            return -math.inf
        text = self._num_words + _OTHER_WORDS
        return _NAME + sum(min(_MAX_WORD, math.log(text / self._total[number])) for number in numbers)

    def _small_share(self, number: int) -> float:
        seen = self._small[number] + self._capital[number]
        return (self._small[number] + self._share[number] * _SMALL_SHARE_COUNT) / (seen + _SMALL_SHARE_COUNT)

    def _is_capital_by_custom(self, name: str, first: int) -> bool:
        """Whether a name is one of common words, capitalised as all names of the catalogue are."""
        return (
            self._num_small_names < _SMALL_NAMES_SHARE * self._num_names
            and name[0].isupper()
            and name[1:] == name[1:].lower()
            and self._small_share(first) > _SMALL_SHARE
        )

    def _part(self, number: int) -> float:
        return min(_MAX_PART, math.log((self._total[number] + 1) / (self._alone[number] + 0.5)))
