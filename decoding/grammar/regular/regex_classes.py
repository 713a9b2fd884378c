"""Builds character classes of regular expressions, those of Unicode properties among them.

A class has the characters that belong to it under every reading of the pattern, and those under any. They
differ only if the pattern must hold under ECMA-262 and Python, and the two read the class differently.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache

from genret.decoding.grammar.regular.ranges import (
    SCALAR_VALUES,
    Ranges,
    complement,
    contains,
    intersection,
    scalar,
    union,
)

DIGITS: Ranges = ((0x30, 0x39),)
WORD: Ranges = ((0x30, 0x39), (0x41, 0x5A), (0x5F, 0x5F), (0x61, 0x7A))
_WHITE_SPACE: Ranges = union(
    [(0x09, 0x0D), (0x20, 0x20), (0x85, 0x85), (0xA0, 0xA0), (0x1680, 0x1680), (0x2000, 0x200A)],
    [(0x2028, 0x2029), (0x202F, 0x202F), (0x205F, 0x205F), (0x3000, 0x3000)],
)
SPACE: Ranges = union(intersection(_WHITE_SPACE, complement(((0x85, 0x85),))), ((0xFEFF, 0xFEFF),))
PYTHON_SPACE: Ranges = union(_WHITE_SPACE, ((0x1C, 0x1F),))
LINE_ENDS: Ranges = ((0x0A, 0x0A), (0x0D, 0x0D), (0x2028, 0x2029))
# Letters that Python's `re` takes for each other's cases, beyond Unicode's simple case folding.
_PYTHON_CASES = ("Ii\u0130\u0131", "\u0390\u1fd3", "\u03b0\u1fe3", "\ufb05\ufb06")
# No character behind this one has two cases.
_LAST_CASED = 0x1E943


@dataclass(frozen=True, slots=True)
class CharClass:
    """A set of code points under every reading of a pattern, and under any reading."""

    sure: Ranges
    possible: Ranges

    def __invert__(self) -> CharClass:
        if self.sure is self.possible:
            return exactly(complement(self.sure))
        return CharClass(complement(self.possible), complement(self.sure))

    def any_case(self, portable: bool) -> CharClass:
        """The class with the other cases of its letters; `portable` includes those of Python's reading."""
        sure = _any_case(self.sure)
        possible = sure if self.possible == self.sure else _any_case(self.possible)
        if portable:
            extra = [mates for mates in _PYTHON_CASES if any(contains(possible, ord(mate)) for mate in mates)]
            possible = union(possible, ((ord(mate), ord(mate)) for mates in extra for mate in mates))
        return CharClass(sure, possible)


def exactly(ranges: Ranges) -> CharClass:
    """A class with one reading."""
    return CharClass(ranges, ranges)


def any_of(parts: Sequence[CharClass]) -> CharClass:
    """The union of classes."""
    sure = union(*(part.sure for part in parts))
    if all(part.sure is part.possible for part in parts):
        return exactly(sure)
    return CharClass(sure, union(*(part.possible for part in parts)))


def char_class(code_point: int) -> CharClass:
    """One code point; a surrogate gives an empty class."""
    return exactly(() if 0xD800 <= code_point <= 0xDFFF else ((code_point, code_point),))


def chars_between(first: int, last: int) -> CharClass:
    """A range of code points, without surrogates."""
    return exactly(scalar([(first, last)]))


@cache
def named_class(letter: str, portable: bool) -> CharClass:
    r"""`\d`, `\w`, `\s` and their opposites by letter, and `.`, all but line ends.

    If it is `portable`, Python's reading counts beside that of ECMA-262.
    """
    if letter in "DWS":
        return ~named_class(letter.lower(), portable)
    ours = {"d": DIGITS, "w": WORD, "s": SPACE, ".": complement(LINE_ENDS)}[letter]
    if not portable:
        return exactly(ours)
    other = _python_class(letter)
    return CharClass(intersection(ours, other), union(ours, other))


def _python_class(letter: str) -> Ranges:
    if letter == "d":
        return _having(str.isdecimal)
    if letter == "w":
        return python_word()
    return PYTHON_SPACE if letter == "s" else complement(((0x0A, 0x0A),))


@cache
def python_word() -> Ranges:
    r"""The characters of `\w` in Python's `re`: `str.isalnum` and the underscore."""
    return union(_having(str.isalnum), ((0x5F, 0x5F),))


@cache
def _case_variants() -> dict[int, tuple[int, ...]]:
    """All cases of every letter that has several, by letter."""
    by_fold: dict[str, list[int]] = {}
    for code in range(_LAST_CASED + 1):
        char = chr(code)
        if char in "\u0130\u0131":
            # Their cases differ by language, so folding leaves them alone.
            continue
        lower = char.lower()
        upper = lower.upper()
        if lower != char or upper != char:
            fold = upper if len(upper) == 1 else lower
            by_fold.setdefault(fold, []).append(code)
    return {code: tuple(codes) for codes in by_fold.values() if len(codes) > 1 for code in codes}


