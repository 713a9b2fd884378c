"""Characters as the finder sees them: which go on with what stands before them, and where words end.

A word ends where a letter, digit or underscore stands beside something else. Scripts that are written
without blanks between words (Chinese, Japanese, Thai, ...) have no such places: there, a name may begin and
end beside any letter. A combining mark belongs to what it stands on, so nothing ends before it.
"""

from __future__ import annotations

import re
import unicodedata

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
    """Whether a character is part of what stands before it.

    Combining marks, the vowels and final consonants of Hangul (which NFC composes with what stands before
    them), and what `IGNORED` lists. Whatever NFC can put together with its left neighbour is among them.
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

    Args:
        first_marks: Characters, none a letter, a digit or an underscore, that names begin with.
    """
    spaced = rf"[^\W{_UNSPACED}]"
    marks = f"|[{re.escape(first_marks)}]" if first_marks else ""
    return re.compile(rf"(?<!{spaced}){spaced}|[{_UNSPACED}]{marks}")
