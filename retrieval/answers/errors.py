"""Errors about the schema of an answer, in the words of a request."""

from __future__ import annotations

from decoding.grammar.errors import (
    AnswerBudgetError,
    CompileTimeoutError,
    GrammarError,
    SchemaError,
    VocabularyError,
)
from retrieval.errors import GenretError, InputError, ModelError


class SchemaRejectedError(InputError):
    """A schema cannot be used: it is malformed, asks for what is not enforced, or allows nothing.

    Args:
        field: The request's field, "schema" or "schema_name".
        message: Keyword, JSON pointer and reason.
        keyword: The keyword; "" where it is the schema as a whole.
        pointer: JSON pointer of the keyword in the schema, as a URI fragment.
    """

    def __init__(self, field: str, message: str, keyword: str = "", pointer: str = "#") -> None:
        super().__init__(field, message)
        self.keyword = keyword
        self.pointer = pointer


def user_error(error: GrammarError, field: str = "schema") -> GenretError:
    """Return what to tell the user about an error of a grammar."""
    if isinstance(error, SchemaError):
        return SchemaRejectedError(field, str(error), error.keyword, error.pointer)
    if isinstance(error, CompileTimeoutError):
        return SchemaRejectedError(field, f"{error}; a simpler schema may do")
    if isinstance(error, AnswerBudgetError):
        return InputError("max_tokens", str(error))
    if isinstance(error, VocabularyError):
        return ModelError(str(error))
    return InputError(field, str(error))
