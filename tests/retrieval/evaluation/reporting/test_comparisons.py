"""Figures of a comparison against figures made by hand, and against those of evaluation's own parts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from genret.retrieval.evaluation.intervals import bootstrap, holm, paired_bootstrap
from genret.retrieval.evaluation.labelled_sets import LabelledSet, MethodRun, RankedAnswers, RankedEntity
from genret.retrieval.evaluation.metrics import MetricValues, measure
from genret.retrieval.evaluation.reporting.comparison import Settings, compare, make_overview, pool
from tests.evaluation_fixtures import mention_set, query_set

SETTINGS = Settings("trie", num_resamples=300)


def make_run(
    labelled: LabelledSet, method: str, answers: Sequence[str], seed: int | None = None, seconds: float = 0.01
) -> MethodRun:
    """One answer per query; "" is none."""
    entities = [(RankedEntity(answer, answer, 1.0),) if answer else () for answer in answers]
    rankings = tuple(
        RankedAnswers(query.query_id, found, seconds * i)
        for i, (query, found) in enumerate(zip(labelled.queries, entities, strict=True), 1)
    )
    return MethodRun(method, labelled.name, rankings, 2.0, seed, method != "unconstrained")


ASKED = query_set()
RIGHT = ["Q1", "Q2", "Q6", "Q7", "Q5", "Q10"]
RUNS = [
    make_run(ASKED, "trie", ["Q1", "Q3", "Q3", "Q3", "Q3", "Q3"], seed=0),
    make_run(ASKED, "unconstrained", ["Q1", "invalid:x", "", "invalid:y", "", "Q3"], seed=0),
    make_run(ASKED, "disc:2", RIGHT, seed=0),
    make_run(ASKED, "beam", ["Q1", "Q2", "Q6", "Q3", "Q3", "Q3"]),
]


def test_figures_rates_and_times() -> None:
    (comparison,) = compare([ASKED], RUNS, SETTINGS)
    by_method = {m.method: m for m in comparison.methods}
    assert list(by_method) == ["trie", "unconstrained", "disc:2", "beam"]
    assert comparison.primary == "nDCG@10"
    assert by_method["disc:2"].figures["Success@1"].interval.value == 1.0
    assert by_method["beam"].figures["Success@1"].interval.value == 0.5
    assert by_method["unconstrained"].rates["invalid"] == pytest.approx(2 / 6)
    assert by_method["unconstrained"].rates["NO_MATCH"] == pytest.approx(2 / 6)
    assert by_method["trie"].rates["invalid"] == 0.0
    times = by_method["beam"].times
    assert times is not None
    assert times.p50_ms == pytest.approx(35.0)
    assert times.mean_ms == pytest.approx(35.0)
    assert times.p99_ms == pytest.approx(np.percentile([10, 20, 30, 40, 50, 60], 99))
    assert (times.total_s, times.queries_per_s) == (2.0, 3.0)


def test_intervals_and_p_values_are_those_of_the_bootstrap() -> None:
    (comparison,) = compare([ASKED], RUNS, SETTINGS)
    measured = {run.method: {m.name: m for m in measure(ASKED, run)} for run in RUNS}
    p_values = []
    for method in comparison.methods:
        mine = measured[method.method]["nDCG@10"]
        assert method.figures["nDCG@10"].interval == bootstrap(mine, None, 300)
        if method.method == "trie":
            assert (method.difference, method.adjusted_p) == (None, None)
        else:
            assert method.difference == paired_bootstrap(mine, measured["trie"]["nDCG@10"], None, 300)
            assert method.difference.p_value is not None
            p_values.append(method.difference.p_value)
    assert [m.adjusted_p for m in comparison.methods[1:]] == holm(p_values)


def test_seeds_are_averaged_per_query_and_their_spread_is_told() -> None:
    first = make_run(ASKED, "disc:1", RIGHT, seed=0)
    second = make_run(ASKED, "disc:1", ["Q1", "Q2", "Q6", "Q3", "Q3", "Q3"], seed=1)
    (comparison,) = compare([ASKED], [first, second], Settings("disc:1", num_resamples=300))
    (method,) = comparison.methods
    figure = method.figures["Success@1"]
    assert method.seeds == (0, 1)
    assert figure.interval.value == pytest.approx(0.75)
    assert figure.spread == pytest.approx(np.std([1.0, 0.5], ddof=1))
    assert comparison.methods[0].difference is None


def test_counts_of_several_seeds_are_taken_together() -> None:
    marked = mention_set()
    runs = [
        make_run(marked, "disc:1", ["Q4", "Q5", "", ""], seed=0),
        make_run(marked, "disc:1", ["Q4", "Q4", "Q9", "Q9"], seed=1),
    ]
    values = [measure(marked, run, ["F1(InKB)"])[0] for run in runs]
    pooled = pool(values)
    assert pooled.value == pytest.approx(2 * 4 / (6 + 8))  # 4 right of 6 answers to twice 4 mentions
    assert pool(values[:1]) is values[0]


def test_methods_of_one_and_of_several_seeds_differ_where_their_answers_do() -> None:
    marked = mention_set()
    answers = ["Q4", "Q5", "", "Q12"]
    runs = [
        make_run(marked, "trie", answers, seed=0),
        make_run(marked, "trie", answers, seed=1),
        make_run(marked, "beam", answers),
    ]
    (comparison,) = compare([marked], runs, SETTINGS)
    first, second = (method.figures["F1(InKB)"].interval for method in comparison.methods)
    assert first == second
    difference = comparison.methods[1].difference
    assert difference is not None
    assert (difference.value, difference.low, difference.high, difference.p_value) == (0.0, 0.0, 0.0, 1.0)


def test_what_intervals_rest_on_is_told() -> None:
    sets = [ASKED, mention_set()]
    comparisons = compare(sets, [make_run(s, "trie", ["Q4"] * len(s.queries)) for s in sets], SETTINGS)
    assert [(c.num_resampled, c.by_document) for c in comparisons] == [(6, False), (3, True)]


def test_means_over_sets_are_resampled_within_each_set() -> None:
    """Against two sets resampled by hand, each with draws of its own."""
    other = query_set("other")
    runs = [*RUNS, *(replace(run, set_name="other") for run in RUNS)]
    comparisons = compare([ASKED, other], runs, SETTINGS)
    rows = {row.method: row for row in make_overview(comparisons, "trie").rows}
    drawn = [np.random.default_rng((0, number)).integers(6, size=(300, 6)) for number in (0, 1)]
    values = {run.method: measure(ASKED, run, ["nDCG@10"])[0].per_query for run in RUNS}
    means = {name: np.mean([v[d].mean(axis=1) for d in drawn], axis=0) for name, v in values.items()}
    for name, row in rows.items():
        assert (row.mean_low, row.mean_high) == pytest.approx(tuple(np.quantile(means[name], [0.025, 0.975])))
    assert rows["beam"].mean_low < rows["beam"].mean < rows["beam"].mean_high
    # Some resamples leave the baseline with nothing: then no ratio has an interval.
    assert (means["trie"] == 0).any()
    assert (rows["beam"].gain_low, rows["beam"].gain_high) == (None, None)
    against = {row.method: row for row in make_overview(comparisons, "disc:2").rows}
    assert (against["beam"].gain_low, against["beam"].gain_high) == pytest.approx(
        tuple(np.quantile(means["beam"] / means["disc:2"] - 1, [0.025, 0.975]))
    )
    assert (against["disc:2"].gain, against["disc:2"].gain_low) == (None, None)


def test_a_metric_without_a_meaning_for_some_queries() -> None:
    nan = float("nan")
    one = MetricValues("RR@10", 0.5, np.array([1.0, nan, 0.0]))
    two = MetricValues("RR@10", 0.5, np.array([0.0, nan, 1.0]))
    pooled = pool([one, two])
    assert pooled.value == 0.5
    assert np.array_equal(pooled.per_query, np.array([0.5, nan, 0.5]), equal_nan=True)


def test_mentions_are_resampled_by_document() -> None:
    marked = mention_set()
    run = make_run(marked, "trie", ["Q4", "Q5", "Q8", "Q12"])
    (comparison,) = compare([marked], [run], SETTINGS)
    (f1,) = measure(marked, run, ["F1(InKB)"])
    grouped = bootstrap(f1, ["a", "a", "b", "c"], 300)
    assert comparison.methods[0].figures["F1(InKB)"].interval == grouped
    assert grouped != bootstrap(f1, None, 300)


def test_metrics_asked_for_are_shown_and_the_first_leads() -> None:
    settings = Settings("trie", ("RR@10", "invalid", "P@1"), 200)
    (comparison,) = compare([ASKED], RUNS, settings)
    assert comparison.primary == "RR@10"
    assert comparison.metrics == ("RR@10", "P@1")  # rates stand in columns of their own
    assert list(comparison.methods[0].figures) == ["RR@10", "P@1"]


def test_a_run_of_another_system_has_no_times() -> None:
    run = make_run(ASKED, "run:x", RIGHT, seconds=0.0)
    (comparison,) = compare([ASKED], [run], Settings("run:x", num_resamples=200))
    assert comparison.methods[0].times is None


def test_overview_averages_over_sets_and_compares_with_the_baseline() -> None:
    other = query_set("other")
    runs = [*RUNS, *(MethodRun(r.method, "other", r.rankings, 4.0, r.seed, r.is_constrained) for r in RUNS)]
    overview = make_overview(compare([ASKED, other], runs, SETTINGS), "trie")
    rows = {row.method: row for row in overview.rows}
    assert overview.set_names == ("asked", "other")
    assert rows["disc:2"].mean == pytest.approx(1.0)
    assert rows["disc:2"].gain == pytest.approx(1.0 / rows["trie"].mean - 1)
    assert rows["trie"].gain is None
    assert rows["beam"].seconds == 6.0
    assert rows["unconstrained"].invalid == pytest.approx(1 / 3)
