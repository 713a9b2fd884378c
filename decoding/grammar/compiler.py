"""From the text of a schema to a grammar."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from decoding.grammar.budget import compile_budget
from decoding.grammar.grammar import Grammar
from decoding.grammar.leaves.factory import Leaves
from decoding.grammar.leaves.hole import HoleOpener
from decoding.grammar.options import GrammarOptions
from decoding.grammar.schema.algebra import compile_value
from decoding.grammar.schema.document import canonical_text
from decoding.grammar.schema.explanation import explain_schema
from decoding.grammar.schema.formula_table import FormulaTable
from decoding.grammar.schema.report import SchemaReport

# What compiled schemas take beside their leaves, measured with tracemalloc on real ones of 0.4 to 23 kB.
_GRAPH_BYTES = 10_000
_GRAPH_BYTES_PER_CHARACTER = 10


def compile_schema(
    schema: str | bytes | Mapping[str, Any] | bool,
    leaves: Leaves,
    options: GrammarOptions | None = None,
    holes: HoleOpener | None = None,
) -> Grammar:
    """Compile a JSON Schema for one vocabulary.

    Args:
        schema: Its text, or what `json.loads` makes of it; the order of properties matters.
        leaves: The vocabulary's leaves.
        options: How it is read and written.
        holes: Opens the sets that `x-genret-index` names.

    Raises:
        SchemaError: it cannot be compiled; names keyword and JSON pointer.
        CompileTimeoutError: it took longer than `options.limits.seconds`.
        VocabularyError: the tokenizer cannot write any answer.
    """
    read_as = options or GrammarOptions()
    with compile_budget(read_as.limits):
        formulas = FormulaTable(schema, read_as)
        value = compile_value(formulas, read_as, leaves, holes)
    # A mapping may change later; the text that explains the grammar must not.
    text = schema if isinstance(schema, str | bytes) else canonical_text(formulas.document)

    def explain() -> SchemaReport:
        return explain_schema(text, read_as)

    base_bytes = _GRAPH_BYTES + _GRAPH_BYTES_PER_CHARACTER * len(text)
    return Grammar(value, leaves.vocabulary, read_as, explain, base_bytes=base_bytes)
