"""Fifty schemas that together use every keyword, four of them with titles of an index in their strings.

They are in `answer_schemas.json`, by name.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class AnswerSchema:
    """A schema of an answer."""

    name: str
    schema: Any

    @property
    def text(self) -> str:
        """The schema as JSON text."""
        return json.dumps(self.schema, ensure_ascii=False)

    @property
    def has_titles(self) -> bool:
        """Whether any of its strings must be a title of an index."""
        return "x-genret-index" in self.text

    @property
    def keywords(self) -> frozenset[str]:
        """Every name of an object in the schema: its keywords, and its properties' names with them."""
        return frozenset(_names(self.schema))


def _names(value: Any) -> set[str]:
    if isinstance(value, dict):
        return set(value).union(*(_names(inner) for inner in value.values()))
    if isinstance(value, list):
        return set().union(*(_names(inner) for inner in value))
    return set()


_FILE = Path(__file__).with_suffix(".json")
SCHEMAS: tuple[AnswerSchema, ...] = tuple(
    AnswerSchema(name, schema) for name, schema in json.loads(_FILE.read_text(encoding="utf-8")).items()
)
