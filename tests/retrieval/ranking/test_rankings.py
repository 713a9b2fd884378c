"""Rankings: probabilities, shares, their quality, their file, and the tables of docs/ranking.md."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from genret.retrieval.errors import IndexFormatError
from genret.retrieval.evidence.evidence import FEATURE_NUMBER, FEATURES, KINDS
from genret.retrieval.evidence.field import QUERIES, TEXTS
from genret.retrieval.index.reader import Index
from genret.retrieval.ranking.fitting import (
    MIN_ENTITIES,
    RankedExample,
    calibration_error,
    example_of,
    outcome_of,
)
from genret.retrieval.ranking.made_queries import NAME_RECIPES, NUM_QUERIES, SOURCES, Labelled, num_queries
from genret.retrieval.ranking.ranker import PROPOSALS
from genret.retrieval.ranking.rankings import (
    DEFAULT_RANKING,
    MODEL_LOGPROB,
    NO_MODEL,
    NOTHING_FEATURES,
    UNWEIGHED_MODEL,
    Provenance,
    Ranking,
    Rankings,
)
from genret.retrieval.ranking.tuned_ranking import METRICS
from genret.retrieval.types import DEFAULT_AUTO_SIZE, DEFAULT_NUM_RANKED
from tests.e2e.pages import text_of
from tests.evidence_fixtures import build_catalogue, evidence_of

_RNG = np.random.default_rng(1)
RANKING = Ranking(
    np.round(_RNG.normal(0, 1, len(FEATURES)), 6),
    np.round(_RNG.normal(0, 0.1, len(NOTHING_FEATURES)), 6),
    Provenance("labels.tsv", 400, ("names", "model"), 7, {"hits@1 before": 0.5, "hits@1": 0.75}),
)


def _features(count: int) -> np.ndarray:
    return np.random.default_rng(count).random((count, len(FEATURES))).astype(np.float32)


@pytest.mark.parametrize("has_model", [False, True])
def test_probabilities_are_a_softmax_beside_nothing(has_model: bool) -> None:
    features = _features(5)
    logprobs = [-1.0, -2.5, -math.inf, -60.0, 0.0] if has_model else None
    ranked = RANKING.rank(features, logprobs)
    scores = []
    for row in range(5):
        values = features[row].astype(float).tolist()
        if logprobs is not None:
            values[MODEL_LOGPROB] = max(logprobs[row], -40.0)
        scores.append(
            math.fsum(value * weight for value, weight in zip(values, RANKING.weights, strict=True))
        )
    np.testing.assert_allclose(ranked.scores, scores)
    total = math.fsum(map(math.exp, scores))
    np.testing.assert_allclose(
        ranked.probabilities, [(1 - ranked.nothing) * math.exp(score) / total for score in scores]
    )
    assert ranked.probabilities.sum() + ranked.nothing == pytest.approx(1)
    np.testing.assert_allclose(ranked.shares.sum(axis=1), ranked.scores)
    assert ranked.shares.shape == (5, len(KINDS))
    texts = [FEATURE_NUMBER["texts.words"], FEATURE_NUMBER["texts.letters"]]
    np.testing.assert_allclose(
        ranked.shares[:, KINDS.index("texts")], features[:, texts] @ RANKING.weights[texts], rtol=1e-6
    )


def test_nothing_is_a_logistic_function_of_the_best_values() -> None:
    features = _features(4)
    ranked = RANKING.rank(features, [-1.0, -2.0, -3.0, -4.0])
    top = float((np.exp(ranked.scores) / np.exp(ranked.scores).sum()).max())
    known = {"bias": 1.0, "certainty": math.log(1 - top), "score": float(ranked.scores.max())}
    known["model.logprob"] = -1.0
    odds = math.fsum(
        weight
        * known.get(name, float(features[:, FEATURE_NUMBER[name]].max()) if name in FEATURE_NUMBER else 0)
        for name, weight in zip(NOTHING_FEATURES, RANKING.nothing, strict=True)
    )
    assert ranked.nothing == pytest.approx(1 / (1 + math.exp(-odds)))


def test_no_candidate_means_that_nothing_fits() -> None:
    ranked = RANKING.rank(_features(0))
    assert ranked.nothing == 1.0
    assert len(ranked.scores) == len(ranked.probabilities) == 0
    assert ranked.shares.shape == (0, len(KINDS))


def test_huge_odds_are_no_overflow() -> None:
    for bias, nothing in ((1e9, 1.0), (-1e9, 0.0)):
        ranking = Ranking(RANKING.weights, np.array([bias, *[0.0] * (len(NOTHING_FEATURES) - 1)]))
        assert ranking.rank(_features(3)).nothing == pytest.approx(nothing)


def test_rankings_come_back_from_their_file() -> None:
    rankings = Rankings().with_one(NO_MODEL, RANKING).with_one("xxh3:1", DEFAULT_RANKING)
    data = rankings.to_bytes()
    again = Rankings.from_bytes(data)
    assert again.to_bytes() == data
    assert Rankings().with_one("xxh3:1", DEFAULT_RANKING).with_one(NO_MODEL, RANKING).to_bytes() == data
    assert set(again.fitted) == {NO_MODEL, "xxh3:1"}
    for name, ranking in rankings.fitted.items():
        np.testing.assert_array_equal(again.fitted[name].weights, ranking.weights)
        np.testing.assert_array_equal(again.fitted[name].nothing, ranking.nothing)
        assert again.fitted[name].provenance == ranking.provenance
    assert rankings.with_one(NO_MODEL, DEFAULT_RANKING).fitted[NO_MODEL] is DEFAULT_RANKING


def test_a_model_that_was_not_weighed_counts_little() -> None:
    rankings = Rankings({NO_MODEL: RANKING, "xxh3:1": DEFAULT_RANKING})
    assert rankings.of("xxh3:1") == (DEFAULT_RANKING, True)
    assert rankings.of(NO_MODEL) == (RANKING, True)
    other, was_weighed = rankings.of("xxh3:2")
    assert not was_weighed
    assert other.weights[MODEL_LOGPROB] == UNWEIGHED_MODEL
    same = np.delete(np.arange(len(FEATURES)), MODEL_LOGPROB)
    np.testing.assert_array_equal(other.weights[same], RANKING.weights[same])
    assert Rankings().of(NO_MODEL) == (DEFAULT_RANKING, False)


def _changed(**changes: Any) -> dict[str, Any]:
    ranking = {**RANKING.to_json(), **changes}
    return {"format_version": 1, "rankings": {NO_MODEL: {k: v for k, v in ranking.items() if v is not ...}}}


def _told(**changes: Any) -> dict[str, Any]:
    told = {"queries": "", "num_queries": 1, "kinds": [], "metrics": {}}
    return _changed(provenance={**told, **changes})


# What is wrong with a ranking -> the document, or its bytes.
WRONG = {
    "an unknown feature": _changed(weights={"names.colour": 1.0}),
    "an unknown feature of nothing": _changed(nothing={"colour": 1.0}),
    "a number that no float holds": _changed(weights={"names.words": 10**400}),
    "null for a weight": _changed(weights={"names.words": None}),
    "a text for a weight": _changed(weights={"names.words": "much"}),
    "a list for a weight": _changed(weights={"names.words": [1]}),
    "a list of weights": _changed(weights=[1.0]),
    "no weights": _changed(weights=...),
    "no weights of nothing": _changed(nothing=...),
    "no provenance": _changed(provenance=...),
    "a number for provenance": _changed(provenance=5),
    "empty provenance": _changed(provenance={}),
    "more in provenance": _told(odd=1),
    "odd kinds": _told(kinds=5),
    "odd metrics": _told(metrics=5),
    "another version": {"format_version": 2, "rankings": {}},
    "no rankings": {"format_version": 1},
    "a list of rankings": {"format_version": 1, "rankings": []},
    "a list for a ranking": {"format_version": 1, "rankings": {"": []}},
    "a list": [],
    "no bytes": b"",
    "half an object": b"{",
    "no text": b"\xff",
    "NaN": json.dumps(_changed(weights={"names.words": float("nan")})).encode(),
    "infinity": json.dumps(_changed(weights={"names.words": 5}), indent=1).replace("5", "1e999").encode(),
    "a name twice": b'{"format_version": 1, "rankings": {}, "rankings": {}}',
}


@pytest.mark.parametrize("document", list(WRONG.values()), ids=list(WRONG))
def test_what_is_no_ranking_is_refused(document: Any) -> None:
    with pytest.raises(IndexFormatError, match=r"ranking\.json"):
        Rankings.from_bytes(document if isinstance(document, bytes) else json.dumps(document).encode())


_SCORE = FEATURE_NUMBER["names.words"]


def _by_words(bias: float = -50.0) -> Ranking:
    """Return a ranking by one feature; with this bias something always fits."""
    weights, nothing = np.zeros(len(FEATURES)), np.zeros(len(NOTHING_FEATURES))
    weights[_SCORE], nothing[0] = 1.0, bias
    return Ranking(weights, nothing)


def _example(scores: list[float], right: list[int]) -> RankedExample:
    features = np.zeros((len(scores), len(FEATURES)), np.float32)
    features[:, _SCORE] = scores
    is_right = np.zeros(len(scores), np.bool_)
    is_right[right] = True
    return RankedExample(features, is_right)


def test_calibration_error_by_hand() -> None:
    sure = np.array([0.95, 0.95, 0.95, 1.0, 0.15, 0.0])
    is_right = np.array([True, True, False, True, True, False])
    # Bins: the last one has 3.85 of 4 expected and 3 right, the second 0.15 and 1, the first 0 and 0.
    assert calibration_error(sure, is_right) == pytest.approx((0.85 + 0.85 + 0) / 6)
    assert calibration_error(np.empty(0), np.empty(0, np.bool_)) == 0


def test_hits_and_losses_by_hand() -> None:
    examples = [
        _example([3, 1, 0], [0]),
        _example([1, 3, 0], [0]),
        _example([2, 2], [1]),  # equal: the other one counts as first
        _example([2, 2], [0, 1]),
        _example([*range(20)], [9]),  # eleventh
        _example([1, 2], []),
        _example([], []),
    ]
    outcomes = [outcome_of(_by_words(), example) for example in examples]
    assert [outcome.place for outcome in outcomes] == [0, 1, 1, 0, 10, np.inf, np.inf]
    parts = [np.exp([3, 1, 0]), np.exp([1, 3, 0]), np.exp(np.arange(20))]
    first, second, last = (-np.log(p[at] / p.sum()) for p, at in zip(parts, (0, 0, 9), strict=True))
    losses = [first, second, np.log(2), 0.0, last, 20.0, 20.0]
    assert [outcome.loss for outcome in outcomes] == pytest.approx(losses, rel=1e-5)


@pytest.fixture
def index(tmp_path: Path) -> Index:
    lines = [
        "A\tMercury\t\tA planet\t\t",
        "B\tMercury\t\tA metal\t\t",
        "C\tVenus\tMorning star\tA planet\t\t",
    ]
    return Index.open(build_catalogue(tmp_path, lines))


def test_candidates_are_those_that_evidence_proposes(index: Index, tmp_path: Path) -> None:
    evidence = evidence_of(index, tmp_path / "fields", ("description",))
    venus = [index.entity(n).entity_id for n in range(3)].index("C")
    example = example_of(Labelled("venus", (venus,)), evidence)
    assert example.right.tolist() == [True]
    assert example.logprobs is None
    example = example_of(Labelled("zzz", (venus,)), evidence)
    assert len(example.right) == 0
    example = example_of(Labelled("planet", (), weight=3.0), evidence)
    assert example.right.tolist() == [False, False]
    assert example.weight == 3.0


def test_whoever_has_the_same_name_is_right_too(index: Index, tmp_path: Path) -> None:
    evidence = evidence_of(index, tmp_path / "fields", ("description",))
    first = [index.entity(n).entity_id for n in range(3)].index("A")
    assert example_of(Labelled("mercury", (first,)), evidence).right.sum() == 1
    assert example_of(Labelled("mercury", (first,), name="Mercury"), evidence).right.tolist() == [True, True]


def test_a_model_adds_candidates_and_its_probabilities(index: Index, tmp_path: Path) -> None:
    evidence = evidence_of(index, tmp_path / "fields")
    scored = (np.arange(3), np.array([-1.0, -2.0, -90.0]))
    example = example_of(Labelled("venus", (0,)), evidence, scored)
    assert example.right.tolist() == [True, False, False]
    assert example.table()[:, FEATURE_NUMBER["model.logprob"]].tolist() == [-1, -2, -40]


def test_a_past_query_does_not_give_itself_away(index: Index, tmp_path: Path) -> None:
    evidence = evidence_of(index, tmp_path / "fields", queries=[(0, [("bright thing", 3)])])
    example = example_of(Labelled("bright thing", (0,)), evidence)
    assert example.right.sum() == 1
    columns = [FEATURE_NUMBER[f"queries.{name}"] for name in ("words", "letters", "nearest", "same")]
    assert not example.features[:, columns].any()


PAGE = text_of("docs/ranking.md")
TEXT = " ".join(PAGE.split())


def test_the_table_of_features_is_that_of_the_code() -> None:
    rows = re.findall(r"^\| `([a-z]+\.[a-z]+)` \| (.*) \|$", PAGE, re.MULTILINE)
    told = [(str(feature), feature.meaning.replace("|", r"\|")) for feature in FEATURES]
    assert rows == [(name, meaning) for name, meaning in told if not name.endswith("_long")]


def test_shares_of_made_queries_are_those_of_the_code() -> None:
    rows = re.findall(r"^\| ([^|`]*) \| (\d+) \|$", PAGE, re.MULTILINE)
    assert rows == [(name, str(share)) for name, share, _ in NAME_RECIPES]
    assert f"{SOURCES[QUERIES]:.0%}".replace("%", " %") + " of them are past queries" in TEXT
    assert f"{SOURCES[TEXTS]:.0%}".replace("%", " %") + " are parts of texts" in TEXT


def test_numbers_are_those_of_the_code() -> None:
    assert f"the best {PROPOSALS} texts by words and the best {PROPOSALS} by letter trigrams" in TEXT
    assert f"the best {DEFAULT_AUTO_SIZE} stay" in TEXT
    assert f"The {DEFAULT_NUM_RANKED} candidates that can be among the first" in TEXT
    assert f"fitted to {NUM_QUERIES[0]} queries made from the catalogue" in TEXT
    assert f"up to {NUM_QUERIES[1]} of one with 3,000 entities or more" in TEXT
    assert [num_queries(count) for count in (48, 1200, 1500, 3000, 10**7)] == [400, 400, 500, 1000, 1000]
    assert f"at least {MIN_ENTITIES} entities" in TEXT
    assert f"{UNWEIGHED_MODEL} for `model.logprob`" in TEXT
    for name in METRICS:
        assert f"`{name}`" in TEXT
