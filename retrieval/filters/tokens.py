"""The tokens of a predicate's text."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum

from retrieval.errors import InputError
from retrieval.filters.expression import KEYWORDS, Value

FIELD = "filter"

# Digits of an integer: far beyond int64, and far below what Python refuses to convert.
_MAX_DIGITS = 1000
_SHOWN_CHARS = 40

_PATTERN = re.compile(
    r"""(?P<space>\s+)
      | (?P<number>[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?+(?!\w))
      | (?P<name>[^\W\d]\w*)
      | (?P<string>'(?:[^']|'')*+')
      | (?P<quoted>"(?:[^"]|"")*+")
      | (?P<sign>==|!=|<>|<=|>=|[=<>(),])""",
    re.VERBOSE,
)
_SPELLINGS = {"==": "=", "<>": "!="}


class Kind(Enum):
    """What a token is."""

    KEYWORD = "keyword"
    NAME = "column name"
    VALUE = "value"
    SIGN = "sign"
    END = "end"


@dataclass(frozen=True, slots=True)
class Token:
    """One token.

    Attributes:
        kind: What it is.
        text: As it was written.
        value: Keyword in lower case, column name, value of a string or number, sign in one spelling.
        at: Its first character, from 1.
    """

    kind: Kind
    text: str
    value: Value
    at: int

    @property
    def shown(self) -> str:
        """The token in a message."""
        if self.kind is Kind.END:
            return "the end"
        text = self.text if len(self.text) <= _SHOWN_CHARS else self.text[: _SHOWN_CHARS - 1] + "…"
        return text if self.kind is Kind.VALUE or text.startswith('"') else f"'{text}'"


def error_at(at: int, message: str) -> InputError:
    """Return the error about one place in a predicate."""
    return InputError(FIELD, f"at character {at}: {message}")


def tokenise(text: str) -> list[Token]:
    """Cut a predicate into tokens; the last one is the end.

    Raises:
        InputError: a string or quoted name is not closed, a number is malformed, or a character cannot
            begin anything; says where.
    """
    tokens: list[Token] = []
    position = 0
    while position < len(text):
        match = _PATTERN.match(text, position)
        if match is None:
            raise _unreadable(text, position)
        if match.lastgroup != "space":
            tokens.append(_token(match))
        position = match.end()
    tokens.append(Token(Kind.END, "", None, len(text) + 1))
    return tokens


def _token(match: re.Match[str]) -> Token:
    text, at = match.group(), match.start() + 1
    match match.lastgroup:
        case "name":
            keyword = text.lower()
            if keyword in KEYWORDS:
                return Token(Kind.KEYWORD, text, keyword, at)
            return Token(Kind.NAME, text, text, at)
        case "quoted":
            return Token(Kind.NAME, text, text[1:-1].replace('""', '"'), at)
        case "string":
            return Token(Kind.VALUE, text, text[1:-1].replace("''", "'"), at)
        case "number":
            return Token(Kind.VALUE, text, _number(text, at), at)
        case _:
            return Token(Kind.SIGN, text, _SPELLINGS.get(text, text), at)


def _number(text: str, at: int) -> int | float:
    if len(text) > _MAX_DIGITS:
        raise error_at(at, f"a number of more than {_MAX_DIGITS} characters")
    if text.lstrip("+-").isdigit():
        return int(text)
    value = float(text)
    if value in (float("inf"), float("-inf")):
        raise error_at(at, f"the number {text} is too large")
    return value + 0.0  # no negative zero: it equals zero and would be another text


def _unreadable(text: str, position: int) -> InputError:
    character, at = text[position], position + 1
    if character == "'":
        return error_at(at, "this string is not closed; expected another '")
    if character == '"':
        return error_at(at, 'this column name is not closed; expected another "')
    word = re.compile(r"[+-]?\.?\d[\w.]*").match(text, position)
    if word is not None:
        return error_at(at, f"{word.group()[:_SHOWN_CHARS]!r} is neither a number nor a column name")
    return error_at(at, f"{character!r} has no meaning here")
