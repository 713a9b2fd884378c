"""Queries that a poll drops, the cost of polling, and flags that the host reads late."""

from __future__ import annotations

import time

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from genret.decoding.cancellation import CancelToken
from genret.decoding.errors import DeadlineExceededError, DecodingCancelledError
from genret.decoding.late_flag import LateFlag
from genret.decoding.stopping import StopPoll
from tests.no_sync import cuda_never_waits, no_sync

CPU = torch.device("cpu")


@given(st.data(), st.lists(st.one_of(st.none(), st.integers(0, 4)), min_size=1, max_size=4))
def test_dropped_are_the_cancelled_and_those_out_of_room(data: st.DataObject, room: list[int | None]) -> None:
    tokens = [CancelToken() if data.draw(st.booleans()) else None for _ in room]
    poll = StopPoll(len(room), tokens, room, CPU)
    cancelled: set[int] = set()
    answers = []
    for written in data.draw(st.permutations(range(6))):
        for query, token in enumerate(tokens):
            if token is not None and data.draw(st.booleans()):
                token.cancel()
                cancelled.add(query)
        expected = [
            query in cancelled or (bound is not None and written >= bound) for query, bound in enumerate(room)
        ]
        answers.append((poll.dropped_queries(written), expected))
        assert answers[-1][0].dtype == torch.bool
        # An answer that was given is not changed later.
        assert [answer.tolist() for answer, _ in answers] == [wanted for _, wanted in answers]
        assert {query for query in range(len(room)) if poll.error(query) is not None} == cancelled
    assert all(isinstance(poll.error(query), DecodingCancelledError) for query in cancelled)


def test_a_deadline_is_an_error_of_its_own() -> None:
    poll = StopPoll(2, [CancelToken(time.monotonic() - 1.0), CancelToken(time.monotonic() + 600)], None, CPU)
    assert poll.dropped_queries(0).tolist() == [True, False]
    assert isinstance(poll.error(0), DeadlineExceededError)
    assert poll.error(1) is None


def test_a_selection_tells_what_it_learned() -> None:
    tokens = [None, CancelToken(), CancelToken()]
    poll = StopPoll(3, tokens, [None, None, 5], CPU)
    assert poll.dropped_queries(0).tolist() == [False] * 3
    part = poll.select([2, 1])
    tokens[1].cancel()
    assert part.dropped_queries(1).tolist() == [False, True]
    assert part.dropped_queries(5).tolist() == [True, True]
    poll.absorb(part, [2, 1])
    assert poll.error(1) is part.error(1)
    assert poll.error(2) is None
    assert poll.dropped_queries(0).tolist() == [False, True, False]


@pytest.mark.parametrize(("cancel", "room"), [([None], None), (None, [1, 2, 3])])
def test_lists_of_another_length(cancel: list[None] | None, room: list[int | None] | None) -> None:
    length = len(cancel or room or ())
    with pytest.raises(ValueError, match=rf"one entry per query \(2\), got {length}"):
        StopPoll(2, cancel, room, CPU)


def test_polling_without_news_copies_nothing() -> None:
    """Not before a query is cancelled or out of room, and not afterwards."""
    token = CancelToken()
    poll = StopPoll(2, [token, CancelToken()], [None, 3], CPU)
    with no_sync():
        first = poll.dropped_queries(0)
        assert all(poll.dropped_queries(written) is first for written in range(3))
        poll.dropped_queries(3)
    token.cancel()
    second = poll.dropped_queries(0)
    with no_sync():
        assert all(poll.dropped_queries(written) is second for written in range(3))
        poll.dropped_queries(3)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA")
@pytest.mark.filterwarnings("ignore:Synchronization debug mode:UserWarning")
def test_polling_never_waits_for_cuda() -> None:
    token = CancelToken()
    poll = StopPoll(2, [token, None], [None, 3], torch.device("cuda"))
    answers = []
    with cuda_never_waits():
        for written in range(5):
            answers.append(poll.dropped_queries(written))
            if written == 1:
                token.cancel()
    assert [answer.tolist() for answer in answers] == [
        [False, False],
        [False, False],
        [True, False],
        [True, True],
        [True, True],
    ]


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

    def record(self, stream: object) -> None:
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


@given(lag=st.integers(0, 4), acts=st.lists(st.sampled_from(("put", "work", "latest", "last")), max_size=40))
def test_answers_come_in_order_and_are_waited_for_only_far_ahead_and_at_the_end(lag, acts):
    device, put, passed, taken, waits = FakeDevice(), [], 0, 0, 0
    flag = LateFlag(2, CPU, lag=lag, new_event=device.new_event)
    for act in acts:
        if act == "put":
            if len(put) - taken > lag:  # no more may be under way
                taken, waits = taken + 1, waits + 1
            put.append(len(put) % 4)
            flag.put(answer(put[-1]))
        elif act == "work":
            device.work(1)
            passed += passed < len(put)
        else:
            if act == "last":
                taken, waits = len(put), waits + len(put) - taken
            taken = max(passed, taken)
            newest = (bool(put[taken - 1] & 1), bool(put[taken - 1] & 2)) if taken else None
            assert getattr(flag, act)() == newest
        passed = max(passed, taken)
        assert device.waits == waits


def test_what_is_put_is_copied():
    device = FakeDevice()
    flag, value = LateFlag(2, CPU, new_event=device.new_event), answer(1)
    flag.put(value)
    value.fill_(False)
    assert flag.last() == (True, False)
