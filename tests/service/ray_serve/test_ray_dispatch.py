"""Calls through a proxy are answered, refused and limited exactly as on a gRPC server of our own."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

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
from tests.service.asynchronous import asynchronous
from tests.service.fake_retriever import FakeRetriever
from tests.service.running_server import Running, running

RETRIEVE = "/genret.v1.RetrievalService/Retrieve"
STREAM = "/genret.v1.RetrievalService/RetrieveStream"
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
    s.server.listeners.add_services(registry)
    return Dispatcher(registry.methods, s.server.listeners.interceptors, max_bytes)


async def ask(calls: Dispatcher, request: Any, context: RayContext, method: str = RETRIEVE) -> Any:
    raw = request if isinstance(request, bytes) else request.SerializeToString()
    return await calls.answer(method, raw, context, pb.RetrieveResponse)


def test_a_replica_has_every_method_of_the_api() -> None:
    for method in METHODS.values():
        behaviour = getattr(GenretReplica, method.name)
        assert "grpc_context" in inspect.signature(behaviour).parameters, "by its name Serve hands it over"
        assert inspect.isasyncgenfunction(behaviour) == method.is_stream


@asynchronous
async def test_an_answer_is_that_of_the_server_with_the_callers_request_id() -> None:
    async with running(FakeRetriever()) as s:
        context = RayContext(x_request_id="mine")
        request = pb.RetrieveRequest(query="hamlet", k=3)
        answer = await ask(dispatcher(s), request, context)
        direct = await s.stub.Retrieve(request)
    assert [c.title for c in answer.candidates] == [c.title for c in direct.candidates] != []
    assert context.trailers == [("x-request-id", "mine")]
    assert context.status is None


@pytest.mark.parametrize("query", [*ERRORS, "no such index"])
@asynchronous
async def test_a_refusal_has_the_status_and_the_details_of_the_server(query: str) -> None:
    index = "nowhere" if query == "no such index" else ""
    request = pb.RetrieveRequest(query=query, index=index)
    async with running(FakeRetriever(errors=ERRORS)) as s:
        context = RayContext(x_request_id="mine")
        answer = await ask(dispatcher(s), request, context)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await s.stub.Retrieve(request, metadata=(("x-request-id", "mine"),))
    error = caught.value
    assert (context.status, context.details) == (error.code(), error.details())
    assert dict(context.trailers) == dict(tuple(error.trailing_metadata()))
    assert answer == pb.RetrieveResponse()


@asynchronous
async def test_a_bug_tells_its_request_id_only() -> None:
    async with running(FakeRetriever(bugs={"bug": ZeroDivisionError("secret")})) as s:
        context = RayContext(x_request_id="mine")
        await ask(dispatcher(s), pb.RetrieveRequest(query="bug"), context)
    assert (context.status, context.details) == (grpc.StatusCode.INTERNAL, "internal error; request id mine")


@asynchronous
async def test_bytes_that_are_no_message_are_the_callers_mistake() -> None:
    async with running(FakeRetriever()) as s:
        context = RayContext()
        await ask(dispatcher(s), b"\xff\xff\xff", context)
    assert context.status is grpc.StatusCode.INVALID_ARGUMENT
    status = status_pb2.Status.FromString(dict(context.trailers)["grpc-status-details-bin"])
    assert status.details[0].type_url.endswith("BadRequest")


@asynchronous
async def test_a_message_above_the_limit_is_refused_in_grpcs_words() -> None:
    async with running(FakeRetriever()) as s:
        context = RayContext()
        await ask(dispatcher(s, 2000), pb.RetrieveRequest(query="x" * 2000), context)
    assert context.status is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert context.details == "SERVER: Received message larger than max (2003 vs. 2000)"


@asynchronous
async def test_a_method_that_nobody_has_is_unimplemented() -> None:
    async with running(FakeRetriever()) as s:
        context = RayContext()
        await ask(dispatcher(s), b"", context, "/genret.v1.RetrievalService/Other")
    assert context.status is grpc.StatusCode.UNIMPLEMENTED


@asynchronous
async def test_a_reload_is_refused_with_what_to_do_instead(tmp_path: Path) -> None:
    secret = new_token()
    tokens = tmp_path / "tokens"
    tokens.write_text(line_of(Scope.ADMIN, secret) + "\n", encoding="utf-8")
    tokens.chmod(0o600)
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


@asynchronous
async def test_a_stream_answers_each_query_and_each_error() -> None:
    async with running(FakeRetriever(errors=ERRORS)) as s:
        answers = [m async for m in dispatcher(s).stream(STREAM, sent("a", "field", "b"), RayContext())]
    assert sorted(m.id for m in answers) == ["a", "b", "field"]
    assert [m.error.message for m in answers if m.HasField("error")] == ["k: must be otherwise"]


@asynchronous
async def test_a_stream_that_is_left_early_leaves_nothing_behind() -> None:
    async with running(FakeRetriever()) as s:
        stream = dispatcher(s).stream(STREAM, sent("a", "b", "c"), RayContext())
        await anext(stream)
        await stream.aclose()  # type: ignore[attr-defined]
        assert len(s.server.methods.streams) == 0


@asynchronous
async def test_a_refused_stream_sets_its_status() -> None:
    async with running(FakeRetriever(), load=False) as s:
        context = RayContext()
        with pytest.raises(grpc.aio.AbortError):
            await anext(dispatcher(s).stream(STREAM, sent("a"), context))
    assert context.status is grpc.StatusCode.UNAVAILABLE


class _Server:
    def __init__(self) -> None:
        self.added: list[Any] = []

    def add_generic_rpc_handlers(self, handlers: Any) -> None:
        self.added += handlers


def test_the_proxy_passes_messages_on_as_bytes() -> None:
    server = _Server()

    class Servicer:
        def __getattr__(self, name: str) -> Any:
            return lambda request, context: None

    add_services_to_server(Servicer(), server)
    assert [one.service_name() for one in server.added] == [
        "genret.v1.RetrievalService",
        "genret.v1.IndexService",
        "grpc.health.v1.Health",
    ]
    handlers = [h for one in server.added for h in one._method_handlers.values()]
    assert len(handlers) >= 10
    assert all(handler.request_deserializer is None for handler in handlers)
