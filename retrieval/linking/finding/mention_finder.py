"""`MentionFinder`: the longest names in a text, from left to right."""

from __future__ import annotations

import re
from collections.abc import Iterator

from retrieval.index.reader import Index
from retrieval.linking.documents.document import Span
from retrieval.linking.finding.characters import IGNORED, is_boundary, start_pattern
from retrieval.linking.finding.folded_window import FoldedWindow, unit_begin
from retrieval.linking.finding.folding import PARAGRAPH_BREAK, fold_name
from retrieval.linking.finding.name_policy import NamePolicy
from retrieval.linking.finding.name_table import NameTable
from retrieval.linking.finding.options import FindOptions
from retrieval.linking.finding.stop_words import load_stop_words

_BLANK = re.compile(r"\s")
_PIECE_CHARS = 16_384
# How far before `begin` the paragraph it is in may begin and still be matched from its beginning.
LOOK_BACK_CHARS = 65_536
# Longer names are not looked for: nobody writes them out, and each would make all lookups slower.
LONGEST_NAME_CHARS = 1_000
# Most ids that `entity_ids` returns; a request takes as many.
MAX_NAMED_ENTITIES = 100_000


class MentionFinder:
    """Finds names in texts, and the entities that have a name. Safe to use from several threads.

    Args:
        table: The names.
        index: The entities behind them.
        options: Which names count.
        piece_chars: Characters of a text that are folded at a time, about. It changes no mention.

    Raises:
        SourceError: the stop words cannot be read.
    """

    def __init__(
        self, table: NameTable, index: Index, options: FindOptions, piece_chars: int = _PIECE_CHARS
    ) -> None:
        self._table = table
        self._index = index
        self._policy = NamePolicy(table, options, load_stop_words(options.stop_words))
        self._starts = start_pattern(table.first_marks)
        self._max_chars = min(table.max_chars, LONGEST_NAME_CHARS)
        self._piece_chars = piece_chars

    def find(self, text: str, begin: int = 0, end: int | None = None) -> list[Span]:
        """Return mentions that begin in [begin, end), in order, none overlapping another.

        Names are matched from the left: at every place where one may begin, the longest that counts is a
        mention, and the search goes on behind it. A name never goes across a paragraph break. The search
        starts at the last one before `begin`, or `LOOK_BACK_CHARS` before it where there is none so near, so
        that mentions before `begin` are known and nothing is found inside them. It sees the text behind
        `end`.

        Raises:
            ValueError: [begin, end) is no stretch of the text.
        """
        stop = len(text) if end is None else end
        if not 0 <= begin <= stop <= len(text):
            raise ValueError(f"begin, end: expected 0 <= begin <= end <= {len(text)}, got {begin}, {end}")
        if begin == stop or not self._max_chars:
            return []
        found = []
        for span in self._mentions(text, _search_begin(text, begin), stop):
            if span.start >= stop:
                break
            if span.start >= begin:
                found.append(span)
        return found

    def entity_ids(self, text: str) -> tuple[str, ...]:
        """Return the ids of the entities that have a text as a title or alias, in any letter case.

        Folded as texts are; whatever `FindOptions` say counts. In the order of the index, and at most
        `MAX_NAMED_ENTITIES`.
        """
        key = self._table.key_of(fold_name(text))
        if key is None:
            return ()
        entities = self._index.entities
        numbers = self._table.entities_of(key)[:MAX_NAMED_ENTITIES]
        if len(numbers) == 1:
            found = entities.slice(int(numbers[0]), int(numbers[0]) + 1)
        else:
            found = entities.take(numbers)
        return tuple(found.column(entities.id_column).to_pylist())

    def _mentions(self, text: str, begin: int, stop: int) -> Iterator[Span]:
        """Yield the mentions from `begin` on; all that begin before `stop`, and maybe more."""
        reach = self._max_chars + 1  # a name and the character behind it
        window = FoldedWindow(text, begin, self._piece_chars)
        at = len(window.text)
        while True:
            while not window.is_whole and len(window.text) - at < reach:
                window.read()
            # Up to here, every name that begins is in the window as a whole, wherever it was cut.
            limit = len(window.text) if window.is_whole else len(window.text) - reach + 1
            for span, behind in self._in_window(text, window, at, limit):
                yield span
                at = behind
            at = max(at, limit)
            place = window.place(at)
            if window.is_whole or (place is not None and place >= stop):
                return
            before = max(at - 1, 0)  # the character before `at` is kept, for the boundary there
            window.drop(before)
            at -= before

    def _in_window(self, text: str, window: FoldedWindow, at: int, limit: int) -> Iterator[tuple[Span, int]]:
        """Yield mentions that begin at text[at:limit] of the window, and where each ends there."""
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
                end = _without_ignored(text, end)
                num_names = self._policy.num_names(name, text, start, end)
                if num_names:
                    at = behind
                    yield Span(start, end, num_names=num_names), at
                    break


def _without_ignored(text: str, end: int) -> int:
    """Return the end of a mention without the invisible characters at its end."""
    while text[end - 1] in IGNORED:
        end -= 1
    return end


def _search_begin(text: str, begin: int) -> int:
    """Return where to start so that all mentions around `begin` are found as they would be from the start."""
    earliest = max(begin - LOOK_BACK_CHARS, 0)
    found = earliest
    for match in PARAGRAPH_BREAK.finditer(text, earliest, begin):
        found = match.end()
    if found > earliest or not earliest:
        return found
    blank = _BLANK.search(text, earliest, begin)
    return min(unit_begin(text, earliest), begin) if blank is None else blank.start()
