"""Metrics of rankings: against ir-measures and pytrec_eval, and against their definitions."""

from __future__ import annotations

import math

import ir_measures
import numpy as np
import pytest
import pytrec_eval

from retrieval.errors import InputError
from retrieval.evaluation.labelled_sets import (
    LabelledQuery,
    LabelledSet,
    MethodRun,
    RankedAnswers,
    RankedEntity,
)
from retrieval.evaluation.metrics import measure
from tests.evaluation_sets import labelled_set, random_case, ranked, run_of

NAMES = (
    "nDCG@10",
    "nDCG",
    "RR",
    "RR@10",
    "Success@1",
    "Success@5",
    "Success@10",
    "R@10",
    "R@100",
    "Rprec",
    "AP",
)
SEEDS = (1, 2, 3, 4, 5)


def _dcg(gains: list[int]) -> float:
    return sum(gain / math.log2(place + 2) for place, gain in enumerate(gains))


def _by_definition(name: str, gold: dict[str, int], found: list[str]) -> float:
    """One metric of one ranking, from its definition."""
    name, _, at = name.partition("@")
    k = int(at) if at else len(found)
    relevant = {e for e, grade in gold.items() if grade > 0}
    hits = [e in relevant for e in found]
    if name == "nDCG":
        ideal = sorted(gold.values(), reverse=True)
        best = _dcg(ideal[: int(at)] if at else ideal)
        return _dcg([gold.get(e, 0) for e in found[:k]]) / best if best else 0.0
    if name == "RR":
        return next((1 / place for place, hit in enumerate(hits[:k], 1) if hit), 0.0)
    if name == "Success":
        return float(any(hits[:k]))
    if not relevant:
        return 0.0
    if name == "R":
        return sum(hits[:k]) / len(relevant)
    if name == "Rprec":
        return sum(hits[: len(relevant)]) / len(relevant)
    assert name == "AP"
    return sum(sum(hits[:place]) / place for place, hit in enumerate(hits, 1) if hit) / len(relevant)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", NAMES)
def test_a_metric_is_what_its_definition_says(name: str, seed: int) -> None:
    labelled, run = random_case(seed)
    (found,) = measure(labelled, run, [name])
    expected = [
        _by_definition(name, dict(q.gold), [e.entity_id for e in r.entities])
        for q, r in zip(labelled.queries, run.rankings, strict=True)
    ]
    np.testing.assert_allclose(found.per_query, expected, rtol=0, atol=1e-9)
    assert found.value == pytest.approx(np.mean(expected), abs=1e-9)


@pytest.mark.parametrize("seed", SEEDS)
def test_means_are_those_of_ir_measures_when_scores_fall_by_rank(seed: int) -> None:
    labelled, run = random_case(seed)
    qrels = {q.query_id: dict(q.gold) for q in labelled.queries}
    scores = {
        r.query_id: {e.entity_id: 1000.0 - i for i, e in enumerate(r.entities)}
        for r in run.rankings
        if r.entities
    }
    measures = [ir_measures.parse_measure(name) for name in NAMES]
    expected = ir_measures.calc_aggregate(measures, qrels, scores)
    for found, parsed in zip(measure(labelled, run, NAMES), measures, strict=True):
        assert found.value == pytest.approx(expected[parsed], abs=1e-9)


@pytest.mark.parametrize("seed", SEEDS)
def test_values_per_query_are_those_of_pytrec_eval(seed: int) -> None:
    labelled, run = random_case(seed)
    qrels = {q.query_id: dict(q.gold) for q in labelled.queries}
    scores = {
        r.query_id: {e.entity_id: -float(i) for i, e in enumerate(r.entities)}
        for r in run.rankings
        if r.entities
    }
    theirs = pytrec_eval.RelevanceEvaluator(
        qrels, {"ndcg_cut_10", "recip_rank", "map", "Rprec", "recall_100"}
    )
    expected = theirs.evaluate(scores)
    names = {
        "nDCG@10": "ndcg_cut_10",
        "RR": "recip_rank",
        "AP": "map",
        "Rprec": "Rprec",
        "R@100": "recall_100",
    }
    for found in measure(labelled, run, list(names)):
        for query, value in zip(labelled.queries, found.per_query, strict=True):
            by_name = expected.get(query.query_id)
            assert value == pytest.approx(by_name[names[found.name]] if by_name else 0.0, abs=1e-9)


def test_equal_scores_leave_the_order_of_the_ranking() -> None:
    labelled = labelled_set([LabelledQuery("q", "text", gold={"a": 1})])
    for order, reciprocal in ((("a", "b"), 1.0), (("b", "a"), 0.5)):
        run = MethodRun("m", "it", (RankedAnswers("q", ranked(*order, scores=[1.0, 1.0])),), 1.0, None, True)
        assert measure(labelled, run, ["RR"])[0].value == reciprocal


