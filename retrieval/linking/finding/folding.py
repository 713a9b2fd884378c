r"""Folding: what names and texts are compared as, and the way back from folded text to the text.

Folded text is in NFC and case-folded (Unicode's full folding: "Straße" is "strasse"); a run of white space
is one blank, or "\n" where it ends a paragraph; hyphens, apostrophes and quotation marks that differ in
their looks alone are one; invisible characters are gone. Text is folded unit by unit: a unit is a character
with the combining marks on it, or a run of white space. A name is folded in the same way, so a text holds a
name exactly where the folded name stands on units of the folded text.
"""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass
from functools import lru_cache

from retrieval.linking.finding.characters import IGNORED, is_continuation

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


@dataclass(frozen=True, slots=True)
class FoldedPiece:
    """A stretch of text, folded.

    Attributes:
        text: The folded text.
        units: Where folding is not character by character: [begin, end) in the folded text and [begin, end)
            in the stretch, ascending. Between two of them every character has one.
    """

    text: str
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


@lru_cache(maxsize=4096)
def _fold_short_unit(unit: str, keep_case: bool) -> str:
    return _fold_unit(unit, keep_case)  # a text has few different ones


def _replacements(characters: set[str]) -> list[tuple[str, str]]:
    """Return what is replaced one to one in a text of these characters."""
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
