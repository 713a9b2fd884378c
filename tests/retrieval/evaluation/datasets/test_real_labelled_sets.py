"""Real sets: DBpedia-Entity as TREC has it and as JSON Lines, and every set of mentions and of queries."""

from __future__ import annotations

import gzip
import json
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import pytest

from genret.retrieval.evaluation.datasets.labels import SetSpec, encode_token
from genret.retrieval.evaluation.datasets.readers import read_set
from genret.retrieval.evaluation.metrics import measure
from genret.retrieval.evaluation.run_files import read_run, write_qrels, write_run
from tests.evaluation_sets import run_of, write_lines
from tests.shared_titles import shared_file, wikipedia_titles

pytestmark = pytest.mark.shared_data


class _Wikipedia:
    """An index whose ids are the titles of a Wikipedia."""

    def by_ids(self, entity_ids: Sequence[str]) -> list[str | None]:
        return [name if name in _titles() else None for name in entity_ids]

    def by_titles(self, titles: Sequence[str]) -> list[tuple[str, ...]]:
        return [(title,) if title in _titles() else () for title in titles]


@cache
def _titles() -> frozenset[str]:
    return frozenset(wikipedia_titles())


def _rows(file: Path) -> list[dict[str, object]]:
    with gzip.open(file, "rt", encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


def test_dbpedia_entity_is_the_same_as_trec_and_as_json_lines(tmp_path: Path) -> None:
    queries = shared_file("queries", "dbpedia_entity_v2.dev.jsonl.gz")
    with gzip.open(
        shared_file("queries", "dbpedia_entity_v2.dev.qrels.tsv.gz"), "rt", encoding="utf-8"
    ) as lines:
        judged = [line.rstrip("\n").split("\t") for line in lines]
    topics = write_lines(tmp_path / "topics.tsv", [f"{row['id']}\t{row['query']}" for row in _rows(queries)])
    qrels = write_lines(
        tmp_path / "qrels.txt", [f"{query} 0 {encode_token(title)} {grade}" for query, title, grade in judged]
    )
    as_trec = read_set(SetSpec.parse(f"trec:{topics}:{qrels}"), _Wikipedia())
    as_json = read_set(SetSpec.parse(f"queries:{queries}"), _Wikipedia())
    assert as_trec.queries == as_json.queries
    assert len(as_trec.queries) == 44
    assert as_trec.num_missing == 0
    assert sum(len(q.gold) for q in as_trec.queries) == len(judged)


def test_the_ideal_answer_to_dbpedia_entity_is_perfect(tmp_path: Path) -> None:
    labelled = read_set(
        SetSpec.parse(f"queries:{shared_file('queries', 'dbpedia_entity_v2.dev.jsonl.gz')}"), _Wikipedia()
    )
    ideal = [sorted(q.gold, key=lambda e, q=q: -q.gold[e]) for q in labelled.queries]  # type: ignore[misc]
    run = run_of(labelled, ideal)
    assert [m.value for m in measure(labelled, run, ["nDCG@10", "nDCG", "AP", "RR@10"])] == pytest.approx(
        [1.0, 1.0, 1.0, 1.0]
    )
    write_run(tmp_path / "run.txt", labelled, run)
    write_qrels(tmp_path / "qrels.txt", labelled)
    assert {q: [e.entity_id for e in names] for q, names in read_run(tmp_path / "run.txt").items()} == {
        q.query_id: names for q, names in zip(labelled.queries, ideal, strict=True)
    }


@pytest.mark.parametrize("name", ["lgl", "msnbc", "geovirus", "iitb", "conel22", "rss500", "news_fair_v2"])
def test_every_mention_of_a_set_is_read(name: str) -> None:
    file = shared_file("el", f"{name}.dev.jsonl.gz")
    found = read_set(SetSpec.parse(f"mentions:{file}"), _Wikipedia())
    rows = _rows(file)
    assert [q.query_id for q in found.queries] == [row["id"] for row in rows]
    assert [q.is_nil for q in found.queries] == [row["title"] is None for row in rows]
    assert {q.document for q in found.queries} == {row["doc"] for row in rows}
    answers = [[title] if (title := row["title"]) else [] for row in rows]
    in_index = sum(title in _titles() for names in answers for title in names)
    values = {m.name: m.value for m in measure(found, run_of(found, answers))}  # type: ignore[arg-type]
    assert values["P(InKB)"] == pytest.approx(in_index / sum(map(len, answers)))
    assert values["R(InKB)"] == (1.0 if in_index else 0.0)


@pytest.mark.parametrize("name", ["hover", "fever", "triviaqa", "mintaka_dev", "webquestions", "lcquad1"])
def test_every_query_of_a_set_is_read(name: str) -> None:
    file = shared_file("queries", f"{name}.dev.jsonl.gz")
    found = read_set(SetSpec.parse(f"queries:{file}"), _Wikipedia())
    rows = _rows(file)
    assert len(found.queries) + found.num_unjudged == len(rows)
    assert [q.query_id for q in found.queries] == [row["id"] for row in rows if row["gold"]]
    assert all(q.gold for q in found.queries)
