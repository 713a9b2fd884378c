"""Metrics of rankings, evidence sets and linking: against other tools, definitions and examples."""

from __future__ import annotations

import math
import random
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from genret.retrieval.errors import InputError, MissingExtraError
from genret.retrieval.evaluation.labelled_sets import (
    LabelledQuery,
    MethodRun,
    RankedAnswers,
    RankedEntity,
)
from genret.retrieval.evaluation.metrics import MICRO_METRICS, evidence_ranks, measure
from tests.evaluation_sets import labelled_set, random_case, ranked, run_of

SUCCESS = ("Success@1", "Success@5", "Success@10")
NAMES = ("nDCG@10", "nDCG", "RR", "RR@10", *SUCCESS, "R@10", "R@100", "Rprec", "AP")

BEST_OF_TWO = 1 + 1 / math.log2(3)  # discounted gain of two relevant answers in the first two places


@pytest.mark.parametrize(
    ("gold", "answers", "expected"),
    [
        ({"a": 1}, ["b", "b", "a"], {"RR": 0.5}),
        ({"a": 1}, ["invalid:x", "a"], {"RR": 0.5}),
        ({"a": 2, "c": 1}, ["b", "c"], {"nDCG@10": 1.0, "R@10": 1.0, "Rprec": 1.0}),
        ({"a": 2, "c": 1}, ["b", "a", "c"], {"nDCG@10": 1.0, "R@10": 1.0, "Rprec": 1.0}),
        (
            {"a": 1, "missing:B%20C": 1},
            ["a", "x"],
            {"R@10": 0.5, "Rprec": 0.5, "nDCG@10": 1 / BEST_OF_TWO},
        ),
        ({"a": 1}, [], dict.fromkeys(NAMES, 0.0)),
        ({"New York\u2003é": 1}, ["New York\u2003é"], {"nDCG@10": 1.0}),
    ],
    ids=["given twice", "no title", "namesake", "both namesakes", "not in the index", "no answer", "any id"],
)
def test_what_answers_count(gold: dict[str, int], answers: list[str], expected: dict[str, float]) -> None:
    """Repetitions move later answers up, texts that are no titles keep their places, b is a namesake of a."""
    namesakes = {"b": "a"} if "c" in gold else {}
    labelled = labelled_set([LabelledQuery("a query\twith 'all'", "text", gold=gold, namesakes=namesakes)])
    found = measure(labelled, run_of(labelled, [answers]), list(expected))
    assert {m.name: m.value for m in found} == pytest.approx(expected)


def test_what_nothing_is_judged_for_is_no_part_of_the_mean() -> None:
    queries = [LabelledQuery("n", "nil", is_nil=True), LabelledQuery("q", "text", gold={"a": 1})]
    labelled = labelled_set(queries, "mentions")
    found = measure(labelled, run_of(labelled, [["a"], ["a"]]), ["Success@1"])[0]
    assert math.isnan(found.per_query[0])
    assert (found.per_query[1], found.value) == (1.0, 1.0)
    unjudged = labelled_set(queries[:1], "mentions")
    assert math.isnan(measure(unjudged, run_of(unjudged, [["a"]]), ["RR@10"])[0].value)


@pytest.mark.parametrize(
    ("kind", "primary"), [("queries", "nDCG@10"), ("kilt", "Rprec(KILT)"), ("mentions", "F1(InKB)")]
)
def test_the_primary_metric_of_a_kind_comes_first(kind: str, primary: str) -> None:
    labelled = labelled_set([LabelledQuery("q", "text", gold={"a": 1})], kind)
    names = [m.name for m in measure(labelled, run_of(labelled, [["a"]]))]
    assert names[0] == primary
    assert {"Success@1", "Success@10", "RR@10", "R@10", "NO_MATCH", "invalid"} <= set(names)
    assert len(set(names)) == len(names)


@pytest.mark.parametrize(
    "name", ["nDCGG@10", "", "nDCG@ten", "R@", "R@10(KILTT)", "Success@0(KILT)", "1 + 1", "R"]
)
def test_what_is_no_metric_is_refused_with_those_there_are(name: str) -> None:
    labelled, run = random_case(1)
    with pytest.raises(InputError, match=r"^metrics: .*is no metric"):
        measure(labelled, run, ["AP", name])


