"""Which stretches of a text count as mentions of names."""

from __future__ import annotations

from dataclasses import dataclass

CASES = ("smart", "sensitive", "insensitive")


@dataclass(frozen=True, slots=True)
class FindOptions:
    """How names are found in text.

    Attributes:
        case: "sensitive": as the index writes it; "insensitive": in any letter case; "smart": in any letter case
            where the text has a capital letter or a digit, else only names written in lower case.
        min_chars: Shorter names are not looked for.
        max_entities: Names that more entities have than this are not looked for; None: all are.
        max_short_entities: The same for names of one word with at most 3 characters.
        stop_words: Names that are one such word alone are not looked for, in any letter case; "english": a
            built-in list; "none"; or a path to a file with one word per line.
    """

    case: str = "smart"
    min_chars: int = 2
    max_entities: int | None = 100
    max_short_entities: int | None = 10
    stop_words: str = "english"
