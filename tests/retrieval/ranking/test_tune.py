"""Tuning: held-out figures, their intervals, and what queries count."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from retrieval.errors import InputError
from retrieval.evidence.evidence import Evidence
from retrieval.index.reader import Index
from retrieval.ranking import tuned_ranking as tune_module
from retrieval.ranking.fitting import MADE_QUERIES, Labelled, RankedExample, outcome_of
from retrieval.ranking.rankings import DEFAULT_RANKING, Provenance
from retrieval.ranking.tuned_ranking import ALL, METRICS, QuerySet, Tuned, tune
from tests.evidence_fixtures import NoProgress, build_catalogue, evidence_of
from tests.ranking_fixtures import drawn_examples


@pytest.fixture(scope="module")
def evidence(tmp_path_factory: pytest.TempPathFactory) -> Evidence:
    folder = tmp_path_factory.mktemp("tuned")
    index = Index.open(build_catalogue(folder, ["A\ta\t\t\t\t"]))
    return evidence_of(index, folder / "fields")


def _tuned(
    monkeypatch: pytest.MonkeyPatch,
    evidence: Evidence,
    sets: list[tuple[str, list[RankedExample]]],
    folds: int = 5,
    labelled_share: float = 0.5,
    seed: int = 0,
) -> Tuned:
    """Tune to made-up examples."""
    examples = [example for _, some in sets for example in some]
    queries = [Labelled(f"query {number}", (1,)) for number in range(len(examples))]
    of_text = dict(zip([query.text for query in queries], examples, strict=True))

    def made_up(query: Labelled, _: Evidence, scored: object) -> RankedExample:
        assert scored is None
        found = of_text[query.text]
        return RankedExample(found.features, found.right, found.logprobs, query.weight, found.is_nothing)

    monkeypatch.setattr(tune_module, "example_of", made_up)
    named, begin = [], 0
    for name, some in sets:
        part = tuple(queries[begin : begin + len(some)])
        begin += len(some)
        path = None if name == MADE_QUERIES else Path(name)
        named.append(QuerySet(name, part, path, "" if path is None else "0" * 32))
    return tune(
        named,
        evidence,
        None,
        DEFAULT_RANKING,
        NoProgress(),
        folds=folds,
        labelled_share=labelled_share,
        seed=seed,
    )


def test_figures_are_of_queries_that_were_held_out(
    monkeypatch: pytest.MonkeyPatch, evidence: Evidence
) -> None:
    """Of the right candidates of each query something is known that no other query shows.

    A ranking that had seen a query would have it first. Held out, none is better than chance.
    """
    rng = np.random.default_rng(0)
    examples = drawn_examples(120, candidates=8)
    for example in examples:
        example.right[:] = False
        example.right[rng.integers(8)] = True
    tuned = _tuned(monkeypatch, evidence, [("labels.tsv", examples)])
    (report,) = tuned.reports
    assert report.num_queries == report.num_found == 120
    # One of eight at random: 0.125 with a standard deviation of 0.03.
    assert report.figures["hits@1"].after.value < 0.125 + 4 * 0.03
    assert report.figures["loss"].after.value > math.log(8) - 0.1


def test_a_ranking_that_helps_is_shown_to(monkeypatch: pytest.MonkeyPatch, evidence: Evidence) -> None:
    sets = [("one.tsv", drawn_examples(150, seed=1)), (MADE_QUERIES, drawn_examples(150, seed=2))]
    tuned = _tuned(monkeypatch, evidence, sets)
    assert [report.name for report in tuned.reports] == ["one.tsv", MADE_QUERIES, ALL]
    for report in tuned.reports:
        assert tuple(report.figures) == METRICS
        for name, figure in report.figures.items():
            for told in (figure.before, figure.after):
                assert told.low <= told.value <= told.high or name == "calibration error"
            assert figure.difference.value == pytest.approx(figure.after.value - figure.before.value)
        # By chance alone the interval of the difference would hold 0.
        assert report.figures["hits@1"].difference.low > 0
        assert report.figures["loss"].difference.high < 0
    whole = tuned.reports[-1].figures
    metrics = tuned.ranking.provenance.metrics if tuned.ranking.provenance else {}
    assert metrics["hits@1 after"] == pytest.approx(whole["hits@1"].after.value, abs=1e-4)
    assert set(metrics) == {f"{name} {when}" for name in METRICS for when in ("before", "after")}


def test_the_same_seed_gives_the_same(monkeypatch: pytest.MonkeyPatch, evidence: Evidence) -> None:
    sets = [("one.tsv", drawn_examples(60))]
    first = _tuned(monkeypatch, evidence, sets).to_json()
    assert _tuned(monkeypatch, evidence, sets).to_json() == first
    assert _tuned(monkeypatch, evidence, sets, seed=1).to_json()["sets"] != first["sets"]


def test_provenance_names_files_and_their_digests(
    monkeypatch: pytest.MonkeyPatch, evidence: Evidence
) -> None:
    sets = [("one.tsv", drawn_examples(30)), (MADE_QUERIES, drawn_examples(20, seed=1))]
    told = _tuned(monkeypatch, evidence, sets, seed=3).ranking.provenance
    assert told is not None
    assert told.queries == f"30 of one.tsv (xxh3_128 {'0' * 32}); 20 of made from the catalogue"
    assert (told.num_queries, told.seed, told.kinds) == (50, 3, evidence.kinds)


@pytest.mark.parametrize(("share", "expected"), [(0.5, 2.5), (0.8, 4.0)])
def test_labelled_queries_count_their_share(
    monkeypatch: pytest.MonkeyPatch, evidence: Evidence, share: float, expected: float
) -> None:
    seen: list[list[float]] = []
    fit = tune_module.fit

    def watched(examples: list[RankedExample], told: Provenance) -> object:
        seen.append([example.weight for example in examples])
        return fit(examples, told)

    monkeypatch.setattr(tune_module, "fit", watched)
    sets = [("one.tsv", drawn_examples(20)), (MADE_QUERIES, drawn_examples(80, seed=1))]
    _tuned(monkeypatch, evidence, sets, labelled_share=share)
    assert seen[0][:20] == pytest.approx([expected] * 20)
    assert sum(seen[0]) == pytest.approx(100)
    seen.clear()
    _tuned(monkeypatch, evidence, [("one.tsv", drawn_examples(60))], labelled_share=share)
    assert set(seen[0]) == {1.0}


def test_queries_for_nothing_are_no_misses(monkeypatch: pytest.MonkeyPatch, evidence: Evidence) -> None:
    answered = drawn_examples(80)
    nothing = [
        RankedExample(one.features - 5, np.zeros_like(one.right), None, is_nothing=True)
        for one in drawn_examples(40, seed=1)
    ]
    (report,) = _tuned(monkeypatch, evidence, [("one.tsv", answered + nothing)]).reports
    assert (report.num_queries, report.num_nothing, report.num_found) == (120, 40, 80)
    assert report.figures["hits@10"].after.value > 0.9
    # What is for nothing differs by far from what is for something.
    assert report.figures["nothing AUC"].after.value > 0.95
    assert report.figures["loss"].after.value < 1


def test_outcomes_say_what_would_be_without_the_answer() -> None:
    (example,) = drawn_examples(1)
    outcome = outcome_of(DEFAULT_RANKING, example)
    others = RankedExample(example.features[~example.right], example.right[~example.right])
    assert outcome.without == pytest.approx(outcome_of(DEFAULT_RANKING, others).nothing)
    assert math.isnan(outcome_of(DEFAULT_RANKING, others).without)
    assert outcome_of(DEFAULT_RANKING, others).place == math.inf


def test_an_area_by_hand() -> None:
    area = tune_module._area
    assert area(np.array([3.0, 2.0]), np.array([1.0, 2.0])) == pytest.approx((2 + 1.5) / 4)
    assert math.isnan(area(np.array([]), np.array([1.0])))


@pytest.mark.parametrize(
    ("options", "field"), [({"folds": 1}, "folds"), ({"labelled_share": 1.0}, "labelled_share")]
)
def test_options_out_of_range_are_errors(
    monkeypatch: pytest.MonkeyPatch, evidence: Evidence, options: dict[str, float], field: str
) -> None:
    with pytest.raises(InputError, match=field):
        _tuned(monkeypatch, evidence, [("one.tsv", drawn_examples(30))], **options)  # type: ignore[arg-type]


def test_too_few_queries_to_hold_any_out_are_an_error(
    monkeypatch: pytest.MonkeyPatch, evidence: Evidence
) -> None:
    for count in (0, 10, 21):
        with pytest.raises(InputError, match="expected at least 20"):
            _tuned(monkeypatch, evidence, [("one.tsv", drawn_examples(count))])
