"""Where far more comes than can be answered, those who come at a batch's end fill the next one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.configuration.server_config import BatchLimits, QueueLimits
from service.errors import OverloadedError
from service.serving.admission import Admission, OverloadGuard
from tests.service.simulated_lane import Device, Lane

CPU = Device(per_batch_s=0.055, per_request_s=0.0235)
CAPACITY = 32 / CPU.seconds(32)


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Crowd:
    """A device of which a batch takes a second, and calls that come every `every_s`; nine fill a batch."""

    def __init__(self, every_s: float, max_wait_s: float = 1.0, max_size: int = 9, tokens: int = 1) -> None:
        self.clock = Clock()
        self.tokens = tokens
        self.guard = OverloadGuard(BatchLimits(max_size=max_size, max_tokens=90), max_wait_s, self.clock)
        self.every_s = every_s

    def begin(self, seconds: float = 1.0) -> None:
        self.guard.begin(9, 9 * self.tokens, seconds)

    def wait(self, seconds: float) -> None:
        for _ in range(round(seconds / self.every_s)):
            self.clock.now += self.every_s
            self.guard.arrived(self.tokens)

    def is_told_to_come_later(self, waiting: int = 0) -> bool:
        return self.guard.fills_next(9 + waiting, (9 + waiting) * self.tokens)


@pytest.mark.parametrize(("max_size", "tokens"), [(9, 1), (4000, 10)])
def test_the_first_of_many_calls_are_told_to_come_later_and_the_last_are_let_in(
    max_size: int, tokens: int
) -> None:
    crowd = Crowd(every_s=0.02, max_size=max_size, tokens=tokens)
    for _ in range(6):
        crowd.begin()
        crowd.wait(1.0)
        crowd.guard.refused()
    crowd.begin()
    assert crowd.is_told_to_come_later(), "fifty come in a second, and nine are wanted"
    crowd.wait(0.5)
    assert crowd.is_told_to_come_later(), "some seventeen come before the batch may be over"
    assert crowd.is_told_to_come_later(waiting=8)
    crowd.wait(0.2)
    assert not crowd.is_told_to_come_later(), "there is time for seven more"
    assert crowd.is_told_to_come_later(waiting=6), "and these make it nearly full"
    assert crowd.is_told_to_come_later(waiting=9)
    crowd.wait(0.4)
    assert not crowd.is_told_to_come_later(waiting=8), "the batch is late: the next one begins at any time"
    crowd.guard.end()
    assert not crowd.is_told_to_come_later(waiting=-9), "nothing runs"


def test_who_might_wait_longer_anyway_is_let_in() -> None:
    for max_wait_s, told in ((1.9, True), (2.0, False)):
        crowd = Crowd(every_s=0.02, max_wait_s=max_wait_s)
        crowd.begin()
        crowd.wait(1.0)
        crowd.guard.refused()
        crowd.begin()
        assert crowd.is_told_to_come_later() is told


def test_overload_is_over_when_nobody_was_refused_for_two_batches() -> None:
    crowd = Crowd(every_s=0.02)
    crowd.begin()
    crowd.wait(1.0)
    crowd.guard.refused()
    crowd.begin()
    crowd.wait(0.98)
    crowd.begin()
    assert crowd.is_told_to_come_later()
    crowd.wait(1.04)
    crowd.begin()
    assert not crowd.is_told_to_come_later()


def test_a_small_batch_between_large_ones_does_not_end_the_overload() -> None:
    crowd = Crowd(every_s=0.002)
    crowd.begin()
    crowd.wait(1.0)
    crowd.guard.refused()
    crowd.begin(seconds=0.1)
    assert crowd.is_told_to_come_later(waiting=1)


@given(st.lists(st.tuples(st.floats(0, 2), st.integers(0, 2), st.integers(1, 60)), max_size=60))
def test_nobody_is_told_to_come_later_before_a_limit_was_met(
    events: list[tuple[float, int, int]],
) -> None:
    clock = Clock()
    guard = OverloadGuard(BatchLimits(max_size=4, max_tokens=100), 0.1, clock)
    for passed, event, tokens in events:
        clock.now += passed
        if event == 0:
            guard.arrived(tokens)
        elif event == 1:
            guard.begin(1 + tokens % 4, tokens, 1.0)
        else:
            guard.end()
        assert not guard.fills_next(8, 200)


def test_work_that_has_waited_for_room_is_not_told_to_come_later() -> None:
    clock = Clock()
    admission = Admission(QueueLimits(), BatchLimits(max_size=2), clock)
    admission.observe(20, seconds=1.0)
    for _ in range(4):
        admission.admit(10)
    admission.begin(2, 20)
    for _ in range(50):
        with pytest.raises(OverloadedError, match="work for"):
            admission.admit(10)
    admission.end()
    for _ in range(2):
        admission.release(10)
    admission.begin(2, 20)
    for _ in range(50):
        with pytest.raises(OverloadedError, match="far more comes than can be answered") as refused:
            admission.admit(10)
        assert refused.value.reason == "QUEUE_FULL"
        assert refused.value.retry_after_s == pytest.approx(0.5)
    admission.admit(10, has_waited=True)
    assert admission.num_requests == 3


def without_demand(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(OverloadGuard, "fills_next", lambda *_: False)


@pytest.mark.parametrize("times", [2, 4, 8])
def test_in_overload_waits_are_shorter_and_as_many_are_answered(
    times: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    usual = Lane(CPU)
    usual.open_loop(0.8 * CAPACITY, 200)
    loaded = Lane(CPU)
    loaded.open_loop(times * CAPACITY, 200)
    without_demand(monkeypatch)
    before = Lane(CPU)
    before.open_loop(times * CAPACITY, 200)
    assert len(loaded.seconds) >= 0.98 * len(before.seconds)
    assert loaded.percentile(0.5) < 0.9 * before.percentile(0.5)
    assert loaded.percentile(0.99) < 0.95 * before.percentile(0.99)
    if times >= 4:
        assert loaded.percentile(0.99) < 1.8 * usual.percentile(0.99) < 0.9 * before.percentile(0.99)


@pytest.mark.parametrize("share", [0.5, 0.8])
def test_below_the_capacity_nothing_changes(share: float, monkeypatch: pytest.MonkeyPatch) -> None:
    lane = Lane(CPU)
    lane.open_loop(share * CAPACITY, 200)
    without_demand(monkeypatch)
    before = Lane(CPU)
    before.open_loop(share * CAPACITY, 200)
    assert lane.seconds == before.seconds
    assert lane.num_refused == 0


@pytest.mark.parametrize("clients", [1, 32, 64])
def test_clients_that_all_find_room_are_never_refused(clients: int) -> None:
    lane = Lane(CPU)
    lane.closed_loop(clients, 100)
    assert lane.num_refused == 0
    assert clients == 1 or len(lane.seconds) > 0.9 * 100 * clients / (CPU.seconds(min(clients, 32)) * 2)


def test_clients_that_come_again_when_they_are_told_keep_the_device_busy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lane = Lane(CPU)
    lane.closed_loop(96, 100)
    without_demand(monkeypatch)
    before = Lane(CPU)
    before.closed_loop(96, 100)
    assert len(lane.seconds) >= 0.95 * len(before.seconds)
    assert lane.percentile(0.99) < before.percentile(0.99)


def test_a_device_whose_queue_is_short_in_time_lets_everybody_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    fast = Device(per_batch_s=0.007, per_request_s=0.0004)
    lane = Lane(fast)
    lane.open_loop(4 * 1600, 5)
    without_demand(monkeypatch)
    before = Lane(fast)
    before.open_loop(4 * 1600, 5)
    assert lane.seconds == before.seconds
