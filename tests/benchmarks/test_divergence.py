"""The laws that `benchmarks/disc.py` compares results with, against enumeration."""

from __future__ import annotations

import itertools
import math
from types import ModuleType

import numpy as np
import pytest

TARGET = np.array([0.5, 0.3, 0.15, 0.05])
WEIGHTS = np.array([0.9, 0.12, 0.4, 0.05])
# A proposal must be a law: P_L / x adds up to one at one mass alone.
MASS = 1.0 / float((TARGET / WEIGHTS).sum())


@pytest.fixture
def divergence(benchmark_path: None) -> ModuleType:
    import harness.divergence

    return harness.divergence


def enumerated(num_draws: int) -> np.ndarray:
    """The law of Algorithm 1's results, over all ways K draws of phase two can come out."""
    proposal = MASS * TARGET / WEIGHTS
    chosen = np.zeros(len(TARGET))
    for drawn in itertools.product(range(len(TARGET)), repeat=num_draws):
        probability = math.prod(proposal[row] for row in drawn)
        total = sum(WEIGHTS[row] for row in drawn)
        for row in drawn:
            chosen[row] += probability * WEIGHTS[row] / total
    refused = (1 - MASS) ** num_draws
    return (1 - refused) * TARGET + refused * chosen


@pytest.mark.parametrize("num_draws", [2, 3, 5])
def test_the_law_of_results_is_that_of_algorithm_1(divergence: ModuleType, num_draws: int) -> None:
    law = divergence.law_of_results(MASS, TARGET, WEIGHTS, num_draws)
    np.testing.assert_allclose(law, enumerated(num_draws), atol=1e-9)


def test_one_draw_is_plain_constrained_sampling(divergence: ModuleType) -> None:
    np.testing.assert_allclose(
        divergence.law_of_results(MASS, TARGET, WEIGHTS, 1), MASS * TARGET / WEIGHTS, rtol=1e-12
    )


def test_the_divergence_of_the_exact_law_falls_with_the_draws(divergence: ModuleType) -> None:
    kl = [
        divergence.kl(TARGET, divergence.law_of_results(MASS, TARGET, WEIGHTS, k)) for k in (1, 2, 4, 8, 16)
    ]
    assert kl == sorted(kl, reverse=True)
    assert kl[-1] < 0.01 * kl[0]


@pytest.mark.parametrize("num_draws", [1, 2, 7])
def test_expected_draws_are_those_of_a_geometric_wait(divergence: ModuleType, num_draws: int) -> None:
    refused = 1 - MASS
    waits = sum(k * refused ** (k - 1) * MASS for k in range(1, num_draws + 1))
    expected = waits + 2 * num_draws * refused**num_draws
    assert divergence.expected_draws(MASS, num_draws) == pytest.approx(expected, rel=1e-12)


def test_sampling_error_is_told_from_another_law(divergence: ModuleType) -> None:
    rng = np.random.default_rng(3)
    own = divergence.divergence(TARGET, rng.multinomial(20_000, TARGET))
    assert own.p_value > 0.01
    assert own.expected == pytest.approx((len(TARGET) - 1) / 40_000, rel=0.1)
    other = divergence.divergence(TARGET, rng.multinomial(20_000, [0.47, 0.33, 0.15, 0.05]))
    assert other.p_value < 0.001


def test_a_distance_of_dependent_results_is_unbiased_and_knows_its_error(divergence: ModuleType) -> None:
    """Results come in fours that are all alike: sampling error is four times that of independent ones."""
    rng = np.random.default_rng(4)
    far = np.array([0.4, 0.35, 0.2, 0.05])
    for law in (TARGET, far):
        true = divergence.kl(TARGET, law)
        found = [
            divergence.clustered(TARGET, 4 * rng.multinomial(1, law, size=1000), seed=n) for n in range(40)
        ]
        spread = np.std([f.kl for f in found], ddof=1)
        assert abs(np.mean([f.kl for f in found]) - true) < 4 * spread / math.sqrt(40) + 1e-4
        stderr = np.mean([f.stderr for f in found])
        if law is far:
            assert stderr == pytest.approx(spread, rel=0.5)
        else:
            assert spread < stderr < 3 * spread  # on the safe side


def test_many_tests_are_judged_together(divergence: ModuleType) -> None:
    assert divergence.holm([0.01, 0.04, 0.03, 0.9]) == pytest.approx([0.04, 0.09, 0.09, 0.9])
    assert divergence.holm([0.6, 0.7]) == [1.0, 1.0]
