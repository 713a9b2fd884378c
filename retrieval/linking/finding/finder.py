"""`MentionFinder`: the likeliest mentions of the names of an index in a text."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from pathlib import Path

from genret.retrieval.index.reader import Index
from genret.retrieval.linking.documents.text_document import Span
from genret.retrieval.linking.finding.find_options import FindOptions, load_stop_words
from genret.retrieval.linking.finding.folding import (
    IGNORED,
    KINDS,
    PARAGRAPH_BREAK,
    WORD,
    FoldedWindow,
    fold_name,
    is_boundary,
    start_pattern,
    unit_begin,
)
from genret.retrieval.linking.finding.mention_odds import Match, MentionOdds, NamePolicy
from genret.retrieval.linking.finding.name_table import NameTable, build_table, open_table

_BLANK = re.compile(r"\s")
_PIECE_CHARS = 16_384
# Longest way back from `begin` to the start of its paragraph, and longest chain of overlapping names, for
# which the result does not depend on where the search starts.
LOOK_BACK_CHARS = 65_536
# Longer names are not looked for: nobody writes them out, and each would make all lookups slower.
LONGEST_NAME_CHARS = 1_000
# Most ids that `entity_ids` returns; a request takes as many.
MAX_NAMED_ENTITIES = 100_000


def open_finder(index: Index, options: FindOptions, cache_dir: Path | None = None) -> MentionFinder:
    """Return a finder of the index's titles and aliases.

    Its table is made once per index digest and kept in `cache_dir`, where every process maps the same file;
    None: it is kept in memory only. Stop words that cannot be read, and a cache that cannot be read or
    written, are a `SourceError`.
    """
    table = build_table(index) if cache_dir is None else open_table(index, cache_dir)
    return MentionFinder(table, index, options)


class MentionFinder:
    """Finds names in texts, and the entities that have a name. Safe to use from several threads.

    About `piece_chars` characters of a text are folded at a time, which changes no mention. Stop words that
    cannot be read are a `SourceError`.
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

        Among names that overlap each other, those with the largest product of odds are mentions. A name
        never goes across a paragraph break. The search starts at the last one before `begin`, or
        `LOOK_BACK_CHARS` before it where there is none so near, so that names before `begin` are known. It
        sees the text behind `end`.

        Raises:
            ValueError: [begin, end) is no stretch of the text.
        """
        stop = len(text) if end is None else end
        if not 0 <= begin <= stop <= len(text):
            raise ValueError(f"begin, end: expected 0 <= begin <= end <= {len(text)}, got {begin}, {end}")
        if begin == stop or not self._max_chars:
            return []
        found = []
        for match in self._mentions(text, _search_begin(text, begin), stop):
            if match.start >= stop:
                break
            if match.start >= begin:
                found.append(Span(match.start, match.end, num_names=match.num_names))
        return found

    def entity_ids(self, text: str) -> tuple[str, ...]:
        """Return the ids of the entities that have a text as a title or alias, in any letter case.

        The ids are in the order of the index, and at most `MAX_NAMED_ENTITIES`; `FindOptions` change nothing.
        """
        key = self._table.names.get(fold_name(text))
        if key is None:
            return ()
        entities = self._index.entities
        numbers = self._table.entities_of(key)[:MAX_NAMED_ENTITIES]
        if len(numbers) == 1:
            found = entities.slice(int(numbers[0]), int(numbers[0]) + 1)
        else:
            found = entities.take(numbers)
        return tuple(found.column(entities.id_column).to_pylist())

    def _mentions(self, text: str, begin: int, stop: int) -> Iterator[Match]:
        """Yield the likeliest matches from `begin` on; all that begin before `stop`, and maybe more."""
        chain: list[Match] = []  # each overlaps one before it
        chain_end = done = begin
        for match in self._matches(text, begin, stop):
            # A chain that is too long is decided before its end, to bound memory.
            size = max(len(chain), match.start - chain[0].start) if chain else 0
            if match.start >= chain_end or size >= LOOK_BACK_CHARS:
                for chosen in likeliest(chain):
                    yield chosen
                    done = chosen.end
                if match.start >= stop:
                    return
                chain = []
            if match.start >= done:  # always, but behind a chain that was too long
                chain.append(match)
                chain_end = max(chain_end, match.end)
        yield from likeliest(chain)

    def _matches(self, text: str, begin: int, stop: int) -> Iterator[Match]:
        """Yield matches by where they begin, the longest first.

        They are all that begin before `stop`, overlap one that does, or overlap such a one, and maybe more.
        """
        odds = MentionOdds(self._policy, text)
        reach = self._max_chars + 1  # a name and the character behind it
        window = FoldedWindow(text, begin, self._piece_chars)
        at = len(window.text)
        while True:
            while not window.is_whole and len(window.text) - at < reach:
                window.read()
            # Up to here, every name that begins is in the window as a whole, wherever it was cut.
            limit = len(window.text) if window.is_whole else len(window.text) - reach + 1
            for match in self._in_window(text, window, at, limit, odds):
                stop = max(stop, match.end)
                yield match
            at = max(at, limit)
            place = window.place(at)
            if window.is_whole or (place is not None and place >= stop):
                return
            before = max(at - 1, 0)  # the character before `at` is kept, for the boundary there
            window.drop(before)
            at -= before

    def _in_window(
        self, text: str, window: FoldedWindow, at: int, limit: int, odds: MentionOdds
    ) -> Iterator[Match]:
        """Yield matches that begin at text[at:limit] of the window."""
        folded, reach, prefixes = window.text, self._max_chars, self._table.names.prefixes
        length, excluded, min_chars = len(folded), self._policy.stop_words, self._policy.options.min_chars
        for found in self._starts.finditer(folded, at):
            begin = found.start()
            if begin >= limit:
                return
            names = prefixes(folded[begin : begin + reach])
            # Of what the pattern matches, only what stands behind a mark may be inside of a word.
            if not names or (begin and folded[begin - 1] > "\x7f" and not is_boundary(folded, begin)):
                continue
            for name in reversed(names):
                behind = begin + len(name)
                # As `is_boundary` says, without a call: most prefixes end inside a word.
                if behind < length and KINDS[folded[behind]] == WORD == KINDS[folded[behind - 1]]:
                    continue
                if name in excluded or len(name) < min_chars:
                    continue
                place = window.span(begin, behind)
                if place is None:
                    continue
                start, end = place
                while text[end - 1] in IGNORED:
                    end -= 1
                match = odds.match(name, start, end)
                if match is not None:
                    yield match


def likeliest(chain: Sequence[Match]) -> Sequence[Match]:
    """Return the matches of which none overlaps another and whose odds have the largest product.

    They come by start, the longest first; among equal products the earlier matches are taken.
    """
    if len(chain) < 2:
        return chain
    starts = [match.start for match in chain]
    best = [0.0] * (len(chain) + 1)  # of the matches from here on
    after = [0] * len(chain)  # the first match behind one that is taken; 0: it is not
    for at in range(len(chain) - 1, -1, -1):
        behind = bisect_left(starts, chain[at].end, at + 1)
        taken = chain[at].log_odds + best[behind]
        best[at] = max(taken, best[at + 1])
        after[at] = behind if taken >= best[at + 1] else 0
    chosen = []
    at = 0
    while at < len(chain):
        if after[at]:
            chosen.append(chain[at])
        at = after[at] or at + 1
    return chosen


def _search_begin(text: str, begin: int) -> int:
    """Return a start from which all mentions around `begin` are found as from the text's start."""
    earliest = max(begin - LOOK_BACK_CHARS, 0)
    found = earliest
    for match in PARAGRAPH_BREAK.finditer(text, earliest, begin):
        found = match.end()
    if found > earliest or not earliest:
        return found
    blank = _BLANK.search(text, earliest, begin)
    return min(unit_begin(text, earliest), begin) if blank is None else blank.start()
