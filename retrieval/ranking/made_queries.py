"""Queries made from a catalogue, for fitting a ranking where nobody has labelled any.

What people type is a name, more or less as it stands, or a text that speaks of it. The shares of the recipes
are those of `NAME_RECIPES` and `SOURCES`; docs/ranking.md gives them in words.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from random import Random

import numpy as np

from retrieval.evidence.evidence import QUERIES, TEXTS, Evidence
from retrieval.evidence.postings import IntArray
from retrieval.index.entity_texts import EntityTexts
from retrieval.index.reader import Index
from retrieval.noise import recase, shorten, typo

# Made of a small catalogue, and of one with three thousand entities or more, where each kind of query must be
# there often enough to tell names that are much alike.
NUM_QUERIES = (400, 1000)

# Words that stand around names in questions and statements. Those of other languages come from the
# catalogue's own names, of which half of the words around a name are.
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
class MadeQuery:
    """A query and the entity that it was made for.

    Attributes:
        text: The query.
        entity: Number of the entity it was made for.
        name: The name that it was made from: whoever has the same is right too; "" for none.
        recipe: How it was made, in words.
    """

    text: str
    entity: int
    name: str
    recipe: str


def _cut(name: str, random: Random) -> str:
    return name[: max(3, round(len(name) * random.uniform(0.5, 0.8)))].strip()


def _without_a_word(name: str, random: Random) -> str:
    words = name.split()
    if len(words) > 1:
        del words[random.randrange(len(words))]
    return " ".join(words)


def _reordered(name: str, random: Random) -> str:
    words = name.split()
    random.shuffle(words)
    return " ".join(words)


def _mistyped(name: str, random: Random) -> str:
    return recase(typo(name, random), random)


# Name of a recipe, its share in percent of the queries made from names, and what it does to one.
NAME_RECIPES: tuple[tuple[str, int, Callable[[str, Random], str]], ...] = (
    ("a name in any letter case", 10, recase),
    ("one typing error", 20, _mistyped),
    ("two typing errors", 10, lambda name, random: typo(_mistyped(name, random), random)),
    ("no blanks", 5, lambda name, random: name.replace(" ", "").lower()),
    ("the beginning of a name", 15, _cut),
    ("a word left out", 10, _without_a_word),
    ("words in another order", 5, _reordered),
    ("a question about a name", 10, lambda name, random: random.choice(_QUESTIONS).format(name)),
    ("a name in a sentence", 15, lambda name, random: name),  # the words around it are drawn elsewhere
)
# Of a catalogue with texts and past queries, the shares of queries made from each; those of what it lacks
# go to names.
SOURCES = {TEXTS: 0.25, QUERIES: 0.35}


def num_queries(num_entities: int) -> int:
    """Return how many queries are made from a catalogue where nobody says."""
    fewest, most = NUM_QUERIES
    return max(fewest, min(most, num_entities // 3))


def make_queries(
    index: Index, evidence: Evidence, columns: Sequence[str], count: int | None = None, seed: int = 0
) -> list[MadeQuery]:
    """Return queries made from names, texts and past queries of an index; the same ones every time.

    Where entities have weights, every other one is drawn by its weight: what is well known is asked more.

    Args:
        index: The index.
        evidence: Its evidence.
        columns: The columns of texts.
        count: Most queries; None: as many as `num_queries` says.
        seed: Of everything random.
    """
    random = Random(seed)
    made: list[MadeQuery] = []
    count = num_queries(index.num_entities) if count is None else count
    left = count
    if QUERIES in evidence.kinds:
        made += _from_queries(evidence, round(count * SOURCES[QUERIES]), random)
    if columns:
        made += _from_texts(index, columns, round(count * SOURCES[TEXTS]), random)
    left -= len(made)
    made += _from_names(index, left, random)
    return made


def _from_names(index: Index, count: int, random: Random) -> Iterator[MadeQuery]:
    chosen = _draw(index, count, random)
    names = _by_entity(EntityTexts(index), chosen)
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
            yield MadeQuery(text, number, name if index.weights is None else "", recipe)


def _from_texts(index: Index, columns: Sequence[str], count: int, random: Random) -> Iterator[MadeQuery]:
    chosen = _draw(index, count, random)
    texts = _by_entity(EntityTexts(index, columns, has_names=False), chosen)
    for number in chosen.tolist():
        if number not in texts:
            continue
        part = shorten(random.choice(texts[number]), random)
        if random.random() < 0.5:
            part = _reordered(" ".join(part.split()[:8]), random)
        if part.strip():
            yield MadeQuery(recase(part, random), number, "", "a part of the texts")


def _by_entity(texts: EntityTexts, entities: IntArray) -> dict[int, list[str]]:
    """Return the texts of entities; without those that have none."""
    batch = texts.of(np.unique(entities))
    found: dict[int, list[str]] = {}
    for number, text in zip(batch.numbers.tolist(), batch.texts, strict=True):
        found.setdefault(number, []).append(text)
    return found


def _from_queries(evidence: Evidence, count: int, random: Random) -> Iterator[MadeQuery]:
    field = evidence.fields[QUERIES]
    for number, mine in field.sample_queries(count, random):
        text = random.choices([query for query, _ in mine], [times for _, times in mine])[0]
        yield MadeQuery(text, number, "", "a past query, as if it had not been asked")


def _draw(index: Index, count: int, random: Random) -> IntArray:
    """Draw entities, some perhaps twice: every other one by its weight, where entities have weights."""
    if not index.num_entities:
        return np.empty(0, np.int64)
    rng = np.random.default_rng(random.getrandbits(63))
    chosen = rng.integers(0, index.num_entities, count)
    if index.weights is not None and (total := float(index.weights.sum())) > 0:
        places = np.searchsorted(np.cumsum(index.weights), rng.random(count // 2) * total)
        chosen[: count // 2] = np.minimum(places, index.num_entities - 1)
    return chosen.astype(np.int64)
