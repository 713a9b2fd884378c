"""Ids in files whose fields white space separates: white space in them is percent-encoded."""

from __future__ import annotations

import re
from urllib.parse import quote, unquote

# A percent sign that could be taken for the beginning of an encoded byte is encoded too: decoding gives back
# exactly what was encoded.
_ENCODED = re.compile(r"[\s\x00-\x1f\x7f-\x9f]|%(?=[0-9a-fA-F]{2})")


def encode_token(text: str) -> str:
    """Return a text without white space or control characters, by UTF-8 bytes as in "New%20York"."""
    return _ENCODED.sub(lambda match: quote(match.group(), safe=""), text)


def decode_token(token: str) -> str:
    """Return what `encode_token` was given; a token that it cannot have made stays as it is."""
    try:
        return unquote(token, errors="strict") if "%" in token else token
    except UnicodeDecodeError:  # bytes that are no UTF-8: a percent sign was one
        return token
