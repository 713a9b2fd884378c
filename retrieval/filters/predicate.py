"""Parses the filter language: predicates as trees, their canonical text, the parser and its tokens.

    or        = and { "or" and }
    and       = not { "and" not }
    not       = { "not" } primary
    primary   = "(" or ")" | "true" | "false" | "null" | column [ test ]
    test      = ( "=" | "==" | "!=" | "<>" | "<" | "<=" | ">" | ">=" ) value
              | [ "not" ] "in" "(" value { "," value } ")"
              | [ "not" ] "like" string
              | "is" [ "not" ] "null"
    value     = string | number | "true" | "false" | "null"

A recursive-descent parser with one function per rule of the grammar. Columns and types are checked later
(`check`). Predicates with equal canonical texts are the same filter; the canonical text is itself a predicate
and parses to an equal one. Positions in the text (`at`, characters from 1) serve messages, and do not count
in comparisons.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Literal as OneOf
from typing import NoReturn

from genret.retrieval.errors import InputError

Value = str | int | float | bool | None

KEYWORDS = frozenset({"and", "or", "not", "in", "like", "is", "null", "true", "false"})
COMPARISONS = ("=", "!=", "<=", ">=", "<", ">")
_BARE_NAME = re.compile(r"[^\W\d]\w*")


@dataclass(frozen=True, slots=True)
class Column:
    """A column by name."""

    name: str
    at: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class Literal:
    """A value as it was written: text, an integer of any size, a finite number, true, false or null."""

    value: Value
    at: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class Constant:
    """true, false or null in the place of a predicate."""

    value: bool | None


@dataclass(frozen=True, slots=True)
class Truth:
    """A bare bool column."""

    column: Column


@dataclass(frozen=True, slots=True)
class Comparison:
    """column operator value; the operator is one of `COMPARISONS`."""

    column: Column
    operator: str
    literal: Literal


@dataclass(frozen=True, slots=True)
class Membership:
    """column in (value, …)."""

    column: Column
    literals: tuple[Literal, ...]


@dataclass(frozen=True, slots=True)
class Like:
    """column like pattern."""

    column: Column
    pattern: Literal


@dataclass(frozen=True, slots=True)
class IsNull:
    """column is null: true or false, never unknown."""

    column: Column


@dataclass(frozen=True, slots=True)
class Not:
    """The opposite; unknown stays unknown."""

    operand: Predicate


@dataclass(frozen=True, slots=True)
class And:
    """True when all are, false when one is false, else unknown. At least two operands."""

    operands: tuple[Predicate, ...]


@dataclass(frozen=True, slots=True)
class Or:
    """True when one is, false when all are false, else unknown. At least two operands."""

    operands: tuple[Predicate, ...]


Leaf = Constant | Truth | Comparison | Membership | Like | IsNull
Predicate = Leaf | Not | And | Or


def leaves(predicate: Predicate) -> list[Leaf]:
    """Return the leaves in order."""
    match predicate:
        case Not():
            return leaves(predicate.operand)
        case And() | Or():
            return [leaf for operand in predicate.operands for leaf in leaves(operand)]
        case _:
            return [predicate]


def canonical(predicate: Predicate) -> str:
    """Return the canonical text of a parsed predicate.

    Operands of `and` and `or` and the values of `in` are sorted and listed once; in three-valued logic too,
    order and repetition make no difference.
    """
    return _text(_once(predicate))


def _text(predicate: Predicate) -> str:
    match predicate:
        case Constant():
            return literal_text(predicate.value)
        case Truth():
            return column_text(predicate.column.name)
        case Comparison(column, operator, literal):
            return f"{column_text(column.name)} {operator} {literal_text(literal.value)}"
        case Membership() | Like() | IsNull():
            return _postfix(predicate, "")
        case Not():
            if isinstance(predicate.operand, Membership | Like | IsNull):
                return _postfix(predicate.operand, "not ")
            return f"not {_bracketed(predicate.operand, And, Or)}"
        case And():
            return " and ".join(sorted(_bracketed(operand, Or) for operand in predicate.operands))
        case Or():
            return " or ".join(sorted(_text(operand) for operand in predicate.operands))


def _once(predicate: Predicate) -> Predicate:
    """Return a tree of the same meaning that lists no operand twice; one that is left stands alone."""
    match predicate:
        case Not():
            return _negated(_once(predicate.operand))
        case And() | Or():
            kind = type(predicate)
            listed = _joined(kind, [_once(operand) for operand in predicate.operands])
            operands = listed.operands if isinstance(listed, kind) else (listed,)
            return _joined(kind, list({_text(operand): operand for operand in operands}.values()))
    return predicate


def column_text(name: str) -> str:
    """Return a column's name in the syntax of predicates."""
    if _BARE_NAME.fullmatch(name) and name.lower() not in KEYWORDS:
        return name
    return '"' + name.replace('"', '""') + '"'


