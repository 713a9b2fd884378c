"""What the keywords of a schema will do, without a model."""

from __future__ import annotations

from dataclasses import dataclass

from decoding.grammar.compiler import compile_schema
from decoding.grammar.errors import GrammarError, SchemaError
from decoding.grammar.holes.sorted_texts import SortedTexts
from decoding.grammar.holes.text_leaf import TextLeaf
from decoding.grammar.holes.text_searcher import TextSearcher
from decoding.grammar.leaves.factory import Leaves
from decoding.grammar.options import GrammarOptions
from decoding.grammar.schema.explanation import explain_schema
from decoding.grammar.schema.report import SchemaReport
from decoding.grammar.vocabulary.vocabulary import Vocabulary
from retrieval.answers.errors import user_error


@dataclass(frozen=True, slots=True)
class Explanation:
    """A schema's keywords, one by one.

    Attributes:
        report: What each of them does.
        refusal: Why the schema cannot be used as a whole; "" where it can.
    """

    report: SchemaReport
    refusal: str

    def lines(self) -> str:
        """One line per keyword: pointer, keyword, how it is handled, note, between tabs."""
        return "\n".join("\t".join(row) for row in self.report.table())

    def table(self) -> str:
        """A table for people, as text with the terminal's colours."""
        from rich.console import Console
        from rich.table import Table
        from rich.text import Text

        colours = {"enforced": "green", "refused": "red", "annotation": "dim", "vacuous here": "dim"}
        table = Table(title=Text(f"read as {self.report.dialect}"), title_justify="left")
        for column in ("Where", "Keyword", "How", "Note"):
            table.add_column(column, overflow="fold")
        for pointer, keyword, how, note in self.report.table():
            table.add_row(Text(pointer), Text(keyword), Text(how, style=colours[how]), Text(note))
        console = Console()
        with console.capture() as captured:
            console.print(table)
        return captured.get().rstrip("\n")


def explain(schema: str, options: GrammarOptions) -> Explanation:
    """Say what the keywords of a schema do, and whether it can be used with some tokenizer.

    Indexes and filters that it names are not looked for.

    Raises:
        SchemaRejectedError: it cannot be read at all.
    """
    try:
        report = explain_schema(schema, options)
    except GrammarError as error:
        raise user_error(error) from error
    refused = report.refusals()
    if refused:
        return Explanation(report, f"{refused[0].pointer}: {refused[0].keyword}: {refused[0].note}")
    # What depends on keywords together shows when it is compiled.
    leaves = Leaves(Vocabulary([bytes([byte]) for byte in range(256)], end_token_id=256, vocab_size=257))
    texts = SortedTexts.of([b"a title", b"another title"])
    searcher = TextSearcher(leaves.vocabulary)
    try:
        compile_schema(schema, leaves, options, lambda name: TextLeaf(name, name, texts, searcher))
    except SchemaError as error:
        return Explanation(report.with_refusal(error.keyword, error.pointer, error.reason), str(error))
    except GrammarError as error:
        return Explanation(report, str(error))
    return Explanation(report, "")
