"""Labelled sets, runs and a resolver for the tests of evaluation, without an index."""

from __future__ import annotations

import gzip
import json
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from genret.retrieval.evaluation.labelled_sets import (
    LabelledQuery,
    LabelledSet,
    MethodRun,
    RankedAnswers,
    RankedEntity,
)
from genret.retrieval.evaluation.metrics import PRIMARY_METRICS


class DictResolver:
    """Entities by id, each with one title."""

    def __init__(self, titles: Mapping[str, str]) -> None:
        self._titles = titles

    def by_ids(self, entity_ids: Sequence[str]) -> list[str | None]:
        return [name if name in self._titles else None for name in entity_ids]

    def by_titles(self, titles: Sequence[str]) -> list[tuple[str, ...]]:
        return [tuple(e for e, known in self._titles.items() if known == title) for title in titles]


def labelled_set(queries: Sequence[LabelledQuery], kind: str = "queries", name: str = "it") -> LabelledSet:
    return LabelledSet(name, kind, tuple(queries), 0, "0" * 32, PRIMARY_METRICS[kind])


def ranked(*entity_ids: str, scores: Sequence[float] | None = None) -> tuple[RankedEntity, ...]:
    given = scores if scores is not None else [float(-i) for i in range(len(entity_ids))]
    return tuple(RankedEntity(e, e.title(), s) for e, s in zip(entity_ids, given, strict=True))


def run_of(labelled: LabelledSet, answers: Sequence[Sequence[str]], method: str = "method") -> MethodRun:
    rankings = tuple(
        RankedAnswers(query.query_id, ranked(*names))
        for query, names in zip(labelled.queries, answers, strict=True)
    )
    return MethodRun(method, labelled.name, rankings, 1.0, None, True)


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