def literal_text(value: Value) -> str:
    """Return a value in the syntax of predicates."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return "'" + value.replace("'", "''") + "'"
    return repr(value)


def _postfix(predicate: Membership | Like | IsNull, negation: str) -> str:
    column = column_text(predicate.column.name)
    match predicate:
        case Membership():
            values = ", ".join(sorted({literal_text(literal.value) for literal in predicate.literals}))
            return f"{column} {negation}in ({values})"
        case Like():
            return f"{column} {negation}like {literal_text(predicate.pattern.value)}"
        case IsNull():
            return f"{column} is {negation}null"


def _bracketed(predicate: Predicate, *kinds: type[And] | type[Or]) -> str:
    text = _text(predicate)
    return f"({text})" if isinstance(predicate, kinds) else text


MAX_FILTER_CHARS = 16_384
# Every level of brackets takes five calls, and Python allows about a thousand.
MAX_DEPTH = 64
# Each test is a pass over a column: milliseconds over millions of entities, seconds for a pattern.
MAX_TESTS = 256

_CONSTANTS: dict[object, bool | None] = {"true": True, "false": False, "null": None}
_AFTER_COLUMN = "a comparison (= != < <= > >=), in, like, is, and, or"


def parse(text: str) -> Predicate:
    """Parse a predicate.

    Raises:
        InputError: the text is no predicate, longer than `MAX_FILTER_CHARS`, nested deeper than `MAX_DEPTH`
            or has more than `MAX_TESTS` tests. The field is "filter"; the message says where, what was
            expected and what was found.
    """
    if len(text) > MAX_FILTER_CHARS:
        raise InputError(
            FIELD, f"at most {MAX_FILTER_CHARS:,} characters, got {len(text):,}; long lists go into allow_ids"
        )
    if not text.strip():
        raise InputError(FIELD, "must not be empty")
    parser = _Parser(tokenise(text))
    predicate = parser.disjunction()
    parser.expect_end()
    return predicate


class _Parser:
    def __init__(self, tokens: list[PredicateToken]) -> None:
        self._tokens = tokens
        self._position = 0
        self._open: list[PredicateToken] = []
        self._num_tests = 0

    def disjunction(self) -> Predicate:
        operands = [self._conjunction()]
        while self._take("or"):
            operands.append(self._conjunction())
        return _joined(Or, operands)

    def expect_end(self) -> None:
        token = self._next
        if token.kind == "end":
            return
        if token.value == ")":
            raise error_at(token.at, "this ')' closes nothing")
        self._fail("and, or or the end")

    def _conjunction(self) -> Predicate:
        operands = [self._negation()]
        while self._take("and"):
            operands.append(self._negation())
        return _joined(And, operands)

    def _negation(self) -> Predicate:
        negated = False
        while self._take("not"):
            negated = not negated
        operand = self._primary()
        return _negated(operand) if negated else operand

    def _primary(self) -> Predicate:
        token = self._next
        if self._take("("):
            return self._brackets(token)
        if token.kind == "keyword" and token.value in _CONSTANTS:
            self._position += 1
            return Constant(_CONSTANTS[token.value])
        if token.kind == "value":
            raise error_at(token.at, f"expected a column name, got the value {token.shown}; columns go left")
        self._position += 1
        if token.kind != "name":
            is_compared = token.kind == "keyword" and self._next.value in COMPARISONS
            hint = f'; a column of that name is written "{token.text}"' if is_compared else ""
            raise error_at(token.at, f"expected a column name, not or '(', got {token.shown}{hint}")
        return self._test(Column(str(token.value), token.at))

    def _brackets(self, opening: PredicateToken) -> Predicate:
        self._open.append(opening)
        if len(self._open) > MAX_DEPTH:
            raise error_at(opening.at, f"brackets are nested more than {MAX_DEPTH} deep")
        inside = self.disjunction()
        if not self._take(")"):
            self._fail(f"')' for the '(' at character {opening.at}")
        self._open.pop()
        return inside

    def _test(self, column: Column) -> Predicate:
        self._num_tests += 1
        if self._num_tests > MAX_TESTS:
            raise error_at(column.at, f"more than {MAX_TESTS} tests; many values of a column go into one in")
        token = self._next
        if token.kind == "sign" and token.value in COMPARISONS:
            self._position += 1
            return Comparison(column, str(token.value), self._value())
        if self._take("is"):
            negated = self._take("not")
            if not self._take("null"):
                self._fail("null" if negated else "null or not null")
            return _negated(IsNull(column)) if negated else IsNull(column)
        negated = self._take("not")
        if self._take("in"):
            test: Predicate = Membership(column, self._values())
        elif self._take("like"):
            if self._next.kind != "value" or not isinstance(self._next.value, str):
                self._fail("a pattern in single quotes")
            test = Like(column, self._value())
        elif negated:
            self._fail("in or like")
        elif token.kind in ("name", "value") or token.value in ("(", *_CONSTANTS):
            self._fail(_AFTER_COLUMN)
        else:
            return Truth(column)
        return _negated(test) if negated else test

    def _values(self) -> tuple[Literal, ...]:
        if not self._take("("):
            self._fail("'(' before the values")
        values = [self._value()]
        while self._take(","):
            values.append(self._value())
        if not self._take(")"):
            self._fail("',' or ')' after a value")
        return tuple(values)

    def _value(self) -> Literal:
        token = self._next
        if token.kind == "value":
            self._position += 1
            return Literal(token.value, token.at)
        if token.kind == "keyword" and token.value in _CONSTANTS:
            self._position += 1
            return Literal(_CONSTANTS[token.value], token.at)
        name = f"the name {token.shown}; text stands in single quotes: '{clipped(str(token.value))}'"
        got = name if token.kind == "name" else token.shown
        raise error_at(token.at, f"expected a value, got {got}")

    @property
    def _next(self) -> PredicateToken:
        return self._tokens[self._position]

    def _take(self, word: str) -> bool:
        """Step over the next token if it is the given keyword or sign."""
        taken = self._next.kind in ("keyword", "sign") and self._next.value == word
        self._position += taken
        return taken

    def _fail(self, expected: str) -> NoReturn:
        raise error_at(self._next.at, f"expected {expected}, got {self._next.shown}")


def _joined(kind: type[And] | type[Or], operands: list[Predicate]) -> Predicate:
    if len(operands) == 1:
        return operands[0]
    flat: list[Predicate] = []
    for operand in operands:
        flat.extend(operand.operands if isinstance(operand, kind) else [operand])
    return kind(tuple(flat))


def _negated(predicate: Predicate) -> Predicate:
    return predicate.operand if isinstance(predicate, Not) else Not(predicate)


FIELD = "filter"

# Digits of an integer: far beyond int64, and far below Python's limit.
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


@dataclass(frozen=True, slots=True)
class PredicateToken:
    """One token; a name is that of a column, in quotes or not."""

    kind: OneOf["keyword", "name", "value", "sign", "end"]
    text: str  # as written
    value: Value  # keyword in lower case, column name, value of a string or number, or sign in one spelling
    at: int  # position of its first character, from 1

    @property
    def shown(self) -> str:
        """The token as shown in messages."""
        if self.kind == "end":
            return "the end"
        text = clipped(self.text)
        return text if self.kind == "value" or text.startswith('"') else f"'{text}'"


def clipped(text: str) -> str:
    """Return a text as messages show it: its beginning, where it is long."""
    return text if len(text) <= _SHOWN_CHARS else text[: _SHOWN_CHARS - 1] + "…"


def error_at(at: int, message: str) -> InputError:
    """Return an error about one position in a predicate."""
    return InputError(FIELD, f"at character {at}: {message}")


def tokenise(text: str) -> list[PredicateToken]:
    """Cut a predicate into tokens; the last one is the end.

    Raises:
        InputError: a string or quoted name is not closed, a number is malformed, or a character has no
            meaning; says where.
    """
    tokens: list[PredicateToken] = []
    position = 0
    while position < len(text):
        match = _PATTERN.match(text, position)
        if match is None:
            raise _unreadable(text, position)
        if match.lastgroup != "space":
            tokens.append(_token(match))
        position = match.end()
    tokens.append(PredicateToken("end", "", None, len(text) + 1))
    return tokens


def _token(match: re.Match[str]) -> PredicateToken:
    text, at = match.group(), match.start() + 1
    match match.lastgroup:
        case "name":
            keyword = text.lower()
            if keyword in KEYWORDS:
                return PredicateToken("keyword", text, keyword, at)
            return PredicateToken("name", text, text, at)
        case "quoted":
            return PredicateToken("name", text, text[1:-1].replace('""', '"'), at)
        case "string":
            return PredicateToken("value", text, text[1:-1].replace("''", "'"), at)
        case "number":
            return PredicateToken("value", text, _number(text, at), at)
        case _:
            return PredicateToken("sign", text, _SPELLINGS.get(text, text), at)


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
