"""Reading regular expressions: the syntax of ECMA-262 with the flag `u`, and what schemas write instead."""

from __future__ import annotations

import re

from decoding.grammar.regular.nfa import Condition
from decoding.grammar.regular.ranges import SCALAR_VALUES
from decoding.grammar.regular.regex_classes import CharClass, char_class, exactly, named_class
from decoding.grammar.regular.regex_escapes import EscapeReader
from decoding.grammar.regular.regex_syntax import (
    Alternation,
    Assertion,
    Chars,
    Concatenation,
    Look,
    Node,
    Repetition,
    any_part,
)

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
    """The tree of a regular expression.

    Args:
        pattern: The expression.
        portable: Whether classes are to be read as Python reads them, too.

    Raises:
        PatternError: it is not a regular expression.
        UnsupportedPatternError: it uses what is not supported.
    """
    return _Parser(pattern, portable).parse()


class _Parser(EscapeReader):
    """One pattern, read from left to right."""

    def __init__(self, pattern: str, portable: bool) -> None:
        super().__init__(pattern, portable)
        self._dot_is_all = False
        self._depth = 0

    def parse(self) -> Node:
        """The whole pattern."""
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
        """One item without its quantifier; None for what stands for nothing."""
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
        """A class, in any case where the pattern says so."""
        return Chars(chars.any_case(self._portable) if self._any_case else chars)

    def _group(self, start: int) -> Node | None:
        """What stands behind an opening parenthesis."""
        if not self._take("?"):
            return self._closed(start)
        if self._take(":"):
            return self._closed(start)
        self._at -= 1
        for mark, (ahead, negative) in _LOOKS.items():
            if self._take(mark):
                part = self._closed(start)
                if not ahead and any_part(part, _minds_what_follows):
                    raise self._unsupported("an anchor or a look inside of what looks behind", start)
                if ahead and any_part(part, _looks_behind):
                    raise self._unsupported("what looks behind inside of what looks ahead", start)
                return Look(part, ahead, negative, start)
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
        """The bounds in braces, whose opening one is behind; None where the brace stands for itself."""
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
        """What stands behind a backslash outside of brackets."""
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


def _minds_what_follows(node: Node) -> bool:
    """Whether a part may depend on what is behind a place."""
    return isinstance(node, Look) or (isinstance(node, Assertion) and node.condition != Condition.AT_BEGIN)


def _looks_behind(node: Node) -> bool:
    """Whether a part looks behind."""
    return isinstance(node, Look) and not node.ahead
