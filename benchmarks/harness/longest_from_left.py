"""`LongestFromTheLeft`: the baseline that `benchmarks/mention_detection.py` compares the finder with."""

from __future__ import annotations

import re
from collections.abc import Iterator

from genret.retrieval.linking.documents.text_document import Span
from genret.retrieval.linking.finding.find_options import FindOptions, load_stop_words
from genret.retrieval.linking.finding.finder import LONGEST_NAME_CHARS
from genret.retrieval.linking.finding.folding import IGNORED, FoldedWindow, is_boundary, start_pattern
from genret.retrieval.linking.finding.mention_odds import NamePolicy
from genret.retrieval.linking.finding.name_table import WITHOUT_CAPITALS, NameTable

_PIECE_CHARS = 16_384
_DIGIT = re.compile(r"\d")
_PRONOUN = re.compile(r"(?<![\w\u0300-\u036f])I(?![\w\u0300-\u036f])")


class LongestFromTheLeft:
    """At every place the longest name that counts is a mention, and the search goes on behind it.

    A name counts in any letter case where the text has a capital letter or a digit, else only if some entity
    writes it without capitals; otherwise as `FindOptions` say.
    """

    def __init__(self, table: NameTable, options: FindOptions) -> None:
        self._table = table
        self._policy = NamePolicy(table, options, load_stop_words(options.stop_words))
        self._starts = start_pattern(table.first_marks)
        self._max_chars = min(table.max_chars, LONGEST_NAME_CHARS)

    def find(self, text: str) -> list[Span]:
        """Return the mentions of a text."""
        return list(self._mentions(text))

    def _mentions(self, text: str) -> Iterator[Span]:
        reach = self._max_chars + 1
        window = FoldedWindow(text, 0, _PIECE_CHARS)
        at = 0
        while True:
            while not window.is_whole and len(window.text) - at < reach:
                window.read()
            limit = len(window.text) if window.is_whole else len(window.text) - reach + 1
            for span, behind in self._in_window(text, window, at, limit):
                yield span
                at = behind
            at = max(at, limit)
            if window.is_whole:
                return
            before = max(at - 1, 0)
            window.drop(before)
            at -= before

    def _in_window(self, text: str, window: FoldedWindow, at: int, limit: int) -> Iterator[tuple[Span, int]]:
        folded, reach, prefixes = window.text, self._max_chars, self._table.names.prefixes
        for match in self._starts.finditer(folded, at):
            begin = match.start()
            if begin >= limit:
                return
            if begin < at:
                continue
            names = prefixes(folded[begin : begin + reach])
            if not names or not is_boundary(folded, begin):
                continue
            start = window.place(begin)
            if start is None:
                continue
            for name in reversed(names):
                behind = begin + len(name)
                end = window.place(behind) if is_boundary(folded, behind) else None
                if end is None:
                    continue
                while text[end - 1] in IGNORED:
                    end -= 1
                num_names = self._num_names(name, text[start:end])
                if num_names:
                    at = behind
                    yield Span(start, end, num_names=num_names), at
                    break

    def _num_names(self, name: str, mention: str) -> int:
        if len(name) < self._policy.min_chars or name in self._policy.stop_words:
            return 0
        key = self._table.names[name]
        num = self._policy.num_names(name, key)
        others = _PRONOUN.sub("", mention) if "I" in mention else mention
        if others != others.lower() or _DIGIT.search(mention):
            return num
        return num if self._table.written.item(key) & WITHOUT_CAPITALS else 0
