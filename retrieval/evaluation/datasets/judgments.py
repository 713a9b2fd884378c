"""Judgments (qrels) of queries: which document answers a query, and how well."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from retrieval.errors import SourceError
from retrieval.evaluation.datasets.file_lines import grade_field, spaced_fields, text_lines, wrong
from retrieval.evaluation.tokens import decode_token

BEIR_HEADER = ("query-id", "corpus-id", "score")


class Judgments:
    """Judgments read line by line.

    Args:
        path: Their file.
        queries_path: The file of queries.
        query_ids: Of all queries there.

    Attributes:
        grades: Query -> document -> grade, both as the file has them first.
    """

    def __init__(self, path: str | Path, queries_path: str | Path, query_ids: Collection[str]) -> None:
        self._path = path
        self._queries_path = queries_path
        self._query_ids = query_ids
        self.grades: dict[str, dict[str, int]] = {}

    def add(self, line: int, query_id: str, document_id: str, grade: str) -> None:
        """Take one judgment.

        Raises:
            SourceError: the query is unknown, the grade is no integer, or the document has another grade.
        """
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


def read_beir_qrels(path: Path, judgments: Judgments) -> None:
    """Read query-id, corpus-id, score, separated by tabs, behind a header with these names."""
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


def read_trec_qrels(path: Path, judgments: Judgments) -> None:
    """Read query, iteration, document, grade, separated by white space, or by tabs if there are some."""
    for line, text in text_lines(path):
        fields = [f.strip() for f in text.split("\t")] if "\t" in text else spaced_fields(text)
        if len(fields) != 4:
            wrong(path, line, None, "4 fields: query, 0, document, grade", f"{len(fields)}")
        judgments.add(line, fields[0], fields[2], fields[3])
