"""Reads BEIR and TREC sets: queries in one file, judgments (qrels) in another.

BEIR is a folder with queries.jsonl, qrels/SPLIT.tsv and, for the titles of documents, corpus.jsonl. TREC is a
file of
topics and one of judgments; a document is an entity by its id, or by its title.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

from genret.retrieval.errors import SourceError
from genret.retrieval.evaluation.datasets.file_lines import (
    grade_field,
    id_field,
    json_objects,
    spaced_fields,
    text_field,
    text_lines,
    wrong,
)
from genret.retrieval.evaluation.datasets.labels import FileQuery, LabelAnswer, SetSpec, decode_token
from genret.retrieval.normalize import normalize

BEIR_HEADER = ("query-id", "corpus-id", "score")


class Judgments:
    """Judgments of known queries, read line by line: `grades` maps query -> document -> grade."""

    def __init__(self, path: str | Path, queries_path: str | Path, query_ids: Collection[str]) -> None:
        self._path = path
        self._queries_path = queries_path
        self._query_ids = query_ids
        self.grades: dict[str, dict[str, int]] = {}

    def add(self, line: int, query_id: str, document_id: str, grade: str) -> None:
        """Add one judgment; its query must be known, and no document may have two grades."""
        if not query_id or not document_id:
            name = "query-id" if not query_id else "corpus-id"
            wrong(self._path, line, name, "text that is not empty", "")
        known = query_id if query_id in self._query_ids else decode_token(query_id)
        if known not in self._query_ids:
            wrong(self._path, line, "query-id", f"an id of {self._queries_path}", query_id)
        number = grade_field(self._path, line, grade, "score")
        documents = self.grades.setdefault(known, {})
        if documents.setdefault(document_id, number) != number:
            raise SourceError(
                f"{self._path}, line {line}: the document {document_id!r} of the query {known!r} has the "
                f"grade {documents[document_id]} already, got {number}"
            )

    def of(self, texts: Mapping[str, str]) -> Iterator[tuple[str, str, dict[str, int]]]:
        """Yield every query of `texts` with its text and its grades."""
        for query_id, text in texts.items():
            yield query_id, text, self.grades.get(query_id, {})


def _read_beir_qrels(path: Path, judgments: Judgments) -> None:
    """Read query-id, corpus-id and score, separated by tabs, below a header with these names."""
    header: list[str] | None = None
    for line, text in text_lines(path):
        fields = [field.strip() for field in text.split("\t")]
        if header is None:
            header = fields
            missing = [name for name in BEIR_HEADER if name not in fields]
            if missing:
                wrong(path, line, None, f"a header with {', '.join(BEIR_HEADER)}", text)
            continue
        if len(fields) != len(header):
            wrong(path, line, None, f"{len(header)} fields separated by tabs", f"{len(fields)}")
        row = dict(zip(header, fields, strict=True))
        judgments.add(line, row["query-id"], row["corpus-id"], row["score"])


def _read_trec_qrels(path: Path, judgments: Judgments) -> None:
    """Read query, iteration, document and grade, separated by tabs if there are any, else by white space."""
    for line, text in text_lines(path):
        fields = [f.strip() for f in text.split("\t")] if "\t" in text else spaced_fields(text)
        if len(fields) != 4:
            wrong(path, line, None, "4 fields: query, 0, document, grade", f"{len(fields)}")
        judgments.add(line, fields[0], fields[2], fields[3])


_COMPRESSED = ("", ".gz", ".zst")


def read_beir(spec: SetSpec) -> tuple[list[FileQuery], list[Path]]:
    """Read a folder in the format of BEIR, in the order of queries.jsonl."""
    folder = Path(spec.path)
    if not folder.is_dir():
        raise SourceError(f"{folder}: expected a folder with queries.jsonl and qrels/")
    queries_file = _file(folder / "queries.jsonl")
    if queries_file is None:
        raise SourceError(f"{folder / 'queries.jsonl'}: no such file")
    texts = _read_queries(queries_file)
    qrels = _qrels_file(folder, spec.qrels)
    judgments = Judgments(qrels, queries_file, texts)
    _read_beir_qrels(qrels, judgments)
    files = [queries_file, qrels]
    titles: dict[str, str] = {}
    corpus = _file(folder / "corpus.jsonl")
    if corpus is not None:
        judged = {document for documents in judgments.grades.values() for document in documents}
        titles = _read_titles(corpus, judged)
        files.append(corpus)
    queries = [
        FileQuery(query_id, text, tuple(LabelAnswer(d, titles.get(d), g) for d, g in grades.items()))
        for query_id, text, grades in judgments.of(texts)
    ]
    return queries, files


def _read_queries(file: Path) -> dict[str, str]:
    texts: dict[str, str] = {}
    for line, value in json_objects(file):
        query_id = id_field(file, line, value.get("_id"), "_id", clean=False)
        if query_id in texts:
            wrong(file, line, "_id", "an id of its own", query_id)
        texts[query_id] = text_field(file, line, value.get("text"), "text")
    return texts


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
    texts: dict[str, str] = {}
    for line, query_id, text in _topics(topics):
        if query_id in texts:
            wrong(topics, line, "id", "an id of its own", query_id)
        texts[query_id] = text
    judgments = Judgments(qrels, topics, texts)
    _read_trec_qrels(qrels, judgments)
    queries = []
    for query_id, text, grades in judgments.of(texts):
        named = [(normalize(decode_token(document)), grade) for document, grade in grades.items()]
        queries.append(FileQuery(query_id, text, tuple(LabelAnswer(n, n, g) for n, g in named)))
    return queries, [topics, qrels]


def _topics(file: Path) -> Iterator[tuple[int, str, str]]:
    _, first = next(text_lines(file))
    if first.lstrip().startswith("<"):
        return _classic_topics(file)
    return _json_topics(file) if first.lstrip().startswith("{") else _lines(file)


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


def _json_topics(file: Path) -> Iterator[tuple[int, str, str]]:
    for line, value in json_objects(file):
        id_name = next((name for name in _ID_FIELDS if name in value), "id")
        text_name = next((name for name in _TEXT_FIELDS if name in value), "query")
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
