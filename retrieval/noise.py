"""Realistic damage to query text: typos, case, lost accents, lost, moved and strange words.

Every function takes the random generator it draws from, so that a seed fixes the whole training set.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from random import Random

_KEY_ROWS = ("1234567890", "qwertyuiop", "asdfghjkl", "zxcvbnm")
_MIN_TYPO_LETTERS = 4  # shorter words lose their identity with one edit


def _keyboard_neighbours() -> dict[str, str]:
    neighbours: dict[str, set[str]] = {}
    for y, row in enumerate(_KEY_ROWS):
        for x, key in enumerate(row):
            near = neighbours.setdefault(key, set())
            for dy in (-1, 0, 1):
                if 0 <= y + dy < len(_KEY_ROWS):
                    other = _KEY_ROWS[y + dy]
                    near.update(other[i] for i in (x - 1, x, x + 1) if 0 <= i < len(other))
            near.discard(key)
    return {key: "".join(sorted(near)) for key, near in neighbours.items()}


NEIGHBOURS = _keyboard_neighbours()


def strip_accents(text: str) -> str:
    """Return the text without diacritics ("Zürich" -> "Zurich")."""
    decomposed = unicodedata.normalize("NFD", text)
    return unicodedata.normalize("NFC", "".join(c for c in decomposed if not unicodedata.combining(c)))


def typo(text: str, random: Random) -> str:
    """Return the text with one slip of the keyboard in one of its longer words.

    The slip is a neighbouring key, a dropped, doubled or additional letter, or two letters swapped. Text
    without a word of four letters comes back unchanged.
    """
    words = text.split(" ")
    places = [i for i, word in enumerate(words) if sum(map(str.isalpha, word)) >= _MIN_TYPO_LETTERS]
    if not places:
        return text
    at = random.choices(places, weights=[len(words[i]) for i in places])[0]
    words[at] = _slip(words[at], random)
    return " ".join(words)


def _slip(word: str, random: Random) -> str:
    i = random.randrange(len(word))
    near = NEIGHBOURS.get(word[i].lower(), word[i])
    match random.randrange(5):
        case 0:
            return word[:i] + random.choice(near) + word[i + 1 :]
        case 1:
            return word[:i] + word[i + 1 :]
        case 2:
            return word[: i + 1] + word[i:]
        case 3:
            return word[: i + 1] + random.choice(near) + word[i + 1 :]
        case _:
            i = min(i, len(word) - 2)
            return word[:i] + word[i + 1] + word[i] + word[i + 2 :]


def recase(text: str, random: Random) -> str:
    """Return the text as typed by a hurried, a careful or a shouting person."""
    draw = random.random()
    if draw < 0.60:
        return text.lower()
    if draw < 0.93:
        return text
    if draw < 0.97:
        return text.title()
    return text.upper()


def drop_words(text: str, share: float, random: Random) -> str:
    """Return the text with every word dropped with probability `share`, at least one word kept."""
    words = text.split()
    kept = [word for word in words if random.random() >= share]
    return " ".join(kept or [random.choice(words)]) if words else text


def drop_a_word(text: str, random: Random) -> str:
    """Return the text without one of its words, if it has several."""
    words = text.split()
    if len(words) > 1:
        del words[random.randrange(len(words))]
    return " ".join(words)


def reorder_clauses(text: str, random: Random) -> str:
    """Return the text with its comma-separated clauses in another order."""
    clauses = [clause.strip() for clause in text.split(",") if clause.strip()]
    random.shuffle(clauses)
    return ", ".join(clauses)


def shorten(text: str, random: Random, min_words: int = 3) -> str:
    """Return a run of words of the text, at least `min_words` long where it has as many."""
    words = text.split()
    if len(words) <= min_words:
        return text
    length = random.randint(min_words, len(words))
    start = random.randint(0, len(words) - length)
    return " ".join(words[start : start + length]).strip(",;: ")


def insert_words(text: str, strangers: Sequence[str], count: int, random: Random) -> str:
    """Return the text with `count` words from `strangers` put anywhere."""
    words = text.split()
    for _ in range(count):
        words.insert(random.randint(0, len(words)), random.choice(strangers))
    return " ".join(words)
