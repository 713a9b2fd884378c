"""Folds names and texts into the form they are compared in, and maps folded text back to the text.

Folded text is in NFC and case-folded (Unicode's full folding: "Straße" is "strasse"); a run of white space
is one blank, or a line feed where it ends a paragraph; hyphens, apostrophes and quotation marks that differ
in their looks alone are one; invisible characters are gone. Text is folded unit by unit: a unit is a
character with the combining marks on it, or a run of white space. Names are folded in the same way, so a text
holds a name exactly where the folded name stands on units of the folded text.

A word ends where a letter, digit or underscore stands beside something else. In scripts without blanks
between words (Chinese, Japanese, Thai, ...) a name may begin and end beside any letter. A combining mark
belongs to the character before it, so nothing ends before it.
"""

from __future__ import annotations

import re
import unicodedata
from bisect import bisect_right
from functools import lru_cache
from typing import NamedTuple

# Letters of scripts without blanks between words: the classes ID (without symbols) and SA of UAX #14, line
# breaking. Hangul is not among them, as Korean writes blanks.
_UNSPACED = (
    "\u0e00-\u0eff"  # Thai, Lao
    "\u1000-\u109f\ua9e0-\ua9ff\uaa60-\uaa7f"  # Myanmar
    "\u1780-\u17ff"  # Khmer
    "\u1950-\u19df\u1a20-\u1aaf\uaa80-\uaadf"  # Tai Le, New Tai Lue, Tai Tham, Tai Viet
    "\u3005-\u3007\u3021-\u3029\u3031-\u3035\u3038-\u303c"  # ideographic iteration marks and numbers
    "\u3040-\u312f\u31a0-\u31bf\u31f0-\u31ff"  # kana, bopomofo
    "\u3400-\u4dbf\u4e00-\u9fff\ua000-\ua4cf\uf900-\ufaff"  # ideographs, Yi
    "\uff66-\uff9f"  # half-width kana
    "\U0001b000-\U0001b16f\U00020000-\U0003ffff"  # further kana and ideographs
)
_IS_UNSPACED = re.compile(f"[{_UNSPACED}]")
# A word of letters and digits; of a script without blanks, one letter.
A_WORD = re.compile(rf"[^\W_{_UNSPACED}]+|[{_UNSPACED}]")

# Invisible, and without a meaning of their own: soft hyphen, word joiner, marks of direction, zero-width
# blank and byte order mark. The joiners U+200C and U+200D are not among them: they change what a word says.
IGNORED = frozenset("\u00ad\u061c\u200b\u200e\u200f\u2060\u2066\u2067\u2068\u2069\ufeff")

OTHER, WORD, UNSPACED = range(3)


def is_continuation(character: str) -> bool:
    """Whether a character is part of the one before it.

    True of combining marks, of the vowels and final consonants of Hangul (which NFC composes with what is
    before them), and of `IGNORED`: of whatever NFC can put together with its left neighbour.
    """
    if character < "\u0300":
        return character == "\u00ad"
    return (
        unicodedata.category(character)[0] == "M" or "\u1160" <= character <= "\u11ff" or character in IGNORED
    )


class _Kinds(dict[str, int]):
    """The kind of a character, found once: OTHER, WORD or UNSPACED."""

    def __missing__(self, character: str) -> int:
        if _IS_UNSPACED.match(character):
            kind = UNSPACED
        elif character.isalnum() or character == "_" or unicodedata.category(character)[0] == "M":
            kind = WORD
        else:
            kind = OTHER
        self[character] = kind
        return kind


KINDS = _Kinds()


def is_boundary(text: str, at: int) -> bool:
    """Whether a word may begin or end between text[at - 1] and text[at]."""
    return not 0 < at < len(text) or KINDS[text[at]] != WORD or KINDS[text[at - 1]] != WORD


def start_pattern(first_marks: str) -> re.Pattern[str]:
    """Return a pattern that matches one character at every place where a name may begin, and maybe at more.

    `first_marks` are the characters that names begin with and that are no letter, digit or underscore.
    """
    spaced = rf"[^\W{_UNSPACED}]"
    marks = f"|[{re.escape(first_marks)}]" if first_marks else ""
    return re.compile(rf"(?<!{spaced}){spaced}|[{_UNSPACED}]{marks}")


PARAGRAPH = "\n"
_LINE_END = "(?:\r\n|\r(?!\n)|[\n\x0b\x0c\x85\u2028])"
_NO_LINE_END = "[^\\S\n\r\x0b\x0c\x85\u2028\u2029]"
# A blank line, or the character that is made for it. Of a run of line ends, all belong to one match. The
# pattern begins with a class of characters: a search for them is five times faster than one for alternatives.
PARAGRAPH_BREAK = re.compile(
    f"[\n\r\x0b\x0c\x85\u2028\u2029](?:(?<=\u2029)|(?:(?<=\r)\n)?+(?:{_NO_LINE_END}*{_LINE_END})+)"
)

