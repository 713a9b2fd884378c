"""Spans that the input marks, in whatever unit: checked against the text and converted to code points."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from retrieval.arguments import check_text
from retrieval.errors import InputError
from retrieval.linking.documents.document import Span
from retrieval.linking.documents.offsets import OffsetIndex
from retrieval.sources.json_lines import json_kind

UNIT_NAMES: dict[str, str] = {
    "codepoint": "code points",
    "byte": "bytes",
    "utf16": "UTF-16 units",
}
_SURFACE_FIELDS = ("mention", "text")
_SHOWN_CHARS = 60


class SpanReader:
    """Reads the marked spans of one text.

    Args:
        text: The text.
        unit: What the spans count.
    """

    def __init__(self, text: str, unit: str) -> None:
        self._text = text
        self._unit = unit
        self._index = OffsetIndex(text, unit)

    def read(self, item: Mapping[str, Any]) -> Span:
        """Return a span in code points.

        Args:
            item: An object with `start` and `end`, half open; optionally with `id`, and with `mention` or
                `text`, the text that must be found there.

        Raises:
            InputError: a field is wrong, or the span lies outside of the text, is empty, cuts a code point,
                or has another text than the object says.
        """
        start, end = (_offset(name, item.get(name)) for name in ("start", "end"))
        found = self._position(start, end, start), self._position(start, end, end)
        self._compare(item, start, end, found)
        mention_id = item.get("id")
        if mention_id is None:
            return Span(*found)
        if isinstance(mention_id, bool) or not isinstance(mention_id, str | int):
            raise InputError("id", f"expected text or an integer, got {json_kind(mention_id)}")
        check_text("id", str(mention_id))
        return Span(*found, str(mention_id))

    def _position(self, start: int, end: int, offset: int) -> int:
        name = UNIT_NAMES[self._unit]
        if not 0 <= start < end:
            raise InputError("", f"[{start}, {end}) is empty or begins below 0")
        if end > self._index.length:
            raise InputError(
                "", f"[{start}, {end}) in {name} lies outside of the text, which has {self._index.length}"
            )
        position = self._index.position_of(offset)
        if position is None:
            raise InputError(
                "", f"[{start}, {end}) in {name} cuts a code point at {offset}; is {self._unit} the unit?"
            )
        return position

    def _compare(self, item: Mapping[str, Any], start: int, end: int, found: tuple[int, int]) -> None:
        """Refuse a span with another text than the input says: so a wrong unit shows."""
        there = self._text[slice(*found)]
        for name in _SURFACE_FIELDS:
            surface = item.get(name)
            if surface is None or surface == there:
                continue
            if not isinstance(surface, str):
                raise InputError(name, f"expected a string, got {json_kind(surface)}")
            raise InputError(
                name,
                f"[{start}, {end}) in {UNIT_NAMES[self._unit]} is {_shown(there)}, not {_shown(surface)}"
                f"{self._fitting(start, end, surface)}",
            )

    def _fitting(self, start: int, end: int, surface: str) -> str:
        """Say in which other unit a span would have the text that is expected."""
        for unit, name in UNIT_NAMES.items():
            index = OffsetIndex(self._text, unit)
            if unit == self._unit or end > index.length:
                continue
            begin, behind = index.position_of(start), index.position_of(end)
            if begin is not None and behind is not None and self._text[begin:behind] == surface:
                return f"; it would be in {name}: is {unit} the unit of the spans?"
        return ""


def _offset(name: str, value: object) -> int:
    if value is None:
        raise InputError(name, "is missing")
    if isinstance(value, bool) or not isinstance(value, int):
        raise InputError(name, f"expected an integer, got {json_kind(value)} ({value!r:.40})")
    return value


def _shown(text: str) -> str:
    return repr(text) if len(text) <= _SHOWN_CHARS else f"{text[:_SHOWN_CHARS]!r}..."
