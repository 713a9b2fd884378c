"""A window that moves over a text and shows it folded, a few thousand characters at a time."""

from __future__ import annotations

import re
from bisect import bisect_right

from retrieval.linking.finding.characters import is_continuation
from retrieval.linking.finding.folding import fold_piece

_NO_BLANK = re.compile(r"\S")


class FoldedWindow:
    """A stretch of a text, folded, with the way back to code points of the text.

    Every character is folded once, whatever the text: `read` takes in a piece on the right, `drop` lets go of
    what is done with on the left.

    Args:
        text: The text.
        begin: Where reading starts; the place of a unit's first character.
        piece_chars: How much is read at a time, at least.

    Attributes:
        text: The folded stretch. A character before `begin` is in it too, for the boundary there.
        is_whole: Whether the end of the text has been read.
    """

    def __init__(self, text: str, begin: int, piece_chars: int) -> None:
        self._source = text
        self._read = begin
        self._piece_chars = piece_chars
        self.text = text[max(begin - 1, 0) : begin]
        self._base = -len(self.text)  # folded place of text[0]; that of `begin` is 0
        # Of every unit that is not one character for one: places in the folded text and in the source.
        self._folded_begins = [0]
        self._folded_ends = [0]
        self._begins = [begin]
        self._ends = [begin]
        self.is_whole = begin >= len(text)

    def read(self) -> None:
        """Fold the next piece."""
        begin = self._read
        end = unit_begin(self._source, begin + self._piece_chars)
        piece = fold_piece(self._source[begin:end])
        base = self._base + len(self.text)
        for folded_begin, folded_end, unit, unit_end in piece.units:
            self._add(base + folded_begin, base + folded_end, begin + unit, begin + unit_end)
        self.text += piece.text
        self._add(base + len(piece.text), base + len(piece.text), end, end)
        self._read = end
        self.is_whole = end == len(self._source)

    def drop(self, before: int) -> None:
        """Let go of text[:before]; places count from there on."""
        self.text = self.text[before:]
        self._base += before
        done = bisect_right(self._folded_begins, self._base) - 1
        if done > 0:
            for places in (self._folded_begins, self._folded_ends, self._begins, self._ends):
                del places[:done]

    def place(self, at: int) -> int | None:
        """Return the code point of the source at which text[at] begins; None where no unit begins there."""
        folded = self._base + at
        unit = bisect_right(self._folded_begins, folded) - 1
        if folded >= self._folded_ends[unit]:
            place = self._ends[unit] + folded - self._folded_ends[unit]
        elif folded == self._folded_begins[unit]:
            place = self._begins[unit]
        else:
            return None
        return None if self._goes_on(place) else place

    def span(self, begin: int, end: int) -> tuple[int, int] | None:
        """Return the code points of the source that text[begin:end] stands for; None where it cuts a unit."""
        folded = self._base + begin
        following = bisect_right(self._folded_begins, folded)
        unit = following - 1
        is_plain = folded >= self._folded_ends[unit] and (
            following == len(self._folded_begins) or self._base + end <= self._folded_begins[following]
        )
        if is_plain:  # no unit but characters in between
            start = self._ends[unit] + folded - self._folded_ends[unit]
            behind = start + end - begin
            if not self._goes_on(start) and not self._goes_on(behind):
                return start, behind
            return None
        first, last = self.place(begin), self.place(end)
        return None if first is None or last is None else (first, last)

    def _goes_on(self, place: int) -> bool:
        """Whether a character belongs to the one before it: marks on what is composed are folded alone."""
        character = self._source[place : place + 1]
        return character > "\x7f" and is_continuation(character)

    def _add(self, folded_begin: int, folded_end: int, begin: int, end: int) -> None:
        self._folded_begins.append(folded_begin)
        self._folded_ends.append(folded_end)
        self._begins.append(begin)
        self._ends.append(end)


def unit_begin(text: str, at: int) -> int:
    """Return the first place from `at` on where a unit begins, other than one of white space."""
    while at < len(text):
        match = _NO_BLANK.search(text, at)
        if match is None:
            return len(text)
        at = match.start()
        if at == 0 or not is_continuation(text[at]):
            return at
        at += 1
    return len(text)
