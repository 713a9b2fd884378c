"""Flags of a device that are read late: what arrives, in which order, and when the host waits."""

from __future__ import annotations

import pytest
import torch

from decoding.late_flag import LateFlag
from tests.no_sync import no_sync

CPU = torch.device("cpu")


class FakeDevice:
    """Events that are passed when told, or when somebody waits for them."""

    def __init__(self) -> None:
        self.recorded: list[FakeEvent] = []
        self.waits = 0

    def new_event(self) -> FakeEvent:
        return FakeEvent(self)

    def work(self, steps: int) -> None:
        """Pass the oldest marks that are still ahead."""
        for event in [e for e in self.recorded if not e.passed][:steps]:
            event.passed = True


class FakeEvent:
    def __init__(self, device: FakeDevice) -> None:
        self.device = device
        self.passed = False

    def record(self) -> None:
        assert self not in self.device.recorded or self.passed, "recorded again before its answer was read"
        self.passed = False
        self.device.recorded = [e for e in self.device.recorded if e is not self] + [self]

    def query(self) -> bool:
        return self.passed

    def synchronize(self) -> None:
        self.device.waits += 1
        assert self in self.device.recorded
        self.passed = True


def answer(number: int) -> torch.Tensor:
    return torch.tensor([bool(number & 1), bool(number & 2)])


def test_on_the_cpu_an_answer_is_there_at_once():
    flag = LateFlag(2, CPU)
    assert flag.latest() is None
    assert flag.last() is None
    flags = [answer(number) for number in range(4)]
    with no_sync():
        for number in (0, 1, 2, 3, 2, 0):
            flag.put(flags[number])
            assert flag.latest() == (bool(number & 1), bool(number & 2))
    assert flag.last() == (False, False)


def test_an_answer_is_read_once_the_device_got_there():
    device = FakeDevice()
    flag = LateFlag(2, CPU, lag=2, new_event=device.new_event)
    flag.put(answer(1))
    assert flag.latest() is None
    flag.put(answer(2))
    device.work(1)
    assert flag.latest() == (True, False)
    assert flag.latest() == (True, False)
    device.work(1)
    assert flag.latest() == (False, True)
    assert device.waits == 0


def test_of_several_answers_the_newest_counts():
    device = FakeDevice()
    flag = LateFlag(2, CPU, lag=2, new_event=device.new_event)
    for number in (1, 3, 2):
        flag.put(answer(number))
    device.work(3)
    assert flag.latest() == (False, True)
    assert device.waits == 0


@pytest.mark.parametrize("lag", [0, 1, 2, 5])
def test_the_host_waits_only_when_it_is_too_far_ahead(lag: int):
    device = FakeDevice()
    flag = LateFlag(2, CPU, lag=lag, new_event=device.new_event)
    for number in range(20):
        flag.put(answer(number))
        under_way = number + 1 - device.waits
        assert under_way <= lag + 1
        assert device.waits == max(0, number - lag)
        seen = device.waits - 1  # number of the newest answer that somebody waited for
        assert flag.latest() == (None if seen < 0 else (bool(seen & 1), bool(seen & 2)))


def test_at_the_end_everything_is_waited_for():
    device = FakeDevice()
    flag = LateFlag(2, CPU, lag=2, new_event=device.new_event)
    flag.put(answer(0))
    flag.put(answer(3))
    assert flag.last() == (True, True)
    assert device.waits == 2
    assert flag.last() == (True, True)


def test_what_is_put_is_copied():
    device = FakeDevice()
    flag, value = LateFlag(2, CPU, new_event=device.new_event), answer(1)
    flag.put(value)
    value.fill_(False)
    assert flag.last() == (True, False)


def test_a_negative_lag_is_refused():
    with pytest.raises(ValueError, match="lag must be 0 or more, got -1"):
        LateFlag(1, CPU, lag=-1)
