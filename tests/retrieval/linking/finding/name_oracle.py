"""Finding names by trying every stretch of a text, and an index that is nothing but names."""

from __future__ import annotations

import math
import unicodedata
from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np
import pyarrow as pa

from genret.retrieval.index.entities import EntityTable
from genret.retrieval.index.layout import ENTITY_BATCH_ROWS
from genret.retrieval.linking.finding.find_options import FindOptions, load_stop_words
from genret.retrieval.linking.finding.mention_odds import Match

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


def words_of(name: str) -> list[str]:
    """Split a name at what is no word; a letter of a script without blanks is a word."""
    words = [""]
    for character in name:
        if character.isalnum():
            words += [character, ""] if kind(character) == "unspaced" else [words.pop() + character]
        else:
            words.append("")
    return [word for word in words if word]


class Weights:
    """How much likelier each name is than other words, as `word_counts` has it, by counting once more."""

    def __init__(self, forms: Sequence[str]) -> None:
        spellings = [plain(form, keep_case=True) for form in forms if plain(form)]
        self._counts = Counter(word.casefold() for name in spellings for word in words_of(name))
        self._total = sum(self._counts.values()) + 1_000_000
        stop_words = [word for word in load_stop_words("english") if len(word) > 1 or word == "a"]
        self._counts.update(dict.fromkeys(stop_words, 5_000))
        self._has_numbers = 20 * sum(name.isdecimal() for name in spellings) >= len(spellings)

    def of(self, name: str) -> float:
        """Return the weight of a name as it is written; -inf for a number that is not looked for."""
        if name.isdecimal() and not self._has_numbers:
            return -math.inf
        words = words_of(name)
        rare = [min(9.0, math.log(self._total / self._counts[word.casefold()])) for word in words]
        return float(np.float16(sum(rare) - 7.5 if words else 1.5))


# The odds of the stretch that begins and ends here, given its folded text; 0 for what is not to be found.
Odds = Callable[[int, int, str], float]


def find_by_trying(text: str, names: Sequence[Sequence[str]], policy: FindOptions, odds: Odds) -> list[Match]:
    """Return every stretch of a text that has a name which counts, with its odds."""
    entities: dict[str, set[int]] = {}
    spellings: dict[str, set[str]] = {}
    for number, forms in enumerate(names):
        for form in forms:
            entities.setdefault(plain(form), set()).add(number)
            spellings.setdefault(plain(form), set()).add(plain(form, keep_case=True))
    found = []
    longest = max(len(plain(form)) for forms in names for form in forms)
    for start in range(len(text)):
        # Blanks and invisible characters make a mention longer than its name.
        extra = sum(c.isspace() or goes_on(c) for c in text[start:])
        latest = min(len(text), start + longest + extra) if is_free(text, start) else start
        for end in range(latest, start, -1):
            if is_mention(text, start, end, entities, spellings, policy):
                name = plain(text[start:end])
                if (value := odds(start, end, name)) > 0:
                    found.append(Match(start, end, value, len(entities[name])))
    return found


def largest_total(stretches: Sequence[Match]) -> float:
    """Return the largest sum of odds of stretches that do not overlap, trying every choice of them."""
    if not stretches:
        return 0.0
    first, *others = stretches
    without = largest_total(others)
    return max(without, first.log_odds + largest_total([s for s in others if s.start >= first.end]))


def is_mention(
    text: str,
    start: int,
    end: int,
    entities: dict[str, set[int]],
    spellings: dict[str, set[str]],
    policy: FindOptions,
) -> bool:
    """Whether a stretch is a name that the policy counts, as whole words of a paragraph; no stop words."""
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
    if len(name) < policy.min_chars:
        return False
    if policy.max_entities is not None and num > policy.max_entities:
        return False
    is_short = len(name) <= 3 and " " not in name
    if is_short and policy.max_short_entities is not None and num > policy.max_short_entities:
        return False
    return policy.case != "sensitive" or plain(mention, keep_case=True) in spellings[name]
