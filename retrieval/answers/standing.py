"""Which titles of a document are still in it once it is parsed.

A key that the schema does not name may be written twice. Parsers keep its last value, so that titles in an
earlier one are no part of the answer.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any

from decoding.grammar.grammar import HoleValue
from decoding.grammar.leaves.hole import HoleName
from decoding.grammar.schema.document import escaped_step


def standing(values: Iterable[HoleValue], text: bytes) -> list[HoleValue]:
    """Return those strings that parsers find where they were written, in their order.

    Args:
        values: Of a document, in its order.
        text: The document.
    """
    last: dict[tuple[str, HoleName], HoleValue] = {(value.pointer, value.name): value for value in values}
    if not last:
        return []
    found = dict(_strings(json.loads(text)))
    return [
        value
        for value in sorted(last.values(), key=lambda value: value.first_byte)
        if found.get(value.pointer) == json.loads(text[value.first_byte : value.last_byte])
    ]


def _strings(document: Any) -> Iterator[tuple[str, str]]:
    """The strings of a document by their JSON pointers."""
    waiting: list[tuple[str, Any]] = [("", document)]
    while waiting:
        at, now = waiting.pop()
        if isinstance(now, str):
            yield at, now
        elif isinstance(now, list):
            waiting += [(f"{at}/{place}", inner) for place, inner in enumerate(now)]
        elif isinstance(now, dict):
            waiting += [(f"{at}/{escaped_step(name)}", now[name]) for name in now]