# Writers use these for one another: "Franco–Prussian War" and "Franco-Prussian War", "O’Neill" and "O'Neill".
_ALIKE = {
    **dict.fromkeys("\u2010\u2011\u2012\u2013\u2212\ufe63\uff0d", "-"),
    **dict.fromkeys("\u2018\u2019\u201b\u02bb\u02bc\uff07", "'"),
    **dict.fromkeys("\u201c\u201d\u201e\u201f\uff02", '"'),
}
# More marks on one character than any language writes (UAX #15 has 30 for the same reason): sorting them into
# their canonical order takes quadratic time.
_MAX_MARKS = 30
_IGNORED_CLASS = "".join(sorted(IGNORED))
_WHITE_RUN = re.compile(rf"\s[\s{_IGNORED_CLASS}]+")
_ALL_ALIKE = list(_ALIKE.items())
# Blanks other than single ones, and whatever is replaced; "ŉ" has an apostrophe in it.
_NOT_PLAIN = re.compile(rf"[^\S ]|  |[{_IGNORED_CLASS}{re.escape(''.join(_ALIKE))}ŉ]")
_PLAIN_CHARS = 300
_SHORT_UNIT_CHARS = 8
_REMOVED = dict.fromkeys(map(ord, IGNORED))


class FoldedPiece(NamedTuple):
    """A stretch of text, folded."""

    text: str
    # Units that are not folded character by character: [begin, end) in the folded text and [begin, end) in
    # the stretch, ascending. Between two of them every character has one.
    units: list[tuple[int, int, int, int]]


def fold_piece(text: str, keep_case: bool = False) -> FoldedPiece:
    """Fold a stretch of text that begins and ends where units do."""
    characters = set(text)
    pattern = _WHITE_RUN if text.isascii() else _odd_pattern(text, characters, keep_case)
    alike = _replacements(characters)
    parts: list[str] = []
    units: list[tuple[int, int, int, int]] = []
    done = length = 0
    for match in pattern.finditer(text):
        begin, end = match.span()
        plain = _fold_plain(text[done:begin], alike, keep_case)
        fold = _fold_short_unit if end - begin <= _SHORT_UNIT_CHARS else _fold_unit
        odd = fold(match.group(), keep_case)
        length += len(plain)
        units.append((length, length + len(odd), begin, end))
        length += len(odd)
        parts += (plain, odd)
        done = end
    parts.append(_fold_plain(text[done:], alike, keep_case))
    return FoldedPiece("".join(parts), units)


def fold_name(name: str, keep_case: bool = False) -> str:
    """Return a name as it stands in folded text; with `keep_case`, in the letter case it is written in."""
    if _is_plain(name):  # most names: the same, but faster
        return (name if keep_case else name.casefold()).strip()
    return fold_piece(name, keep_case).text.strip()


def _is_plain(name: str) -> bool:
    """Whether there is nothing to fold but case; False where finding out could take long."""
    if _NOT_PLAIN.search(name):
        return False
    return name.isascii() or (len(name) <= _PLAIN_CHARS and unicodedata.is_normalized("NFC", name))


def _fold_plain(text: str, alike: list[tuple[str, str]], keep_case: bool) -> str:
    folded = text if keep_case else text.casefold()
    for old, new in alike:
        folded = folded.replace(old, new)
    return folded


def _fold_unit(unit: str, keep_case: bool) -> str:
    rest = unit.translate(_REMOVED)
    blank = ""
    if unit[0].isspace():
        blank = PARAGRAPH if PARAGRAPH_BREAK.search(rest) else " "
        rest = rest.lstrip()
    if len(rest) <= _MAX_MARKS + 1:
        rest = unicodedata.normalize("NFC", rest)
    return blank + _fold_plain(rest, _ALL_ALIKE, keep_case)


_fold_short_unit = lru_cache(maxsize=4096)(_fold_unit)  # a text has few different ones


def _replacements(characters: set[str]) -> list[tuple[str, str]]:
    """Return the one-to-one replacements for a text of these characters."""
    blanks = [(c, PARAGRAPH if c == "\u2029" else " ") for c in characters if c != " " and c.isspace()]
    blanks.sort(key=lambda pair: pair[1] == PARAGRAPH)  # "\n" itself is replaced before it is put in
    return [*blanks, *((c, _ALIKE[c]) for c in _ALIKE.keys() & characters)]


def _odd_pattern(text: str, characters: set[str], keep_case: bool) -> re.Pattern[str]:
    """Return the pattern of all units of a text that are not folded character by character."""
    marks = "".join(sorted(c for c in characters if is_continuation(c)))
    if marks and not characters & IGNORED and _is_composed(text, marks):
        marks = ""
    odd = {c for c in characters if c > "\x7f" and not unicodedata.is_normalized("NFC", c)}
    if not keep_case:
        odd |= {c for c in characters if len(c.casefold()) > 1}
    return _compiled(marks, "".join(sorted(odd)))


def _is_composed(text: str, marks: str) -> bool:
    """Whether a text is in NFC; False where finding out could take long."""
    return not _many(marks).search(text) and unicodedata.is_normalized("NFC", text)


@lru_cache(maxsize=64)
def _many(marks: str) -> re.Pattern[str]:
    return re.compile(f"[{re.escape(marks)}]{{{_MAX_MARKS + 1}}}")


@lru_cache(maxsize=256)
def _compiled(marks: str, odd: str) -> re.Pattern[str]:
    pattern = _WHITE_RUN.pattern
    if marks:
        pattern += f"|[^{re.escape(marks)}]?[{re.escape(marks)}]+"
    if odd:
        pattern += f"|[{re.escape(odd)}]"
    return re.compile(pattern)


_NO_BLANK = re.compile(r"\S")


class FoldedWindow:
    """A stretch of a text, folded, with the way back to code points of the text.

    Every character is folded once, whatever the text: `read` takes in a piece on the right, of at least
    `piece_chars`, and `drop` lets go of finished text on the left. Reading begins with a unit. `text` has the
    character before `begin` too, for the boundary there; `is_whole`: the end of the text has been read.
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
        """Return the code points of the source behind text[begin:end]; None where it cuts a unit."""
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
