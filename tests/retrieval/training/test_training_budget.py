"""Budgets in steps and in minutes, their schedule, and what a resume takes over."""

from __future__ import annotations

from pathlib import Path

import pytest

from retrieval.training.trainer import Budget


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_steps_alone() -> None:
    budget = Budget(200, None)
    budget.start()
    assert [budget.progress(step) for step in (0, 50, 200, 300)] == [0.0, 0.25, 1.0, 1.0]


def test_the_first_limit_reached_counts() -> None:
    clock = Clock()
    budget = Budget(100, 10, clock)
    budget.start()
    clock.now += 300  # half of the minutes
    assert budget.progress(10) == pytest.approx(0.5)
    assert budget.progress(80) == pytest.approx(0.8)


def test_the_rate_warms_up_and_falls_to_zero() -> None:
    budget = Budget(1000, None)
    rates = [budget.rate(step) for step in range(1001)]
    assert 0 < rates[0] < 0.1
    assert max(rates) == pytest.approx(1.0, abs=0.01)
    assert rates[-1] == 0.0
    peak = rates.index(max(rates))
    assert rates[: peak + 1] == sorted(rates[: peak + 1])
    assert rates[peak:] == sorted(rates[peak:], reverse=True)


def test_time_spent_survives_a_resume(tmp_path: Path) -> None:
    clock = Clock()
    killed = Budget(10**6, 10, clock)
    killed.start()
    clock.now += 240
    killed.save(tmp_path)
    resumed = Budget(10**6, 10, clock)
    resumed.load(tmp_path)
    clock.now += 10_000  # the pause costs nothing
    resumed.start()
    clock.now += 60
    assert resumed.progress(0) == pytest.approx(0.5)


@pytest.mark.parametrize(("steps", "minutes"), [(0, None), (10, 0.0), (10, -1.0)])
def test_empty_budgets_are_refused(steps: int, minutes: float | None) -> None:
    with pytest.raises(ValueError, match="got"):
        Budget(steps, minutes)