def test_rates_need_no_labels() -> None:
    labelled = labelled_set([LabelledQuery(f"q{i}", "text", gold={"a": 1}) for i in range(4)])
    rankings = (
        RankedAnswers("q0", ranked("a", "invalid:x", "a", "b")),
        RankedAnswers("q1", ()),
        RankedAnswers("q2", (), error="the query is too long"),
        RankedAnswers("q3", (RankedEntity("invalid:y", "y", 0.0),)),
    )
    run = MethodRun("m", "it", rankings, 1.0, None, False)
    names = ("NO_MATCH", "invalid", "invalid@1", "duplicates", "errors")
    found = {m.name: m for m in measure(labelled, run, names)}
    assert {name: m.per_query.tolist() for name, m in found.items()} == {
        "NO_MATCH": [0, 1, 0, 0],
        "invalid": [0.25, 0, 0, 1],
        "invalid@1": [0, 0, 0, 1],
        "duplicates": [0.25, 0, 0, 0],
        "errors": [0, 0, 1, 0],
    }
    assert found["invalid"].value == pytest.approx(1.25 / 4)


# Two ways to the answer, one of two pages and one of one.
SETS = (frozenset("AB"), frozenset("C"))


def _measured(
    names: Sequence[str], sets: Sequence[frozenset[str]], guesses: Sequence[str]
) -> dict[str, float]:
    gold = {page: 1 for pages in sets for page in pages}
    labelled = labelled_set([LabelledQuery("q", "text", gold=gold, evidence=tuple(sets))], "kilt")
    return {m.name: m.value for m in measure(labelled, run_of(labelled, [guesses]), names)}


def _r_precision(sets: Sequence[frozenset[str]], guesses: Sequence[str]) -> float:
    shares = []
    for pages in sets:
        distinct: list[str] = []
        for guess in guesses:
            if guess not in distinct and len(distinct) < len(pages):
                distinct.append(guess)
        shares.append(sum(guess in pages for guess in distinct) / len(pages))
    return max(shares)


def _completions(sets: Sequence[frozenset[str]], guesses: Sequence[str]) -> list[bool]:
    """The places after the last guess, each set's at its last guessed page: seen from the end."""
    distinct = list(dict.fromkeys(guesses))
    at: list[tuple[int, int, bool]] = []
    for number, pages in enumerate(dict.fromkeys(sets)):
        places = [distinct.index(page) for page in pages if page in distinct]
        if places:
            at.append((max(places), number, len(places) == len(pages)))
    in_some = frozenset().union(*sets)
    at += [(place, -1, False) for place, guess in enumerate(distinct) if guess not in in_some]
    return [complete for _, _, complete in sorted(at)]


@pytest.mark.parametrize("seed", range(60))
def test_random_sets_are_measured_as_defined(seed: int) -> None:
    random_ = random.Random(seed)
    pages = "ABCDEFGH"
    sets = [frozenset(random_.sample(pages, random_.randrange(1, 4))) for _ in range(random_.randrange(1, 5))]
    guesses = [random_.choice(pages + "uvwxyz") for _ in range(random_.randrange(1, 14))]
    k = random_.randrange(1, 8)
    found = _measured(["Rprec(KILT)", f"R@{k}(KILT)", f"Success@{k}(KILT)", f"P@{k}(KILT)"], sets, guesses)
    places = _completions(sets, guesses)
    assert evidence_ranks(tuple(dict.fromkeys(sets)), list(dict.fromkeys(guesses))) == places
    complete = sum(places[:k])
    expected = [_r_precision(sets, guesses), complete / len(set(sets)), float(complete > 0), complete / k]
    assert list(found.values()) == pytest.approx(expected, abs=1e-9)


def test_without_evidence_every_relevant_entity_is_a_set() -> None:
    labelled = labelled_set([LabelledQuery("q", "t", gold={"A": 1, "B": 2, "C": 0})])
    found = measure(labelled, run_of(labelled, [["C", "B", "A"]]), ["Rprec(KILT)", "R@2(KILT)", "R@3(KILT)"])
    assert [m.value for m in found] == [0.0, 0.5, 1.0]


