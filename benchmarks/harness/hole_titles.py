"""Titles for the contest of holes: a sample of a catalogue, those that are written, and near misses."""

from __future__ import annotations

import random
from pathlib import Path

import click
import numpy as np

from genret.retrieval.index.reader import Index
from harness.titles import batches

_SEED = 1


def sample_titles(source: Path, limit: int | None, size: int, out: Path) -> None:
    """Write a sample of a file's titles as TSV.

    Raises:
        click.ClickException: the file has too few.
    """
    number = sum(map(len, batches(source, limit)))
    if number < size:
        raise click.ClickException(f"{source}: expected {size} titles, got {number}")
    chosen = np.zeros(number, dtype=bool)
    chosen[np.random.default_rng(_SEED).choice(number, size, replace=False)] = True
    begin = 0
    with out.open("w", encoding="utf-8") as file:
        file.write("title\n")
        for batch in batches(source, limit):
            kept = chosen[begin : begin + len(batch)]
            file.writelines(f"{title}\n" for title, keep in zip(batch, kept, strict=True) if keep)
            begin += len(batch)


def walked_titles(index: Index, count: int) -> list[str]:
    """Return some titles at random."""
    numbers = random.Random(_SEED).sample(range(index.num_entities), min(count, index.num_entities))
    return [index.entity(number).title for number in numbers]


def near_misses(index: Index, titles: list[str]) -> list[str]:
    """Return texts that differ from titles in a character and are none: cut, doubled, or another one."""
    rng = random.Random(_SEED)
    misses: list[str] = []
    for number, title in enumerate(titles):
        at = rng.randrange(len(title))
        forms = [title[:-1], title + title[-1], title[:at] + "~" + title[at + 1 :]]
        known = index.entities.numbers(forms)
        # Rotated, so that every kind of miss is among them.
        order = [(number + turn) % len(forms) for turn in range(len(forms))]
        misses.append(next(forms[i] for i in order if known[i] < 0 and forms[i]))
    return misses
