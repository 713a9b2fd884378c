"""What a training run reads: the catalogue's entities and the (query, entity) pairs.

Both are UTF-8 TSV files with a header. Nothing here knows models or tokenizers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from retrieval.errors import SourceError

SPLITS = ("train", "dev", "test")


@dataclass(frozen=True, slots=True)
class TrainingEntity:
    """One catalogue entry as training sees it.

    Attributes:
        entity_id: Identifier; the title where the file has no such column.
        title: Canonical title, the text the model learns to write.
        aliases: Further surface forms, inputs of the model.
        description: One line of text, or "".
        kind: What sort of thing it is ("river"), or "".
    """

    entity_id: str
    title: str
    aliases: tuple[str, ...] = ()
    description: str = ""
    kind: str = ""

    @property
    def surfaces(self) -> tuple[str, ...]:
        """Title and aliases, title first, no duplicates."""
        return tuple(dict.fromkeys((self.title, *self.aliases)))


@dataclass(frozen=True, slots=True)
class LabelledQuery:
    """One query with the entity that answers it."""

    text: str
    entity_id: str
    split: str = "train"


def read_catalogue(file: Path) -> list[TrainingEntity]:
    """Read a catalogue: a `title` column, optionally entity_id, aliases, description, kind.

    Aliases are separated by '|'. Further columns are ignored.

    Raises:
        SourceError: the file is missing, empty, malformed, or names one entity_id twice.
    """
    entities: list[TrainingEntity] = []
    seen: dict[str, int] = {}
    for line, row in _rows(file, required=("title",)):
        title = row["title"].strip()
        if not title:
            raise SourceError(f"{file}:{line}: empty title")
        entity_id = row.get("entity_id", "").strip() or title
        if entity_id in seen:
            raise SourceError(
                f"{file}:{line}: entity_id {entity_id!r} was already used in line {seen[entity_id]}"
            )
        seen[entity_id] = line
        aliases = (alias.strip() for alias in row.get("aliases", "").split("|"))
        entities.append(
            TrainingEntity(
                entity_id=entity_id,
                title=title,
                aliases=tuple(alias for alias in aliases if alias),
                description=row.get("description", "").strip(),
                kind=row.get("kind", "").strip(),
            )
        )
    if not entities:
        raise SourceError(f"{file}: no entities below the header")
    return entities


def read_queries(file: Path, entities: Sequence[TrainingEntity]) -> list[LabelledQuery]:
    """Read pairs: a `query` column and `entity_id` or `title`; `split` (train if absent).

    Raises:
        SourceError: the file is malformed, or a query names an entity the catalogue lacks.
    """
    by_id = {entity.entity_id for entity in entities}
    by_title = {entity.title: entity.entity_id for entity in entities}
    queries: list[LabelledQuery] = []
    for line, row in _rows(file, required=("query",)):
        text = row["query"].strip()
        if not text:
            raise SourceError(f"{file}:{line}: empty query")
        split = row.get("split", "").strip() or "train"
        if split not in SPLITS:
            raise SourceError(f"{file}:{line}: split must be one of {list(SPLITS)}, got {split!r}")
        if "entity_id" in row:
            entity_id = row["entity_id"].strip()
            known = entity_id in by_id
        elif "title" in row:
            entity_id = by_title.get(row["title"].strip(), row["title"].strip())
            known = entity_id in by_id
        else:
            raise SourceError(f"{file}:1: the header needs a column entity_id or title, got {sorted(row)}")
        if not known:
            raise SourceError(f"{file}:{line}: the catalogue has no entity {entity_id!r}")
        queries.append(LabelledQuery(text, entity_id, split))
    if not queries:
        raise SourceError(f"{file}: no queries below the header")
    return queries


def _rows(file: Path, required: Sequence[str]) -> Iterator[tuple[int, dict[str, str]]]:
    """Yield (line number, column -> field) of every non-empty line below the header."""
    try:
        data = file.read_bytes()
    except FileNotFoundError as error:
        raise SourceError(f"{file}: no such file") from error
    except OSError as error:
        raise SourceError(f"{file}: cannot be read: {error.strerror}") from error
    header: list[str] | None = None
    for number, raw in enumerate(data.split(b"\n"), start=1):
        try:
            text = raw.decode("utf-8-sig" if number == 1 else "utf-8").rstrip("\r")
        except UnicodeDecodeError as error:
            raise SourceError(f"{file}:{number}: not valid UTF-8 (byte {error.start} of the line)") from error
        if not text.strip():
            continue
        fields = text.split("\t")
        if header is None:
            header = [name.strip() for name in fields]
            missing = [name for name in required if name not in header]
            if missing:
                raise SourceError(
                    f"{file}:{number}: the header lacks the column {missing[0]!r}, got {header}"
                )
            continue
        if len(fields) > len(header):
            raise SourceError(f"{file}:{number}: expected {len(header)} fields, got {len(fields)}")
        yield number, dict(zip(header, fields + [""] * (len(header) - len(fields)), strict=True))
    if header is None:
        raise SourceError(f"{file}: the file is empty")
