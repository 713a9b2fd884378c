"""Text from outside as it may stand in a log: on one line, of bounded length, without control characters."""

from __future__ import annotations

_ELLIPSIS = "..."


def escaped(text: str) -> str:
    """Return text with everything that does not print (line ends among it) as Python's escapes."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


def clipped(text: str, max_chars: int) -> str:
    """Return text escaped, and cut where its first `max_chars` characters end."""
    if len(text) <= max_chars:
        return escaped(text)
    return escaped(text[:max_chars]) + _ELLIPSIS
