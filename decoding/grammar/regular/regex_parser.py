"""Parses regular expressions into trees: ECMA-262 with the flag `u`, and what schemas write instead.

Errors say where in the pattern something is wrong; the caller adds where the pattern stands in the schema.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from genret.decoding.grammar.compile_options import current_budget
from genret.decoding.grammar.errors import GrammarError
from genret.decoding.grammar.regular.nfa import Condition
from genret.decoding.grammar.regular.ranges import SCALAR_VALUES
from genret.decoding.grammar.regular.regex_classes import (
    CharClass,
    any_of,
    char_class,
    chars_between,
    exactly,
    named_class,
    property_ranges,
)


@dataclass(frozen=True, slots=True)
class Chars:
    """One character of a class."""

    chars: CharClass


@dataclass(frozen=True, slots=True)
class Concatenation:
    """All items in order; none is the empty text."""

    items: tuple[Node, ...] = ()


@dataclass(frozen=True, slots=True)
class Alternation:
    """Any of the options."""

    options: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Repetition:
    """`least` to `most` times the item; None is no bound."""

    item: Node
    least: int
    most: int | None


@dataclass(frozen=True, slots=True)
class Assertion:
    """A condition on the place in the text."""

    condition: Condition
    loose: bool = False  # Whether the end in front of a last line feed counts, too, under another reading


@dataclass(frozen=True, slots=True)
class Look:
    """A lookahead or lookbehind."""

    part: Node  # Pattern that is looked for
    ahead: bool  # Whether it is looked for ahead, not behind
    negative: bool  # Whether it must be absent


Node = Chars | Concatenation | Alternation | Repetition | Assertion | Look


def any_part(node: Node, wanted: Callable[[Node], bool]) -> bool:
    """Whether a tree has a wanted part, also inside of looks."""
    if wanted(node):
        return True
    if isinstance(node, Concatenation):
        return any(any_part(item, wanted) for item in node.items)
    if isinstance(node, Alternation):
        return any(any_part(option, wanted) for option in node.options)
    if isinstance(node, Repetition):
        return any_part(node.item, wanted)
    return isinstance(node, Look) and any_part(node.part, wanted)


class PatternError(GrammarError):
    """A text is not a regular expression; `position` is in characters from 0."""

    def __init__(self, reason: str, pattern: str, position: int) -> None:
        shown = repr(pattern if len(pattern) <= 120 else pattern[:117] + "...")
        super().__init__(f"{reason} at position {position} of {shown}")


class UnsupportedPatternError(PatternError):
    """A regular expression uses what is not regular, not clear or not supported here."""


_CONTROL_ESCAPES = {"t": 0x09, "n": 0x0A, "v": 0x0B, "f": 0x0C, "r": 0x0D}
_HEX_DIGITS = frozenset("0123456789abcdefABCDEF")
_MAX_DEPTH = 100
_COUNTS = re.compile(r"([0-9]*)(,?)([0-9]*)\}")
_ANCHORS = {
    "A": Condition.AT_BEGIN,
    "Z": Condition.AT_END,
    "z": Condition.AT_END,
    "b": Condition.AT_WORD_BOUNDARY,
    "B": Condition.INSIDE_OR_OUTSIDE_WORD,
}
_LOOKS = {"?=": (True, False), "?!": (True, True), "?<=": (False, False), "?<!": (False, True)}


def parse_pattern(pattern: str, *, portable: bool) -> Node:
    """The tree of a regular expression; `portable` reads classes as Python does, too.

    Raises:
        PatternError: The pattern is not a regular expression.
        UnsupportedPatternError: It uses what is not supported.
    """
    return _Parser(pattern, portable).parse()


class _Parser:
    """One pattern, read from left to right."""

    def __init__(self, pattern: str, portable: bool) -> None:
        self._text = pattern
        self._at = 0
        self._portable = portable
        self._any_case = False
        self._dot_is_all = False
        self._depth = 0
        self._check_time = current_budget().check_time

    def parse(self) -> Node:
        node = self._alternation()
        if self._at < len(self._text):
            raise self._wrong("a closing parenthesis that nothing opens")
        return node

    def _alternation(self) -> Node:
        """Options up to a closing parenthesis or the end."""
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            raise self._unsupported(f"groups nested deeper than {_MAX_DEPTH}")
        options = [self._concatenation()]
        while self._take("|"):
            options.append(self._concatenation())
        self._depth -= 1
        return options[0] if len(options) == 1 else Alternation(tuple(options))

    def _concatenation(self) -> Node:
        """Items up to a bar, a closing parenthesis or the end."""
        items: list[Node] = []
        while self._at < len(self._text) and self._peek() not in "|)":
            start = self._at
            if not len(items) & 255:
                self._check_time()
            item = self._atom()
            if item is None:
                continue
            items.append(self._quantified(item, start))
        return items[0] if len(items) == 1 else Concatenation(tuple(items))

    def _atom(self) -> Node | None:
        """One item without its quantifier; None for a comment or flags."""
        start = self._at
        char = self._text[start]
        self._at += 1
        if char == "(":
            return self._group(start)
        if char == "[":
            return self._chars(self._bracket(start))
        if char == "\\":
            return self._escape(start)
        if char == ".":
            return Chars(exactly(SCALAR_VALUES) if self._dot_is_all else named_class(".", self._portable))
        if char == "^":
            return Assertion(Condition.AT_BEGIN)
        if char == "$":
            return Assertion(Condition.AT_END, loose=self._portable)
        if char in "*+?" or (char == "{" and self._counts() is not None):
            raise self._wrong("a quantifier with nothing to repeat", start)
        return self._chars(char_class(ord(char)))

    def _chars(self, chars: CharClass) -> Node:
        return Chars(chars.any_case(self._portable) if self._any_case else chars)

    def _group(self, start: int) -> Node | None:
        """The rest of a group behind its opening parenthesis; None for a comment or flags."""
        if self._take("?:") or self._peek() != "?":
            return self._closed(start)
        for mark, (ahead, negative) in _LOOKS.items():
            if self._take(mark):
                part = self._closed(start)
                if not ahead and any_part(part, _minds_what_follows):
                    raise self._unsupported("an anchor or a look inside of what looks behind", start)
                if ahead and any_part(part, lambda inner: isinstance(inner, Look) and not inner.ahead):
                    raise self._unsupported("what looks behind inside of what looks ahead", start)
                return Look(part, ahead, negative)
        if self._take("?#"):
            end = self._text.find(")", self._at)
            if end < 0:
                raise self._wrong("a comment that nothing closes", start)
            self._at = end + 1
            return None
        if self._take("?P<") or self._take("?<"):
            end = self._text.find(">", self._at)
            name = self._text[self._at : end] if end >= 0 else ""
            if not name.replace("$", "_").isidentifier():
                raise self._wrong("a group whose name is not an identifier", start)
            self._at = end + 1
            return self._closed(start)
        if self._take("?P="):
            raise self._unsupported("a back-reference, which is not regular", start)
        return self._flags(start)

    def _closed(self, start: int) -> Node:
        """The inside of a group and its closing parenthesis; flags set inside end with it."""
        flags = self._any_case, self._dot_is_all
        node = self._alternation()
        self._any_case, self._dot_is_all = flags
        if not self._take(")"):
            raise self._wrong("a parenthesis that nothing closes", start)
        return node

    def _flags(self, start: int) -> Node | None:
        """`(?i)` at the beginning of the pattern, or `(?i:...)`."""
        self._at += 1
        end = self._at
        while end < len(self._text) and self._text[end].isalpha():
            end += 1
        letters = self._text[self._at : end]
        closing = self._text[end : end + 1]
        if not letters or closing not in (")", ":"):
            raise self._unsupported("a kind of group that is not supported", start)
        if set(letters) - set("isu"):
            raise self._unsupported(f"the flags {letters!r}, of which only i, s and u are supported", start)
        if closing == ")" and start:
            raise self._unsupported("flags in the middle of a pattern", start)
        before = self._any_case, self._dot_is_all
        self._any_case = self._any_case or "i" in letters
        self._dot_is_all = self._dot_is_all or "s" in letters
        self._at = end + 1
        if closing == ")":
            return None
        node = self._closed(start)
        self._any_case, self._dot_is_all = before
        return node

    def _quantified(self, item: Node, start: int) -> Node:
        """An item with the quantifier behind it, if there is one."""
        char = self._peek()
        if char and char in "*+?":
            least, most = {"*": (0, None), "+": (1, None), "?": (0, 1)}[char]
            self._at += 1
        elif char == "{":
            self._at += 1
            counts = self._counts()
            if counts is None:
                self._at -= 1
                return item
            least, most = counts
        else:
            return item
        if isinstance(item, Assertion) and self._text[start] != "(":
            raise self._wrong("a quantifier behind an anchor", start)
        if self._take("+"):
            raise self._unsupported("a possessive quantifier", self._at - 1)
        self._take("?")
        if self._peek() and self._peek() in "*+?":
            raise self._wrong("a quantifier behind a quantifier")
        return Repetition(item, least, most)

    def _counts(self) -> tuple[int, int | None] | None:
        """The bounds in braces behind the opening one; None if the brace stands for itself."""
        found = _COUNTS.match(self._text, self._at)
        if found is None:
            return None
        low, comma, high = found.groups()
        if not low:
            if comma:
                raise self._unsupported(
                    "bounds without the lower one, which not all read alike", self._at - 1
                )
            return None
        if max(len(low), len(high)) > 9:
            raise self._unsupported("a bound of more than nine digits", self._at - 1)
        least = int(low)
        most = int(high) if high else None if comma else least
        if most is not None and most < least:
            raise self._wrong("bounds of which the lower one is larger", self._at - 1)
        self._at = found.end()
        return least, most

    def _escape(self, start: int) -> Node:
        """The item behind a backslash outside of brackets."""
        char = self._peek()
        if char in _ANCHORS and char:
            self._at += 1
            return Assertion(_ANCHORS[char])
        if char and char in "123456789":
            raise self._unsupported("a back-reference, which is not regular", start)
        if char == "k" and self._text.startswith("<", self._at + 1):
            raise self._unsupported("a back-reference, which is not regular", start)
        named = self._class_escape(start)
        return self._chars(named if named is not None else char_class(self._char_escape(start)))

    def _wrong(self, reason: str, at: int | None = None) -> PatternError:
        """An error at a position, by default the current one."""
        return PatternError(reason, self._text, self._at if at is None else at)

    def _unsupported(self, reason: str, at: int | None = None) -> UnsupportedPatternError:
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
        r"""A class such as `\d` or `\p{L}`; None for any other escape."""
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
        """The code point of an escape."""
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
        text = self._text[self._at : self._at + digits]
        if len(text) < digits or not _HEX_DIGITS.issuperset(text):
            raise self._wrong(f"an escape that wants {digits} hexadecimal digits", start)
        self._at += digits
        return int(text, 16)

    def _unicode_escape(self, start: int) -> int:
        r"""The code point of a `\u` escape; two halves of a pair are one code point."""
        if self._take("{"):
            end = self._text.find("}", self._at)
            text = self._text[self._at : end] if end >= 0 else ""
            if not 1 <= len(text) <= 8 or not _HEX_DIGITS.issuperset(text):
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
        """The rest of a class in brackets behind the opening one."""
        negated = self._take("^")
        if self._peek() == "]":
            raise self._unsupported(
                "a closing bracket as the first of a class, which not all read alike", start
            )
        items: list[int | CharClass] = []
        while not self._take("]"):
            if not len(items) & 255:
                self._check_time()
            at = self._at
            first = self._bracket_item(start)
            if self._peek() != "-" or self._text[self._at + 1 : self._at + 2] in ("]", ""):
                items.append(first)
                continue
            self._at += 1
            last = self._bracket_item(start)
            if isinstance(first, int) and isinstance(last, int):
                if last < first:
                    raise self._wrong("a range whose first character is behind its last", at)
                items.append(chars_between(first, last))
            else:
                # Beside a class such as \w a hyphen stands for itself.
                items += [first, 0x2D, last]
        out = any_of([char_class(item) if isinstance(item, int) else item for item in items])
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


def _minds_what_follows(node: Node) -> bool:
    """Whether a part may depend on the text behind a place."""
    return isinstance(node, Look) or (isinstance(node, Assertion) and node.condition != Condition.AT_BEGIN)
