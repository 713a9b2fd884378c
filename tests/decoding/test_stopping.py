"""Which queries a poll drops, and what polling costs."""

from __future__ import annotations

import time

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from decoding.cancellation import CancelToken
from decoding.errors import DeadlineExceededError, DecodingCancelledError
from decoding.stopping import StopPoll
from tests.no_sync import cuda_never_waits, no_sync

CPU = torch.device("cpu")


@given(st.data(), st.lists(st.one_of(st.none(), st.integers(0, 4)), min_size=1, max_size=4))
def test_dropped_are_the_cancelled_and_those_out_of_room(data: st.DataObject, room: list[int | None]) -> None:
    tokens = [CancelToken() if data.draw(st.booleans()) else None for _ in room]
    poll = StopPoll(len(room), tokens, room, CPU)
    cancelled: set[int] = set()
    for written in range(6):
        for query, token in enumerate(tokens):
            if token is not None and data.draw(st.booleans()):
                token.cancel()
                cancelled.add(query)
        expected = [
            query in cancelled or (bound is not None and written >= bound) for query, bound in enumerate(room)
        ]
        answer = poll.dropped_queries(written)
        assert answer.dtype == torch.bool
        assert answer.tolist() == expected
        assert {query for query in range(len(room)) if poll.error(query) is not None} == cancelled
    assert all(isinstance(poll.error(query), DecodingCancelledError) for query in cancelled)


def test_without_anything_to_watch_nothing_is_dropped() -> None:
    poll = StopPoll(3, None, None, CPU)
    assert poll.dropped_queries(10**9).tolist() == [False] * 3


def test_steps_may_be_asked_for_in_any_order() -> None:
    poll = StopPoll(2, None, [2, None], CPU)
    assert [poll.dropped_queries(written).tolist()[0] for written in (3, 1, 2, 0)] == [
        True,
        False,
        True,
        False,
    ]


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


def test_answers_given_are_not_changed_later() -> None:
    token = CancelToken()
    poll = StopPoll(1, [token], None, CPU)
    before = poll.dropped_queries(0)
    token.cancel()
    assert poll.dropped_queries(1).tolist() == [True]
    assert before.tolist() == [False]


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
