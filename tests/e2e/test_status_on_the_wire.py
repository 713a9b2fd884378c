"""Every row of the table of statuses, met by a call over gRPC and by one over HTTP.

What the server itself can be brought to is triggered for real; errors of a model that is broken, or of an
extra that is missing, are answers of a fake retriever.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest
from google.protobuf import json_format
from google.protobuf.message import Message
from grpc_status import rpc_status

from genret.decoding.errors import (
    DeadlineExceededError,
    DecodingCancelledError,
    DecodingError,
    EngineError,
    InvalidLogitsError,
    PromptTooLongError,
)
from genret.retrieval.errors import (
    EvidenceMissingError,
    GenretError,
    IndexChecksumError,
    IndexDirectoryError,
    IndexFormatError,
    IndexMismatchError,
    IndexNotFoundError,
    InputError,
    MissingExtraError,
    ModelError,
    SourceError,
)
from genret.retrieval.index.reader import Index
from genret.service.configuration.server_config import AuthConfig, IndexSpec, QueueLimits
from genret.service.errors import (
    MalformedMessageError,
    NotReadyError,
    OverloadedError,
    PermissionDeniedError,
    UnauthenticatedError,
    UnknownIndexError,
    UnservableIndexError,
)
from genret.service.gateway.endpoints import ENDPOINTS, NDJSON_TYPE, Endpoint
from genret.service.pb.genret.v1 import index_service_pb2 as index_pb
from genret.service.pb.genret.v1 import retrieval_service_pb2 as pb
from genret.service.security.bearer_tokens import new_token
from genret.service.serving.served import ServedIndex
from genret.service.status import TABLE
from tests.service.changing_index import ChangingIndex
from tests.service.fake_retriever import FakeRetriever
from tests.service.http_gateway import connected
from tests.service.running_server import Running, Synchronous, unpack, until
from tests.service.secured_server import tokens_in
from tests.service.tiny_assets import make_checkpoint

REQUEST_ID = "the-request:7"


@dataclass(frozen=True)
class Ask:
    """A call that is going to fail; `raw` bytes replace the message, over gRPC and as the body of HTTP."""

    method: str
    message: Message
    raw: tuple[bytes, bytes] | None = None
    token: str = ""

    @property
    def endpoint(self) -> Endpoint:
        (found,) = (e for e in ENDPOINTS if e.method == self.method)
        return found

    @property
    def headers(self) -> dict[str, str]:
        token = {"authorization": f"Bearer {self.token}"} if self.token else {}
        return {"x-request-id": REQUEST_ID, **token}


@dataclass(frozen=True)
class Seen:
    """The reply, or the error, of one call."""

    code: str
    message: str
    details: dict[str, Any] = field(repr=False)
    request_id: str
    http_status: int | None = None
    headers: dict[str, str] = field(default_factory=dict)


async def ask_grpc(api: Running, ask: Ask) -> Seen:
    """Ask over gRPC, with bytes: what is sent may be no message."""
    raw = ask.message.SerializeToString() if ask.raw is None else ask.raw[0]
    call: Any
    if ask.endpoint.row.is_stream:
        call = api.channel.stream_stream(ask.endpoint.row.full_name)(iter([raw]), timeout=60)
    else:
        metadata = tuple(ask.headers.items())
        call = api.channel.unary_unary(ask.endpoint.row.full_name)(raw, timeout=60, metadata=metadata)
    try:
        answer = await call
    except grpc.aio.AioRpcError as error:
        trailers = {key: value for key, value in error.trailing_metadata() or ()}  # noqa: C416  # has no keys for dict()
        status = rpc_status.from_call(Synchronous(error))
        request_id = str(trailers.get("x-request-id", ""))
        return Seen(error.code().name, str(error.details()), unpack(status), request_id)
    raise AssertionError(f"the call succeeded: {answer!r}")


async def ask_http(client: httpx.AsyncClient, ask: Ask) -> Seen:
    """Ask over HTTP."""
    fields = json_format.MessageToDict(ask.message, preserving_proto_field_name=True)
    path = ask.endpoint.path.replace("{name}", str(fields.pop("name", "")))
    headers = {
        "content-type": NDJSON_TYPE if ask.endpoint.row.is_stream else "application/json",
        **ask.headers,
    }
    if ask.raw is not None:
        response = await client.post(path, content=ask.raw[1], headers=headers)
    else:
        response = await client.request(ask.endpoint.verb, path, json=fields, headers=headers)
    error = response.json()["error"]
    assert error["code"] == response.status_code
    details = {detail["@type"].rpartition(".")[2]: detail for detail in error["details"]}
    request_id = response.headers["x-request-id"]
    return Seen(
        error["status"], error["message"], details, request_id, response.status_code, dict(response.headers)
    )


RETRIEVE = Ask("Retrieve", pb.RetrieveRequest(query="q"))
RELOAD = Ask("ReloadIndex", index_pb.ReloadIndexRequest(name="fake"))
GARBAGE = (b"\x0a\x0a\x01", b'{"query": ')


@dataclass(frozen=True)
class Face:
    """One server with its two faces."""

    api: Running
    http: httpx.AsyncClient


@asynccontextmanager
async def faces(retriever: FakeRetriever | None = None, **options: Any) -> AsyncIterator[Face]:
    async with connected(retriever or FakeRetriever(), **options) as (api, _, client):
        yield Face(api, client)


Trigger = Callable[[Path], AbstractAsyncContextManager[tuple[Face, Ask]]]


def met(
    ask: Ask = RETRIEVE,
    retriever: FakeRetriever | None = None,
    done: Callable[[Face], Awaitable[None] | None] = lambda face: None,
    **options: Any,
) -> Trigger:
    """What is asked of a server with this retriever and options, once something was done to it."""

    @asynccontextmanager
    async def trigger(folder: Path) -> AsyncIterator[tuple[Face, Ask]]:
        async with faces(retriever, **options) as face:
            if (doing := done(face)) is not None:
                await doing
            yield face, ask

    return trigger


def answered_with(error: GenretError | DecodingError) -> Trigger:
    return met(retriever=FakeRetriever({"q": error}))


def dies_of(bug: BaseException) -> Trigger:
    return met(retriever=FakeRetriever(bugs={"q": bug}))


def reload_fails_with(error: Exception) -> Trigger:
    return met(RELOAD, done=lambda face: face.api.opener.table.update(fake=error))


# The last moment of a drain: the queue takes nothing any more.
draining = met(done=lambda face: face.api.server.engine.lanes.of("cpu").batcher.close())
# The server's own limit passes: at a client's deadline the client answers itself.
too_late = met(retriever=FakeRetriever(held=True), max_request_seconds=0.2)


def reload_finds(change: Callable[[ChangingIndex], object]) -> Trigger:
    """A new version is real and has been changed on its disk."""

    @asynccontextmanager
    async def trigger(folder: Path) -> AsyncIterator[tuple[Face, Ask]]:
        index = ChangingIndex(folder / "a", make_checkpoint(folder / "checkpoint"))
        change(index)

        def open_real(spec: IndexSpec) -> ServedIndex:
            Index.open(index.path).close()
            raise AssertionError("the index can be opened")

        async with faces() as face:
            old = face.api.server.engine.indexes.resolve("")
            changed = ServedIndex(replace(old.description, version="changed"), old.retriever)
            face.api.opener.table["fake"] = changed
            face.api.opener.open = open_real  # type: ignore[method-assign]
            yield face, RELOAD

    return trigger


@asynccontextmanager
async def full(folder: Path) -> AsyncIterator[tuple[Face, Ask]]:
    """The queue holds all it may."""
    slow = FakeRetriever(held=True)
    async with faces(slow, queue=QueueLimits(max_requests=1)) as face:
        waiting = asyncio.ensure_future(face.api.retrieve("another"))
        await until(slow.running.is_set)
        yield face, RETRIEVE
        slow.hold.set()
        await waiting


@asynccontextmanager
async def guarded(folder: Path) -> AsyncIterator[tuple[Face, str]]:
    token = new_token()
    async with faces(auth=AuthConfig(tokens_in(folder, f"read {token}"))) as face:
        yield face, token


@asynccontextmanager
async def without_token(folder: Path) -> AsyncIterator[tuple[Face, Ask]]:
    """Nobody knows who calls."""
    async with guarded(folder) as (face, _):
        yield face, RETRIEVE


@asynccontextmanager
async def with_too_little_a_token(folder: Path) -> AsyncIterator[tuple[Face, Ask]]:
    """Who calls may only read."""
    async with guarded(folder) as (face, token):
        yield face, replace(RELOAD, token=token)


@dataclass(frozen=True)
class Case:
    """What ends a call, and how it must end."""

    error: type[Exception]
    trigger: Trigger
    code: grpc.StatusCode
    http_status: int
    details: frozenset[str] = frozenset()
    retry_after: str | None = None


def point_nowhere(index: ChangingIndex) -> None:
    (index.path / "CURRENT").write_text("nonsense\n")


C = grpc.StatusCode
BAD = (C.INVALID_ARGUMENT, 400, frozenset({"BadRequest"}))
WRONG_STATE = (C.FAILED_PRECONDITION, 400, frozenset({"PreconditionFailure"}))
LOST = (C.DATA_LOSS, 500, frozenset({"ErrorInfo"}))
TOO_MANY = frozenset({"ErrorInfo", "RetryInfo"})
NO_QUERY = pb.RetrieveRequest(query=" ")
UNKNOWN = pb.RetrieveRequest(query="q", index="none")
CASES = [
    Case(MalformedMessageError, met(Ask("Retrieve", NO_QUERY, GARBAGE)), *BAD),
    Case(InputError, met(Ask("Retrieve", NO_QUERY)), *BAD),
    Case(PromptTooLongError, answered_with(PromptTooLongError("long")), *BAD),
    Case(UnknownIndexError, met(Ask("Retrieve", UNKNOWN)), C.NOT_FOUND, 404, frozenset({"ResourceInfo"})),
    Case(OverloadedError, full, C.RESOURCE_EXHAUSTED, 429, TOO_MANY, "1"),
    Case(OverloadedError, dies_of(MemoryError()), C.RESOURCE_EXHAUSTED, 429, TOO_MANY, "5"),
    Case(EngineError, answered_with(EngineError("10.0.0.7 is gone")), C.UNAVAILABLE, 503, TOO_MANY, "2"),
    Case(NotReadyError, met(load=False), C.UNAVAILABLE, 503, frozenset({"RetryInfo"}), "1"),
    Case(NotReadyError, draining, C.UNAVAILABLE, 503, frozenset({"RetryInfo"}), "1"),
    Case(UnauthenticatedError, without_token, C.UNAUTHENTICATED, 401),
    Case(PermissionDeniedError, with_too_little_a_token, C.PERMISSION_DENIED, 403),
    Case(DeadlineExceededError, too_late, C.DEADLINE_EXCEEDED, 504),
    Case(DecodingCancelledError, answered_with(DecodingCancelledError("gone")), C.CANCELLED, 499),
    Case(IndexChecksumError, reload_finds(lambda index: index.damage("entities.arrow")), *LOST),
    Case(IndexChecksumError, answered_with(IndexChecksumError("vectors.faiss", "digest")), *LOST),
    Case(IndexNotFoundError, reload_finds(lambda index: shutil.rmtree(index.path)), *WRONG_STATE),
    Case(IndexDirectoryError, reload_finds(point_nowhere), *WRONG_STATE),
    *(
        Case(type(error), reload_fails_with(error), *WRONG_STATE)
        for error in (
            UnservableIndexError("empty"),
            IndexMismatchError("another tokenizer"),
            IndexFormatError("/srv/index: broken"),
            ModelError("no positions"),
            SourceError("schema.json: line 3"),
        )
    ),
    *(
        Case(type(error), answered_with(error), *WRONG_STATE)
        for error in (
            InvalidLogitsError("NaN"),
            DecodingError("odd"),
            MissingExtraError("faiss", "vectors"),
            EvidenceMissingError("/srv/index: no vectors"),
        )
    ),
]


def check(case: Case, seen: Seen, folder: str) -> None:
    assert seen.code == case.code.name
    assert set(seen.details) == case.details
    assert seen.request_id == REQUEST_ID
    assert seen.message
    for secret in ("/srv", folder, "Traceback"):
        assert secret not in f"{seen.message} {seen.details}"


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.error.__name__)
async def test_a_row_on_the_wire(case: Case, tmp_path: Path) -> None:
    async with case.trigger(tmp_path) as (face, ask):
        check(case, await ask_grpc(face.api, ask), str(tmp_path))
        over_http = await ask_http(face.http, ask)
        check(case, over_http, str(tmp_path))
        assert over_http.http_status == case.http_status
        assert over_http.headers.get("retry-after") == case.retry_after
        assert ("www-authenticate" in over_http.headers) == (case.http_status == 401)


def test_every_row_has_a_trigger() -> None:
    """The rows that the cases' errors fall on are all there are."""
    reached = {next(i for i, row in enumerate(TABLE) if issubclass(case.error, row.error)) for case in CASES}
    missing = [row.error.__name__ for i, row in enumerate(TABLE) if i not in reached]
    assert not missing


async def test_a_bug_tells_its_request_id_alone() -> None:
    async with dies_of(RuntimeError("secret"))(Path()) as (face, ask):
        for seen in (await ask_grpc(face.api, ask), await ask_http(face.http, ask)):
            assert (seen.code, seen.details, seen.request_id) == ("INTERNAL", {}, REQUEST_ID)
            assert seen.message == f"internal error; request id {REQUEST_ID}"
            assert seen.http_status in (None, 500)
