"""The parser of predicates: recursive descent, one function per rule of the grammar.

    or        = and { "or" and }
    and       = not { "and" not }
    not       = { "not" } primary
    primary   = "(" or ")" | "true" | "false" | "null" | column [ test ]
    test      = ( "=" | "==" | "!=" | "<>" | "<" | "<=" | ">" | ">=" ) value
              | [ "not" ] "in" "(" value { "," value } ")"
              | [ "not" ] "like" string
              | "is" [ "not" ] "null"
    value     = string | number | "true" | "false" | "null"

It knows no columns and no types: those are looked at by `check`.
"""

from __future__ import annotations

from typing import NoReturn

from retrieval.errors import InputError
from retrieval.filters.expression import (
    COMPARISONS,
    And,
    Column,
    Comparison,
    Constant,
    IsNull,
    Like,
    Literal,
    Membership,
    Not,
    Or,
    Predicate,
    Truth,
)
from retrieval.filters.tokens import FIELD, Kind, Token, error_at, tokenise

MAX_FILTER_CHARS = 16_384
# Every level of brackets is five calls deep, and Python allows about a thousand.
MAX_DEPTH = 64
# Each test is a pass over a column: milliseconds over millions of entities, seconds where it is a pattern.
MAX_TESTS = 256

_CONSTANTS: dict[object, bool | None] = {"true": True, "false": False, "null": None}
_AFTER_COLUMN = "a comparison (= != < <= > >=), in, like, is, and, or"


def parse(text: str) -> Predicate:
    """Return the predicate a text says.

    Raises:
        InputError: the text is no predicate, longer than `MAX_FILTER_CHARS`, nested deeper than
            `MAX_DEPTH` or of more than `MAX_TESTS` tests; its field is "filter", and it says where, what was
            expected and what was got.
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
    def __init__(self, tokens: list[Token]) -> None:
        self._tokens = tokens
        self._position = 0
        self._open: list[Token] = []
        self._num_tests = 0

    def disjunction(self) -> Predicate:
        operands = [self._conjunction()]
        while self._take(Kind.KEYWORD, "or"):
            operands.append(self._conjunction())
        return _joined(Or, operands)

    def expect_end(self) -> None:
        token = self._next
        if token.kind is Kind.END:
            return
        if token.value == ")":
            raise error_at(token.at, "this ')' closes nothing")
        self._fail("and, or or the end")

    def _conjunction(self) -> Predicate:
        operands = [self._negation()]
        while self._take(Kind.KEYWORD, "and"):
            operands.append(self._negation())
        return _joined(And, operands)

    def _negation(self) -> Predicate:
        negated = False
        while self._take(Kind.KEYWORD, "not"):
            negated = not negated
        operand = self._primary()
        return _negated(operand) if negated else operand

    def _primary(self) -> Predicate:
        token = self._next
        if self._take(Kind.SIGN, "("):
            return self._brackets(token)
        if token.kind is Kind.KEYWORD and token.value in _CONSTANTS:
            self._position += 1
            return Constant(_CONSTANTS[token.value])
        if token.kind is Kind.VALUE:
            raise error_at(token.at, f"expected a column name, got the value {token.shown}; columns go left")
        if token.kind is not Kind.NAME:
            self._refuse_as_column(token)
        self._position += 1
        return self._test(Column(str(token.value), token.at))

    def _brackets(self, opening: Token) -> Predicate:
        self._open.append(opening)
        if len(self._open) > MAX_DEPTH:
            raise error_at(opening.at, f"brackets are nested more than {MAX_DEPTH} deep")
        inside = self.disjunction()
        if not self._take(Kind.SIGN, ")"):
            self._fail(f"')' for the '(' at character {opening.at}")
        self._open.pop()
        return inside

    def _test(self, column: Column) -> Predicate:
        self._num_tests += 1
        if self._num_tests > MAX_TESTS:
            raise error_at(column.at, f"more than {MAX_TESTS} tests; many values of a column go into one in")
        token = self._next
        if token.kind is Kind.SIGN and token.value in COMPARISONS:
            self._position += 1
            return Comparison(column, str(token.value), self._value())
        if self._take(Kind.KEYWORD, "is"):
            negated = self._take(Kind.KEYWORD, "not")
            if not self._take(Kind.KEYWORD, "null"):
                self._fail("null" if negated else "null or not null")
            return _negated(IsNull(column)) if negated else IsNull(column)
        negated = self._take(Kind.KEYWORD, "not")
        if self._take(Kind.KEYWORD, "in"):
            test: Predicate = Membership(column, self._values())
        elif self._take(Kind.KEYWORD, "like"):
            test = Like(column, self._pattern())
        elif negated:
            self._fail("in or like")
        elif token.kind in (Kind.NAME, Kind.VALUE) or token.value in ("(", *_CONSTANTS):
            self._fail(_AFTER_COLUMN)
        else:
            return Truth(column)
        return _negated(test) if negated else test

    def _values(self) -> tuple[Literal, ...]:
        if not self._take(Kind.SIGN, "("):
            self._fail("'(' before the values")
        values = [self._value()]
        while self._take(Kind.SIGN, ","):
            values.append(self._value())
        if not self._take(Kind.SIGN, ")"):
            self._fail("',' or ')' after a value")
        return tuple(values)

    def _pattern(self) -> Literal:
        if self._next.kind is not Kind.VALUE or not isinstance(self._next.value, str):
            self._fail("a pattern in single quotes")
        return self._value()

    def _value(self) -> Literal:
        token = self._next
        if token.kind is Kind.VALUE:
            self._position += 1
            return Literal(token.value, token.at)
        if token.kind is Kind.KEYWORD and token.value in _CONSTANTS:
            self._position += 1
            return Literal(_CONSTANTS[token.value], token.at)
        hint = "; text stands in single quotes" if token.kind is Kind.NAME else ""
        name = "the name " if token.kind is Kind.NAME else ""
        raise error_at(token.at, f"expected a value, got {name}{token.shown}{hint}")

    @property
    def _next(self) -> Token:
        return self._tokens[self._position]

    def _take(self, kind: Kind, value: str) -> bool:
        """Step over the next token if it is the one given."""
        taken = self._next.kind is kind and self._next.value == value
        self._position += taken
        return taken

    def _refuse_as_column(self, token: Token) -> NoReturn:
        following = self._tokens[self._position + 1 : self._position + 2]
        hint = ""
        if token.kind is Kind.KEYWORD and following and following[0].value in COMPARISONS:
            hint = f'; a column of that name is written "{token.text}"'
        raise error_at(token.at, f"expected a column name, not or '(', got {token.shown}{hint}")

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
