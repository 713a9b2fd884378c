"""Queries with their answers: JSON Lines with id, query and gold, or TSV with one answer a line."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from retrieval.errors import SourceError
from retrieval.evaluation.datasets.file_lines import (
    grade_field,
    id_field,
    json_objects,
    text_field,
    text_lines,
    wrong,
)
from retrieval.evaluation.datasets.labels import Answer, FileQuery
from retrieval.evaluation.datasets.spec import SetSpec

_COLUMNS = ("id", "query", "entity_id", "title", "grade", "split")


@dataclass(frozen=True, slots=True)
class _Row:
    """Part of a query, or all of it: what one line says."""

    line: int
    query_id: str | None
    text: str
    answers: tuple[Answer, ...]
    split: str | None
    is_nil: bool


def read_query_file(spec: SetSpec, has_nil: bool = False) -> tuple[list[FileQuery], list[Path]]:
    """Read queries; those without answers have none, as those that are answered with a number.

    JSON Lines: `id` (the number of the line where there is none), `query`, and `gold`: a list of objects with
    title or entity_id, and grade (1 where there is none). TSV: a header with query, with entity_id or title,
    and possibly id, grade and split; lines with the same id, or without ids the same query, are one query.

    Args:
        spec: Where the file is.
        has_nil: Whether lines of TSV with neither entity_id nor title, and an empty list of gold, say that
            nothing answers the query. Otherwise the first are malformed, and the second say nothing.

    Returns:
        The queries of the split, and the file.

    Raises:
        SourceError: the file is missing or malformed, or has no such split.
    """
    file = Path(spec.path)
    _, first = next(text_lines(file))
    is_json = first.lstrip().startswith("{")
    queries: dict[str, FileQuery] = {}
    splits: set[str] = set()
    for row in _json_rows(file) if is_json else _table_rows(file, has_nil):
        if row.split is not None:
            splits.add(row.split)
        if spec.split is not None and row.split != spec.split:
            continue
        key = row.query_id if row.query_id is not None else str(row.line) if is_json else row.text
        known = queries.get(key)
        if known is None:
            queries[key] = FileQuery(
                row.query_id or str(row.line),
                row.text,
                row.answers,
                is_nil=has_nil and row.is_nil,
                line=row.line,
            )
            continue
        if is_json or known.text != row.text:
            wrong(file, row.line, "id", "an id of its own", row.query_id)
        if known.is_nil or row.is_nil:
            wrong(file, row.line, "entity_id", f"one label: line {known.line} has the same query", row.text)
        queries[key] = replace(known, answers=known.answers + row.answers)
    if spec.split is not None and not queries:
        there = ", ".join(sorted(splits)) or "none"
        raise SourceError(f"{file}: no line of the split {spec.split!r}; splits there: {there}")
    return list(queries.values()), [file]


def _json_rows(file: Path) -> Iterator[_Row]:
    for line, value in json_objects(file):
        gold = value.get("gold")
        if gold is None:
            gold = []
        if not isinstance(gold, list):
            wrong(file, line, "gold", "a list", gold)
        split = value.get("split")
        yield _Row(
            line,
            None if value.get("id") is None else id_field(file, line, value["id"], "id", clean=False),
            text_field(file, line, value.get("query"), "query"),
            tuple(_json_answer(file, line, answer, f"gold[{i}]") for i, answer in enumerate(gold)),
            None if split is None else text_field(file, line, split, "split"),
            value.get("gold") == [],
        )


def _json_answer(file: Path, line: int, value: Any, name: str) -> Answer:
    if not isinstance(value, dict):
        wrong(file, line, name, "an object with title or entity_id", value)
    title, entity_id, grade = value.get("title"), value.get("entity_id"), value.get("grade")
    if title is None and entity_id is None:
        wrong(file, line, name, "title or entity_id", value)
    return Answer(
        None if entity_id is None else id_field(file, line, entity_id, f"{name}.entity_id"),
        None if title is None else text_field(file, line, title, f"{name}.title"),
        1 if grade is None else grade_field(file, line, grade, f"{name}.grade"),
    )


def _table_rows(file: Path, has_nil: bool) -> Iterator[_Row]:
    header: list[str] | None = None
    for line, text in text_lines(file):
        fields = text.split("\t")
        if header is None:
            header = _header(file, line, fields)
            continue
        if len(fields) != len(header):
            wrong(file, line, None, f"{len(header)} fields separated by tabs", f"{len(fields)}")
        row = dict(zip(header, fields, strict=True))
        given = {name: row[name] for name in _COLUMNS if row.get(name, "").strip()}
        is_nil = not {"entity_id", "title"} & set(given)
        yield _Row(
            line,
            text_field(file, line, row["id"], "id", clean=False) if "id" in row else None,
            text_field(file, line, row["query"], "query"),
            () if is_nil and has_nil else (_table_answer(file, line, given),),
            text_field(file, line, given["split"], "split") if "split" in given else None,
            is_nil,
        )


def _header(file: Path, line: int, fields: list[str]) -> list[str]:
    names = [name.strip() for name in fields]
    if "query" not in names or not {"entity_id", "title"} & set(names):
        wrong(
            file, line, None, "JSON objects, or a header with query and entity_id or title", "\t".join(names)
        )
    if len(set(names)) != len(names):
        wrong(file, line, None, "names of columns that differ", "\t".join(names))
    return names


def _table_answer(file: Path, line: int, given: dict[str, str]) -> Answer:
    if "entity_id" not in given and "title" not in given:
        wrong(file, line, "entity_id", "entity_id or title", "")
    return Answer(
        text_field(file, line, given["entity_id"], "entity_id") if "entity_id" in given else None,
        text_field(file, line, given["title"], "title") if "title" in given else None,
        grade_field(file, line, given.get("grade", "1"), "grade"),
    )
