"""Makes queries from a catalogue, for fitting a ranking without labelled queries.

People type a name, more or less correctly, or a text about it. `NAME_RECIPES` and `SOURCES` give the shares
of the recipes; docs/ranking.md describes them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from random import Random

import numpy as np

from genret.retrieval.evidence.evidence import Evidence
from genret.retrieval.evidence.field import QUERIES, TEXTS
from genret.retrieval.evidence.postings import IntArray
from genret.retrieval.index.reader import EntityTexts, Index
from genret.retrieval.noise import drop_a_word, recase, shorten, typo

# Number of queries for a small catalogue, and for one of three thousand entities or more, where each kind
# must be frequent enough to separate names that are much alike.
NUM_QUERIES = (400, 1000)

# Words that stand around names in questions and statements. Those of other languages come from the
# catalogue's own names.
_AROUND = """
    a about an and are at been born by called did do does for from had has have he her his how in into is it
    its known last made make many most name not of on one or part she some still than that the their there
    they this to was were what when where which while who whose why will with won written year years
""".split()  # noqa: SIM905 - a list literal would fill a page
_QUESTIONS = (
    "what is {}", "who is {}", "who was {}", "where is {}", "tell me about {}", "how old is {}",
    "when was {} made", "what is the name of the one who made {}", "which works of {} are known",
    "history of {}",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Labelled:
    """A query and the entities that answer it."""

    text: str
    entities: tuple[int, ...]  # numbers of its entities; empty if nothing of the index is meant
    weight: float = 1.0  # weight of the query in a fit
    name: str = ""  # name whose bearers are right too; "" for none
    recipe: str = ""  # description of how it was made, if it was


def _cut(name: str, random: Random) -> str:
    return name[: max(3, round(len(name) * random.uniform(0.5, 0.8)))].strip()


def _reordered(name: str, random: Random) -> str:
    words = name.split()
    random.shuffle(words)
    return " ".join(words)


def _mistyped(name: str, random: Random) -> str:
    return recase(typo(name, random), random)


# Name of a recipe, its percentage of the queries made from names, and its function.
NAME_RECIPES: tuple[tuple[str, int, Callable[[str, Random], str]], ...] = (
    ("a name in any letter case", 10, recase),
    ("one typing error", 20, _mistyped),
    ("two typing errors", 10, lambda name, random: typo(_mistyped(name, random), random)),
    ("no blanks", 5, lambda name, random: name.replace(" ", "").lower()),
    ("the beginning of a name", 15, _cut),
    ("a word left out", 10, drop_a_word),
    ("words in another order", 5, _reordered),
    ("a question about a name", 10, lambda name, random: random.choice(_QUESTIONS).format(name)),
    ("a name in a sentence", 15, lambda name, random: name),  # the words around it are drawn elsewhere
)
# Shares of queries made from texts and past queries; those of missing kinds go to names.
SOURCES = {TEXTS: 0.25, QUERIES: 0.35}


def num_queries(num_entities: int) -> int:
    """Return the default number of queries for a catalogue."""
    fewest, most = NUM_QUERIES
    return max(fewest, min(most, num_entities // 3))


def make_queries(
    index: Index, evidence: Evidence, columns: Sequence[str], count: int | None = None, seed: int = 0
) -> list[Labelled]:
    """Make queries from names, texts (`columns`) and past queries, the same ones for the same seed.

    If entities have weights, every other one is drawn by its weight: well-known things are asked more. At
    most `count` queries are made, by default `num_queries`.
    """
    random = Random(seed)
    made: list[Labelled] = []
    count = num_queries(index.num_entities) if count is None else count
    if QUERIES in evidence.kinds:
        made += _from_queries(evidence, round(count * SOURCES[QUERIES]), random)
    if columns:
        made += _from_texts(index, columns, round(count * SOURCES[TEXTS]), random)
    made += _from_names(index, count - len(made), random)
    return made


def _from_names(index: Index, count: int, random: Random) -> Iterator[Labelled]:
    chosen = _draw(index, count, random)
    names = EntityTexts(index).of(np.unique(chosen)).by_entity()
    strangers = [word for mine in names.values() for text in mine for word in text.split()]
    recipes = [(name, make) for name, _, make in NAME_RECIPES]
    shares = [share for _, share, _ in NAME_RECIPES]
    for number in chosen.tolist():
        name = names[number][0] if random.random() < 0.4 else random.choice(names[number])
        recipe, make = random.choices(recipes, shares)[0]
        text = make(name, random)
        if recipe == "a name in a sentence":
            words = random.choices(_AROUND, k=random.randint(2, 7)) + random.choices(
                strangers, k=random.randint(1, 4)
            )
            random.shuffle(words)
            at = random.choice((0, 0, random.randint(0, len(words))))
            text = " ".join([*words[:at], name, *words[at:]])
        if text.strip():
            called = name if index.weights is None else ""
            yield Labelled(text, (number,), name=called, recipe=recipe)


def _from_texts(index: Index, columns: Sequence[str], count: int, random: Random) -> Iterator[Labelled]:
    chosen = _draw(index, count, random)
    texts = EntityTexts(index, columns, has_names=False).of(np.unique(chosen)).by_entity()
    for number in chosen.tolist():
        if number not in texts:
            continue
        part = shorten(random.choice(texts[number]), random)
        if random.random() < 0.5:
            part = _reordered(" ".join(part.split()[:8]), random)
        if part.strip():
            yield Labelled(recase(part, random), (number,), recipe="a part of the texts")


def _from_queries(evidence: Evidence, count: int, random: Random) -> Iterator[Labelled]:
    field = evidence.fields[QUERIES]
    for number, mine in field.sample_queries(count, random):
        text = random.choices([query for query, _ in mine], [times for _, times in mine])[0]
        yield Labelled(text, (number,), recipe="a past query, as if it had not been asked")


def _draw(index: Index, count: int, random: Random) -> IntArray:
    """Draw entities with replacement; every other one by its weight, if entities have weights."""
    if not index.num_entities:
        return np.empty(0, np.int64)
    rng = np.random.default_rng(random.getrandbits(63))
    chosen = rng.integers(0, index.num_entities, count)
    if index.weights is not None and (total := float(index.weights.sum())) > 0:
        places = np.searchsorted(np.cumsum(index.weights), rng.random(count // 2) * total)
        chosen[: count // 2] = np.minimum(places, index.num_entities - 1)
    return chosen.astype(np.int64)
