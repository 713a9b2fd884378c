"""Calls through a proxy are answered, refused and limited exactly as on a gRPC server of our own."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import grpc
import pytest
from google.rpc import status_pb2

from genret.decoding.errors import DeadlineExceededError, DecodingError
from genret.retrieval.errors import GenretError, IndexChecksumError, InputError
from genret.service.configuration.server_config import AuthConfig
from genret.service.errors import OverloadedError
from genret.service.methods import METHODS
from genret.service.pb.genret.v1 import index_service_pb2 as index_pb
from genret.service.pb.genret.v1 import retrieval_service_pb2 as pb
from genret.service.ray_serve.proxied_services import MethodRegistry, add_services_to_server
from genret.service.ray_serve.replica import RELOAD, Dispatcher, GenretReplica
from genret.service.security.bearer_tokens import Scope, line_of, new_token
from tests.service.fake_retriever import FakeRetriever
from tests.service.running_server import Running, running
from tests.service.secured_server import tokens_in

RETRIEVE = "/genret.v1.RetrievalService/Retrieve"
STREAM = "/genret.v1.RetrievalService/RetrieveStream"
OTHER = "/genret.v1.RetrievalService/Other"
TOO_LARGE = "SERVER: Received message larger than max (2003 vs. 2000)"
ERRORS: dict[str, GenretError | DecodingError] = {
    "field": InputError("k", "must be otherwise"),
    "full": OverloadedError("QUEUE_FULL", "512 requests wait", 1.5),
    "late": DeadlineExceededError("too late"),
    "corrupt": IndexChecksumError("titles.arrow", "differs"),
}


class RayContext:
    """What Serve hands to a replica."""

    def __init__(self, **metadata: str) -> None:
        self.metadata = [(name.replace("_", "-"), value) for name, value in metadata.items()]
        self.status: Any = None
        self.details = ""
        self.trailers: list[tuple[str, Any]] = []

    def invocation_metadata(self) -> list[tuple[str, str]]:
        return self.metadata

    def peer(self) -> str:
        return "ipv4:192.0.2.1:1"

    def code(self) -> Any:
        return self.status

    def set_code(self, code: Any) -> None:
        self.status = code

    def set_details(self, details: str) -> None:
        self.details = details

    def set_trailing_metadata(self, trailers: list[tuple[str, Any]]) -> None:
        self.trailers = trailers


def dispatcher(s: Running, max_bytes: int = 4 * 2**20) -> Dispatcher:
    registry = MethodRegistry()
    s.server.add_services(registry)
    return Dispatcher(registry.methods, s.server.interceptors, max_bytes)


async def asked(
    s: Running, request: Any, method: str = RETRIEVE, max_bytes: int = 4 * 2**20
) -> tuple[Any, RayContext]:
    """Ask as somebody whose request id is "mine"; return the answer, and the context with what was set."""
    raw = request if isinstance(request, bytes) else request.SerializeToString()
    context = RayContext(x_request_id="mine")
    return await dispatcher(s, max_bytes).answer(method, raw, context, pb.RetrieveResponse), context


def test_a_replica_has_every_method_of_the_api() -> None:
    for method in METHODS.values():
        behaviour = getattr(GenretReplica, method.name)
        assert "grpc_context" in inspect.signature(behaviour).parameters, "by its name Serve hands it over"
        assert inspect.isasyncgenfunction(behaviour) == method.is_stream


async def test_an_answer_is_that_of_the_server_with_the_callers_request_id() -> None:
    async with running(FakeRetriever()) as s:
        request = pb.RetrieveRequest(query="hamlet", k=3)
        answer, context = await asked(s, request)
        direct = await s.stub.Retrieve(request)
    assert [c.title for c in answer.candidates] == [c.title for c in direct.candidates] != []
    assert context.trailers == [("x-request-id", "mine")]
    assert context.status is None


@pytest.mark.parametrize("query", [*ERRORS, "no such index"])
async def test_a_refusal_has_the_status_and_the_details_of_the_server(query: str) -> None:
    index = "nowhere" if query == "no such index" else ""
    request = pb.RetrieveRequest(query=query, index=index)
    async with running(FakeRetriever(errors=ERRORS)) as s:
        answer, context = await asked(s, request)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await s.stub.Retrieve(request, metadata=(("x-request-id", "mine"),))
    error = caught.value
    assert (context.status, context.details) == (error.code(), error.details())
    assert dict(context.trailers) == dict(tuple(error.trailing_metadata()))
    assert answer == pb.RetrieveResponse()


@pytest.mark.parametrize(
    ("request_", "method", "max_bytes", "code", "details"),
    [
        (pb.RetrieveRequest(query="bug"), RETRIEVE, 2000, "INTERNAL", "internal error; request id mine"),
        (b"", OTHER, 2000, "UNIMPLEMENTED", f"there is no method {OTHER} here"),
        (pb.RetrieveRequest(query="x" * 2000), RETRIEVE, 2000, "RESOURCE_EXHAUSTED", TOO_LARGE),
        (b"\xff\xff\xff", RETRIEVE, 2000, "INVALID_ARGUMENT", None),
    ],
    ids=["a bug", "no method", "above the limit", "no message"],
)
async def test_what_is_no_answer_is_told_in_grpcs_words(
    request_: Any, method: str, max_bytes: int, code: str, details: str | None
) -> None:
    async with running(FakeRetriever(bugs={"bug": ZeroDivisionError("secret")})) as s:
        _, context = await asked(s, request_, method, max_bytes)
    assert context.status is grpc.StatusCode[code]
    if details is None:
        status = status_pb2.Status.FromString(dict(context.trailers)["grpc-status-details-bin"])
        assert status.details[0].type_url.endswith("BadRequest")
    else:
        assert context.details == details


async def test_a_reload_is_refused_with_what_to_do_instead(tmp_path: Path) -> None:
    secret = new_token()
    tokens = tokens_in(tmp_path, line_of(Scope.ADMIN, secret))
    async with running(FakeRetriever(), auth=AuthConfig(tokens)) as s:
        calls = dispatcher(s)
        unknown, known = RayContext(), RayContext(authorization=f"Bearer {secret}")
        for context in (unknown, known):
            await calls.answer(RELOAD, b"", context, index_pb.ReloadIndexResponse)
    assert unknown.status is grpc.StatusCode.UNAUTHENTICATED
    assert known.status is grpc.StatusCode.UNIMPLEMENTED
    assert "deploy again" in known.details


async def sent(*queries: str) -> AsyncIterator[bytes]:
    for query in queries:
        request = pb.RetrieveRequest(query=query)
        yield pb.RetrieveStreamRequest(id=query, request=request).SerializeToString()


async def test_a_stream_answers_each_query_and_each_error() -> None:
    async with running(FakeRetriever(errors=ERRORS)) as s:
        answers = [m async for m in dispatcher(s).stream(STREAM, sent("a", "field", "b"), RayContext())]
    assert sorted(m.id for m in answers) == ["a", "b", "field"]
    assert [m.error.message for m in answers if m.HasField("error")] == ["k: must be otherwise"]


async def test_a_stream_that_is_left_early_leaves_nothing_behind() -> None:
    async with running(FakeRetriever()) as s:
        stream = dispatcher(s).stream(STREAM, sent("a", "b", "c"), RayContext())
        await anext(stream)
        await stream.aclose()  # type: ignore[attr-defined]
        assert len(s.server.methods.streams) == 0


async def test_a_refused_stream_sets_its_status() -> None:
    async with running(FakeRetriever(), load=False) as s:
        context = RayContext()
        with pytest.raises(grpc.aio.AbortError):
            await anext(dispatcher(s).stream(STREAM, sent("a"), context))
    assert context.status is grpc.StatusCode.UNAVAILABLE


def test_the_proxy_passes_messages_on_as_bytes() -> None:
    added: list[Any] = []
    add_services_to_server(MagicMock(), SimpleNamespace(add_generic_rpc_handlers=added.extend))
    services = ["genret.v1.RetrievalService", "genret.v1.IndexService", "grpc.health.v1.Health"]
    assert [one.service_name() for one in added] == services
    handlers = [h for one in added for h in one._method_handlers.values()]
    assert len(handlers) >= 10
    assert all(handler.request_deserializer is None for handler in handlers)
