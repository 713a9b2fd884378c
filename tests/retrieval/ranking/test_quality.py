"""How well rankings do: hand examples, and examples as `auto` would find them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from retrieval.evidence.evidence import FEATURE_NUMBER, FEATURES
from retrieval.index.reader import Index
from retrieval.ranking.fitting import Labelled, RankedExample, calibration_error, example_of, quality_of
from retrieval.ranking.rankings import NOTHING_FEATURES, Ranking
from tests.evidence_fixtures import build_catalogue, evidence_of

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
    quality = quality_of(_by_words(), examples)
    assert quality.firsts.tolist() == [True, False, False, True, False, False, False]
    assert quality.hits == pytest.approx((2 / 7, 4 / 7))
    parts = [np.exp([3, 1, 0]), np.exp([1, 3, 0]), np.exp(np.arange(20))]
    losses = [-np.log(p[at] / p.sum()) for p, at in zip(parts, (0, 0, 9), strict=True)]
    losses += [np.log(2), 0.0, 20.0, 20.0]
    assert quality.loss == pytest.approx(np.mean(losses), rel=1e-5)


def test_of_no_queries_all_is_0() -> None:
    quality = quality_of(_by_words(), [])
    assert quality.hits == (0, 0)
    assert quality.loss == quality.calibration_error == 0


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