def test_answers_given_twice_count_once_and_later_ones_move_up() -> None:
    labelled = labelled_set([LabelledQuery("q", "text", gold={"a": 1})])
    run = run_of(labelled, [["b", "b", "a"]])
    assert measure(labelled, run, ["RR"])[0].value == 0.5


def test_a_text_that_is_no_title_keeps_its_place() -> None:
    labelled = labelled_set([LabelledQuery("q", "text", gold={"a": 1})])
    assert measure(labelled, run_of(labelled, [["invalid:x", "a"]]), ["RR"])[0].value == 0.5


def test_namesakes_count_as_the_entity_that_is_judged() -> None:
    query = LabelledQuery("q", "text", gold={"a": 2, "c": 1}, namesakes={"b": "a"})
    labelled = labelled_set([query])
    alone, both = (
        {m.name: m.value for m in measure(labelled, run_of(labelled, [names]), ["nDCG@10", "R@10", "Rprec"])}
        for names in (["b", "c"], ["b", "a", "c"])
    )
    assert alone == both == pytest.approx({"nDCG@10": 1.0, "R@10": 1.0, "Rprec": 1.0})


def test_relevant_answers_the_index_lacks_lower_recall() -> None:
    labelled = labelled_set([LabelledQuery("q", "text", gold={"a": 1, "missing:B%20C": 1})])
    found = measure(labelled, run_of(labelled, [["a", "x"]]), ["R@10", "Rprec", "nDCG@10"])
    assert [m.value for m in found] == pytest.approx([0.5, 0.5, 1 / (1 + 1 / math.log2(3))])


def test_what_nothing_is_judged_for_is_no_part_of_the_mean() -> None:
    queries = [LabelledQuery("n", "nil", is_nil=True), LabelledQuery("q", "text", gold={"a": 1})]
    labelled = labelled_set(queries, "mentions")
    found = measure(labelled, run_of(labelled, [["a"], ["a"]]), ["Success@1"])[0]
    assert math.isnan(found.per_query[0])
    assert (found.per_query[1], found.value) == (1.0, 1.0)


def test_a_set_without_any_judgment_has_no_value() -> None:
    labelled = labelled_set([LabelledQuery("n", "nil", is_nil=True)], "mentions")
    assert math.isnan(measure(labelled, run_of(labelled, [["a"]]), ["RR@10"])[0].value)


def test_a_run_without_any_answer_is_worth_nothing() -> None:
    labelled = labelled_set([LabelledQuery("q", "text", gold={"a": 1})])
    assert [m.value for m in measure(labelled, run_of(labelled, [[]]), NAMES)] == [0.0] * len(NAMES)


def test_ids_of_any_text_are_measured() -> None:
    labelled = labelled_set([LabelledQuery("a query\twith 'all'", "text", gold={"New York\u2003é": 1})])
    assert measure(labelled, run_of(labelled, [["New York\u2003é"]]), ["nDCG@10"])[0].value == 1.0


@pytest.mark.parametrize(
    ("kind", "primary"), [("queries", "nDCG@10"), ("kilt", "Rprec(KILT)"), ("mentions", "F1(InKB)")]
)
def test_the_primary_metric_of_a_kind_comes_first(kind: str, primary: str) -> None:
    labelled = labelled_set([LabelledQuery("q", "text", gold={"a": 1})], kind)
    names = [m.name for m in measure(labelled, run_of(labelled, [["a"]]))]
    assert names[0] == labelled.primary == primary
    assert {"Success@1", "Success@10", "RR@10", "R@10", "NO_MATCH", "invalid"} <= set(names)
    assert len(set(names)) == len(names)


@pytest.mark.parametrize(
    "name", ["nDCGG@10", "", "nDCG@ten", "R@", "R@10(KILTT)", "Success@0(KILT)", "1 + 1", "R"]
)
def test_what_is_no_metric_is_refused_with_those_there_are(name: str) -> None:
    labelled, run = random_case(1)
    with pytest.raises(InputError, match="is no metric") as caught:
        measure(labelled, run, ["AP", name])
    assert caught.value.field == "metrics"


def test_the_run_of_another_set_is_refused() -> None:
    labelled, run = random_case(1)
    fewer = LabelledSet("less", "queries", labelled.queries[1:], 0, "", "nDCG@10")
    with pytest.raises(InputError, match="expected 39 rankings, one per query of less, got 40"):
        measure(fewer, run)
    other = MethodRun("m", "it", (RankedAnswers("zz", ()), *run.rankings[1:]), 1.0, None, True)
    with pytest.raises(InputError, match=r"run.rankings\[0\]: expected the query 'q0' of it, got 'zz'"):
        measure(labelled, other)


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
