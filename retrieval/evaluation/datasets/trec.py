"""TREC: a file of topics and one of judgments. A document is an entity by its id, or by its title."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from retrieval.errors import SourceError
from retrieval.evaluation.datasets.file_lines import (
    id_field,
    json_objects,
    text_field,
    text_lines,
    wrong,
)
from retrieval.evaluation.datasets.judgments import Judgments, read_trec_qrels
from retrieval.evaluation.datasets.labels import Answer, FileQuery
from retrieval.evaluation.datasets.spec import SetSpec
from retrieval.evaluation.tokens import decode_token
from retrieval.normalize import normalize

_ID_FIELDS = ("id", "_id", "qid", "query_id", "topic_id")
_TEXT_FIELDS = ("query", "text", "title")
_TAG = re.compile(r"<(/?[a-zA-Z]+)>")


def read_trec(spec: SetSpec) -> tuple[list[FileQuery], list[Path]]:
    """Read topics and judgments; topics without a judgment have no answers.

    Topics are lines of id, tab and text, JSON Lines, or classic topics between <top> and </top>, of which
    number and title are read. Documents whose ids hold white space are percent-encoded.

    Returns:
        The queries in the order of the topics, and the two files.

    Raises:
        SourceError: a file is missing or malformed.
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
    read_trec_qrels(qrels, judgments)
    queries = [
        FileQuery(query_id, text, _answers(judgments.grades.get(query_id, {})))
        for query_id, text in texts.items()
    ]
    return queries, [topics, qrels]


def _answers(grades: dict[str, int]) -> tuple[Answer, ...]:
    decoded = ((normalize(decode_token(document)), grade) for document, grade in grades.items())
    return tuple(Answer(document, document, grade) for document, grade in decoded)


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
