"""Mentions in context with their labels: JSON Lines as `genret link` reads them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from retrieval.errors import InputError, SourceError
from retrieval.evaluation.datasets.file_lines import id_field, json_objects, text_field, wrong
from retrieval.evaluation.datasets.labels import Answer, FileQuery
from retrieval.evaluation.datasets.spec import SetSpec
from retrieval.types import Mention


def read_mention_file(spec: SetSpec) -> tuple[list[FileQuery], list[Path]]:
    """Read mention, left, right, and title or entity_id, which are null where no entity is meant (NIL).

    `id` is the number of the line where there is none; `doc` is the document for bootstrap by document.

    Returns:
        The mentions, and the file.

    Raises:
        SourceError: the file is missing or malformed, or no mention has an entity.
    """
    file = Path(spec.path)
    queries: list[FileQuery] = []
    seen: set[str] = set()
    for line, value in json_objects(file):
        query = _query(file, line, value)
        if query.query_id in seen:
            wrong(file, line, "id", "an id of its own", query.query_id)
        seen.add(query.query_id)
        queries.append(query)
    if all(query.is_nil for query in queries):
        raise SourceError(f"{file}: no mention has a title or an entity_id")
    return queries, [file]


def _query(file: Path, line: int, value: dict[str, Any]) -> FileQuery:
    if not {"title", "entity_id"} & value.keys() and not value.get("nil"):
        wrong(file, line, "title", "title or entity_id, null where no entity is meant", "neither")
    mention_text = text_field(file, line, value.get("mention"), "mention", clean=False)
    given = {side: value[side] for side in ("left", "right") if value.get(side) is not None}
    try:
        mention = Mention(mention_text, **given)
    except InputError as error:
        raise SourceError(f"{file}, line {line}, field {error.field!r}: {error.message}") from error
    title, entity_id = value.get("title"), value.get("entity_id")
    answer = Answer(
        None if entity_id is None else id_field(file, line, entity_id, "entity_id"),
        None if title is None else text_field(file, line, title, "title"),
    )
    is_nil = title is None and entity_id is None
    document = value.get("doc")
    return FileQuery(
        str(line) if value.get("id") is None else id_field(file, line, value["id"], "id", clean=False),
        mention.mention,
        () if is_nil else (answer,),
        mention=mention,
        is_nil=is_nil,
        document=None if document is None else id_field(file, line, document, "doc"),
    )