@pytest.mark.parametrize(
    ("sets", "guesses", "expected"),
    [
        ((frozenset(), frozenset("A")), ["A"], [1.0, 1.0, 1.0]),
        (SETS, [], [0.0, 0.0, 0.0]),
        ((frozenset(["A", "missing:B"]),), ["A", "C"], [0.5, 0.0, 0.0]),
    ],
    ids=["an empty set is none", "no guess", "a page the index lacks"],
)
def test_odd_sets_of_evidence(sets: Any, guesses: list[str], expected: list[float]) -> None:
    assert (
        list(_measured(["Rprec(KILT)", "R@1(KILT)", "Success@5(KILT)"], sets, guesses).values()) == expected
    )


def test_a_namesake_of_a_page_completes_a_set_once() -> None:
    query = LabelledQuery("q", "t", gold={"A": 1, "B": 1}, evidence=(frozenset("AB"),), namesakes={"A2": "A"})
    labelled = labelled_set([query], "kilt")
    names = ["Rprec(KILT)", "R@1(KILT)"]
    assert [m.value for m in measure(labelled, run_of(labelled, [["A2", "B"]]), names)] == [1.0, 1.0]
    assert [m.value for m in measure(labelled, run_of(labelled, [["A2", "A"]]), names)] == [0.5, 0.0]


LINKED = (*MICRO_METRICS, "accuracy")


def _mention(number: int, *gold: str) -> LabelledQuery:
    return LabelledQuery(f"m{number}", "text", gold=dict.fromkeys(gold, 1), is_nil=not gold)


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
    right = [
        {*names[:1]} <= m.gold.keys() and bool(names) if {m.query_id} & {q for q, _ in gold} else not names
        for m, names in zip(mentions, answers, strict=True)
    ]
    accuracy, f1 = measure(labelled, run_of(labelled, answers), ["accuracy", "F1(InKB)"])
    assert accuracy.per_query.tolist() == right
    assert accuracy.value == pytest.approx(np.mean(right), abs=1e-9)
    linked = {query_id for query_id, _ in gold & said}
    assert f1.per_query.tolist() == [mention.query_id in linked for mention in mentions]
    assert f1.counts.sum(axis=0).tolist() == [len(linked), len(said), len(gold)]


@pytest.mark.parametrize(
    ("queries", "answers", "expected"),
    [
        ([_mention(0), _mention(1)], [[], []], [0.0, 0.0, 0.0, 1.0]),
        ([LabelledQuery("m", "text", gold={"A": 1}, namesakes={"B": "A"})], [["B"]], [1.0] * 4),
        ([LabelledQuery("m", "text", gold={"A": 1, "B": 0})], [["B"]], [0.0] * 4),
    ],
    ids=["nothing to divide by", "namesake", "judged irrelevant"],
)
def test_odd_answers_of_links(queries: Any, answers: list[list[str]], expected: list[float]) -> None:
    labelled = labelled_set(queries, "mentions")
    assert [m.value for m in measure(labelled, run_of(labelled, answers), LINKED)] == expected


def test_an_error_is_no_answer_and_not_right_either() -> None:
    labelled = labelled_set([_mention(0), _mention(1, "A")], "mentions")
    rankings = (RankedAnswers("m0", (), error="too long"), RankedAnswers("m1", ranked("A")))
    found = measure(labelled, MethodRun("m", "it", rankings, 1.0, None, True), LINKED)
    assert [m.value for m in found] == [1.0, 1.0, 1.0, 0.5]


def test_without_the_extra_it_is_named_and_the_rest_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ir_measures", None)
    labelled = labelled_set([LabelledQuery("q", "text", gold={"a": 1})])
    run = run_of(labelled, [["a"]])
    names = ["F1(InKB)", "Rprec(KILT)", "accuracy", "NO_MATCH"]
    assert [m.value for m in measure(labelled, run, names)] == [1.0, 1.0, 1.0, 0.0]
    with pytest.raises(MissingExtraError, match=r"generative-retrieval\[eval\]"):
        measure(labelled, run)
