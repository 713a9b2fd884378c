"""Labelled sets over the small catalogue of `tests.checkpoints`, for tests of evaluations."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from genret.retrieval.evaluation.labelled_sets import LabelledQuery, LabelledSet, RankedAnswers
from genret.retrieval.evaluation.methods.evaluated_method import EvaluatedMethod, MethodMaker
from genret.retrieval.retriever import Retriever
from genret.retrieval.types import Mention
from tests.evaluation_sets import write_lines

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


def make_method(text: str, retriever: Retriever, k: int, batch_size: int) -> EvaluatedMethod:
    return MethodMaker(retriever, k, batch_size).make(text)


def answered(rankings: Sequence[RankedAnswers]) -> list[tuple[str, ...]]:
    return [tuple(entity.entity_id for entity in ranking.entities) for ranking in rankings]


def query_set(name: str = "asked") -> LabelledSet:
    queries = tuple(LabelledQuery(i, text, gold={gold: 1}) for i, text, gold in QUERIES)
    return LabelledSet(name, "queries", queries, 0, "d1", "nDCG@10")


def mention_set(name: str = "marked") -> LabelledSet:
    queries = tuple(
        LabelledQuery(i, text, Mention(text, left, right), gold={gold: 1}, document=document)
        for i, left, text, right, gold, document in MENTIONS
    )
    return LabelledSet(name, "mentions", queries, 0, "d2", "F1(InKB)")


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
