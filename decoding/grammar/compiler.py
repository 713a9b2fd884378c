"""From the text of a schema to a grammar."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from decoding.grammar.grammar import Grammar
from decoding.grammar.leaves.hole import HoleOpener
from decoding.grammar.options import GrammarOptions


def compile_schema(
    schema: str | bytes | Mapping[str, Any] | bool,
    leaves: object,
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
    """
    raise NotImplementedError
