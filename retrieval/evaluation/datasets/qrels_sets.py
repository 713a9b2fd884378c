"""Reads BEIR and TREC sets: queries in one file, judgments (qrels) in another.

BEIR is a folder with queries.jsonl, qrels/SPLIT.tsv and, for the titles of documents, corpus.jsonl. TREC is a
file of topics and one of judgments; a document is an entity by its id, or by its title.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path

from genret.retrieval.errors import SourceError
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
from genret.retrieval.evaluation.datasets.labels import FileQuery, LabelAnswer, SetSpec, decode_token
from genret.retrieval.normalize import normalize

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


def _distinct(file: Path, queries: Iterable[tuple[int, str, str]], id_name: str) -> dict[str, str]:
    """Return id -> text of queries by their lines."""
    texts: dict[str, str] = {}
    for line, query_id, text in queries:
        if query_id in texts:
            wrong(file, line, id_name, "an id of its own", query_id)
        texts[query_id] = text
    return texts


_COMPRESSED = ("", ".gz", ".zst")


def read_beir(spec: SetSpec) -> tuple[list[FileQuery], list[Path]]:
    """Read a folder in the format of BEIR, in the order of queries.jsonl."""
    folder = Path(spec.path)
    if not folder.is_dir():
        raise SourceError(f"{folder}: expected a folder with queries.jsonl and qrels/")
    queries_file = _file(folder / "queries.jsonl")
    if queries_file is None:
        raise SourceError(f"{folder / 'queries.jsonl'}: no such file")
    texts = _distinct(queries_file, _json_queries(queries_file, ("_id",), ("text",)), "_id")
    qrels = _qrels_file(folder, spec.qrels)
    grades = _grades(qrels, _beir_judgments(qrels), queries_file, texts)
    files = [queries_file, qrels]
    titles: dict[str, str] = {}
    corpus = _file(folder / "corpus.jsonl")
    if corpus is not None:
        titles = _read_titles(corpus, {document for documents in grades.values() for document in documents})
        files.append(corpus)
    queries = [
        FileQuery(i, text, tuple(LabelAnswer(d, titles.get(d), g) for d, g in grades.get(i, {}).items()))
        for i, text in texts.items()
    ]
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
    texts = _distinct(topics, _topics(topics), "id")
    grades = _grades(qrels, _trec_judgments(qrels), topics, texts)
    queries = []
    for query_id, text in texts.items():
        judged = grades.get(query_id, {}).items()
        named = [(normalize(decode_token(document)), grade) for document, grade in judged]
        queries.append(FileQuery(query_id, text, tuple(LabelAnswer(n, n, g) for n, g in named)))
    return queries, [topics, qrels]


def _topics(file: Path) -> Iterator[tuple[int, str, str]]:
    _, first = next(text_lines(file))
    if first.lstrip().startswith("<"):
        return _classic_topics(file)
    is_json = first.lstrip().startswith("{")
    return _json_queries(file, _ID_FIELDS, _TEXT_FIELDS) if is_json else _lines(file)


def _lines(file: Path) -> Iterator[tuple[int, str, str]]:
    for line, text in text_lines(file):
        query_id, tab, query = text.partition("\t")
        if not tab:
            wrong(file, line, None, "id, tab and text", text)
        yield (
            line,
            text_field(file, line, query_id.strip(), "id", clean=False),
            text_field(file, line, query, "text"),
        )


def _json_queries(
    file: Path, id_names: Sequence[str], text_names: Sequence[str]
) -> Iterator[tuple[int, str, str]]:
    """Yield line, id and text of JSON objects, each under the first of its names that is there."""
    for line, value in json_objects(file):
        id_name = next((name for name in id_names if name in value), id_names[0])
        text_name = next((name for name in text_names if name in value), text_names[0])
        yield (
            line,
            id_field(file, line, value.get(id_name), id_name, clean=False),
            text_field(file, line, value.get(text_name), text_name),
        )


def _classic_topics(file: Path) -> Iterator[tuple[int, str, str]]:
    """Yield line of <top>, number and title. A field ends where the next tag begins."""
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
                yield begun, *_topic(file, begun, parts)
                parts = None
            elif name.startswith("/"):
                tag = ""
            else:
                tag = name
                parts[tag] = content
    if parts is not None:
        wrong(file, begun, None, "</top> behind <top>", "the end of the file")


def _topic(file: Path, line: int, parts: dict[str, str]) -> tuple[str, str]:
    number = re.sub(r"^\s*Number\s*:", "", parts.get("num", ""))
    title = re.sub(r"^\s*Topic\s*:", "", parts.get("title", ""))
    return text_field(file, line, number.strip(), "num", clean=False), text_field(file, line, title, "title")
