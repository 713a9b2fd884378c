"""`MentionOdds`: how much likelier a stretch of a text means a name than not.

Three things are compared: the words of the name with those of all names (`name_table.WordCounts`), the letter
case of the stretch with that of the name, and the words beside it. Only a few hundred characters around the
stretch, in its paragraph, are looked at. Weights are chosen like those of `WordCounts`.
"""

from __future__ import annotations

import math
import re
from typing import NamedTuple

from genret.retrieval.linking.finding.find_options import FindOptions
from genret.retrieval.linking.finding.folding import A_WORD, PARAGRAPH_BREAK, fold_name
from genret.retrieval.linking.finding.name_table import (
    CAPITAL,
    CAPITAL_BY_CUSTOM,
    MAX_SMALL_WORDS,
    WITHOUT_CAPITALS,
    NameTable,
)

# A small letter where the name has a capital: at its beginning, and in a later word.
_SMALL_FIRST, _SMALL_LATER = -9.0, -6.0
# A name of common words, with a capital by custom, that the text writes in lower case.
_COMMON = -4.0
# What counts is found, however unlikely, where the letter case is for the user to say.
_LEAST = 2.0**-10
# Nobody writes a shorter name in capitals just to stress it: capitals that the name lacks make it another.
_MIN_STRESSED_CHARS = 4
_SHORT_CHARS = 3
# How far around a stretch a text is looked at to see whether it has any capitals, or nothing else.
_CAPITALS_AROUND, _SMALL_AROUND = 500, 40
_LONGEST_WORD = 40
_SENTENCE_ENDS = ".!?:\n\r\x0b\x0c\x85\u2028\u2029"
_QUOTES, _MAX_QUOTES = " \t\u00a0\"'“‘([", 8  # between the end of a sentence and the next
# Of what was found in news and conversations, 2 % had no capital but this pronoun: "and I", "I wonder".
_PRONOUN = re.compile(r"(?<![\w\u0300-\u036f])I(?![\w\u0300-\u036f])")


class Match(NamedTuple):
    """A name at text[start:end], the logarithm of the odds that it is meant, and how many entities it has."""

    start: int
    end: int
    log_odds: float
    num_names: int


class NamePolicy(NamedTuple):
    """Decides which names count, whatever the text; stop words are folded."""

    table: NameTable
    options: FindOptions
    stop_words: frozenset[str]

    def num_names(self, name: str, key: int) -> int:
        """Return how many entities have a name; 0 where they are too many."""
        num, options = self.table.num_entities(key), self.options
        if options.max_entities is not None and num > options.max_entities:
            return 0
        is_short = len(name) <= _SHORT_CHARS and " " not in name
        if is_short and options.max_short_entities is not None and num > options.max_short_entities:
            return 0
        return num


