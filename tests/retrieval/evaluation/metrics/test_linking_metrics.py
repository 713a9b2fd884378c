"""InKB micro-averages: an example worked by hand, and properties of them."""

from __future__ import annotations

import random

import pytest

from retrieval.evaluation.labelled_sets import LabelledQuery, MethodRun, RankedAnswers
from retrieval.evaluation.metrics import MICRO_METRICS, measure
from tests.evaluation_sets import labelled_set, ranked, run_of

NAMES = (*MICRO_METRICS, "accuracy")


def _mention(number: int, *gold: str) -> LabelledQuery:
    return LabelledQuery(f"m{number}", "text", gold=dict.fromkeys(gold, 1), is_nil=not gold)


def test_an_example_worked_by_hand() -> None:
    # label -> answer           correct predicted gold   right
    # A -> A                       1        1      1       1
    # B -> C                       0        1      1       0
    # D -> NO_MATCH                0        0      1       0
    # E -> a text that is none     0        0      1       0
    # NIL -> F                     0        1      0       0
    # NIL -> NO_MATCH              0        0      0       1
    # not in the index -> G        0        1      0       0
    # H, then I -> H, I            1        1      1       1
    labelled = labelled_set(
        [
            _mention(0, "A"),
            _mention(1, "B"),
            _mention(2, "D"),
            _mention(3, "E"),
            _mention(4),
            _mention(5),
            _mention(6, "missing:X"),
            _mention(7, "H"),
        ],
        "mentions",
    )
    run = run_of(labelled, [["A"], ["C"], [], ["invalid:e"], ["F"], [], ["G"], ["H", "I"]])
    found = {m.name: m for m in measure(labelled, run, NAMES)}
    assert found["P(InKB)"].value == pytest.approx(2 / 5, abs=1e-9)
    assert found["R(InKB)"].value == pytest.approx(2 / 5, abs=1e-9)
    assert found["F1(InKB)"].value == pytest.approx(4 / 10, abs=1e-9)
    assert found["accuracy"].value == pytest.approx(3 / 8, abs=1e-9)
    counts = found["F1(InKB)"].counts
    assert counts is not None
    assert counts.sum(axis=0).tolist() == [2, 5, 5]
    assert found["F1(InKB)"].per_query.tolist() == [1, 0, 0, 0, 0, 0, 0, 1]


@pytest.mark.parametrize("seed", range(20))
def test_where_all_have_an_answer_and_are_answered_the_four_are_one_number(seed: int) -> None:
    random_ = random.Random(seed)
    labelled = labelled_set([_mention(i, random_.choice("ABC")) for i in range(30)], "mentions")
    run = run_of(labelled, [[random_.choice("ABC")] for _ in range(30)])
    values = {m.value for m in measure(labelled, run, NAMES)}
    assert len(values) == 1
    assert (
        values.pop()
        == sum(r.entities[0].entity_id in q.gold for q, r in zip(labelled.queries, run.rankings, strict=True))
        / 30
    )


@pytest.mark.parametrize("seed", range(30))
def test_counts_are_those_of_sets_of_annotations(seed: int) -> None:
    """As GERBIL counts: sets of (mention, entity) on both sides, without what names nothing in the index."""
    random_ = random.Random(seed)
    mentions, answers = [], []
    for i in range(40):
        label = random_.choice(["A", "B", "C", None, "missing:D"])
        mentions.append(_mention(i, *([label] if label else [])))
        answers.append(random_.choice([["A"], ["B"], ["C", "A"], [], ["invalid:x", "A"]]))
    labelled = labelled_set(mentions, "mentions")
    gold = {(m.query_id, e) for m in mentions for e in m.gold if not e.startswith("missing:")}
    said = {
        (m.query_id, names[0])
        for m, names in zip(mentions, answers, strict=True)
        if names and not names[0].startswith("invalid:")
    }
    found = {m.name: m.value for m in measure(labelled, run_of(labelled, answers), MICRO_METRICS)}
    precision, recall = len(gold & said) / len(said), len(gold & said) / len(gold)
    assert found["P(InKB)"] == pytest.approx(precision, abs=1e-9)
    assert found["R(InKB)"] == pytest.approx(recall, abs=1e-9)
    harmonic = 2 * precision * recall / (precision + recall) if precision else 0.0
    assert found["F1(InKB)"] == pytest.approx(harmonic, abs=1e-9)


def test_nothing_to_divide_by_is_0() -> None:
    labelled = labelled_set([_mention(0), _mention(1)], "mentions")
    assert [m.value for m in measure(labelled, run_of(labelled, [[], []]), MICRO_METRICS)] == [0.0, 0.0, 0.0]


def test_a_namesake_is_a_right_answer() -> None:
    query = LabelledQuery("m", "Springfield", gold={"s1": 1}, namesakes={"s2": "s1"})
    labelled = labelled_set([query], "mentions")
    assert {m.value for m in measure(labelled, run_of(labelled, [["s2"]]), NAMES)} == {1.0}


def test_an_error_is_no_answer_and_not_right_either() -> None:
    labelled = labelled_set([_mention(0), _mention(1, "A")], "mentions")
    rankings = (RankedAnswers("m0", (), error="too long"), RankedAnswers("m1", ranked("A")))
    run = MethodRun("m", "it", rankings, 1.0, None, True)
    assert {m.name: m.value for m in measure(labelled, run, NAMES)} == {
        "F1(InKB)": 1.0,
        "P(InKB)": 1.0,
        "R(InKB)": 1.0,
        "accuracy": 0.5,
    }


def test_an_entity_judged_irrelevant_is_not_right() -> None:
    labelled = labelled_set([LabelledQuery("m", "text", gold={"A": 1, "B": 0})], "mentions")
    assert {m.value for m in measure(labelled, run_of(labelled, [["B"]]), NAMES)} == {0.0}
