"""Fitting and tuning rankings: losses, made and labelled queries, held-out figures."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from scipy.optimize import check_grad
from scipy.optimize import minimize as scipy_minimize

from genret.retrieval.errors import InputError, SourceError
from genret.retrieval.evidence.evidence import FEATURE_NUMBER, FEATURES, Evidence
from genret.retrieval.index.reader import Index
from genret.retrieval.progress import StepProgress
from genret.retrieval.ranking import fitting
from genret.retrieval.ranking import tuned_ranking as tune_module
from genret.retrieval.ranking.fitting import (
    MADE_QUERIES,
    MIN_QUERIES,
    RankedExample,
    calibration_error,
    fit,
    minimize,
    outcome_of,
)
from genret.retrieval.ranking.made_queries import NAME_RECIPES, SOURCES, Labelled, make_queries
from genret.retrieval.ranking.rankings import DEFAULT_RANKING, MODEL_LOGPROB, FloatArray, Provenance
from genret.retrieval.ranking.tuned_ranking import ALL, METRICS, QuerySet, Tuned, read_query_sets, tune
from genret.retrieval.sources.source_files import digest_file
from tests.evidence_fixtures import build_catalogue, evidence_of, made_up_texts
from tests.fakes import recorded
from tests.ranking_fixtures import TRUE_WEIGHTS, drawn_examples, true_weights

_PROVENANCE = Provenance("made up", 1, ("names",))


@pytest.mark.parametrize("has_model", [False, True])
def test_slopes_are_those_of_finite_differences(monkeypatch: pytest.MonkeyPatch, has_model: bool) -> None:
    examples = drawn_examples(30, has_model=has_model)
    examples[3] = replace(examples[3], weight=5.0)
    examples[4].right[:4] = True
    examples += drawn_examples(5, seed=1, has_model=has_model, nothing_share=1.0)
    minimised = recorded(monkeypatch, fitting, "minimize")
    fit(examples, _PROVENANCE)
    assert len(minimised) == 2
    rng = np.random.default_rng(0)
    for loss, start in minimised:
        for _ in range(3):
            at = rng.normal(0, 1, len(start))
            wrong = check_grad(lambda w: loss(w)[0], lambda w: loss(w)[1], at)  # noqa: B023
            assert wrong < 1e-5 * max(1.0, float(np.abs(loss(at)[1]).max()))


@given(seed=st.integers(0, 2**32 - 1), size=st.integers(1, 12), num_bounded=st.integers(0, 12))
def test_minima_are_those_that_scipy_finds(seed: int, size: int, num_bounded: int) -> None:
    """Logistic losses with a ridge, features of very different sizes, a part of the weights bounded."""
    rng = np.random.default_rng(seed)
    table = rng.normal(0, 1, (40, size)) * 10.0 ** rng.uniform(-1, 1, size)
    signs = rng.choice([-1.0, 1.0], 40)
    floor = np.where(np.arange(size) < num_bounded, rng.choice([0.0, -1.0, 0.5], size), -np.inf)

    def loss(weights: FloatArray) -> tuple[float, FloatArray]:
        margin = signs * (table @ weights)
        slope = -(table.T @ (signs * np.exp(-np.logaddexp(0, margin)))) / len(table)
        value = float(np.logaddexp(0, -margin).mean() + 1e-2 * weights @ weights)
        return value, slope + 2e-2 * weights

    found = minimize(loss, np.zeros(size), floor=floor)
    assert (found >= floor).all()
    best = scipy_minimize(
        loss, np.zeros(size), jac=True, method="L-BFGS-B", bounds=[(low, None) for low in floor],
        options={"maxiter": 10_000, "maxfun": 100_000, "ftol": 1e-15, "gtol": 1e-9},
    )  # fmt: skip
    assert loss(found)[0] <= best.fun + 1e-10
    np.testing.assert_allclose(found, best.x, atol=1e-3)


@pytest.mark.statistical
@pytest.mark.parametrize("has_model", [False, True])
def test_weights_that_queries_were_drawn_by_are_found(has_model: bool) -> None:
    """Over 4,000 queries a standard error is at most 0.06; the ridge takes up to a tenth. alpha < 0.01."""
    ranking = fit(drawn_examples(4000, has_model=has_model), _PROVENANCE)
    np.testing.assert_allclose(ranking.weights, true_weights(has_model), rtol=0.15, atol=0.05)
    unused = [
        n for n, feature in enumerate(FEATURES) if str(feature) not in TRUE_WEIGHTS and n != MODEL_LOGPROB
    ]
    assert not ranking.weights[unused].any()
    assert ranking.provenance == _PROVENANCE


@pytest.mark.statistical
@pytest.mark.parametrize("share", [0.05, 0.3])
def test_probabilities_are_calibrated_on_further_queries(share: float) -> None:
    """Probabilities of the first candidates; over 3,000 queries 0.04 is four standard errors."""
    ranking = fit(drawn_examples(3000, nothing_share=share), _PROVENANCE)
    further = drawn_examples(3000, seed=1, nothing_share=share)
    outcomes = [outcome_of(ranking, example) for example in further]
    sure, is_right = (np.array(told) for told in zip(*((o.sure, o.place < 1) for o in outcomes), strict=True))
    assert calibration_error(sure, is_right) < 0.04
    nothing = np.array([ranking.rank(one.features).nothing for one in further])
    was_nothing = np.array([not one.right.any() for one in further])
    assert abs(nothing.mean() - was_nothing.mean()) < 0.04


def test_more_evidence_never_counts_against_an_entity() -> None:
    """Likeness and length speak against the right candidates here; only the first is bounded."""
    examples = drawn_examples(200)
    for name in ("names.likeness", "names.length"):
        for example in examples:
            example.features[:, FEATURE_NUMBER[name]] = np.where(example.right, -1.0, 1.0)
    weights = fit(examples, _PROVENANCE).weights
    assert weights[FEATURE_NUMBER["names.likeness"]] == 0
    assert weights[FEATURE_NUMBER["names.length"]] < -1


def test_a_query_that_counts_for_many_is_as_many(monkeypatch: pytest.MonkeyPatch) -> None:
    examples = drawn_examples(40)
    examples.append(drawn_examples(1, seed=5, nothing_share=1.0)[0])
    weighted = [replace(one, weight=3.0 if at % 2 else 1.0) for at, one in enumerate(examples)]
    repeated = [one for at, one in enumerate(examples) for _ in range(3 if at % 2 else 1)]
    first, second = fit(weighted, _PROVENANCE), fit(repeated, _PROVENANCE)
    # Spreads, by which the ridge is scaled, are those of the queries whatever they count.
    np.testing.assert_allclose(first.weights, second.weights, atol=0.05)


def test_too_few_queries_are_an_error() -> None:
    examples = drawn_examples(MIN_QUERIES - 1) + drawn_examples(50, nothing_share=1.0)
    with pytest.raises(InputError, match=f"at least {MIN_QUERIES} .*, got {MIN_QUERIES - 1}"):
        fit(examples, _PROVENANCE)
    with pytest.raises(InputError, match="got 0"):
        fit([], _PROVENANCE)


@pytest.mark.parametrize("candidates", [1, 5])
def test_queries_whose_candidates_are_all_right_are_an_error(candidates: int) -> None:
    examples = drawn_examples(30, candidates=candidates)
    for example in examples:
        example.right[:] = True
    with pytest.raises(InputError, match="nothing to choose"):
        fit(examples, _PROVENANCE)


def test_candidates_that_nothing_tells_apart_have_equal_probabilities() -> None:
    examples = drawn_examples(30)
    for example in examples:
        example.features[:] = 1.0
    ranking = fit(examples, _PROVENANCE)
    assert not ranking.weights.any()
    ranked = ranking.rank(examples[0].features)
    np.testing.assert_allclose(ranked.probabilities, (1 - ranked.nothing) / 12)


def test_queries_without_any_candidate_do_no_harm() -> None:
    examples = drawn_examples(30)
    empty = RankedExample(np.zeros((0, len(FEATURES)), np.float32), np.zeros(0, np.bool_))
    first, second = fit(examples, _PROVENANCE), fit([empty, *examples, empty], _PROVENANCE)
    np.testing.assert_array_equal(first.weights, second.weights)
    np.testing.assert_array_equal(first.nothing, second.nothing)


COLUMNS = ("description", "plot")
NUM_ENTITIES = 300


def _lines(has_weights: bool) -> list[str]:
    titles = made_up_texts(NUM_ENTITIES, 3, 4)
    texts = made_up_texts(NUM_ENTITIES, 4, 12)
    plots = made_up_texts(NUM_ENTITIES, 5, 12)
    return [
        f"E{number}\t{title} {number}\t{title}\t{text}\t{plot}\t{(1000 if number < 3 else 1) * has_weights}"
        for number, (title, text, plot) in enumerate(zip(titles, texts, plots, strict=True))
    ]


Made = tuple[Index, Evidence]


@pytest.fixture(scope="module", params=[False, True], ids=["no weights", "weights"])
def world(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Made]:
    folder = tmp_path_factory.mktemp("made")
    weight = "fame" if request.param else None
    with Index.open(build_catalogue(folder, _lines(request.param), weight=weight)) as index:
        past = [(number, [(f"asked {number}", 9), (f"seldom {number}", 1)]) for number in range(0, 300, 2)]
        yield index, evidence_of(index, folder / "fields", COLUMNS, past)


def _sources(made: list[Labelled]) -> Counter[str]:
    return Counter(
        "queries" if "past query" in one.recipe else "texts" if "texts" in one.recipe else "names"
        for one in made
    )


def test_the_same_seed_makes_the_same_queries(world: Made) -> None:
    index, evidence = world
    first = make_queries(index, evidence, COLUMNS, 200, seed=1)
    assert make_queries(index, evidence, COLUMNS, 200, seed=1) == first
    assert make_queries(index, evidence, COLUMNS, 200, seed=2) != first


@pytest.mark.parametrize("count", [1, 7, 200])
@pytest.mark.parametrize("columns", [(), COLUMNS[:1], COLUMNS])
def test_queries_are_never_empty_nor_too_many(world: Made, count: int, columns: tuple[str, ...]) -> None:
    index, evidence = world
    made = make_queries(index, evidence, columns, count)
    assert 0 < len(made) <= count
    for one in made:
        assert one.text.strip()
        assert 0 <= one.entities[0] < index.num_entities
        assert one.recipe


@pytest.mark.statistical
def test_sources_and_recipes_have_their_shares(world: Made) -> None:
    """A chi-squared test of the recipes at alpha = 1e-4, seeded."""
    index, evidence = world
    made: list[Labelled] = []
    for seed in range(10):
        made += make_queries(index, evidence, COLUMNS, 400, seed)
    counts = _sources(made)
    assert counts["queries"] == 10 * round(400 * SOURCES["queries"])
    assert counts["texts"] <= 10 * round(400 * SOURCES["texts"])
    assert counts["texts"] > 0.8 * 400 * 10 * SOURCES["texts"]
    recipes = Counter(one.recipe for one in made)
    shares = {name: share for name, share, _ in NAME_RECIPES}
    assert sum(shares.values()) == 100
    expected = [counts["names"] * share / 100 for share in shares.values()]
    found = [recipes[name] for name in shares]
    assert stats.chisquare(found, expected).pvalue > 1e-4


@pytest.mark.statistical
def test_what_is_meant_more_often_is_drawn_more_often(world: Made) -> None:
    """Three of 300 entities have nine tenths of the weight: 45 % of the queries from names, else 1 %.

    Of 500 queries the standard deviation is 11; alpha < 1e-6.
    """
    index, evidence = world
    made = make_queries(index, Evidence(index, {"names": evidence.fields["names"]}), (), 500)
    assert _sources(made) == {"names": 500}
    heavy = {number for number in range(300) if index.entity(number).entity_id in ("E0", "E1", "E2")}
    drawn = sum(one.entities[0] in heavy for one in made)
    if index.weights is None:
        assert drawn < 30
        assert all(one.name for one in made)
    else:
        assert 225 - 60 < drawn < 225 + 60
        assert not any(one.name for one in made)


def test_past_queries_are_drawn_by_how_often_they_were_asked(world: Made) -> None:
    index, evidence = world
    made = make_queries(index, evidence, (), 400)
    past = [one for one in made if "past query" in one.recipe]
    assert all(one.text.split()[1] == str(one.entities[0]) for one in past)
    often = sum(one.text.startswith("asked") for one in past)
    # 140 draws of 0.9: 126 with a standard deviation of 3.5.
    assert 105 <= often <= 140


def test_more_columns_of_texts_make_no_more_queries(tmp_path: Path) -> None:
    header = "title\t" + "\t".join(f"c{number}" for number in range(6))
    lines = [f"title {n}\t" + "\t".join(f"text {n} {c} of it" for c in range(6)) for n in range(50)]
    with Index.open(build_catalogue(tmp_path, lines, header)) as index:
        columns = tuple(f"c{number}" for number in range(6))
        evidence = evidence_of(index, tmp_path / "fields", columns)
        made = make_queries(index, evidence, columns, 400)
    counts = _sources(made)
    assert len(made) <= 400
    assert counts["texts"] <= 100
    assert len({one.text.casefold().split()[-1] for one in made if "texts" in one.recipe}) > 1


@pytest.fixture
def index(tmp_path: Path) -> Index:
    lines = ["A\tMercury\tQuicksilver\t\t\t", "B\tMercury\t\t\t\t", "C\tVenus\tMorning star\t\t\t"]
    return Index.open(build_catalogue(tmp_path, lines))


def _read(tmp_path: Path, index: Index, lines: list[str], *splits: str, **options: int) -> list[QuerySet]:
    file = tmp_path / "labels.tsv"
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return read_query_sets([f"{file}{split}" for split in splits or ("",)], index, **options)


def _ids(index: Index, one: QuerySet) -> list[tuple[str, list[str]]]:
    return [
        (query.text, sorted(index.entity(number).entity_id for number in query.entities))
        for query in one.queries
    ]


def test_answers_are_found_by_id_and_by_title(tmp_path: Path, index: Index) -> None:
    lines = [
        "query\tentity_id\ttitle",
        "hot planet\tC\t",
        "metal\t\tQuicksilver",
        "first\t\tMercury",
        "no\t\t",
    ]
    (one,) = _read(tmp_path, index, lines)
    # A title of several entities is right for each; an empty label says that there is none.
    assert _ids(index, one) == [("hot planet", ["C"]), ("metal", ["A"]), ("first", ["A", "B"]), ("no", [])]
    assert one.name == "labels.tsv"
    assert one.digest == digest_file(one.path).xxh3_128
    assert one.num_unknown == 0


def test_splits_are_sets(tmp_path: Path, index: Index) -> None:
    lines = ["query\tentity_id\tsplit", "a\tA\tdev", "b\tB\ttest"]
    first, second = _read(tmp_path, index, lines, "#dev", "#test")
    assert (first.name, second.name) == ("labels.tsv#dev", "labels.tsv#test")
    assert _ids(index, first) == [("a", ["A"])]
    with pytest.raises(SourceError, match="no line of the split 'train'"):
        _read(tmp_path, index, lines, "#train")


def test_json_lines_say_nothing_by_an_empty_list(tmp_path: Path, index: Index) -> None:
    file = tmp_path / "labels.jsonl"
    file.write_text(
        '{"query": "a", "gold": [{"entity_id": "A"}, {"entity_id": "B", "grade": 0}]}\n'
        '{"query": "b", "gold": []}\n{"query": "c"}\n'
        '{"query": "d", "gold": [{"entity_id": "A", "grade": 0}]}\n'
    )
    (one,) = read_query_sets([str(file)], index)
    # Nothing is known of "c", and of "d" nothing that is right.
    assert _ids(index, one) == [("a", ["A"]), ("b", [])]


def test_unknown_entities_are_named_with_their_lines(tmp_path: Path, index: Index) -> None:
    lines = ["query\tentity_id", "a\tA", "b\tX", *(f"c{number}\tY" for number in range(9))]
    with pytest.raises(SourceError) as raised:
        _read(tmp_path, index, lines)
    text = str(raised.value)
    assert text.startswith("10 queries are for entities that the index ")
    assert f"{tmp_path / 'labels.tsv'}, line 3: 'b' is for 'X'" in text
    assert text.count("line") == 5
    (one,) = _read(tmp_path, index, lines, max_unknown=10)
    assert _ids(index, one) == [("a", ["A"])]
    assert one.num_unknown == 10


def test_of_many_queries_some_are_drawn(tmp_path: Path, index: Index) -> None:
    lines = ["query\tentity_id", *(f"q{number}\tA" for number in range(50))]
    (some,) = _read(tmp_path, index, lines, limit=7)
    assert len(some.queries) == 7
    assert _read(tmp_path, index, lines, limit=7) == [some]
    (others,) = _read(tmp_path, index, lines, limit=7, seed=1)
    assert others.queries != some.queries


def test_what_names_no_file_is_an_error(tmp_path: Path, index: Index) -> None:
    for text in ("", "#dev", f"{tmp_path}/labels.tsv#"):
        with pytest.raises(InputError, match=r"FILE or FILE#SPLIT"):
            read_query_sets([text], index)
    with pytest.raises(SourceError, match="no such file"):
        read_query_sets([str(tmp_path / "gone.tsv")], index)
    # A line that says that there is no answer goes with no other line of the query.
    with pytest.raises(
        SourceError, match=r"labels\.tsv, line 3, field 'entity_id': expected one label: line 2"
    ):
        _read(tmp_path, index, ["query\tentity_id", "a\tA", "a\t"])


@pytest.fixture(scope="module")
def evidence(tmp_path_factory: pytest.TempPathFactory) -> Evidence:
    folder = tmp_path_factory.mktemp("tuned")
    index = Index.open(build_catalogue(folder, ["A\ta\t\t\t\t"]))
    return evidence_of(index, folder / "fields")


Tuning = Callable[..., Tuned]


@pytest.fixture
def tuned(monkeypatch: pytest.MonkeyPatch, evidence: Evidence) -> Tuning:
    """Return a function that tunes to made-up examples, by the name of their set."""

    def tuned(sets: dict[str, list[RankedExample]], folds: int = 5, **options: Any) -> Tuned:
        examples = [example for some in sets.values() for example in some]
        queries = iter([Labelled(f"query {number}", (1,)) for number in range(len(examples))])

        def made_up(query: Labelled, _: Evidence, scored: object) -> RankedExample:
            assert scored is None
            return replace(examples[int(query.text.split()[1])], weight=query.weight)

        monkeypatch.setattr(tune_module, "example_of", made_up)
        named = []
        for name, some in sets.items():
            path = None if name == MADE_QUERIES else Path(name)
            part = tuple(islice(queries, len(some)))
            named.append(QuerySet(name, part, path, "" if path is None else "0" * 32))
        return tune(named, evidence, None, DEFAULT_RANKING, StepProgress(), folds=folds, **options)

    return tuned


def test_figures_are_of_queries_that_were_held_out(tuned: Tuning) -> None:
    """Each query's right candidates have a feature that no other query shows.

    A ranking that had seen a query would have it first. Held out, none is better than chance.
    """
    rng = np.random.default_rng(0)
    examples = drawn_examples(120, candidates=8)
    for example in examples:
        example.right[:] = False
        example.right[rng.integers(8)] = True
    (report,) = tuned({"labels.tsv": examples}).reports
    assert report.num_queries == report.num_found == 120
    # One of eight at random: 0.125 with a standard deviation of 0.03.
    assert report.figures["hits@1"].after.value < 0.125 + 4 * 0.03
    assert report.figures["loss"].after.value > math.log(8) - 0.1


def test_a_ranking_that_helps_is_shown_to(tuned: Tuning) -> None:
    done = tuned({"one.tsv": drawn_examples(150, seed=1), MADE_QUERIES: drawn_examples(150, seed=2)})
    assert [report.name for report in done.reports] == ["one.tsv", MADE_QUERIES, ALL]
    for report in done.reports:
        assert tuple(report.figures) == METRICS
        for name, figure in report.figures.items():
            for told in (figure.before, figure.after):
                assert told.low <= told.value <= told.high or name == "calibration error"
            assert figure.difference.value == pytest.approx(figure.after.value - figure.before.value)
        # By chance alone the interval of the difference would hold 0.
        assert report.figures["hits@1"].difference.low > 0
        assert report.figures["loss"].difference.high < 0
    whole = done.reports[-1].figures
    metrics = done.ranking.provenance.metrics if done.ranking.provenance else {}
    assert metrics["hits@1 after"] == pytest.approx(whole["hits@1"].after.value, abs=1e-4)
    assert set(metrics) == {f"{name} {when}" for name in METRICS for when in ("before", "after")}


def test_the_same_seed_gives_the_same(tuned: Tuning) -> None:
    sets = {"one.tsv": drawn_examples(60)}
    first = tuned(sets).to_dict()
    assert tuned(sets).to_dict() == first
    assert tuned(sets, seed=1).to_dict()["sets"] != first["sets"]


def test_provenance_names_files_and_their_digests(tuned: Tuning, evidence: Evidence) -> None:
    sets = {"one.tsv": drawn_examples(30), MADE_QUERIES: drawn_examples(20, seed=1)}
    told = tuned(sets, seed=3).ranking.provenance
    assert told.queries == f"30 of one.tsv (xxh3_128 {'0' * 32}); 20 of made from the catalogue"
    assert (told.num_queries, told.seed, told.kinds) == (50, 3, evidence.kinds)


@pytest.mark.parametrize(("share", "expected"), [(0.5, 2.5), (0.8, 4.0)])
def test_labelled_queries_count_their_share(
    monkeypatch: pytest.MonkeyPatch, tuned: Tuning, share: float, expected: float
) -> None:
    fits = recorded(monkeypatch, tune_module, "fit")
    sets = {"one.tsv": drawn_examples(20), MADE_QUERIES: drawn_examples(80, seed=1)}
    tuned(sets, labelled_share=share)
    weights = [example.weight for example in fits[0][0]]
    assert weights[:20] == pytest.approx([expected] * 20)
    assert sum(weights) == pytest.approx(100)
    fits.clear()
    tuned({"one.tsv": drawn_examples(60)}, labelled_share=share)
    assert {example.weight for example in fits[0][0]} == {1.0}


def test_queries_for_nothing_are_no_misses(tuned: Tuning) -> None:
    answered = drawn_examples(80)
    nothing = [
        RankedExample(one.features - 5, np.zeros_like(one.right), None, is_nothing=True)
        for one in drawn_examples(40, seed=1)
    ]
    (report,) = tuned({"one.tsv": answered + nothing}).reports
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
    ("options", "message"), [({"folds": 1}, "folds"), ({"labelled_share": 1.0}, "labelled_share")]
)
def test_options_out_of_range_are_errors(tuned: Tuning, options: dict[str, float], message: str) -> None:
    with pytest.raises(InputError, match=message):
        tuned({"one.tsv": drawn_examples(30)}, **options)


@pytest.mark.parametrize("count", [0, 10, 21])
def test_too_few_queries_to_hold_any_out_are_an_error(tuned: Tuning, count: int) -> None:
    with pytest.raises(InputError, match="expected at least 20"):
        tuned({"one.tsv": drawn_examples(count)})
