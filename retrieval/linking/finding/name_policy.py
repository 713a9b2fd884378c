"""Which names count as mentions, and in which letter case."""

from __future__ import annotations

import re

from retrieval.linking.finding.name_table import NameTable
from retrieval.linking.finding.options import FindOptions

_SHORT_CHARS = 3
_DIGIT = re.compile(r"\d")
# Of what was found in news and conversations, 2 % had no capital but this pronoun: "and I", "I wonder".
_PRONOUN = re.compile(r"(?<![\w\u0300-\u036f])I(?![\w\u0300-\u036f])")


class NamePolicy:
    """Decides on one name at a time.

    Args:
        table: The names.
        options: What counts.
        stop_words: Folded.
    """

    def __init__(self, table: NameTable, options: FindOptions, stop_words: frozenset[str]) -> None:
        self._table = table
        self._case = options.case
        self._min_chars = options.min_chars
        self._max_entities = options.max_entities
        self._max_short_entities = options.max_short_entities
        self._stop_words = stop_words

    def num_names(self, name: str, text: str, start: int, end: int) -> int:
        """Return how many entities have a name that stands at text[start:end]; 0 where it does not count.

        Args:
            name: The folded name, one of the table's.
            text: The text.
            start: Where it begins.
            end: Where it ends.
        """
        if len(name) < self._min_chars or name in self._stop_words:
            return 0
        key = self._table.key_of(name)
        if key is None:
            raise ValueError(f"name: expected one of the table, got {name!r}")
        num = self._table.num_entities(key)
        if self._max_entities is not None and num > self._max_entities:
            return 0
        is_short = len(name) <= _SHORT_CHARS and " " not in name
        if is_short and self._max_short_entities is not None and num > self._max_short_entities:
            return 0
        return num if self._fits_case(key, name, text[start:end]) else 0

    def _fits_case(self, key: int, name: str, mention: str) -> bool:
        if self._case == "insensitive":
            return True
        if self._case == "sensitive":
            return self._table.is_written(key, name, mention)
        if _has_capital(mention) or _DIGIT.search(mention):
            return True
        return self._table.has_lower_case(key)


def _has_capital(mention: str) -> bool:
    others = _PRONOUN.sub("", mention) if "I" in mention else mention
    return others != others.lower()
