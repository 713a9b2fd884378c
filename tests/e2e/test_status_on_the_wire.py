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
from typing import Any, TypeAlias

import grpc
import httpx
import pytest
from google.protobuf import json_format
from google.protobuf.message import Message
from grpc_status import rpc_status

from genret.decoding import errors as decoding
from genret.retrieval import errors as retrieval
from genret.retrieval.index.reader import Index
from genret.service import errors as service
from genret.service.configuration.server_config import IndexSpec, QueueLimits
from genret.service.gateway.endpoints import ENDPOINTS, NDJSON_TYPE, Endpoint
from genret.service.pb.genret.v1 import index_service_pb2 as index_pb
from genret.service.pb.genret.v1 import retrieval_service_pb2 as pb
from genret.service.security.bearer_tokens import new_token
from genret.service.serving.served import ServedIndex
from genret.service.status import TABLE
from tests.service.changing_index import ChangingIndex
from tests.service.fake_retriever import FakeRetriever
from tests.service.http_gateway import connected
from tests.service.running_server import Running, unpack, until
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
        status = rpc_status.from_call(error)
        request_id = str(trailers.get("x-request-id", ""))
        return Seen(error.code().name, str(error.details()), unpack(status), request_id)
    raise AssertionError(f"the call succeeded: {answer!r}")


async def ask_http(client: httpx.AsyncClient, ask: Ask) -> Seen:
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
Faces: TypeAlias = tuple[Running, httpx.AsyncClient]  # of one server


@asynccontextmanager
async def faces(retriever: FakeRetriever | None = None, **options: Any) -> AsyncIterator[Faces]:
    async with connected(retriever or FakeRetriever(), **options) as (api, _, client):
        yield api, client


Trigger = Callable[[Path], AbstractAsyncContextManager[tuple[Faces, Ask]]]


def met(
    ask: Ask = RETRIEVE,
    retriever: FakeRetriever | None = None,
    done: Callable[[Running], Awaitable[None] | None] = lambda api: None,
    **options: Any,
) -> Trigger:
    """What is asked of a server with this retriever and options, once something was done to it."""

    @asynccontextmanager
    async def trigger(folder: Path) -> AsyncIterator[tuple[Faces, Ask]]:
        async with faces(retriever, **options) as (api, client):
            if (doing := done(api)) is not None:
                await doing
            yield (api, client), ask

    return trigger


def dies_of(bug: BaseException) -> Trigger:
    return met(retriever=FakeRetriever(bugs={"q": bug}))


# The last moment of a drain: the queue takes nothing any more.
draining = met(done=lambda api: api.server.engine.lanes.of("cpu").close())
# The server's own limit passes: at a client's deadline the client answers itself.
too_late = met(retriever=FakeRetriever(held=True), max_request_seconds=0.2)


def reload_finds(change: Callable[[ChangingIndex], object]) -> Trigger:
    """A new version is real and has been changed on its disk."""

    @asynccontextmanager
    async def trigger(folder: Path) -> AsyncIterator[tuple[Faces, Ask]]:
        index = ChangingIndex(folder / "a", make_checkpoint(folder / "checkpoint"))
        change(index)

        def open_real(spec: IndexSpec) -> ServedIndex:
            Index.open(index.path).close()
            raise AssertionError("the index can be opened")

        async with faces() as (api, client):
            old = api.server.engine.indexes.resolve("")
            changed = ServedIndex(replace(old.description, version="changed"), old.retriever)
            api.opener.table["fake"] = changed
            api.opener.open = open_real  # type: ignore[method-assign]
            yield (api, client), RELOAD

    return trigger


@asynccontextmanager
async def full(folder: Path) -> AsyncIterator[tuple[Faces, Ask]]:
    """The queue holds all it may."""
    slow = FakeRetriever(held=True)
    async with faces(slow, queue=QueueLimits(max_requests=1)) as (api, client):
        waiting = asyncio.ensure_future(api.retrieve("another"))
        await until(slow.running.is_set)
        yield (api, client), RETRIEVE
        slow.hold.set()
        await waiting


def guarded(ask: Ask, has_token: bool) -> Trigger:
    """A server that asks for tokens; who calls has none, or one that may only read."""

    @asynccontextmanager
    async def trigger(folder: Path) -> AsyncIterator[tuple[Faces, Ask]]:
        token = new_token()
        async with faces(token_file=tokens_in(folder, f"read {token}")) as face:
            yield face, replace(ask, token=token if has_token else "")

    return trigger


