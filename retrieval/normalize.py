"""The text policy: NFC, single spaces, no control characters. Nothing else is changed.

Case, accents, quotes, dashes, zero-width and bidirectional marks stay as they are, and so do HTML entities
unless a source is asked to resolve them: they are part of titles that exist.
"""

from __future__ import annotations

import html
import re
import unicodedata
from dataclasses import dataclass, fields
from html.entities import html5

# Category Cc without the tab, which separates fields.
_CONTROL = re.compile("[\x00-\x08\x0a-\x1f\x7f-\x9f]")
_SURROGATE = re.compile("[\ud800-\udfff]")
_HTML_ENTITY = re.compile(r"&(?:#[0-9]{1,7}|#[xX][0-9a-fA-F]{1,6}|[a-zA-Z][a-zA-Z0-9]{1,31});")
_SPACE_AT_AN_EDGE = ("  ", " \n", "\n ", " \t", "\t ")


@dataclass(slots=True)
class NormalizationReport:
    """Numbers of titles that the text policy changed or found odd."""

    composed: int = 0  # titles put into NFC
    respaced: int = 0  # titles with white space trimmed, collapsed or replaced by single spaces
    html_entities: int = 0  # titles that keep an HTML entity such as `&amp;`
    unescaped: int = 0  # titles whose HTML entities were resolved

    def __add__(self, other: NormalizationReport) -> NormalizationReport:
        return NormalizationReport(
            *(getattr(self, field.name) + getattr(other, field.name) for field in fields(self))
        )


def find_control(text: str) -> str | None:
    """Return the first control character of a line other than a tab, as "U+0007"; None when it has none."""
    if text.isprintable():  # the common case, and much faster than a search
        return None
    match = _CONTROL.search(text)
    return None if match is None else f"U+{ord(match.group()):04X}"


def find_surrogate(text: str) -> str | None:
    """Return the first half of a surrogate pair, as "U+D800"; None when a text is Unicode throughout."""
    match = None if text.isprintable() else _SURROGATE.search(text)
    return None if match is None else f"U+{ord(match.group()):04X}"


def find_html_entity(text: str) -> bool:
    """Whether a text holds something like `&amp;`, `&#38;` or `&#x26;`."""
    return "&" in text and _HTML_ENTITY.search(text) is not None


def resolve_html(text: str) -> str:
    """Resolve HTML entities with their semicolon; `AT&LTD`, `&copy 2020` and `&unknown;` stay as they are."""
    return _HTML_ENTITY.sub(_resolved_entity, text)


def normalize(text: str) -> str:
    """Return text in NFC, without white space at its ends, inner white space as single spaces."""
    if not text.isascii():
        text = unicodedata.normalize("NFC", text)
    return " ".join(text.split())


def is_normalized_block(block: str) -> bool:
    """Whether `normalize` changes no tab-separated field of any line, and there are no control characters.

    One look at many lines costs far less than one at each. False only means that each has to be looked at: a
    zero-width mark, for instance, is no fault.
    """
    if block[:1] == " " or block[-1:] == " " or any(edge in block for edge in _SPACE_AT_AN_EDGE):
        return False
    # Printable characters hold no white space but the space, and no control characters.
    if not block.replace("\n", "").replace("\t", "").isprintable():
        return False
    return block.isascii() or unicodedata.is_normalized("NFC", block)


def _resolved_entity(match: re.Match[str]) -> str:
    entity = match.group()
    # html.unescape would also resolve the beginning of a name it does not know: "&notable;" as "¬able;".
    is_known = entity[1] == "#" or entity[1:] in html5
    return html.unescape(entity) if is_known else entity
