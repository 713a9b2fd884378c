"""Queries at a catalogue of titles: typed badly, put in words, or taken from public data sets."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from random import Random
from typing import Any

_LETTERS = "abcdefghijklmnopqrstuvwxyz"

# A query and the titles that answer it.
Asked = tuple[str, tuple[str, ...]]


def mistyped(text: str, random: Random) -> str:
    """Return a text with one letter replaced, dropped, doubled or swapped with the next one."""
    at, kind = random.randrange(len(text)), random.randrange(4)
    if kind == 0:
        return text[:at] + random.choice(_LETTERS) + text[at + 1 :]
    if kind == 1 and len(text) > 2:
        return text[:at] + text[at + 1 :]
    if kind == 2 or at + 1 == len(text):
        return text[: at + 1] + text[at:]
    return text[:at] + text[at + 1] + text[at] + text[at + 2 :]


def beginning(text: str, random: Random) -> str:
    """Return the first 60 % of a text."""
    return text[: max(3, round(len(text) * 0.6))]


def without_a_word(text: str, random: Random) -> str:
    """Return a text of several words without one of them."""
    words = text.split()
    del words[random.randrange(len(words))]
    return " ".join(words)


def shuffled(text: str, random: Random) -> str:
    """Return the words of a text in another order."""
    words = text.split()
    random.shuffle(words)
    return " ".join(words)


_MADE: Mapping[str, tuple[bool, Callable[[str, Random], str]]] = {
    "small letters": (False, lambda text, random: text.lower()),
    "one typing error": (False, mistyped),
    "two typing errors": (False, lambda text, random: mistyped(mistyped(text, random), random)),
    "no blanks": (True, lambda text, random: text.replace(" ", "").lower()),
    "first 60 %": (False, beginning),
    "a word left out": (True, without_a_word),
    "another word order": (True, shuffled),
}
_PUBLIC = {
    "questions about (LC-QuAD)": "lcquad1",
    "claims (FEVER)": "fever",
    "claims (FEVER, paper)": "fever_dev_extra",
    "claims (HoVer)": "hover",
    "claims (CREAK)": "creak",
    "keywords (DBpedia-Entity)": "dbpedia_entity_v2",
}
_MENTIONS = ("conel22", "gerdaq", "geovirus", "msnbc")


def query_sets(shared: Path, titles: list[str], part: str, count: int, seed: int) -> dict[str, list[Asked]]:
    """Return at most `count` queries of every kind, of the part "train" or "dev" where a set has parts.

    Queries that are made come from other titles with another seed.
    """
    random, known = Random(seed), set(titles)
    sets: dict[str, list[Asked]] = {}
    for name, (needs_words, make) in _MADE.items():
        chosen: list[Asked] = []
        while len(chosen) < count:
            title = random.choice(titles)
            if not needs_words or " " in title:
                chosen.append((make(title, random), (title,)))
        sets[name] = chosen
    redirects = [(old, (new,)) for old, new in _redirects(shared) if new in known and old not in known]
    Random(0).shuffle(redirects)
    half = len(redirects) // 2
    sets["redirects"] = (redirects[:half] if part == "train" else redirects[half:])[:count]
    for name, data_set in _PUBLIC.items():
        sets[name] = _first(_gold(shared, data_set, part, known), count, seed)
    french = (asked for asked in _gold(shared, "dbp15k", part, known, lang="fr"))
    sets["French spellings"] = _first(french, count, seed)
    mentions = [list(_mentions(shared, name, part, known)) for name in _MENTIONS]
    for name, place in (("mentions", 0), ("mentions in context", 1)):
        every = [(both[place], gold) for some in mentions for both, gold in some]
        sets[name] = _first(iter(every), count, seed)
    return {name: asked for name, asked in sets.items() if asked}


def _first(asked: Iterator[Asked], count: int, seed: int) -> list[Asked]:
    every = list(asked)
    Random(seed).shuffle(every)
    return every[:count]


def _redirects(shared: Path) -> Iterator[tuple[str, str]]:
    with gzip.open(shared / "titles" / "redirect_pairs.tsv.gz", "rt", encoding="utf-8") as lines:
        for line in lines:
            old, new = line.rstrip("\n").split("\t")[:2]
            yield old, new


def _rows(file: Path) -> Iterator[dict[str, Any]]:
    with gzip.open(file, "rt", encoding="utf-8") as lines:
        yield from map(json.loads, lines)


def _gold(shared: Path, name: str, part: str, known: set[str], lang: str | None = None) -> Iterator[Asked]:
    for row in _rows(shared / "queries" / f"{name}.{part}.jsonl.gz"):
        titles = tuple(gold["title"] for gold in row["gold"] if gold["grade"] > 0 and gold["title"] in known)
        if titles and lang in (None, row.get("lang")):
            yield row["query"], titles


def _mentions(
    shared: Path, name: str, part: str, known: set[str]
) -> Iterator[tuple[tuple[str, str], tuple[str, ...]]]:
    for row in _rows(shared / "el" / f"{name}.{part}.jsonl.gz"):
        title = row.get("title_wp") or row.get("title")
        if title in known:
            around = f"{row['left'][-60:]} {row['mention']} {row['right'][:60]}"
            yield (row["mention"], around.strip()), (title,)