@dataclass(frozen=True)
class Case:
    """What ends a call, and how it must end."""

    error: type[Exception]
    trigger: Trigger
    code: grpc.StatusCode
    http_status: int
    details: frozenset[str] = frozenset()
    retry_after: str | None = None


def answered(error: retrieval.GenretError | decoding.DecodingError, *expected: Any) -> Case:
    return Case(type(error), met(retriever=FakeRetriever({"q": error})), *expected)


def not_reloaded(error: retrieval.GenretError) -> Case:
    fails = met(RELOAD, done=lambda api: api.opener.table.update(fake=error))
    return Case(type(error), fails, *WRONG_STATE)


def point_nowhere(index: ChangingIndex) -> None:
    (index.path / "CURRENT").write_text("nonsense\n")


C = grpc.StatusCode
BAD = (C.INVALID_ARGUMENT, 400, frozenset({"BadRequest"}))
WRONG_STATE = (C.FAILED_PRECONDITION, 400, frozenset({"PreconditionFailure"}))
LOST = (C.DATA_LOSS, 500, frozenset({"ErrorInfo"}))
MISSING = (C.NOT_FOUND, 404, frozenset({"ResourceInfo"}))
TOO_MANY = frozenset({"ErrorInfo", "RetryInfo"})
NO_QUERY = pb.RetrieveRequest(query=" ")
UNKNOWN = pb.RetrieveRequest(query="q", index="none")
CASES = [
    Case(service.MalformedMessageError, met(Ask("Retrieve", NO_QUERY, GARBAGE)), *BAD),
    Case(retrieval.InputError, met(Ask("Retrieve", NO_QUERY)), *BAD),
    answered(decoding.PromptTooLongError("long"), *BAD),
    Case(service.UnknownIndexError, met(Ask("Retrieve", UNKNOWN)), *MISSING),
    Case(service.OverloadedError, full, C.RESOURCE_EXHAUSTED, 429, TOO_MANY, "1"),
    Case(service.OverloadedError, dies_of(MemoryError()), C.RESOURCE_EXHAUSTED, 429, TOO_MANY, "5"),
    answered(decoding.EngineError("10.0.0.7 is gone"), C.UNAVAILABLE, 503, TOO_MANY, "2"),
    Case(service.NotReadyError, met(load=False), C.UNAVAILABLE, 503, frozenset({"RetryInfo"}), "1"),
    Case(service.NotReadyError, draining, C.UNAVAILABLE, 503, frozenset({"RetryInfo"}), "1"),
    Case(service.UnauthenticatedError, guarded(RETRIEVE, has_token=False), C.UNAUTHENTICATED, 401),
    Case(service.PermissionDeniedError, guarded(RELOAD, has_token=True), C.PERMISSION_DENIED, 403),
    Case(decoding.DeadlineExceededError, too_late, C.DEADLINE_EXCEEDED, 504),
    answered(decoding.DecodingCancelledError("gone"), C.CANCELLED, 499),
    Case(retrieval.IndexChecksumError, reload_finds(lambda index: index.damage("entities.arrow")), *LOST),
    answered(retrieval.IndexChecksumError("vectors.faiss", "digest"), *LOST),
    Case(retrieval.IndexNotFoundError, reload_finds(lambda index: shutil.rmtree(index.path)), *WRONG_STATE),
    Case(retrieval.IndexDirectoryError, reload_finds(point_nowhere), *WRONG_STATE),
    not_reloaded(service.UnservableIndexError("empty")),
    not_reloaded(retrieval.IndexMismatchError("another tokenizer")),
    not_reloaded(retrieval.IndexFormatError("/srv/index: broken")),
    not_reloaded(retrieval.ModelError("no positions")),
    not_reloaded(retrieval.SourceError("schema.json: line 3")),
    answered(decoding.InvalidLogitsError("NaN"), *WRONG_STATE),
    answered(decoding.DecodingError("odd"), *WRONG_STATE),
    answered(retrieval.MissingExtraError("faiss", "vectors"), *WRONG_STATE),
    answered(retrieval.EvidenceMissingError("/srv/index: no vectors"), *WRONG_STATE),
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
    async with case.trigger(tmp_path) as ((api, client), ask):
        check(case, await ask_grpc(api, ask), str(tmp_path))
        over_http = await ask_http(client, ask)
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
    async with dies_of(RuntimeError("secret"))(Path()) as ((api, client), ask):
        for seen in (await ask_grpc(api, ask), await ask_http(client, ask)):
            assert (seen.code, seen.details, seen.request_id) == ("INTERNAL", {}, REQUEST_ID)
            assert seen.message == f"internal error; request id {REQUEST_ID}"
            assert seen.http_status in (None, 500)