class MentionOdds:
    """The odds of the stretches of one text, which have to be asked for from left to right."""

    def __init__(self, policy: NamePolicy, text: str) -> None:
        self._policy = policy
        self._table = policy.table
        self._is_smart = policy.options.case == "smart"
        self._text = text
        self._mixed = (0, 0)  # every stretch within has a capital around it
        self._plain = (0, 0)  # a paragraph without capitals

    def match(self, name: str, start: int, end: int) -> Match | None:
        """Return the match of a name at text[start:end], if the name counts and is likelier than not.

        `name` is a folded name of the table, neither a stop word nor too short.
        """
        key = self._table.names[name]
        if not self._is_smart:
            log_odds = self._told(key, name, start, end)
        else:
            mention = self._text[start:end]
            if mention == mention.lower() or ("I" in mention and not _has_capital(mention)):
                log_odds = self._in_lower_case(key, start, end)
            else:
                log_odds = self._with_capitals(key, name, mention, start, end)
        if log_odds > 0 and (num_names := self._policy.num_names(name, key)):
            return Match(start, end, log_odds, num_names)
        return None

    def _told(self, key: int, name: str, start: int, end: int) -> float:
        """Return the odds where the options decide about letter case."""
        if self._policy.options.case == "sensitive" and not self._table.is_written(
            key, name, self._text[start:end]
        ):
            return 0.0
        weight = self._table.weight.item(key)
        return max(weight, _LEAST) if weight > -math.inf else 0.0

    def _with_capitals(self, key: int, name: str, mention: str, start: int, end: int) -> float:
        weight = self._table.weight.item(key)
        if mention.isupper() and len(mention) > 1 and not self._table.is_written(key, name, mention):
            if self._is_in_capitals(start, end):
                return weight
            if len(name) < _MIN_STRESSED_CHARS:
                return 0.0
        if mention.isascii() and mention.isalpha():  # one word, as most mentions are: a third of the time
            case = self._table.start.item(key) if self._starts_sentence(start) else CAPITAL
            return weight + case - self._part(key, start, end)
        words = A_WORD.findall(mention if mention.isascii() else fold_name(mention, keep_case=True))
        part = self._part(key, start, end) if len(words) == 1 else 0.0
        return weight + self._letter_case(key, words, start) - part

    def _in_lower_case(self, key: int, start: int, end: int) -> float:
        written = self._table.written.item(key)
        if written & WITHOUT_CAPITALS:
            return self._table.weight.item(key) + CAPITAL
        if written & CAPITAL_BY_CUSTOM:
            return self._table.weight.item(key) + _COMMON
        return self._table.weight.item(key) if self._is_without_capitals(start, end) else 0.0

    def _letter_case(self, key: int, words: list[str], start: int) -> float:
        """Return what the letter case of the words of a mention adds for its name."""
        small = self._table.small.item(key)
        total = 0.0
        for i, word in enumerate(words):
            if word == "I" or word.isnumeric():
                continue
            if not word.islower():
                is_at_start = i == 0 and self._starts_sentence(start)
                total += self._table.start.item(key) if is_at_start else CAPITAL
            elif i < MAX_SMALL_WORDS and not small >> i & 1:
                total += _SMALL_LATER if i else _SMALL_FIRST
        return total

    def _starts_sentence(self, start: int) -> bool:
        before = self._text[max(0, start - _MAX_QUOTES) : start].rstrip(_QUOTES)
        return not before or before[-1] in _SENTENCE_ENDS

    def _part(self, key: int, start: int, end: int) -> float:
        """Return the odds, by the words beside a word, that it is part of a longer, unknown name.

        A neighbour counts that has a capital which no sentence start explains.
        """
        text = self._text
        num = 0
        if text[end : end + 1] in (" ", "-") and _is_capitalised(text, end + 1):
            num += 1
        if text[start - 1 : start] in (" ", "-"):
            earliest = max(0, start - _LONGEST_WORD)
            word = max(text.rfind(" ", earliest, start - 1), text.rfind("\n", earliest, start - 1)) + 1
            is_word = _is_capitalised(text, word) and text[word : start - 1].isalpha()
            num += is_word and not self._starts_sentence(word)
        return num * self._table.part.item(key) if num else 0.0

    def _is_without_capitals(self, start: int, end: int) -> bool:
        """Whether no capital is around a stretch, as in a query: that it has none then says nothing."""
        low, high = self._mixed
        if low <= start and end <= high:
            return False
        low, high = self._plain
        if low <= start and end <= high:
            return True
        low, high = self._around(start, end, _CAPITALS_AROUND)
        around = self._text[low:high]
        if around == around.lower():
            if low > start - _CAPITALS_AROUND and high < end + _CAPITALS_AROUND:
                self._plain = (low, high)
            return True
        last = next(at for at in range(high - 1, low - 1, -1) if (c := self._text[at]) != c.lower())
        self._mixed = (max(low, last - _CAPITALS_AROUND), min(high, last + _CAPITALS_AROUND))
        return False

    def _is_in_capitals(self, start: int, end: int) -> bool:
        """Whether there is nothing but capitals around a stretch, as in a headline."""
        low, high = self._around(start, end, _SMALL_AROUND)
        return high - low > end - start and self._text[low:high].isupper()

    def _around(self, start: int, end: int, reach: int) -> tuple[int, int]:
        """Return the stretch of a paragraph that reaches so far around a stretch."""
        low, high = max(0, start - reach), min(len(self._text), end + reach)
        for match in PARAGRAPH_BREAK.finditer(self._text, low, start):
            low = match.end()
        break_behind = PARAGRAPH_BREAK.search(self._text, end, high)
        return low, high if break_behind is None else break_behind.start()


def _has_capital(mention: str) -> bool:
    others = _PRONOUN.sub("", mention)
    return others != others.lower()


def _is_capitalised(text: str, at: int) -> bool:
    return text[at : at + 1].isupper() and text[at + 1 : at + 2].islower()
