"""Reading escapes and bracketed classes of regular expressions."""

from __future__ import annotations

from decoding.grammar.budget import current_budget
from decoding.grammar.regular.regex_classes import (
    CharClass,
    any_of,
    char_class,
    chars_between,
    exactly,
    named_class,
)
from decoding.grammar.regular.regex_errors import PatternError, UnsupportedPatternError
from decoding.grammar.regular.regex_unicode import property_ranges

_CONTROL_ESCAPES = {"t": 0x09, "n": 0x0A, "v": 0x0B, "f": 0x0C, "r": 0x0D}


class EscapeReader:
    """A place in a pattern, and what can be read there of single characters and classes.

    Args:
        pattern: The pattern.
        portable: Whether classes are to be read as Python reads them, too.
    """

    def __init__(self, pattern: str, portable: bool) -> None:
        self._text = pattern
        self._at = 0
        self._portable = portable
        self._any_case = False
        self._check_time = current_budget().check_time

    def _wrong(self, reason: str, at: int | None = None) -> PatternError:
        """An error at a position, by default the current one."""
        return PatternError(reason, self._text, self._at if at is None else at)

    def _unsupported(self, reason: str, at: int | None = None) -> UnsupportedPatternError:
        """An error at a position, by default the current one."""
        return UnsupportedPatternError(reason, self._text, self._at if at is None else at)

    def _peek(self) -> str:
        """The next character, "" at the end."""
        return self._text[self._at] if self._at < len(self._text) else ""

    def _take(self, expected: str) -> bool:
        """Step over some characters if they come next."""
        if self._text.startswith(expected, self._at):
            self._at += len(expected)
            return True
        return False

    def _class_escape(self, start: int) -> CharClass | None:
        r"""A class such as `\d` or `\p{L}`; None where something else follows the backslash."""
        char = self._peek()
        if not char:
            raise self._wrong("a backslash with nothing behind it", start)
        if char in "dwsDWS":
            self._at += 1
            return named_class(char, self._portable)
        if char not in "pP":
            return None
        end = self._text.find("}", self._at)
        if not self._text.startswith("{", self._at + 1) or end < 0:
            raise self._wrong("a property without braces", start)
        name = self._text[self._at + 2 : end]
        ranges = property_ranges(name)
        if ranges is None:
            raise self._unsupported(f"the Unicode property {name!r}, which is not known here", start)
        self._at = end + 1
        return exactly(ranges) if char == "p" else ~exactly(ranges)

    def _char_escape(self, start: int) -> int:
        """The code point that stands behind a backslash."""
        char = self._text[self._at]
        self._at += 1
        if char in _CONTROL_ESCAPES:
            return _CONTROL_ESCAPES[char]
        if char == "x":
            return self._hex(2, start)
        if char == "u":
            return self._unicode_escape(start)
        if char == "c":
            letter = self._peek()
            if not (letter.isascii() and letter.isalpha()):
                raise self._wrong("a control escape without a letter", start)
            self._at += 1
            return ord(letter) & 31
        if char == "0":
            if self._peek().isdigit():
                raise self._unsupported("an octal escape", start)
            return 0
        if char.isalnum() and char.isascii():
            raise self._unsupported(f"the escape \\{char}, which not all read alike", start)
        return ord(char)

    def _hex(self, digits: int, start: int) -> int:
        """A number of that many hexadecimal digits."""
        text = self._text[self._at : self._at + digits]
        if len(text) < digits or any(char not in "0123456789abcdefABCDEF" for char in text):
            raise self._wrong(f"an escape that wants {digits} hexadecimal digits", start)
        self._at += digits
        return int(text, 16)

    def _unicode_escape(self, start: int) -> int:
        r"""What stands behind `\u`; two halves of a pair are one code point."""
        if self._take("{"):
            end = self._text.find("}", self._at)
            text = self._text[self._at : end] if end >= 0 else ""
            if not 1 <= len(text) <= 8 or any(char not in "0123456789abcdefABCDEF" for char in text):
                raise self._wrong("an escape that wants hexadecimal digits in braces", start)
            self._at = end + 1
            if int(text, 16) > 0x10FFFF:
                raise self._wrong("an escape of no code point", start)
            return int(text, 16)
        high = self._hex(4, start)
        if 0xD800 <= high <= 0xDBFF and self._text.startswith("\\u", self._at):
            behind = self._text[self._at + 2 : self._at + 6]
            if len(behind) == 4 and behind[0] in "dD" and behind[1] in "cdefCDEF":
                self._at += 2
                return 0x10000 + (high - 0xD800 << 10) + self._hex(4, start) - 0xDC00
        return high

    def _bracket(self, start: int) -> CharClass:
        """A class in brackets, the opening one of which is behind."""
        negated = self._take("^")
        if self._peek() == "]":
            raise self._unsupported(
                "a closing bracket as the first of a class, which not all read alike", start
            )
        parts: list[CharClass] = []
        while not self._take("]"):
            if not len(parts) & 255:
                self._check_time()
            at = self._at
            first = self._bracket_item(start)
            if not self._text.startswith("-", self._at) or self._text[self._at + 1 : self._at + 2] in (
                "]",
                "",
            ):
                parts.append(char_class(first) if isinstance(first, int) else first)
                continue
            self._at += 1
            last = self._bracket_item(start)
            if isinstance(first, int) and isinstance(last, int):
                if last < first:
                    raise self._wrong("a range whose first character is behind its last", at)
                parts.append(chars_between(first, last))
            else:
                # Beside a class such as \w a hyphen stands for itself.
                for part in (first, 0x2D, last):
                    parts.append(char_class(part) if isinstance(part, int) else part)
        out = any_of(parts)
        if self._any_case:
            out = out.any_case(self._portable)
        return ~out if negated else out

    def _bracket_item(self, start: int) -> int | CharClass:
        """A code point, or a class, inside brackets."""
        at = self._at
        char = self._peek()
        if not char:
            raise self._wrong("a bracket that nothing closes", start)
        self._at += 1
        if char != "\\":
            return ord(char)
        if self._take("b"):
            return 0x08
        if self._take("-"):
            return 0x2D
        named = self._class_escape(at)
        return named if named is not None else self._char_escape(at)
