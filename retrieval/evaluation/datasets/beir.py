"""BEIR: a folder with queries.jsonl, qrels/SPLIT.tsv and, where ids alone do not say enough, corpus.jsonl."""

from __future__ import annotations

from pathlib import Path

from retrieval.errors import SourceError
from retrieval.evaluation.datasets.file_lines import id_field, json_objects, text_field, wrong
from retrieval.evaluation.datasets.judgments import Judgments, read_beir_qrels
from retrieval.evaluation.datasets.labels import Answer, FileQuery
from retrieval.evaluation.datasets.spec import SetSpec
from retrieval.normalize import normalize

_COMPRESSED = ("", ".gz", ".zst")


def read_beir(spec: SetSpec) -> tuple[list[FileQuery], list[Path]]:
    """Read a folder in the format of BEIR; queries without a judgment have no answers.

    Returns:
        The queries in the order of queries.jsonl, and the files that were read.

    Raises:
        SourceError: a file is missing or malformed.
    """
    folder = Path(spec.path)
    if not folder.is_dir():
        raise SourceError(f"{folder}: expected a folder with queries.jsonl and qrels/")
    queries_file = _file(folder / "queries.jsonl")
    if queries_file is None:
        raise SourceError(f"{folder / 'queries.jsonl'}: no such file")
    texts = _read_queries(queries_file)
    qrels = _qrels_file(folder, spec.qrels)
    judgments = Judgments(qrels, queries_file, texts)
    read_beir_qrels(qrels, judgments)
    files = [queries_file, qrels]
    titles: dict[str, str] = {}
    corpus = _file(folder / "corpus.jsonl")
    if corpus is not None:
        judged = {document for documents in judgments.grades.values() for document in documents}
        titles = _read_titles(corpus, judged)
        files.append(corpus)
    queries = [
        FileQuery(query_id, text, _answers(judgments.grades.get(query_id, {}), titles))
        for query_id, text in texts.items()
    ]
    return queries, files


def _answers(grades: dict[str, int], titles: dict[str, str]) -> tuple[Answer, ...]:
    return tuple(Answer(document, titles.get(document), grade) for document, grade in grades.items())


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
    """Return the file with this name, or its compressed form; None where there is neither."""
    named = (path.with_name(path.name + ending) for ending in _COMPRESSED)
    return next((file for file in named if file.is_file()), None)
