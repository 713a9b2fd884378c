"""Labelled mentions: JSON lines with the text around a name and the entity that it stands for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from retrieval.errors import SourceError
from retrieval.linking.mentions import BadRow, read_mentions
from retrieval.normalize import normalize
from retrieval.training.catalogue import TrainingEntity
from retrieval.types import Mention


@dataclass(frozen=True, slots=True)
class LabelledMention:
    """One mention in its context with the title it stands for."""

    mention: Mention
    title: str


def read_labelled_mentions(file: Path, entities: Sequence[TrainingEntity]) -> list[LabelledMention]:
    """Read mentions as `genret link` does, with "title" or "entity_id"; those without an entity are left out.

    Raises:
        SourceError: a line is malformed, names an entity the catalogue lacks, or no mention has an entity.
    """
    title_of_id = {entity.entity_id: entity.title for entity in entities}
    titles = {entity.title for entity in entities}
    labelled: list[LabelledMention] = []
    for row in read_mentions(str(file)):
        if isinstance(row, BadRow):
            raise SourceError(f"{file}, line {row.line}: {row.reason}")
        if row.entity_id is not None:
            title = title_of_id.get(normalize(row.entity_id))
        elif row.title is not None:
            title = normalize(row.title)
        else:
            continue
        if title is None or title not in titles:
            raise SourceError(
                f"{file}, line {row.line}: the catalogue has no entity {row.entity_id or row.title!r}"
            )
        labelled.append(LabelledMention(row.mention, title))
    if not labelled:
        raise SourceError(f"{file}: no mention with a title or an entity_id")
    return labelled
