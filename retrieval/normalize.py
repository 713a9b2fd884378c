"""The text policy: NFC, single spaces, no control characters. Nothing else is changed.

Case, accents, quotes, dashes, zero-width and bidirectional marks, HTML entities stay as they are: they
are part of titles that exist.
"""

from __future__ import annotations

import re
import unicodedata

# Category Cc without the tab, which separates fields.
_CONTROL = re.compile("[\x00-\x08\x0a-\x1f\x7f-\x9f]")


def find_control(text: str) -> str | None:
    """Return the first control character of a line other than a tab, as "U+0007"; None when it has none."""
    if text.isprintable():  # the common case, and much faster than a search
        return None
    match = _CONTROL.search(text)
    return None if match is None else f"U+{ord(match.group()):04X}"


def normalize(text: str) -> str:
    """Return text in NFC, without white space at its ends, inner white space as single spaces."""
    if not text.isascii():
        text = unicodedata.normalize("NFC", text)
    return " ".join(text.split())
