"""What a device is expected to take, learned from the batches it ran."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.serving.admission import SpeedModel


def test_before_any_batch_nothing_is_known() -> None:
    assert SpeedModel().seconds(1000, 3) == 0


def test_of_one_size_of_batch_the_mean_speed_is_known() -> None:
    speed = SpeedModel()
    speed.observe(100, 0.5)
    assert speed.seconds(100, 1) == pytest.approx(0.5)
    assert speed.seconds(1000, 9) == pytest.approx(5.0)


@given(st.floats(0, 0.2), st.floats(1e-6, 1e-3), st.lists(st.integers(1, 20_000), min_size=2, max_size=60))
def test_a_device_that_is_a_straight_line_is_known_exactly(
    per_batch: float, per_token: float, sizes: list[int]
) -> None:
    speed = SpeedModel()
    for tokens in sizes:
        speed.observe(tokens, per_batch + per_token * tokens)
    if len({size.bit_length() for size in sizes}) > 1:
        assert speed.seconds(5000, 2) == pytest.approx(2 * per_batch + per_token * 5000, rel=1e-3, abs=1e-4)


def test_single_requests_do_not_make_a_burst_look_hopeless() -> None:
    speed = SpeedModel()
    for tokens, seconds in ((120, 0.09), (1900, 0.5), (3800, 0.93)):
        speed.observe(tokens, seconds)
    for _ in range(1000):
        speed.observe(120, 0.09)
    assert speed.seconds(64 * 120, 2) == pytest.approx(1.86, rel=0.05)


@given(st.lists(st.tuples(st.integers(0, 10**6), st.floats(0, 100)), min_size=1))
def test_whatever_was_seen_more_work_never_takes_less_time(seen: list[tuple[int, float]]) -> None:
    speed = SpeedModel()
    for tokens, seconds in seen:
        speed.observe(tokens, seconds)
    assert 0 <= speed.seconds(10, 1) <= speed.seconds(20, 1) <= speed.seconds(20, 2)


def test_a_device_that_changes_is_followed() -> None:
    speed = SpeedModel()
    for _ in range(50):
        speed.observe(1000, 1.0)
    for _ in range(50):
        speed.observe(1000, 0.1)
    assert speed.seconds(1000, 1) == pytest.approx(0.1, rel=0.01)


def test_one_odd_batch_is_not_believed_for_ever() -> None:
    speed = SpeedModel()
    speed.observe(100, 0.05)
    speed.observe(4096, 60.0)
    for _ in range(5):
        speed.observe(100, 0.05)
    assert speed.seconds(200, 1) < 1.0
    for _ in range(20):
        speed.observe(4096, 1.5)
    assert speed.seconds(4096, 1) == pytest.approx(1.5, rel=0.1)


def test_batches_may_cost_more_than_in_proportion() -> None:
    speed = SpeedModel()
    for _ in range(30):
        speed.observe(100, 0.05)
        speed.observe(3200, 2.4)  # half as much again for each token
    assert speed.seconds(3200, 1) == pytest.approx(2.4, rel=0.1)
