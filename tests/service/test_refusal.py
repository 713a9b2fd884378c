"""Refusals that come as their clients leave are no bugs."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import grpc
import pytest

from decoding.errors import DeadlineExceededError
from service.rpc import refuse
from tests.service.asynchronous import asynchronous
from tests.service.fake_retriever import FakeRetriever
from tests.service.running_server import running


class LeftContext:
    """Of a call whose client has gone: nothing can be sent any more."""

    async def abort(self, *args: Any) -> None:
        raise grpc.aio.InternalError("Failed to execute batch")


@asynchronous
async def test_a_refusal_of_who_has_left_ends_the_call() -> None:
    with pytest.raises(asyncio.CancelledError):
        await refuse(LeftContext(), DeadlineExceededError("late"), "id")


@asynchronous
async def test_deadlines_on_the_way_are_not_logged_as_bugs(caplog: pytest.LogCaptureFixture) -> None:
    async with running(FakeRetriever()) as s:

        async def call(number: int) -> str:
            try:
                await s.retrieve("q", timeout=0.001 + 0.0001 * (number % 30))
            except grpc.aio.AioRpcError as error:
                return str(error.code().name)
            return "OK"

        for _ in range(20):
            ends = await asyncio.gather(*(call(i) for i in range(60)))
            assert set(ends) <= {"OK", "DEADLINE_EXCEEDED"}
        text, _ = s.server.metrics.render()
    assert 'genret_requests_total{code="INTERNAL",method="Retrieve"} 0.0' in text.decode()
    assert [r.getMessage() for r in caplog.records if r.levelno >= logging.ERROR] == []
