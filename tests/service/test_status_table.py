"""The status table, row by row, and how refusals reach clients."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import grpc
import pytest
from grpc import StatusCode

from genret.decoding import errors as decoding
from genret.retrieval import errors as retrieval
from genret.retrieval.index.layout import EVIDENCE_FILES
from genret.service import errors as service
from genret.service.rpc import refuse
from genret.service.status import TABLE, Failure, failure_of, field_violation
from genret.service.wire.rpc_status import failure_to_proto
from tests.service.fake_retriever import FakeRetriever
from tests.service.running_server import failure, running, unpack

NEVER_SERVED = {service.ServiceError, service.BindError, service.CallError, retrieval.GenretError}


def told(error: Exception) -> Any:
    """The status that a client gets."""
    return failure_to_proto(failure_of(error, "id-1"))


def subclasses(base: type[Exception]) -> set[type[Exception]]:
    return {base} | {found for child in base.__subclasses__() for found in subclasses(child)}


OURS = {module.__name__ for module in (decoding, retrieval, service)}
ON_PURPOSE = subclasses(retrieval.GenretError) | subclasses(decoding.DecodingError)


@pytest.mark.parametrize(
    "kind", sorted((kind for kind in ON_PURPOSE if kind.__module__ in OURS), key=lambda kind: kind.__name__)
)
def test_every_error_on_purpose_has_a_row(kind: type[Exception]) -> None:
    assert kind in NEVER_SERVED or any(issubclass(kind, row.error) for row in TABLE)


def test_missing_evidence_says_what_to_do() -> None:
    missing = told(retrieval.EvidenceMissingError("/srv/x"))
    (violation,) = unpack(missing)["PreconditionFailure"].violations
    assert (violation.type, violation.subject) == ("EVIDENCE", "index")
    assert "--evidence" in violation.description
    assert "another method" in missing.message


@pytest.mark.parametrize("file", sorted(EVIDENCE_FILES))
def test_foreign_evidence_names_its_file_and_no_path(file: str) -> None:
    said = f"{file}: expected an index of faiss, got: no vectors in /srv/index/x/{file}"
    status = told(retrieval.IndexFormatError(said))
    assert status.code == StatusCode.FAILED_PRECONDITION.value[0]
    assert status.message == f"{file}: not the evidence that the index manifest describes"
    (violation,) = unpack(status)["PreconditionFailure"].violations
    assert (violation.type, violation.subject) == ("EVIDENCE", "index")
    assert violation.description == status.message
    assert "/srv" not in status.SerializeToString().decode("latin1")


class LeftContext:
    """Of a call whose client has gone: nothing can be sent any more."""

    async def abort(self, *args: Any) -> None:
        raise grpc.aio.InternalError("Failed to execute batch")


async def test_a_refusal_of_who_has_left_ends_the_call() -> None:
    with pytest.raises(asyncio.CancelledError):
        await refuse(LeftContext(), decoding.DeadlineExceededError("late"), "id")


async def test_deadlines_on_the_way_are_not_logged_as_bugs(caplog: pytest.LogCaptureFixture) -> None:
    async with running(FakeRetriever()) as s:

        async def call(number: int) -> str:
            try:
                await s.retrieve("q", timeout=0.001 + 0.0001 * (number % 30))
            except grpc.aio.AioRpcError as error:
                return str(error.code().name)
            return "OK"

        await s.retrieve("q")  # now connected: ending that in time is the client's own UNAVAILABLE
        for _ in range(20):
            ends = await asyncio.gather(*(call(i) for i in range(60)))
            assert set(ends) <= {"OK", "DEADLINE_EXCEEDED"}
        text, _ = s.server.metrics.render()
    assert 'genret_requests_total{code="INTERNAL",method="Retrieve"} 0.0' in text.decode()
    assert [r.getMessage() for r in caplog.records if r.levelno >= logging.ERROR] == []


LONG = ["\N{GRINNING FACE}" * 1000, "\u00e4" * 1000, "\x01" * 1000, "%" * 3000, "a" * 3000]


@pytest.mark.parametrize("name", LONG, ids=["emoji", "umlaut", "control", "percent", "ascii"])
async def test_long_names_in_any_writing_come_back_in_the_error(name: str) -> None:
    async with running(FakeRetriever()) as s:
        # Above the first limit clients refuse only some, the more the larger the trailers are.
        errors = await asyncio.gather(*(failure(s.retrieve("q", index=name)) for _ in range(40)))
    for error, details in errors:
        assert error.code() is grpc.StatusCode.NOT_FOUND, error.details()
        assert name.startswith(details["ResourceInfo"].resource_name.removesuffix("\u2026"))


def clipped(text: str) -> Any:
    return failure_to_proto(Failure(grpc.StatusCode.INVALID_ARGUMENT, text, (field_violation(text, text),)))


def test_texts_are_cut_between_characters() -> None:
    for text in LONG:
        status = clipped(text)
        assert len(status.SerializeToString()) < 8192, "what trailers can carry"
        message = status.message
        assert message.endswith("\u2026")
        assert text.startswith(message[:-1])
        assert 200 <= len(message) <= 500
        assert len(message.encode()) <= 800
    assert clipped("short \N{GRINNING FACE}").message == "short \N{GRINNING FACE}"
    assert clipped("half \ud800 of a pair").message == "half ? of a pair"
