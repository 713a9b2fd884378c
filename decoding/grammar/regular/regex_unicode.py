r"""Unicode properties by name, for `\p{...}`: general categories and what follows from them."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable
from functools import cache

from decoding.grammar.regular.ranges import SCALAR_VALUES, Ranges, intersection, union

_LONG_NAMES = {
    "Letter": "L",
    "Cased_Letter": "LC",
    "Uppercase_Letter": "Lu",
    "Lowercase_Letter": "Ll",
    "Titlecase_Letter": "Lt",
    "Modifier_Letter": "Lm",
    "Other_Letter": "Lo",
    "Mark": "M",
    "Combining_Mark": "M",
    "Nonspacing_Mark": "Mn",
    "Spacing_Mark": "Mc",
    "Enclosing_Mark": "Me",
    "Number": "N",
    "Decimal_Number": "Nd",
    "digit": "Nd",
    "Letter_Number": "Nl",
    "Other_Number": "No",
    "Punctuation": "P",
    "punct": "P",
    "Connector_Punctuation": "Pc",
    "Dash_Punctuation": "Pd",
    "Open_Punctuation": "Ps",
    "Close_Punctuation": "Pe",
    "Initial_Punctuation": "Pi",
    "Final_Punctuation": "Pf",
    "Other_Punctuation": "Po",
    "Symbol": "S",
    "Math_Symbol": "Sm",
    "Currency_Symbol": "Sc",
    "Modifier_Symbol": "Sk",
    "Other_Symbol": "So",
    "Separator": "Z",
    "Space_Separator": "Zs",
    "Line_Separator": "Zl",
    "Paragraph_Separator": "Zp",
    "Other": "C",
    "Control": "Cc",
    "cntrl": "Cc",
    "Format": "Cf",
    "Private_Use": "Co",
    "Unassigned": "Cn",
}
_WHITE_SPACE: Ranges = union(
    [(0x09, 0x0D), (0x20, 0x20), (0x85, 0x85), (0xA0, 0xA0), (0x1680, 0x1680), (0x2000, 0x200A)],
    [(0x2028, 0x2029), (0x202F, 0x202F), (0x205F, 0x205F), (0x3000, 0x3000)],
)
# Blocks where characters of differing categories stand; behind and between them runs of one category.
_MIXED = ((0, 0xD7FF), (0xE000, 0x3FFFF), (0xE0000, 0xE0FFF))
_RUNS = ((0x40000, 0xDFFFF), (0xE1000, 0xEFFFF), (0xF0000, 0xFFFFD), (0xFFFFE, 0xFFFFF), (0x100000, 0x10FFFD))


def property_ranges(name: str) -> Ranges | None:
    """The code points of a property, as it is written between the braces; None if it is not known here.

    Known are general categories by short and by long name, also behind `gc=` or `General_Category=`, and
    `Any`, `ASCII`, `Assigned`, `White_Space`, `Lowercase` and `Uppercase`.
    """
    key, equals, value = name.partition("=")
    if equals:
        return _category(value) if key in ("gc", "General_Category") else None
    if name == "Any":
        return SCALAR_VALUES
    if name == "ASCII":
        return ((0, 0x7F),)
    if name in ("White_Space", "space"):
        return _WHITE_SPACE
    if name in ("Lowercase", "Lower"):
        return _having(str.islower)
    if name in ("Uppercase", "Upper"):
        return _having(str.isupper)
    if name == "Assigned":
        return union(*(ranges for category, ranges in _categories().items() if category != "Cn"))
    return _category(name)


@cache
def _category(name: str) -> Ranges | None:
    """The code points of a general category or a group of them."""
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
    """The code points of every general category, surrogates left out."""
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
    """The code points with a property of `str`."""
    return union(
        (code, code) for low, high in _MIXED for code in range(low, high + 1) if predicate(chr(code))
    )