def _any_case(ranges: Ranges) -> Ranges:
    """The ranges with the other cases of their letters."""
    variants = _case_variants()
    extra: list[tuple[int, int]] = []
    for first, last in ranges:
        if last - first < len(variants):
            found = [code for code in range(first, last + 1) if code in variants]
        else:
            found = [code for code in variants if first <= code <= last]
        for code in found:
            extra.extend((variant, variant) for variant in variants[code])
    return union(ranges, extra)


_LONG_NAMES = {
    "Letter": "L", "Cased_Letter": "LC", "Uppercase_Letter": "Lu", "Lowercase_Letter": "Ll",
    "Titlecase_Letter": "Lt", "Modifier_Letter": "Lm", "Other_Letter": "Lo", "Mark": "M",
    "Combining_Mark": "M", "Nonspacing_Mark": "Mn", "Spacing_Mark": "Mc", "Enclosing_Mark": "Me",
    "Number": "N", "Decimal_Number": "Nd", "digit": "Nd", "Letter_Number": "Nl", "Other_Number": "No",
    "Punctuation": "P", "punct": "P", "Connector_Punctuation": "Pc", "Dash_Punctuation": "Pd",
    "Open_Punctuation": "Ps", "Close_Punctuation": "Pe", "Initial_Punctuation": "Pi",
    "Final_Punctuation": "Pf", "Other_Punctuation": "Po", "Symbol": "S", "Math_Symbol": "Sm",
    "Currency_Symbol": "Sc", "Modifier_Symbol": "Sk", "Other_Symbol": "So", "Separator": "Z",
    "Space_Separator": "Zs", "Line_Separator": "Zl", "Paragraph_Separator": "Zp", "Other": "C",
    "Control": "Cc", "cntrl": "Cc", "Format": "Cf", "Private_Use": "Co", "Unassigned": "Cn",
}  # fmt: skip
_NAMED: dict[str, Ranges] = {
    "Any": SCALAR_VALUES, "ASCII": ((0, 0x7F),), "White_Space": _WHITE_SPACE, "space": _WHITE_SPACE,
}  # fmt: skip
_PREDICATES = {
    "Lowercase": str.islower, "Lower": str.islower, "Uppercase": str.isupper, "Upper": str.isupper,
}  # fmt: skip
# Blocks where characters of differing categories stand; behind and between them runs of one category.
_MIXED = ((0, 0xD7FF), (0xE000, 0x3FFFF), (0xE0000, 0xE0FFF))
_RUNS = ((0x40000, 0xDFFFF), (0xE1000, 0xEFFFF), (0xF0000, 0xFFFFD), (0xFFFFE, 0xFFFFF), (0x100000, 0x10FFFD))


def property_ranges(name: str) -> Ranges | None:
    """The code points of a property, as written between the braces; None if it is not known.

    Known are general categories by short and by long name, also behind `gc=` or `General_Category=`, and
    `Any`, `ASCII`, `Assigned`, `White_Space`, `Lowercase` and `Uppercase`.
    """
    key, equals, value = name.partition("=")
    if equals:
        return _category(value) if key in ("gc", "General_Category") else None
    if name in _NAMED:
        return _NAMED[name]
    if name in _PREDICATES:
        return _having(_PREDICATES[name])
    if name == "Assigned":
        return union(*(ranges for category, ranges in _categories().items() if category != "Cn"))
    return _category(name)


@cache
def _category(name: str) -> Ranges | None:
    short = _LONG_NAMES.get(name, name)
    if short == "LC":
        wanted: tuple[str, ...] = ("Lu", "Ll", "Lt")
    else:
        wanted = tuple(category for category in _categories() if category == short or category[0] == short)
    if not wanted and short != "Cs":
        return None
    return union(*(_categories()[category] for category in wanted))


@cache
def _categories() -> dict[str, Ranges]:
    """The code points of every general category, without surrogates."""
    found: dict[str, list[tuple[int, int]]] = {}
    category_of = unicodedata.category
    for low, high in _MIXED:
        start, current = low, category_of(chr(low))
        for code in range(low + 1, high + 1):
            category = category_of(chr(code))
            if category != current:
                found.setdefault(current, []).append((start, code - 1))
                start, current = code, category
        found.setdefault(current, []).append((start, high))
    for first, last in (*_RUNS, (0x10FFFE, 0x10FFFF)):
        found.setdefault(category_of(chr(first)), []).append((first, last))
    return {category: intersection(union(ranges), SCALAR_VALUES) for category, ranges in found.items()}


@cache
def _having(predicate: Callable[[str], bool]) -> Ranges:
    """The code points for which a predicate of `str` holds; none of the runs is among them."""
    return union(
        (code, code) for low, high in _MIXED for code in range(low, high + 1) if predicate(chr(code))
    )
