r"""Patterns of `like`: % is any text, _ one character, and a backslash takes the next one literally."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc

_SPECIAL = re.compile(r"[\\.+*?()\[\]{}|^$]")


def match_pattern(texts: pa.Array, pattern: str) -> pa.Array:
    r"""Match whole texts; null where the text is null.

    Args:
        texts: Strings. Length n.
        pattern: Does not end in an open backslash.

    Returns:
        Length n, bool.
    """
    parts = list(_parts(pattern))
    literal = "".join(text for text, is_literal in parts if is_literal)
    match "".join("x" if is_literal else text for text, is_literal in parts):
        case "" | "x":
            return pc.equal(texts, pa.scalar(literal, texts.type))
        case "x%":
            return pc.starts_with(texts, literal)
        case "%x":
            return pc.ends_with(texts, literal)
        case "%x%":
            return pc.match_substring(texts, literal)
    return pc.match_substring_regex(texts, _regex(parts))


def _parts(pattern: str) -> Iterator[tuple[str, bool]]:
    """Yield runs of literal text with True, and wildcards with False; neighbouring % are one."""
    literal: list[str] = []
    characters = iter(pattern)
    last = ""
    for character in characters:
        if character in "%_":
            if literal:
                yield "".join(literal), True
            elif character == last == "%":
                continue
            literal, last = [], character
            yield character, False
        else:
            literal.append(next(characters) if character == "\\" else character)
            last = ""
    if literal:
        yield "".join(literal), True


def _regex(parts: list[tuple[str, bool]]) -> str:
    wildcards = {"%": ".*", "_": "."}
    inside = "".join(
        _SPECIAL.sub(r"\\\g<0>", text) if is_literal else wildcards[text] for text, is_literal in parts
    )
    return rf"(?s)\A(?:{inside})\z"
