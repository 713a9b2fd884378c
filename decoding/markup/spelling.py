r"""How texts and titles are spelled between brackets, so that what was written can be read in one way only.

In the text, inside of mentions and outside, a backslash stands before every `\`, `[` and `]`. A title whose
parentheses are balanced and that has no backslash is spelled as it is, `Mercury (planet)` in
`[Mercury](Mercury (planet))`: the first parenthesis that closes more than was opened ends it. In every other
title a backslash stands before each `\`, `(` and `)`. Both rules are CommonMark's for links.
"""

from __future__ import annotations

BACKSLASH = 0x5C
OPEN, CLOSE = 0x5B, 0x5D
TITLE_OPEN, TITLE_CLOSE = 0x28, 0x29

# Bytes of a text, and of a title that is not spelled as it is, that have a backslash before them.
ESCAPED_IN_TEXT = bytes([BACKSLASH, OPEN, CLOSE])
ESCAPED_IN_TITLE = bytes([BACKSLASH, TITLE_OPEN, TITLE_CLOSE])


def spelled_text(text: bytes) -> bytes:
    """Return how a text is copied."""
    return _escaped(text, ESCAPED_IN_TEXT)


def spelled_title(title: bytes) -> bytes:
    """Return how a title is written, without the parenthesis that ends it."""
    return title if is_plain(title) else _escaped(title, ESCAPED_IN_TITLE)


def is_plain(title: bytes) -> bool:
    """Whether a title is spelled as it is."""
    depth = 0
    for byte in title:
        depth += (byte == TITLE_OPEN) - (byte == TITLE_CLOSE)
        if depth < 0 or byte == BACKSLASH:
            return False
    return depth == 0


def _escaped(text: bytes, special: bytes) -> bytes:
    for byte in special:  # the backslash comes first
        text = text.replace(bytes([byte]), bytes([BACKSLASH, byte]))
    return text
