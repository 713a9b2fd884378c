"""Which stretches of a text count as mentions of names."""

from __future__ import annotations

from dataclasses import dataclass

from retrieval.errors import InputError

CASES = ("smart", "sensitive", "insensitive")


@dataclass(frozen=True, slots=True)
class FindOptions:
    """How names are found in text.

    Attributes:
        case: "sensitive": as the index writes it; "insensitive": in any letter case; "smart": in any letter
            case where the text has a capital letter, the pronoun "I" aside, or a digit, else only names
            written in lower case.
        min_chars: Shorter names are not looked for.
        max_entities: Names that more entities have than this are not looked for; None: all are.
        max_short_entities: The same for names of one word with at most 3 characters.
        stop_words: Names that are one such word alone are not looked for, in any letter case; "english": a
            built-in list; "none"; or a path to a file with one word per line.

    Raises:
        InputError: a field is out of range; it is named.
    """

    case: str = "smart"
    min_chars: int = 2
    max_entities: int | None = 100
    max_short_entities: int | None = 10
    stop_words: str = "english"

    def __post_init__(self) -> None:
        if self.case not in CASES:
            raise InputError("case", f"must be one of {list(CASES)}, got {self.case!r}")
        _check_count("min_chars", self.min_chars)
        for name in ("max_entities", "max_short_entities"):
            if getattr(self, name) is not None:
                _check_count(name, getattr(self, name))
        if not isinstance(self.stop_words, str) or not self.stop_words or "\0" in self.stop_words:
            expected = "must be 'english', 'none' or the path of a file"
            raise InputError("stop_words", f"{expected}, got {self.stop_words!r}")


def _check_count(name: str, value: object) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise InputError(name, f"must be an integer of at least 1, got {value!r}")
