"""Labelled sets, runs and a resolver for the tests of evaluation, some over the catalogue of checkpoints."""

from __future__ import annotations

import gzip
import json
import random
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from genret.retrieval.evaluation.labelled_sets import (
    LabelledQuery,
    LabelledSet,
    MethodRun,
    RankedAnswers,
    RankedEntity,
)
from genret.retrieval.evaluation.methods.evaluated_method import MethodMaker
from genret.retrieval.retriever import Retriever
from genret.retrieval.types import Mention


class DictResolver:
    """Entities by id, each with one title."""

    def __init__(self, titles: Mapping[str, str]) -> None:
        self._titles = titles

    def by_ids(self, entity_ids: Sequence[str]) -> list[str | None]:
        return [name if name in self._titles else None for name in entity_ids]

    def by_titles(self, titles: Sequence[str]) -> list[tuple[str, ...]]:
        return [tuple(e for e, known in self._titles.items() if known == title) for title in titles]


def labelled_set(queries: Sequence[LabelledQuery], kind: str = "queries", name: str = "it") -> LabelledSet:
    return LabelledSet(name, kind, tuple(queries), "0" * 32)


def ranked(*entity_ids: str, scores: Sequence[float] | None = None) -> tuple[RankedEntity, ...]:
    given = scores if scores is not None else [float(-i) for i in range(len(entity_ids))]
    return tuple(RankedEntity(e, e.title(), s) for e, s in zip(entity_ids, given, strict=True))


def run_of(
    labelled: LabelledSet,
    answers: Sequence[Sequence[str]],
    method: str = "method",
    seed: int | None = None,
    seconds: float = 0.0,
) -> MethodRun:
    """Return a run of two seconds, whose first query took so many, the second twice as many, and so on."""
    rankings = tuple(
        RankedAnswers(query.query_id, ranked(*names), seconds * place)
        for place, (query, names) in enumerate(zip(labelled.queries, answers, strict=True), 1)
    )
    return MethodRun(method, labelled.name, rankings, 2.0, seed, method != "unconstrained")


def random_case(seed: int, num_queries: int = 40, num_entities: int = 60) -> tuple[LabelledSet, MethodRun]:
    """Graded judgments and rankings with equal scores, empty rankings and answers nobody judged."""
    random_ = random.Random(seed)
    names = [f"e{i}" for i in range(num_entities)]
    queries, rankings = [], []
    for i in range(num_queries):
        gold = {e: random_.randrange(3) for e in random_.sample(names, random_.randrange(1, 12))}
        queries.append(LabelledQuery(f"q{i}", f"query {i}", gold=gold))
        found = random_.sample(names, random_.choice([0, 1, 5, 10, 25]))
        scores = sorted((float(random_.randrange(-4, 4)) for _ in found), reverse=True)
        rankings.append(RankedAnswers(f"q{i}", ranked(*found, scores=scores)))
    return labelled_set(queries), MethodRun("random", "it", tuple(rankings), 1.0, seed, True)


def write_lines(file: Path, rows: Sequence[Any]) -> Path:
    """Write texts as they are and everything else as JSON, one a line, gzipped where the name says so."""
    text = "".join(
        (row if isinstance(row, str) else json.dumps(row, ensure_ascii=False)) + "\n" for row in rows
    )
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(gzip.compress(text.encode()) if file.suffix == ".gz" else text.encode())
    return file


QUERIES = (
    ("q1", "the prince of denmark", "Q1"),
    ("q2", "scottish play by shakespeare", "Q2"),
    ("q3", "capital of germany", "Q6"),
    ("q4", "river through cairo", "Q7"),
    ("q5", "city in texas", "Q5"),
    ("q6", "liquid metal quicksilver", "Q10"),
)
MENTIONS = (
    ("m1", "They flew to ", "Paris", " in the spring.", "Q4", "doc1"),
    ("m2", "A rodeo in ", "Paris", ", Texas.", "Q5", "doc1"),
    ("m3", "He bought it at ", "Amazon", " last week.", "Q9", "doc2"),
    ("m4", "", "Madame Curie", " won twice.", "Q12", "doc3"),
)


def answer(
    retriever: Retriever,
    name: str,
    queries: Sequence[LabelledQuery],
    seed: int = 0,
    batch_size: int = 4,
    k: int = 10,
    report: Callable[[int], None] = lambda _: None,
) -> list[RankedAnswers]:
    """Return what a method of this name answers."""
    return MethodMaker(retriever, k, batch_size).make(name).answer(queries, seed, report)


def answered(rankings: Sequence[RankedAnswers]) -> list[tuple[str, ...]]:
    return [tuple(entity.entity_id for entity in ranking.entities) for ranking in rankings]


def query_set(name: str = "asked") -> LabelledSet:
    queries = tuple(LabelledQuery(i, text, gold={gold: 1}) for i, text, gold in QUERIES)
    return LabelledSet(name, "queries", queries, "d1")


def mention_set(name: str = "marked") -> LabelledSet:
    queries = tuple(
        LabelledQuery(i, text, Mention(text, left, right), gold={gold: 1}, document=document)
        for i, left, text, right, gold, document in MENTIONS
    )
    return LabelledSet(name, "mentions", queries, "d2")


def write_queries(file: Path) -> Path:
    """Write the queries as a file of the format "queries"."""
    rows = [{"id": i, "query": text, "gold": [{"entity_id": gold}]} for i, text, gold in QUERIES]
    return write_lines(file, rows)


def write_mentions(file: Path) -> Path:
    """Write the mentions as a file of the format "mentions"."""
    rows = [
        {"id": i, "doc": document, "left": left, "mention": text, "right": right, "entity_id": gold}
        for i, left, text, right, gold, document in MENTIONS
    ]
    return write_lines(file, rows)
