"""KILT: JSON Lines with input and output; the pages behind one output are one evidence set."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from retrieval.evaluation.datasets.file_lines import id_field, json_objects, text_field, wrong
from retrieval.evaluation.datasets.labels import Answer, FileQuery
from retrieval.evaluation.datasets.spec import SetSpec
from retrieval.normalize import normalize
from retrieval.types import Mention

START, END = "[START_ENT]", "[END_ENT]"


def read_kilt(spec: SetSpec) -> tuple[list[FileQuery], list[Path]]:
    """Read a file in the format of KILT; a query without provenance has no answers.

    An input with [START_ENT] … [END_ENT] is a mention in its context. Several pages of one output are needed
    together; outputs are alternatives.

    Returns:
        The queries, and the file.

    Raises:
        SourceError: the file is missing or malformed.
    """
    file = Path(spec.path)
    queries: list[FileQuery] = []
    seen: set[str] = set()
    for line, value in json_objects(file):
        query_id = id_field(file, line, value.get("id"), "id", clean=False)
        if query_id in seen:
            wrong(file, line, "id", "an id of its own", query_id)
        seen.add(query_id)
        text = text_field(file, line, value.get("input"), "input", clean=False)
        mention = _mention(file, line, text)
        answers, evidence = _outputs(file, line, value.get("output"))
        queries.append(
            FileQuery(
                query_id,
                mention.mention if mention else normalize(text),
                answers,
                mention=mention,
                evidence=evidence,
            )
        )
    return queries, [file]


def _outputs(
    file: Path, line: int, outputs: object
) -> tuple[tuple[Answer, ...], tuple[tuple[int, ...], ...]]:
    answers: dict[Answer, int] = {}
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


def _page(file: Path, line: int, page: Any, name: str) -> Answer:
    if not isinstance(page, dict):
        wrong(file, line, name, "an object", page)
    title, page_id = page.get("title"), page.get("wikipedia_id")
    if title is None and page_id is None:
        wrong(file, line, name, "title or wikipedia_id", page)
    return Answer(
        None if page_id is None else id_field(file, line, page_id, f"{name}.wikipedia_id"),
        None if title is None else text_field(file, line, title, f"{name}.title"),
    )


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
