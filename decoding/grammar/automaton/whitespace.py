"""Which whitespace may stand between the tokens of JSON.

What a container has to remember of the whitespace at one place is one int, so that it is part of a node's
identity: `START` before any, `CLOSED` when no more may come, otherwise blanks that may still follow a line
break.
"""

from __future__ import annotations

from decoding.grammar.options import GrammarOptions

START = 0
CLOSED = -1
BLANK = 0x20
LINE_BREAK = 0x0A


class Whitespace:
    """The rules of one grammar.

    Args:
        options: Says which they are.

    Attributes:
        is_free: Whether whitespace may, but need not, stand anywhere.
        is_spaced: Whether one blank must stand behind every comma and colon.
        rules: Equal for equal rules.
    """

    __slots__ = ("_max_indent", "is_free", "is_spaced", "rules")

    def __init__(self, options: GrammarOptions) -> None:
        self.is_free = options.whitespace == "flexible"
        self.is_spaced = options.whitespace == "spaced"
        self._max_indent = options.max_indent
        self.rules = self._max_indent << 2 | self.is_free << 1 | self.is_spaced

    def after(self, state: int, byte: int, is_behind_separator: bool) -> int | None:
        """Read one byte of whitespace; None where it is not allowed.

        Args:
            state: Of the place.
            byte: `BLANK` or `LINE_BREAK`.
            is_behind_separator: Whether the place is the one behind a comma or a colon.
        """
        if state == CLOSED:
            return None
        if not self.is_free:
            return CLOSED if self.is_spaced and is_behind_separator and byte == BLANK else None
        if byte == BLANK:
            return state - 1 if state > 1 else CLOSED
        if state == START:
            return self._max_indent or CLOSED
        return None

    def must_come(self, state: int, is_behind_separator: bool) -> bool:
        """Whether nothing but whitespace may stand at the place now."""
        return self.is_spaced and is_behind_separator and state == START

    def bytes_at(self, state: int, is_behind_separator: bool) -> tuple[int, ...]:
        """The bytes of whitespace that may stand at the place now."""
        if state == CLOSED:
            return ()
        if self.is_free:
            return (LINE_BREAK, BLANK) if state == START else (BLANK,)
        return (BLANK,) if self.is_spaced and is_behind_separator else ()
