"""Reads training data: the entities of a catalogue, queries with their entities, and labelled mentions.

Catalogues are read as the index builder reads them. Query files are UTF-8 TSV with a header; mentions are
JSON lines with the text around a name and its entity.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from genret.retrieval.errors import InputError, SourceError
from genret.retrieval.evaluation.datasets.file_lines import json_objects, text_lines
from genret.retrieval.linking.documents.document_records import mention_row
from genret.retrieval.normalize import normalize
from genret.retrieval.sources.columns import same_case
from genret.retrieval.sources.records import Record, RejectReason, Rejects, numbered_id
from genret.retrieval.sources.title_source import TitleSource
from genret.retrieval.types import Mention

SPLITS = ("train", "dev", "test")
_BATCH_RECORDS = 1 << 14


class TrainingEntity(NamedTuple):
    """One entity of a catalogue."""

    entity_id: str  # id; made from the title if the file has no such column
    title: str  # canonical title, the text the model learns to write
    aliases: tuple[str, ...] = ()  # further surface forms, inputs of the model
    description: str = ""  # one line of text, or ""
    kind: str = ""  # kind of thing ("river"), or ""

    @property
    def surfaces(self) -> tuple[str, ...]:
        """Title and aliases, title first, no duplicates."""
        return tuple(dict.fromkeys((self.title, *self.aliases)))


class TrainingQuery(NamedTuple):
    """One query with the entity that answers it."""

    text: str
    entity_id: str
    split: str = "train"


def read_catalogue(
    file: Path, max_bad_rows: int = 0, report: Callable[[str], None] | None = None
) -> list[TrainingEntity]:
    """Read a catalogue as the index builder does: same formats, text policy, bad rows and ids.

    A file without a header is one title per line. Of the metadata, `description` and `kind` (in any case) are
    used; the others only tell entities of one title apart. An exact repetition of a record is left out.
    Without a column entity_id, the id is the title, and further entities of that title are `title#2`,
    `title#3`, … Titles that cannot be written in the rendering, which the builder refuses, are left out
    later. So are up to `max_bad_rows` bad rows, of which `report` receives a report. A SourceError says that
    the file is missing, empty, no text, or has too many bad rows.
    """
    with TitleSource(file) as source:
        rejects = Rejects(source.name, max_bad_rows)
        records = [record for batch in source.batches(_BATCH_RECORDS, rejects) for record in batch.records]
        columns, has_ids = source.columns, source.has_ids
    meant = [same_case(columns.names, name) for name in ("description", "kind")]
    places = [None if name is None else columns.names.index(name) for name in meant]
    entities = []
    for entity_id, record in _identified(records, has_ids, rejects):
        description, kind = ("" if i is None else record.metadata[i] or "" for i in places)
        entities.append(TrainingEntity(entity_id, record.title, record.aliases, description, kind))
    rejects.check("no training has begun")
    if not entities:
        raise SourceError(f"{file}: no good row is left\n{rejects.report()}")
    if rejects.rows and report is not None:
        report(rejects.report())
    return entities


def _identified(records: Sequence[Record], has_ids: bool, rejects: Rejects) -> Iterator[tuple[str, Record]]:
    """Yield every entity's id and record, by the rules of the builder's `resolve_identities`."""
    seen: dict[str, list[Record]] = {}
    titles = {record.title for record in records}
    for record in records:
        key = record.title if record.entity_id is None else record.entity_id
        earlier = seen.setdefault(key, [])
        # Everything but file, line and id, and the id is the same.
        if any(record[3:] == other[3:] for other in earlier):
            continue
        if earlier and has_ids:
            detail = f"{key!r}, first on line {earlier[0].line} with other fields"
            rejects.add(record.line, RejectReason.DUPLICATE_ID, record.title, detail)
            continue
        earlier.append(record)
        number = len(earlier)
        yield (key if number == 1 else numbered_id(key, number, titles.__contains__)), record


def read_queries(file: Path, entities: Sequence[TrainingEntity]) -> list[TrainingQuery]:
    """Read pairs: a `query` column and `entity_id` or `title`; `split` (train if absent).

    Names of columns may be in any case. Ids and titles are compared after the catalogue's text policy; a
    title that several entities have stands for the first of them. Queries themselves keep their text. A
    SourceError names a malformed line, or an entity that the catalogue lacks.
    """
    by_id = {entity.entity_id for entity in entities}
    by_title = {entity.title: entity.entity_id for entity in reversed(entities)}  # of several, the first
    queries: list[TrainingQuery] = []
    for line, row in _rows(file):
        text = row["query"].strip()
        if not text:
            raise SourceError(f"{file}:{line}: empty query")
        split = row.get("split", "").strip() or "train"
        if split not in SPLITS:
            raise SourceError(f"{file}:{line}: split must be one of {list(SPLITS)}, got {split!r}")
        if "entity_id" in row:
            named = normalize(row["entity_id"])
            entity_id = named if named in by_id else None
        elif "title" in row:
            named = normalize(row["title"])
            entity_id = by_title.get(named)
        else:
            raise SourceError(f"{file}:1: the header needs a column entity_id or title, got {sorted(row)}")
        if entity_id is None:
            raise SourceError(f"{file}:{line}: the catalogue has no entity {named!r}")
        queries.append(TrainingQuery(text, entity_id, split))
    if not queries:
        raise SourceError(f"{file}: no queries below the header")
    return queries


def training_queries(queries: Sequence[TrainingQuery]) -> list[TrainingQuery]:
    """Return the queries of split "train" that are not, in any case, a dev or test query as well."""
    held_out = {query.text.lower() for query in queries if query.split != "train"}
    return [query for query in queries if query.split == "train" and query.text.lower() not in held_out]


def _rows(file: Path) -> Iterator[tuple[int, dict[str, str]]]:
    """Yield (line number, column -> field) of every non-empty line below the header."""
    header: list[str] | None = None
    for number, text in text_lines(file):
        fields = text.split("\t")
        if header is None:
            header = [normalize(name).casefold() for name in fields]
            if "query" not in header:
                raise SourceError(f"{file}:{number}: the header lacks the column 'query', got {header}")
            if len(set(header)) < len(header):
                raise SourceError(f"{file}:{number}: the header names a column more than once: {header}")
            continue
        if len(fields) > len(header):
            raise SourceError(f"{file}:{number}: expected {len(header)} fields, got {len(fields)}")
        yield number, dict(zip(header, fields + [""] * (len(header) - len(fields)), strict=True))


class LabelledMention(NamedTuple):
    """One mention in its context with the title it stands for."""

    mention: Mention
    title: str

    @property
    def text(self) -> str:
        """The mention with the text around it."""
        return f"{self.mention.left}{self.mention.mention}{self.mention.right}"


class TrainingData(NamedTuple):
    """The texts that a run learns from."""

    entities: list[TrainingEntity]
    queries: list[TrainingQuery]
    mentions: list[LabelledMention]


def read_labelled_mentions(file: Path, entities: Sequence[TrainingEntity]) -> list[LabelledMention]:
    """Read records of mentions with "title" or "entity_id"; those without an entity are left out.

    A SourceError names a malformed line, or an entity the catalogue lacks; some mention must have an entity.
    """
    title_of_id = {entity.entity_id: entity.title for entity in entities}
    titles = {entity.title for entity in entities}
    labelled: list[LabelledMention] = []
    for line, value in json_objects(file):
        try:
            row = mention_row(value, line)
        except InputError as error:
            raise SourceError(f"{file}, line {line}: field {error.field!r}: {error.message}") from error
        if row.entity_id is not None:
            title = title_of_id.get(normalize(row.entity_id))
        elif row.title is not None:
            title = normalize(row.title)
        else:
            continue
        if title is None or title not in titles:
            raise SourceError(
                f"{file}, line {line}: the catalogue has no entity {row.entity_id or row.title!r}"
            )
        labelled.append(LabelledMention(row.mention, title))
    if not labelled:
        raise SourceError(f"{file}: no mention with a title or an entity_id")
    return labelled
