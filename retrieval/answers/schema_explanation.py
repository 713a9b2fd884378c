"""Explains what the keywords of a schema will do, without a model, and why a schema is refused."""

from __future__ import annotations

from dataclasses import dataclass

from genret.decoding.grammar.compile_options import GrammarOptions
from genret.decoding.grammar.errors import (
    AnswerBudgetError,
    CompileTimeoutError,
    GrammarError,
    SchemaError,
    VocabularyError,
)
from genret.decoding.grammar.holes.text_leaf import TextLeaf, TextSearcher
from genret.decoding.grammar.json_grammar import compile_schema
from genret.decoding.grammar.leaves.leaf_factory import Leaves
from genret.decoding.grammar.schema.schema_report import SchemaReport, explain_schema
from genret.decoding.grammar.vocabulary import Vocabulary
from genret.decoding.sorted_texts import SortedTexts
from genret.retrieval.errors import GenretError, InputError, ModelError


@dataclass(frozen=True, slots=True)
class SchemaExplanation:
    """A report on each keyword of a schema, and why it cannot be used as a whole; "" where it can."""

    report: SchemaReport
    refusal: str

    def lines(self) -> str:
        """Return a line per keyword: pointer, keyword, how it is handled, note, between tabs."""
        return "\n".join("\t".join(row) for row in self.report.table())


def explain(schema: str, options: GrammarOptions) -> SchemaExplanation:
    """Return what the keywords of a schema do, and whether it can be used with some tokenizer.

    Indexes and filters that it names are not looked for. SchemaRejectedError if it cannot be read at all.
    """
    try:
        report = explain_schema(schema, options)
    except GrammarError as error:
        raise user_error(error) from error
    refused = report.refusals()
    if refused:
        return SchemaExplanation(report, f"{refused[0].pointer}: {refused[0].keyword}: {refused[0].note}")
    # Faults of several keywords together show when it is compiled.
    leaves = Leaves(Vocabulary([bytes([byte]) for byte in range(256)], end_token_id=256, vocab_size=257))
    texts = SortedTexts.of([b"a title", b"another title"])
    searcher = TextSearcher(leaves.vocabulary)
    try:
        compile_schema(schema, leaves, options, lambda name: TextLeaf(name, name, texts, searcher))
    except SchemaError as error:
        return SchemaExplanation(report.with_refusal(error.keyword, error.pointer, error.reason), str(error))
    except GrammarError as error:
        return SchemaExplanation(report, str(error))
    return SchemaExplanation(report, "")


class SchemaRejectedError(InputError):
    """A schema cannot be used: it is malformed, asks for what is not enforced, or allows nothing.

    `keyword` is "" where it is the schema as a whole; `pointer` is its JSON pointer, as a URI fragment.
    """

    def __init__(self, field: str, message: str, keyword: str = "", pointer: str = "#") -> None:
        super().__init__(field, message)
        self.keyword = keyword
        self.pointer = pointer


def user_error(error: GrammarError, field: str = "schema") -> GenretError:
    """Return the user's error for an error of a grammar."""
    if isinstance(error, SchemaError):
        return SchemaRejectedError(field, str(error), error.keyword, error.pointer)
    if isinstance(error, CompileTimeoutError):
        return SchemaRejectedError(field, f"{error}; a simpler schema may do")
    if isinstance(error, AnswerBudgetError):
        return InputError("max_tokens", str(error))
    if isinstance(error, VocabularyError):
        return ModelError(str(error))
    return InputError(field, str(error))
