"""Errors that quote what was sent reach whoever sent it: trailers have little room."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import pytest

from service.status import Failure, FieldViolation
from service.wire.rpc_status import failure_to_proto
from tests.service.asynchronous import asynchronous
from tests.service.fake_retriever import FakeRetriever
from tests.service.running_server import failure, running

LONG = ["\N{GRINNING FACE}" * 1000, "\u00e4" * 1000, "\x01" * 1000, "%" * 3000, "a" * 3000]


@pytest.mark.parametrize("name", LONG, ids=["emoji", "umlaut", "control", "percent", "ascii"])
@asynchronous
async def test_long_names_in_any_writing_come_back_in_the_error(name: str) -> None:
    async with running(FakeRetriever()) as s:
        # Above the first limit clients refuse only some, the more the larger the trailers are.
        errors = await asyncio.gather(*(failure(s.retrieve("q", index=name)) for _ in range(40)))
    for error, details in errors:
        assert error.code() is grpc.StatusCode.NOT_FOUND, error.details()
        assert name.startswith(details["ResourceInfo"].resource_name.removesuffix("\u2026"))


def clipped(text: str) -> Any:
    return failure_to_proto(Failure(grpc.StatusCode.INVALID_ARGUMENT, text, (FieldViolation(text, text),)))


def test_texts_are_cut_between_characters() -> None:
    for text in LONG:
        message = clipped(text).message
        assert message.endswith("\u2026")
        assert text.startswith(message[:-1])
        assert 200 <= len(message) <= 500
        assert len(message.encode()) <= 800
    assert clipped("short \N{GRINNING FACE}").message == "short \N{GRINNING FACE}"
    assert clipped("half \ud800 of a pair").message == "half ? of a pair"
