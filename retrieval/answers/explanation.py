"""What the keywords of a schema will do, without a model."""

from __future__ import annotations

from dataclasses import dataclass

from decoding.grammar.compiler import explain_schema
from decoding.grammar.errors import GrammarError
from decoding.grammar.options import GrammarOptions
from decoding.grammar.schema.report import SchemaReport
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
    """Say what the keywords of a schema do, and whether it can be used.

    Raises:
        SchemaRejectedError: it cannot be read at all.
    """
    try:
        report = explain_schema(schema, options)
    except GrammarError as error:
        raise user_error(error) from error
    refused = report.refusals()
    first = f"{refused[0].pointer}: {refused[0].keyword}: {refused[0].note}" if refused else ""
    return Explanation(report, first)
