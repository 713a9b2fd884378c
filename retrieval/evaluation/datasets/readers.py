"""Reads a labelled set of any format: queries, mentions, KILT, BEIR and TREC.

A reader returns the queries of a set, and the files that were read. It raises a SourceError if a file is
missing or malformed. BEIR is a folder with queries.jsonl, qrels/SPLIT.tsv and, for the titles of documents,
corpus.jsonl. TREC is a file of topics and one of judgments (qrels); a document is an entity by its id, or by
its title.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from genret.retrieval.errors import InputError, SourceError
from genret.retrieval.evaluation.datasets.file_lines import (
    grade_field,
    id_field,
    json_objects,
    spaced_fields,
    table_rows,
    text_field,
    text_lines,
    wrong,
)
from genret.retrieval.evaluation.datasets.index_entities import IndexResolver
from genret.retrieval.evaluation.datasets.labels import (
    FileQuery,
    LabelAnswer,
    SetSpec,
    decode_token,
    find_answers,
)
from genret.retrieval.evaluation.labelled_sets import LabelledSet
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
    answer = _answer(file, line, value, name, "entity_id")
    grade = value.get("grade")
    return answer if grade is None else replace(answer, grade=grade_field(file, line, grade, f"{name}.grade"))


def _answer(file: Path, line: int, value: Any, name: str, id_name: str) -> LabelAnswer:
    if not isinstance(value, dict):
        wrong(file, line, name, f"an object with title or {id_name}", value)
    answer = _named(file, line, value, f"{name}.", id_name)
    if answer is None:
        wrong(file, line, name, f"title or {id_name}", value)
    return answer


def _named(file: Path, line: int, value: dict[str, Any], prefix: str, id_name: str) -> LabelAnswer | None:
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
        expected = "JSON objects, or a header with query and entity_id or title between tabs"
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
    read = (_mention_query(file, line, value) for line, value in json_objects(file))
    queries = list(_distinct(file, read).values())
    if all(query.is_nil for query in queries):
        raise SourceError(f"{file}: no mention has a title or an entity_id")
    return queries, [file]


def _distinct(file: Path, queries: Iterable[FileQuery], id_name: str = "id") -> dict[str, FileQuery]:
    """Return the queries by their ids, which must differ."""
    distinct: dict[str, FileQuery] = {}
    for query in queries:
        if distinct.setdefault(query.query_id, query) is not query:
            wrong(file, query.line, id_name, "an id of its own", query.query_id)
    return distinct


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
        line=line,
    )


START, END = "[START_ENT]", "[END_ENT]"


def read_kilt(spec: SetSpec) -> tuple[list[FileQuery], list[Path]]:
    """Read a file in the format of KILT; a query without provenance has no answers.

    An input with [START_ENT] … [END_ENT] is a mention in its context. The pages of one output are needed
    together (an evidence set); outputs are alternatives.
    """
    file = Path(spec.path)
    read = (_kilt_query(file, line, value) for line, value in json_objects(file))
    return list(_distinct(file, read).values()), [file]


def _kilt_query(file: Path, line: int, value: dict[str, Any]) -> FileQuery:
    query_id = id_field(file, line, value.get("id"), "id", clean=False)
    text = text_field(file, line, value.get("input"), "input", clean=False)
    mention = _mention(file, line, text)
    answers, evidence = _outputs(file, line, value.get("output"))
    asked = mention.mention if mention else normalize(text)
    return FileQuery(query_id, asked, answers, mention=mention, evidence=evidence, line=line)


def _outputs(
    file: Path, line: int, outputs: object
) -> tuple[tuple[LabelAnswer, ...], tuple[tuple[int, ...], ...]]:
    answers: dict[LabelAnswer, int] = {}
    evidence = []
    for number, output in enumerate(_list(file, line, outputs, "output")):
        name = f"output[{number}]"
        if not isinstance(output, dict):
            wrong(file, line, name, "an object", output)
        where = f"{name}.provenance"
        pages = _list(file, line, output.get("provenance"), where)
        found = (_answer(file, line, page, f"{where}[{i}]", "wikipedia_id") for i, page in enumerate(pages))
        if pages:
            evidence.append(tuple(answers.setdefault(answer, len(answers)) for answer in found))
    return tuple(answers), tuple(evidence)


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


BEIR_HEADER = ("query-id", "corpus-id", "score")


# Line, query, document and grade, as a file of judgments has them.
_Judgment = tuple[int, str, str, str]


def _grades(
    path: Path, judgments: Iterable[_Judgment], queries_path: Path, query_ids: Collection[str]
) -> dict[str, dict[str, int]]:
    """Return query -> document -> grade; queries must be known, and no document may have two grades."""
    grades: dict[str, dict[str, int]] = {}
    for line, query_id, document_id, grade in judgments:
        if not query_id or not document_id:
            name = "query-id" if not query_id else "corpus-id"
            wrong(path, line, name, "text that is not empty", "")
        known = query_id if query_id in query_ids else decode_token(query_id)
        if known not in query_ids:
            wrong(path, line, "query-id", f"an id of {queries_path}", query_id)
        number = grade_field(path, line, grade, "score")
        documents = grades.setdefault(known, {})
        if documents.setdefault(document_id, number) != number:
            raise SourceError(
                f"{path}, line {line}: the document {document_id!r} of the query {known!r} has the "
                f"grade {documents[document_id]} already, got {number}"
            )
    return grades


def _beir_judgments(path: Path) -> Iterator[_Judgment]:
    """Read query-id, corpus-id and score, separated by tabs, below a header with these names."""

    def check_header(line: int, names: list[str]) -> None:
        if not set(BEIR_HEADER) <= set(names):
            wrong(path, line, None, f"a header with {', '.join(BEIR_HEADER)}", "\t".join(names))

    for line, row in table_rows(path, check_header):
        query_id, document_id, score = (row[name].strip() for name in BEIR_HEADER)
        yield line, query_id, document_id, score


def _trec_judgments(path: Path) -> Iterator[_Judgment]:
    """Read query, iteration, document and grade, separated by tabs if there are any, else by white space."""
    for line, text in text_lines(path):
        fields = [f.strip() for f in text.split("\t")] if "\t" in text else spaced_fields(text)
        if len(fields) != 4:
            wrong(path, line, None, "4 fields: query, 0, document, grade", f"{len(fields)}")
        yield line, fields[0], fields[2], fields[3]


_COMPRESSED = ("", ".gz", ".zst")


def read_beir(spec: SetSpec) -> tuple[list[FileQuery], list[Path]]:
    """Read a folder in the format of BEIR, in the order of queries.jsonl."""
    folder = Path(spec.path)
    if not folder.is_dir():
        raise SourceError(f"{folder}: expected a folder with queries.jsonl and qrels/")
    queries_file = _file(folder / "queries.jsonl")
    if queries_file is None:
        raise SourceError(f"{folder / 'queries.jsonl'}: no such file")
    read = _distinct(queries_file, _json_queries(queries_file, ("_id",), ("text",)), "_id")
    qrels = _qrels_file(folder, spec.qrels)
    grades = _grades(qrels, _beir_judgments(qrels), queries_file, read)
    files = [queries_file, qrels]
    titles: dict[str, str] = {}
    corpus = _file(folder / "corpus.jsonl")
    if corpus is not None:
        titles = _read_titles(corpus, {document for documents in grades.values() for document in documents})
        files.append(corpus)
    queries = []
    for query_id, query in read.items():
        judged = grades.get(query_id, {}).items()
        queries.append(replace(query, answers=tuple(LabelAnswer(d, titles.get(d), g) for d, g in judged)))
    return queries, files


def _read_titles(file: Path, judged: set[str]) -> dict[str, str]:
    """Return the titles of the judged documents; memory does not grow with the corpus."""
    titles: dict[str, str] = {}
    for line, value in json_objects(file):
        document = id_field(file, line, value.get("_id"), "_id", clean=False)
        if document not in judged:
            continue
        title = value.get("title")
        if title is not None and not isinstance(title, str):
            wrong(file, line, "title", "text", title)
        if title and (clean := normalize(title)):
            titles[document] = clean
    return titles


def _qrels_file(folder: Path, name: str | None) -> Path:
    """Return the file of a split, or one that is named by its path."""
    split = name or "test"
    of_split = _file(folder / "qrels" / f"{split}.tsv")
    if of_split is not None:
        return of_split
    if name is not None and Path(name).is_file():
        return Path(name)
    found = sorted({file.name.split(".tsv")[0] for file in (folder / "qrels").glob("*.tsv*")})
    there = f"; splits there: {', '.join(found)}" if found else ""
    raise SourceError(f"{folder / 'qrels' / split}.tsv: no such file{there}")


def _file(path: Path) -> Path | None:
    """Return the file with this name, or its compressed form; None without either."""
    named = (path.with_name(path.name + ending) for ending in _COMPRESSED)
    return next((file for file in named if file.is_file()), None)


_ID_FIELDS = ("id", "_id", "qid", "query_id", "topic_id")
_TEXT_FIELDS = ("query", "text", "title")
_TAG = re.compile(r"<(/?[a-zA-Z]+)>")


def read_trec(spec: SetSpec) -> tuple[list[FileQuery], list[Path]]:
    """Read topics and judgments, in the order of the topics.

    Topics are lines of id, tab and text, JSON Lines, or classic topics between <top> and </top>, of which
    number and title are read. Document ids may be percent-encoded.
    """
    topics = Path(spec.path)
    if spec.qrels is None:
        raise SourceError(f"{topics}: the judgments are not named; expected trec:TOPICS:QRELS")
    qrels = Path(spec.qrels)
    read = _distinct(topics, _topics(topics))
    grades = _grades(qrels, _trec_judgments(qrels), topics, read)
    queries = []
    for query_id, query in read.items():
        judged = grades.get(query_id, {}).items()
        named = [(normalize(decode_token(document)), grade) for document, grade in judged]
        queries.append(replace(query, answers=tuple(LabelAnswer(n, n, g) for n, g in named)))
    return queries, [topics, qrels]


def _topics(file: Path) -> Iterator[FileQuery]:
    _, first = next(text_lines(file))
    if first.lstrip().startswith("<"):
        return _classic_topics(file)
    is_json = first.lstrip().startswith("{")
    return _json_queries(file, _ID_FIELDS, _TEXT_FIELDS) if is_json else _lines(file)


def _lines(file: Path) -> Iterator[FileQuery]:
    for line, text in text_lines(file):
        query_id, tab, query = text.partition("\t")
        if not tab:
            wrong(file, line, None, "id, tab and text", text)
        query_id = text_field(file, line, query_id.strip(), "id", clean=False)
        yield FileQuery(query_id, text_field(file, line, query, "text"), line=line)


def _json_queries(file: Path, id_names: Sequence[str], text_names: Sequence[str]) -> Iterator[FileQuery]:
    """Yield queries of JSON objects, id and text each under the first of its names that is there."""
    for line, value in json_objects(file):
        id_name = next((name for name in id_names if name in value), id_names[0])
        text_name = next((name for name in text_names if name in value), text_names[0])
        query_id = id_field(file, line, value.get(id_name), id_name, clean=False)
        yield FileQuery(query_id, text_field(file, line, value.get(text_name), text_name), line=line)


def _classic_topics(file: Path) -> Iterator[FileQuery]:
    """Yield number and title, with the line of <top>. A field ends where the next tag begins."""
    parts: dict[str, str] | None = None
    begun, tag = 0, ""
    for line, text in text_lines(file):
        pieces = _TAG.split(text)
        if parts is not None and tag:
            parts[tag] += " " + pieces[0]
        for name, content in zip(pieces[1::2], pieces[2::2], strict=True):
            name = name.lower()
            if name == "top":
                if parts is not None:
                    wrong(file, line, None, f"</top> for the <top> in line {begun}", "<top>")
                parts, begun, tag = {}, line, ""
            elif parts is None:
                wrong(file, line, None, "<top>", f"<{name}>")
            elif name == "/top":
                yield _topic(file, begun, parts)
                parts = None
            elif name.startswith("/"):
                tag = ""
            else:
                tag = name
                parts[tag] = content
    if parts is not None:
        wrong(file, begun, None, "</top> behind <top>", "the end of the file")


def _topic(file: Path, line: int, parts: dict[str, str]) -> FileQuery:
    number = re.sub(r"^\s*Number\s*:", "", parts.get("num", ""))
    title = re.sub(r"^\s*Topic\s*:", "", parts.get("title", ""))
    query_id = text_field(file, line, number.strip(), "num", clean=False)
    return FileQuery(query_id, text_field(file, line, title, "title"), line=line)


_READERS: Mapping[str, Callable[[SetSpec], tuple[list[FileQuery], list[Path]]]] = {
    "beir": read_beir,
    "kilt": read_kilt,
    "trec": read_trec,
    "mentions": read_mention_file,
    "queries": read_query_file,
}
_KINDS = {"kilt": "kilt", "mentions": "mentions"}


def read_set(spec: SetSpec, resolver: IndexResolver) -> LabelledSet:
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
    return LabelledSet(
        name=spec.name,
        kind=_KINDS.get(spec.format, "queries"),
        queries=find_answers(judged[: spec.limit], resolver),
        digest=_digest(files),
        num_unjudged=len(read) - len(judged),
    )


def _digest(files: Sequence[Path]) -> str:
    """Return the digest of a file; of several, that of their digests."""
    digests = [digest_file(file).xxh3_128 for file in files]
    return digests[0] if len(digests) == 1 else digest_bytes("\n".join(digests).encode())
