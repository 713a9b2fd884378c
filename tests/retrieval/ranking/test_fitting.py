"""Fitting: gradients, recovered weights, bounds, probabilities of nothing, errors."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scipy.optimize import check_grad

from retrieval.errors import InputError
from retrieval.evidence.evidence import FEATURE_NUMBER, FEATURES
from retrieval.ranking import fitting
from retrieval.ranking.fitting import MIN_QUERIES, RankedExample, fit, quality_of
from retrieval.ranking.rankings import MODEL_LOGPROB, Provenance
from tests.ranking_fixtures import TRUE_WEIGHTS, drawn_examples, true_weights

_PROVENANCE = Provenance("made up", 1, ("names",))


def _losses(
    examples: list[RankedExample], monkeypatch: pytest.MonkeyPatch
) -> list[tuple[Callable[..., Any], int]]:
    """Return what is minimised, and of how many weights each is a function."""
    found: list[tuple[Callable[..., Any], int]] = []

    def minimise(loss: Callable[..., Any], start: np.ndarray, **others: Any) -> Any:
        found.append((loss, len(start)))
        return minimize(loss, start, **others)

    minimize = fitting.minimize
    monkeypatch.setattr(fitting, "minimize", minimise)
    fit(examples, _PROVENANCE)
    return found


@pytest.mark.parametrize("has_model", [False, True])
def test_slopes_are_those_of_finite_differences(monkeypatch: pytest.MonkeyPatch, has_model: bool) -> None:
    examples = drawn_examples(30, has_model=has_model)
    examples[3] = replace(examples[3], weight=5.0)
    examples[4].right[:4] = True
    examples += drawn_examples(5, seed=1, has_model=has_model, nothing_share=1.0)
    losses = _losses(examples, monkeypatch)
    assert len(losses) == 2
    rng = np.random.default_rng(0)
    for loss, count in losses:
        for _ in range(3):
            at = rng.normal(0, 1, count)
            wrong = check_grad(lambda w: loss(w)[0], lambda w: loss(w)[1], at)  # noqa: B023
            assert wrong < 1e-5 * max(1.0, float(np.abs(loss(at)[1]).max()))


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
    assert quality_of(ranking, further).calibration_error < 0.04
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


def test_queries_for_nothing_are_told_from_those_for_something() -> None:
    rng = np.random.default_rng(0)
    examples = drawn_examples(300)
    for example in examples:
        example.features[:, FEATURE_NUMBER["names.whole"]] = example.right
    for example in drawn_examples(100, seed=2):
        example.right[:] = False
        examples.append(example)
    order = rng.permutation(len(examples))
    ranking = fit([examples[at] for at in order], _PROVENANCE)
    nothing = [ranking.rank(one.features).nothing for one in examples]
    assert max(nothing[:300]) < min(nothing[300:])
