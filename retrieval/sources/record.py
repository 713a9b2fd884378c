"""What a source yields: records, in batches that say where reading can go on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from retrieval.normalize import NormalizationReport
from retrieval.sources.column_types import Kinds
from retrieval.sources.position import Position


class Record(NamedTuple):
    """One good row of a source.

    Attributes:
        file: Number of the file, from 0, in the order given.
        line: Line number, from 1; in a Parquet file the row number, from 1.
        entity_id: None when the source has no such column.
        title: Normalised.
        aliases: Normalised, without empty, repeated ones and the title.
        metadata: One cell per metadata column as canonical text; None where empty.
    """

    file: int
    line: int
    entity_id: str | None
    title: str
    aliases: tuple[str, ...]
    metadata: tuple[str | None, ...]


@dataclass(frozen=True, slots=True)
class SourceBatch:
    """Neighbouring rows of a source.

    Attributes:
        records: The good ones; none when a batch at the end of a source holds bad rows only.
        kinds: What the cells of each metadata column look like; to be or-ed over all batches. Once STRING is
            among them the others may be missing, since they no longer matter.
        position: How far reading has come with this batch, bad rows included.
        normalization: What the text policy changed and found in the titles of these records.
    """

    records: list[Record]
    kinds: tuple[Kinds, ...]
    position: Position
    normalization: NormalizationReport = field(default_factory=NormalizationReport)


def numbered_id(title: str, number: int, is_taken: Callable[[str], bool]) -> str:
    """Return the id of the `number`-th entity of a title in a source without ids: `title#number`.

    A title that looks like this makes it go out of its way with a further "#", behind the number: what comes
    of two different titles or numbers is never the same.

    Args:
        title: The title that several entities have.
        number: From 2; the first entity's id is the title.
        is_taken: Whether a text is a title of the source.
    """
    candidate = f"{title}#{number}"
    while is_taken(candidate):
        candidate += "#"
    return candidate
