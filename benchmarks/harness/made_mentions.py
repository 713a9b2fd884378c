"""Mentions in context: made sentences about the entities of a catalogue, or those of a file; as documents."""

from __future__ import annotations

import csv
import json
import random
from collections.abc import Iterable, Sequence
from pathlib import Path

import click

from genret.retrieval.linking.documents.document_records import MentionRow, read_mentions
from genret.retrieval.linking.documents.text_document import Document, Span
from genret.retrieval.types import Mention

_BEFORE = (
    "Not long ago we read that ",
    "In the second chapter of the guide, ",
    "Those who ask about it are told of ",
    "The notes of the journey name ",
    "Beside all the others there is ",
    "",
)
_BEHIND = (
    ", which is known as: {}.",
    " ({}) was on everybody's mind.",
    ". For those who do not know: {}",
    " and what is said of it, {}, filled the evening.",
)


def made_mentions(catalogue: Path, number: int, seed: int = 0) -> list[Mention]:
    """Make sentences about random entities, by title or alias, with their description behind the name.

    Args:
        catalogue: TSV with the columns `title`, `aliases` and `description`.
        number: How many, all different.
        seed: Of the choice.
    """
    with catalogue.open(encoding="utf-8", newline="") as file:
        entries = list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))
    rng = random.Random(seed)
    mentions: dict[Mention, None] = {}
    while len(mentions) < number:
        entry = rng.choice(entries)
        name = rng.choice([entry["title"], *filter(None, (entry["aliases"] or "").split("|"))])
        behind = rng.choice(_BEHIND).format(entry["description"] or entry["kind"])
        mentions[Mention(name, rng.choice(_BEFORE), behind)] = None
    return list(mentions)


def mentions_of(file: Path, number: int, seed: int = 0) -> list[Mention]:
    """Return random mentions of a file of JSON lines with `left`, `mention` and `right`.

    Raises:
        click.ClickException: it has too few.
    """
    rows = [row.mention for row in read_mentions(str(file)) if isinstance(row, MentionRow)]
    different = list(dict.fromkeys(rows))
    if len(different) < number:
        raise click.ClickException(f"{file}: expected at least {number} mentions, got {len(different)}")
    return random.Random(seed).sample(different, number)


def repeated(mentions: Sequence[Mention], times: int, seed: int = 0) -> list[Mention]:
    """Return as many mentions, of which only one in `times` is another one, in random order."""
    kept = list(mentions[: max(1, len(mentions) // times)])
    drawn = (kept * (times + 1))[: len(mentions)]
    random.Random(seed).shuffle(drawn)
    return drawn


def as_documents(mentions: Iterable[Mention]) -> list[Document]:
    """Return one document per mention, with its span."""
    return [
        Document(
            "made",
            row,
            str(row),
            mention.left + mention.mention + mention.right,
            (Span(len(mention.left), len(mention.left) + len(mention.mention)),),
        )
        for row, mention in enumerate(mentions, 1)
    ]


def write_documents(file: Path, mentions: Iterable[Mention]) -> None:
    """Write one document per mention as JSON lines."""
    with file.open("w", encoding="utf-8") as out:
        for number, mention in enumerate(mentions, 1):
            start = len(mention.left)
            document = {
                "id": str(number),
                "text": mention.left + mention.mention + mention.right,
                "mentions": [{"start": start, "end": start + len(mention.mention)}],
            }
            out.write(json.dumps(document, ensure_ascii=False) + "\n")
