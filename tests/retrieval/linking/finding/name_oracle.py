"""Finding names by trying every stretch of a text, and an index that is nothing but names."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from retrieval.index.entities import EntityTable
from retrieval.index.layout import ENTITY_BATCH_ROWS

IGNORED = "\u00ad\u200b\u200e"
ALIKE = {"–": "-", "\u2011": "-", "’": "'", "ʼ": "'", "“": '"'}
LINE_ENDS = "\n\r\x0b\x0c\x85\u2028"


class NameIndex:
    """As much of an `Index` as the finder needs."""

    def __init__(self, names: Sequence[Sequence[str]], digest: str = "0" * 32) -> None:
        table = pa.table(
            {
                "entity_id": [f"e{number}" for number in range(len(names))],
                "title": pa.array([forms[0] for forms in names], pa.string()),
                "aliases": pa.array([list(forms[1:]) for forms in names], pa.list_(pa.string())),
            }
        )
        table = pa.Table.from_batches(table.combine_chunks().to_batches(ENTITY_BATCH_ROWS), table.schema)
        self.entities = EntityTable(table, (), "entities")
        self.num_entities = len(names)
        self.digest = digest


@dataclass(frozen=True)
class Policy:
    case: str = "insensitive"
    min_chars: int = 1
    max_entities: int | None = None
    max_short_entities: int | None = None
    stop_words: frozenset[str] = frozenset()


def plain(text: str, keep_case: bool = False) -> str:
    """What a name is compared as, written without a thought of speed or offsets."""
    text = unicodedata.normalize("NFC", "".join(c for c in text if c not in IGNORED))
    text = text if keep_case else text.casefold()
    return " ".join("".join(ALIKE.get(c, c) for c in text).split())


def goes_on(character: str) -> bool:
    """Whether a character belongs to the one before it."""
    return (
        unicodedata.category(character).startswith("M")
        or "\u1160" <= character <= "\u11ff"
        or character in IGNORED
    )


def kind(character: str) -> str:
    character = ALIKE.get(character, character)
    if any(low <= character <= high for low, high in ("\u0e00\u0eff", "\u3040\u312f", "\u4e00\u9fff")):
        return "unspaced"
    if character.isalnum() or character == "_" or unicodedata.category(character).startswith("M"):
        return "word"
    return "other"


def in_word(character: str) -> bool:
    return character.isalnum() or character == "_" or "\u0300" <= character <= "\u036f"


def is_free(text: str, at: int) -> bool:
    """Whether a name may begin or end at a place of a text."""
    if at < len(text) and goes_on(text[at]):
        return False
    left = text[:at].rstrip(IGNORED)[-1:].casefold()[-1:]  # "ŉ" folds to "'n"
    right = text[at : at + 1].casefold()[:1]
    return not (left and right and kind(left) == "word" == kind(right))


def has_paragraph_break(text: str) -> bool:
    blanks = "".join(c for c in text.replace("\r\n", "\n") if c not in IGNORED)
    run = 0
    for character in blanks:
        run = run + (character in LINE_ENDS) if character.isspace() else 0
        if run > 1 or character == "\u2029":
            return True
    return False


def find_by_trying(text: str, names: Sequence[Sequence[str]], policy: Policy) -> list[tuple[int, int, int]]:
    """Return (start, end, number of entities) of the leftmost longest names."""
    entities: dict[str, set[int]] = {}
    spellings: dict[str, set[str]] = {}
    for number, forms in enumerate(names):
        for form in forms:
            entities.setdefault(plain(form), set()).add(number)
            spellings.setdefault(plain(form), set()).add(plain(form, keep_case=True))
    found = []
    start = 0
    longest = max(len(plain(form)) for forms in names for form in forms)
    while start < len(text):
        # Blanks and invisible characters make a mention longer than its name.
        extra = sum(c.isspace() or goes_on(c) for c in text[start:])
        latest = min(len(text), start + longest + extra) if is_free(text, start) else start
        for end in range(latest, start, -1):
            if is_mention(text, start, end, entities, spellings, policy):
                found.append((start, end, len(entities[plain(text[start:end])])))
                start = end
                break
        else:
            start += 1
    return found


def is_mention(
    text: str,
    start: int,
    end: int,
    entities: dict[str, set[int]],
    spellings: dict[str, set[str]],
    policy: Policy,
) -> bool:
    mention = text[start:end]
    if mention[0].isspace() or mention[-1].isspace() or mention[-1] in IGNORED:
        return False
    # Invisible characters at the end stay outside, but what follows them has to be looked at.
    behind = end + len(text[end:]) - len(text[end:].lstrip(IGNORED))
    if not is_free(text, behind):
        return False
    name = plain(mention)
    if name not in entities or has_paragraph_break(mention):
        return False
    num = len(entities[name])
    if len(name) < policy.min_chars or name in policy.stop_words:
        return False
    if policy.max_entities is not None and num > policy.max_entities:
        return False
    is_short = len(name) <= 3 and " " not in name
    if is_short and policy.max_short_entities is not None and num > policy.max_short_entities:
        return False
    if policy.case == "sensitive":
        return plain(mention, keep_case=True) in spellings[name]
    others = "".join(
        "i" if c == "I" and not in_word(b) and not in_word(d) else c
        for b, c, d in zip(f" {mention}"[:-1], mention, f"{mention[1:]} ", strict=True)
    )
    if policy.case == "smart" and others == others.lower() and not any(c.isdecimal() for c in mention):
        return any(spelling == spelling.lower() for spelling in spellings[name])
    return True
