"""`disc.py`: the laws of results, against enumeration, and runs too small to measure anything."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from disc import main
from harness.divergence import divergence, kl, law_of_results
from harness.trie_bias import MASSES, TOP_MASS, exact_law, floor, formula, judged, measured
from harness.trie_bias import TARGET as TRIE_TARGET

TARGET = np.array([0.5, 0.3, 0.15, 0.05])
WEIGHTS = np.array([0.9, 0.12, 0.4, 0.05])
# A proposal must be a law: P_L / x adds up to one at one mass alone.
MASS = 1.0 / float((TARGET / WEIGHTS).sum())


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
def test_the_law_of_results_is_that_of_algorithm_1(num_draws: int) -> None:
    law = law_of_results(MASS, TARGET, WEIGHTS, num_draws)
    np.testing.assert_allclose(law, enumerated(num_draws), atol=1e-9)


def test_one_draw_is_plain_constrained_sampling() -> None:
    np.testing.assert_allclose(law_of_results(MASS, TARGET, WEIGHTS, 1), MASS * TARGET / WEIGHTS, rtol=1e-12)


def test_sampling_error_is_told_from_another_law() -> None:
    rng = np.random.default_rng(3)
    own = divergence(TARGET, rng.multinomial(20_000, TARGET))
    assert own.p_value > 0.01
    assert own.expected == pytest.approx((len(TARGET) - 1) / 40_000, rel=0.1)
    other = divergence(TARGET, rng.multinomial(20_000, [0.47, 0.33, 0.15, 0.05]))
    assert other.p_value < 0.001


def test_the_bias_of_constrained_decoding_is_its_formula_and_grows_as_theorem_2_1_says() -> None:
    for mass in (1.0, *MASSES):
        assert kl(TRIE_TARGET, exact_law(mass, 1)) == pytest.approx(formula(mass), abs=1e-9)
        assert formula(mass) >= floor(mass)
        away = [kl(TRIE_TARGET, exact_law(mass, k)) for k in (1, 2, 4, 16, 64)]
        assert away == sorted(away, reverse=True)
    assert formula(1e-6) - formula(1e-3) == pytest.approx(0.6 * math.log(1e3), abs=1e-3)


def test_a_title_below_the_m_likeliest_tokens_is_never_written() -> None:
    for top in (50, 100):
        assert exact_law(TOP_MASS, 64, top)[1] == 0
        assert np.abs(exact_law(TOP_MASS, 4096, top) - TRIE_TARGET).sum() / 2 == pytest.approx(0.1, abs=1e-3)
    for top in (500, 1000):
        np.testing.assert_array_equal(exact_law(TOP_MASS, 4, top), exact_law(TOP_MASS, 4))


@pytest.mark.statistical
def test_trie_and_disc_draw_by_these_laws() -> None:
    tests: dict[str, float] = {}
    measured("trie", 0.1, 1, 4000, tests, is_trie=True)
    for top in (50, 500, None):
        figure = measured(f"M={top}", TOP_MASS, 4, 4000, tests, top_m=top)
        _, low, high = figure["measured_share_of_b"]
        assert low < figure["share_of_b"] < high
    assert not judged(tests)["failed"]


@pytest.mark.slow
def test_wall_time(figures_of: Callable[..., Any]) -> None:
    options = ["--only", "time", "--hidden", "64", "--layers", "1", "--limit", "300", "--repeats", "1"]
    figures = figures_of(main, *options)["time"]
    assert figures["together"]["same_draws"]
    assert figures["draws"][-1]["K=4"]["second_phase"] == 1.0
    for timed in figures["draws"]:
        for k in (2, 4, 8):
            against = timed[f"K={k}"]
            phases = {
                "ratio_one_phase": 1.0 - against["second_phase"],
                "ratio_two_phases": against["second_phase"],
            }
            assert all((against[name] is not None) == (share > 0) for name, share in phases.items())
            assert against["ratio_without_prefill"]["median"] > 0


@pytest.mark.slow
def test_beams_and_calibration(figures_of: Callable[..., Any]) -> None:
    options = ["--only", "beams", "--only", "calibration", "--queries", "6", "--seeds", "1"]
    figures = figures_of(main, *options)
    assert len(figures["beams"]["disc"]) == 12
    calibration = figures["calibration"]
    assert calibration["queries"] == 6
    assert all(0 <= mass <= 1 for mass in calibration["mass_answer_present"])
    assert 0 <= calibration["auc_present_against_denied"] <= 1
