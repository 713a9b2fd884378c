"""Errors of grammars.

GrammarError                      (a DecodingError)
├── SchemaError                   a schema cannot be compiled: keyword, JSON pointer, reason
│   ├── InvalidSchemaError        it is not a schema: a keyword has a value the specification does not allow
│   ├── UnsupportedSchemaError    a keyword, or a use of one, that is not enforced here
│   ├── UnsatisfiableSchemaError  nothing is valid under it
│   └── SchemaLimitError          it is larger or deeper than the limits allow
├── CompileTimeoutError           compiling took longer than allowed; says nothing about the schema for good
├── VocabularyError               the tokenizer cannot write JSON, or its bytes cannot be told
└── AnswerBudgetError             the token budget is smaller than the shortest answer
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from genret.decoding.errors import DecodingError

if TYPE_CHECKING:
    from genret.decoding.grammar.schema.formula import Place


class GrammarError(DecodingError):
    """Base of every error raised on purpose by grammars."""


class SchemaError(GrammarError):
    """A schema cannot be compiled.

    Args:
        keyword: The keyword that stands in the way, e.g. "uniqueItems"; "" for the schema as a whole.
        pointer: JSON pointer of the keyword in the schema as given, as a URI fragment: "#/properties/a".
        reason: The expected and the given value, as one clause.
    """

    def __init__(self, keyword: str, pointer: str, reason: str) -> None:
        super().__init__(f"{pointer}: {keyword}: {reason}" if keyword else f"{pointer}: {reason}")
        self.keyword = keyword
        self.pointer = pointer
        self.reason = reason

    @classmethod
    def at(cls, place: Place | None, reason: str) -> Self:
        """The error for a condition that comes from `place`; None stands for the schema as a whole."""
        return cls(place.keyword, place.pointer, reason) if place else cls("", "#", reason)


class InvalidSchemaError(SchemaError):
    """A keyword has a value that the specification does not allow."""


class UnsupportedSchemaError(SchemaError):
    """A keyword, or a use of it, cannot be enforced exactly and is therefore refused."""


class UnsatisfiableSchemaError(SchemaError):
    """No JSON value is valid under the schema."""


class SchemaLimitError(SchemaError):
    """The schema, or what it expands to, is larger than the limits allow."""


class CompileTimeoutError(GrammarError, TimeoutError):
    """Compiling took longer than the limit; on a quieter machine it may succeed."""


class VocabularyError(GrammarError):
    """The tokenizer cannot write JSON, or it cannot be told which bytes its tokens stand for."""


class AnswerBudgetError(GrammarError):
    """The token budget is smaller than the shortest answer.

    Args:
        budget: Tokens allowed, end token included.
        needed: Tokens that suffice, end token included.
    """

    def __init__(self, budget: int, needed: int) -> None:
        super().__init__(
            f"the shortest answer takes {needed} tokens, end token included; only {budget} are allowed"
        )
        self.budget = budget
        self.needed = needed
