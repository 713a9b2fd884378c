"""Reads a labelled set of any format: queries, mentions and KILT here, the others in `qrels_sets`.

A reader returns the queries of a set, and the files that were read. It raises a SourceError if a file is
missing or malformed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from genret.retrieval.errors import InputError, SourceError
from genret.retrieval.evaluation.datasets.file_lines import (
    grade_field,
    id_field,
    json_objects,
    table_rows,
    text_field,
    text_lines,
    wrong,
)
from genret.retrieval.evaluation.datasets.labels import (
    FileQuery,
    LabelAnswer,
    SetSpec,
    TitleResolver,
    find_answers,
)
from genret.retrieval.evaluation.datasets.qrels_sets import read_beir, read_trec
from genret.retrieval.evaluation.labelled_sets import LabelledSet
from genret.retrieval.evaluation.metrics import PRIMARY_METRICS
from genret.retrieval.index.small_files import digest_bytes
from genret.retrieval.normalize import normalize
from genret.retrieval.sources.source_files import digest_file
from genret.retrieval.types import Mention

_COLUMNS = ("id", "query", "entity_id", "title", "grade", "split")


# Id, or what tells the query from others in its place; split; and the query, or part of one, of a line.
_Row = tuple[str, str | None, FileQuery]


def read_query_file(spec: SetSpec, has_nil: bool = False) -> tuple[list[FileQuery], list[Path]]:
    """Read queries from JSON Lines or TSV.

    JSON Lines: `id` (default: the line number), `query`, and `gold`: a list of objects with title or
    entity_id, and grade (default: 1). TSV: a header with query, with entity_id or title, and possibly id,
    grade and split; lines with the same id, or without ids the same query, are one query. A split without
    lines is an error.

    With `has_nil`, TSV lines with neither entity_id nor title, and an empty list of gold, say that nothing
    answers the query. Otherwise the first are malformed, and the second say nothing.
    """
    file = Path(spec.path)
    _, first = next(text_lines(file))
    is_json = first.lstrip().startswith("{")
    queries: dict[str, FileQuery] = {}
    splits: set[str] = set()
    for key, split, query in (_json_rows if is_json else _table_rows)(file, has_nil):
        if split is not None:
            splits.add(split)
        if spec.split is not None and split != spec.split:
            continue
        known = queries.setdefault(key, query)
        if known is query:
            continue
        if is_json or known.text != query.text:
            wrong(file, query.line, "id", "an id of its own", query.query_id)
        if known.is_nil or query.is_nil:
            told = f"one label: line {known.line} has the same query"
            wrong(file, query.line, "entity_id", told, query.text)
        queries[key] = replace(known, answers=known.answers + query.answers)
    if spec.split is not None and not queries:
        there = ", ".join(sorted(splits)) or "none"
        raise SourceError(f"{file}: no line of the split {spec.split!r}; splits there: {there}")
    return list(queries.values()), [file]


def _json_rows(file: Path, has_nil: bool) -> Iterator[_Row]:
    for line, value in json_objects(file):
        gold = _list(file, line, value.get("gold"), "gold")
        split = value.get("split")
        query_id = _id_or_line(file, line, value)
        text = text_field(file, line, value.get("query"), "query")
        answers = tuple(_json_answer(file, line, answer, f"gold[{i}]") for i, answer in enumerate(gold))
        split = None if split is None else text_field(file, line, split, "split")
        is_nil = has_nil and value.get("gold") == []
        yield query_id, split, FileQuery(query_id, text, answers, is_nil=is_nil, line=line)


def _id_or_line(file: Path, line: int, value: dict[str, Any]) -> str:
    return str(line) if value.get("id") is None else id_field(file, line, value["id"], "id", clean=False)


def _json_answer(file: Path, line: int, value: Any, name: str) -> LabelAnswer:
    if not isinstance(value, dict):
        wrong(file, line, name, "an object with title or entity_id", value)
    answer, grade = _named(file, line, value, f"{name}.", "entity_id"), value.get("grade")
    if answer is None:
        wrong(file, line, name, "title or entity_id", value)
    return answer if grade is None else replace(answer, grade=grade_field(file, line, grade, f"{name}.grade"))


def _named(file: Path, line: int, value: dict[str, Any], prefix: str, id_name: str) -> LabelAnswer | None:
    """Return the entity that an object names by title, id or both; None if by neither."""
    title, entity_id = value.get("title"), value.get(id_name)
    if title is None and entity_id is None:
        return None
    return LabelAnswer(
        None if entity_id is None else id_field(file, line, entity_id, prefix + id_name),
        None if title is None else text_field(file, line, title, f"{prefix}title"),
    )


def _table_rows(file: Path, has_nil: bool) -> Iterator[_Row]:
    for line, row in table_rows(file, partial(_check_header, file)):
        given = {name: row[name] for name in _COLUMNS if row.get(name, "").strip()}
        is_nil = not {"entity_id", "title"} & set(given)
        query_id = text_field(file, line, row["id"], "id", clean=False) if "id" in row else None
        text = text_field(file, line, row["query"], "query")
        answers = () if is_nil and has_nil else (_table_answer(file, line, given),)
        split = text_field(file, line, given["split"], "split") if "split" in given else None
        query = FileQuery(query_id or str(line), text, answers, is_nil=is_nil, line=line)
        yield text if query_id is None else query_id, split, query


def _check_header(file: Path, line: int, names: list[str]) -> None:
    if "query" not in names or not {"entity_id", "title"} & set(names):
        expected = "JSON objects, or a header with query and entity_id or title"
        wrong(file, line, None, expected, "\t".join(names))
    if len(set(names)) != len(names):
        wrong(file, line, None, "names of columns that differ", "\t".join(names))


def _table_answer(file: Path, line: int, given: dict[str, str]) -> LabelAnswer:
    answer = _named(file, line, given, "", "entity_id")
    if answer is None:
        wrong(file, line, "entity_id", "entity_id or title", "")
    return replace(answer, grade=grade_field(file, line, given.get("grade", "1"), "grade"))


def read_mention_file(spec: SetSpec) -> tuple[list[FileQuery], list[Path]]:
    """Read mention, left, right, and title or entity_id, which are null where no entity is meant (NIL).

    `id` defaults to the line number; `doc` is the document for bootstrap by document. Some mention must have
    an entity.
    """
    file = Path(spec.path)
    queries = _distinct(file, _mention_query)
    if all(query.is_nil for query in queries):
        raise SourceError(f"{file}: no mention has a title or an entity_id")
    return queries, [file]


def _distinct(file: Path, read: Callable[[Path, int, dict[str, Any]], FileQuery]) -> list[FileQuery]:
    """Return the queries of a JSON Lines file, whose ids must differ."""
    queries: dict[str, FileQuery] = {}
    for line, value in json_objects(file):
        query = read(file, line, value)
        if query.query_id in queries:
            wrong(file, line, "id", "an id of its own", query.query_id)
        queries[query.query_id] = query
    return list(queries.values())


def _mention_query(file: Path, line: int, value: dict[str, Any]) -> FileQuery:
    if not {"title", "entity_id"} & value.keys() and not value.get("nil"):
        wrong(file, line, "title", "title or entity_id, null where no entity is meant", "neither")
    mention_text = text_field(file, line, value.get("mention"), "mention", clean=False)
    given = {side: value[side] for side in ("left", "right") if value.get(side) is not None}
    try:
        mention = Mention(mention_text, **given)
    except InputError as error:
        raise SourceError(f"{file}, line {line}, field {error.field!r}: {error.message}") from error
    answer = _named(file, line, value, "", "entity_id")
    document = value.get("doc")
    return FileQuery(
        _id_or_line(file, line, value),
        mention.mention,
        () if answer is None else (answer,),
        mention=mention,
        is_nil=answer is None,
        document=None if document is None else id_field(file, line, document, "doc"),
    )


START, END = "[START_ENT]", "[END_ENT]"


def read_kilt(spec: SetSpec) -> tuple[list[FileQuery], list[Path]]:
    """Read a file in the format of KILT; a query without provenance has no answers.

    An input with [START_ENT] … [END_ENT] is a mention in its context. The pages of one output are needed
    together (an evidence set); outputs are alternatives.
    """
    file = Path(spec.path)
    return _distinct(file, _kilt_query), [file]


def _kilt_query(file: Path, line: int, value: dict[str, Any]) -> FileQuery:
    query_id = id_field(file, line, value.get("id"), "id", clean=False)
    text = text_field(file, line, value.get("input"), "input", clean=False)
    mention = _mention(file, line, text)
    answers, evidence = _outputs(file, line, value.get("output"))
    asked = mention.mention if mention else normalize(text)
    return FileQuery(query_id, asked, answers, mention=mention, evidence=evidence)


def _outputs(
    file: Path, line: int, outputs: object
) -> tuple[tuple[LabelAnswer, ...], tuple[tuple[int, ...], ...]]:
    answers: dict[LabelAnswer, int] = {}
    evidence = []
    for number, output in enumerate(_list(file, line, outputs, "output")):
        name = f"output[{number}]"
        if not isinstance(output, dict):
            wrong(file, line, name, "an object", output)
        pages = _list(file, line, output.get("provenance"), f"{name}.provenance")
        found = (_page(file, line, page, f"{name}.provenance[{i}]") for i, page in enumerate(pages))
        if pages:
            evidence.append(tuple(answers.setdefault(answer, len(answers)) for answer in found))
    return tuple(answers), tuple(evidence)


def _page(file: Path, line: int, page: Any, name: str) -> LabelAnswer:
    if not isinstance(page, dict):
        wrong(file, line, name, "an object", page)
    answer = _named(file, line, page, f"{name}.", "wikipedia_id")
    if answer is None:
        wrong(file, line, name, "title or wikipedia_id", page)
    return answer


def _mention(file: Path, line: int, text: str) -> Mention | None:
    starts, ends = text.count(START), text.count(END)
    if not starts and not ends:
        return None
    left, _, rest = text.partition(START)
    marked, _, right = rest.partition(END)
    if (starts, ends) != (1, 1) or not marked.strip() or END in left:
        wrong(file, line, "input", f"one {START} text {END}, or none", text)
    return Mention(normalize(marked), left, right)


def _list(file: Path, line: int, value: object, name: str) -> list[Any]:
    if value is None:
        return []
    if not isinstance(value, list):
        wrong(file, line, name, "a list", value)
    return value


_READERS: Mapping[str, Callable[[SetSpec], tuple[list[FileQuery], list[Path]]]] = {
    "beir": read_beir,
    "kilt": read_kilt,
    "trec": read_trec,
    "mentions": read_mention_file,
    "queries": read_query_file,
}
_KINDS = {"kilt": "kilt", "mentions": "mentions"}


def read_set(spec: SetSpec, resolver: TitleResolver) -> LabelledSet:
    """Read a set and find its answers in the index.

    Queries without judgments are left out and counted; mentions labelled NIL stay. Relevant answers that the
    index lacks stay in `gold` as "missing:" and their percent-encoded title, and are counted: recall is a
    share of all that is relevant. A label that is the title of several entities is right for each of them
    (`LabelledQuery.namesakes`).

    Raises:
        SourceError: a file is missing or malformed, has an id twice, a judgment of an unknown query, two
            grades of one document for a query, or no judged query; names file, line, field, expected and got.
    """
    read, files = _READERS[spec.format](spec)
    judged = [query for query in read if query.answers or query.is_nil]
    if not judged:
        raise SourceError(f"{files[0]}: expected queries with answers, got {len(read)} queries without any")
    queries, num_missing = find_answers(judged[: spec.limit], resolver)
    kind = _KINDS.get(spec.format, "queries")
    return LabelledSet(
        name=spec.name,
        kind=kind,
        queries=queries,
        num_missing=num_missing,
        digest=_digest(files),
        primary=PRIMARY_METRICS[kind],
        num_unjudged=len(read) - len(judged),
    )


def _digest(files: Sequence[Path]) -> str:
    """Return the digest of a file; of several, that of their digests."""
    digests = [digest_file(file).xxh3_128 for file in files]
    return digests[0] if len(digests) == 1 else digest_bytes("\n".join(digests).encode())
