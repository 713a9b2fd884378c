"""Queries for titles that are in the catalogue: with typing errors, or without one of their words."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random

import click

from retrieval.index.reader import Index

MISTYPED, SHORTENED = "typing errors", "a word left out"

_LETTERS = "abcdefghijklmnopqrstuvwxyz"
# Shorter titles are left alone: with a letter wrong they may be any other.
_MIN_LETTERS = 4
# Longer titles get two errors.
_ONE_ERROR = 20


@dataclass(frozen=True, slots=True)
class TitleQuery:
    """A query, and what it is for.

    Attributes:
        text: What is asked.
        kind: `MISTYPED` or `SHORTENED`.
        entity: Number of the entity whose title was meant.
    """

    text: str
    kind: str
    entity: int


def title_queries(index: Index, number: int, seed: int) -> list[TitleQuery]:
    """Return queries for titles drawn at random, no entity twice: half of each kind, in turn.

    Args:
        index: Holds the titles.
        number: Of queries.
        seed: Other seeds draw other titles.

    Raises:
        click.ClickException: too few titles have two words or four letters.
    """
    random = Random(seed)
    drawn = iter(random.sample(range(index.num_entities), index.num_entities))
    queries: list[TitleQuery] = []
    for entity in drawn:
        if len(queries) == number:
            return queries
        kind, damage = ((MISTYPED, _mistyped), (SHORTENED, _shortened))[len(queries) % 2]
        text = damage(index.entity(entity).title, random)
        if text is not None:
            queries.append(TitleQuery(text, kind, entity))
    if len(queries) < number:
        raise click.ClickException(f"expected titles for {number} queries, got {len(queries)}")
    return queries


def _mistyped(title: str, random: Random) -> str | None:
    """Return a title with a letter changed, left out, doubled or swapped with the next; two if it is long."""
    if sum(map(str.isalnum, title)) < _MIN_LETTERS:
        return None
    text = title
    for _ in range(1 + (len(title) > _ONE_ERROR)):
        before = text
        while text == before:
            at = random.choice([i for i, letter in enumerate(before) if letter.isalnum()])
            text = random.choice(_ERRORS)(before, at, random)
    return text


def _shortened(title: str, random: Random) -> str | None:
    """Return a title without one of its words."""
    words = title.split()
    if len(words) < 2:
        return None
    del words[random.randrange(len(words))]
    rest = " ".join(words)
    return rest if sum(map(str.isalnum, rest)) >= _MIN_LETTERS else None


def _changed(text: str, at: int, random: Random) -> str:
    return text[:at] + random.choice(_LETTERS) + text[at + 1 :]


def _left_out(text: str, at: int, random: Random) -> str:
    return text[:at] + text[at + 1 :]


def _doubled(text: str, at: int, random: Random) -> str:
    return text[: at + 1] + text[at:]


def _swapped(text: str, at: int, random: Random) -> str:
    return text[:at] + text[at + 1 : at + 2] + text[at] + text[at + 2 :]


_ERRORS: tuple[Callable[[str, int, Random], str], ...] = (_changed, _left_out, _doubled, _swapped)
