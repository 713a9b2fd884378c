"""Rankings: probabilities, shares of evidence, and their file."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest

from retrieval.errors import IndexFormatError
from retrieval.evidence.evidence import FEATURE_NUMBER, FEATURES, KINDS
from retrieval.ranking.rankings import (
    DEFAULT_RANKING,
    MODEL_LOGPROB,
    NO_MODEL,
    NOTHING_FEATURES,
    UNWEIGHED_MODEL,
    Provenance,
    Ranking,
    Rankings,
)

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


@pytest.mark.parametrize(
    "document",
    [
        pytest.param(_changed(weights={"names.colour": 1.0}), id="an unknown feature"),
        pytest.param(_changed(nothing={"colour": 1.0}), id="an unknown feature of nothing"),
        pytest.param(_changed(weights={"names.words": 10**400}), id="a number that no float holds"),
        pytest.param(_changed(weights={"names.words": None}), id="null for a weight"),
        pytest.param(_changed(weights={"names.words": "much"}), id="a text for a weight"),
        pytest.param(_changed(weights={"names.words": [1]}), id="a list for a weight"),
        pytest.param(_changed(weights=[1.0]), id="a list of weights"),
        pytest.param(_changed(weights=...), id="no weights"),
        pytest.param(_changed(nothing=...), id="no weights of nothing"),
        pytest.param(_changed(provenance=...), id="no provenance"),
        pytest.param(_changed(provenance=5), id="a number for provenance"),
        pytest.param(_changed(provenance={}), id="empty provenance"),
        pytest.param(
            _changed(provenance={"queries": "", "num_queries": 1, "kinds": [], "metrics": {}, "odd": 1}),
            id="more in provenance",
        ),
        pytest.param(
            _changed(provenance={"queries": "", "num_queries": 1, "kinds": 5, "metrics": {}}), id="odd kinds"
        ),
        pytest.param(
            _changed(provenance={"queries": "", "num_queries": 1, "kinds": [], "metrics": 5}),
            id="odd metrics",
        ),
        pytest.param({"format_version": 2, "rankings": {}}, id="another version"),
        pytest.param({"format_version": 1}, id="no rankings"),
        pytest.param({"format_version": 1, "rankings": []}, id="a list of rankings"),
        pytest.param({"format_version": 1, "rankings": {"": []}}, id="a list for a ranking"),
        pytest.param([], id="a list"),
    ],
)
def test_what_is_no_ranking_is_refused(document: Any) -> None:
    with pytest.raises(IndexFormatError, match=r"ranking\.json"):
        Rankings.from_bytes(json.dumps(document).encode())


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"\xff",
        json.dumps(_changed(weights={"names.words": float("nan")})).encode(),
        json.dumps(_changed(weights={"names.words": 5}), indent=1).replace("5", "1e999").encode(),
        b'{"format_version": 1, "rankings": {}, "rankings": {}}',
    ],
)
def test_what_is_no_such_json_is_refused(data: bytes) -> None:
    with pytest.raises(IndexFormatError, match=r"ranking\.json"):
        Rankings.from_bytes(data)
