"""The whole server, encrypted and with tokens: gRPC, HTTP, health, metrics and SIGHUP."""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from genret.retrieval.errors import InputError
from genret.retrieval.types import RetrieveRequest
from genret.service.client.async_client import AsyncRetrievalClient
from genret.service.configuration.server_config import (
    AuthConfig,
    HttpConfig,
    LogConfig,
    MetricsConfig,
    TlsConfig,
)
from genret.service.errors import CallError
from genret.service.pb.genret.v1 import index_service_pb2 as index_pb
from genret.service.pb.genret.v1 import index_service_pb2_grpc as index_grpc
from genret.service.pb.genret.v1 import retrieval_service_pb2 as pb
from genret.service.pb.genret.v1 import retrieval_service_pb2_grpc as pb_grpc
from genret.service.security.bearer_tokens import Scope, digest_of, line_of, new_token
from tests.service.certificates import Authority
from tests.service.fake_retriever import FakeRetriever
from tests.service.running_server import Running, failure, running

READ, ADMIN, NEWER = new_token(), new_token(), new_token()


def bearer(token: str) -> tuple[tuple[str, str], ...]:
    return (("authorization", f"Bearer {token}"),)


def write_tokens(path: Path, *lines: str) -> None:
    path.write_text("\n".join(lines))
    path.chmod(0o600)


@pytest.fixture
def ca(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "ca")


@pytest.fixture
def token_file(tmp_path: Path) -> Path:
    path = tmp_path / "tokens"
    write_tokens(path, line_of(Scope.READ, READ), line_of(Scope.ADMIN, ADMIN))
    return path


@asynccontextmanager
async def serving(ca: Authority, token_file: Path, **options: Any) -> AsyncIterator[tuple[Running, Any]]:
    """Run a server; yields it with a channel that trusts its certificate."""
    settings = {"tls": ca.server_tls(), "auth": AuthConfig(token_file), "http": HttpConfig(port=0)} | options
    async with running(FakeRetriever(), **settings) as server:
        credentials = grpc.ssl_channel_credentials(ca.ca_bytes)
        async with grpc.aio.secure_channel(server.server.address, credentials) as channel:
            yield server, channel


def test_grpc_callers_need_encryption_and_a_token(ca: Authority, token_file: Path) -> None:
    async def scenario() -> None:
        async with serving(ca, token_file) as (server, channel):
            stub = pb_grpc.RetrievalServiceStub(channel)
            request = pb.RetrieveRequest(query="hamlet")
            await stub.Retrieve(request, metadata=bearer(READ), timeout=60)
            error, _ = await failure(stub.Retrieve(request, timeout=60))
            assert error.code() is grpc.StatusCode.UNAUTHENTICATED
            error, _ = await failure(server.retrieve())  # over a plaintext channel
            assert error.code() is grpc.StatusCode.UNAVAILABLE

    asyncio.run(scenario())


def test_logs_tell_callers_apart_without_their_tokens(
    ca: Authority, token_file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)

    async def scenario() -> None:
        log = LogConfig(level="debug", requests=True)
        async with serving(ca, token_file, log=log) as (_, channel):
            stub = pb_grpc.RetrievalServiceStub(channel)
            request = pb.RetrieveRequest(query="to be or not to be")
            await stub.Retrieve(request, metadata=bearer(READ), timeout=60)
            for wrong in (bearer(NEWER), bearer(READ[:-1]), (("authorization", READ),)):
                await failure(stub.Retrieve(request, metadata=wrong, timeout=60))

    asyncio.run(scenario())
    logged = " ".join(f"{record.getMessage()} {vars(record)}" for record in caplog.records)
    assert digest_of(READ).hex()[:8] in logged
    assert logged.count("UNAUTHENTICATED") >= 3
    for secret in (READ[:-1], NEWER, ADMIN, "not to be"):
        assert secret not in logged


def test_only_admins_reload_and_anybody_asks_for_health(ca: Authority, token_file: Path) -> None:
    async def scenario() -> None:
        async with serving(ca, token_file) as (_, channel):
            indexes = index_grpc.IndexServiceStub(channel)
            request = index_pb.ReloadIndexRequest(name="fake")
            error, _ = await failure(indexes.ReloadIndex(request, metadata=bearer(READ), timeout=60))
            assert error.code() is grpc.StatusCode.PERMISSION_DENIED
            await indexes.ReloadIndex(request, metadata=bearer(ADMIN), timeout=60)
            health = health_pb2_grpc.HealthStub(channel)
            status = (await health.Check(health_pb2.HealthCheckRequest(), timeout=60)).status
            assert status == health_pb2.HealthCheckResponse.SERVING

    asyncio.run(scenario())


async def code_of_end(answers: AsyncIterator[Any]) -> str:
    try:
        async for _, answer in answers:
            assert isinstance(answer, CallError)
    except CallError as error:
        return error.code
    return "OK"


def test_a_refused_stream_says_why_whatever_is_being_sent(ca: Authority, token_file: Path) -> None:
    async def scenario() -> list[str]:
        codes = []
        async with serving(ca, token_file) as (server, _):
            address = server.server.address
            for _ in range(20):
                async with AsyncRetrievalClient(address, tls_ca=ca.ca_file, token=NEWER) as client:
                    answers = client.retrieve_stream([RetrieveRequest(query) for query in "abcde"])
                    codes.append(await code_of_end(answers))
        return codes

    assert set(asyncio.run(scenario())) == {"UNAUTHENTICATED"}


def test_reflection_needs_a_token(ca: Authority, token_file: Path) -> None:
    async def scenario() -> list[str]:
        async with serving(ca, token_file) as (_, channel):
            reflection = reflection_pb2_grpc.ServerReflectionStub(channel)
            refused = reflection.ServerReflectionInfo(timeout=60)
            assert await refused.code() is grpc.StatusCode.UNAUTHENTICATED
            asked = [reflection_pb2.ServerReflectionRequest(list_services="")]
            replies = reflection.ServerReflectionInfo(iter(asked), metadata=bearer(READ), timeout=60)
            return [s.name async for reply in replies for s in reply.list_services_response.service]

    assert "genret.v1.RetrievalService" in asyncio.run(scenario())


def test_http_callers_need_encryption_and_a_token(ca: Authority, token_file: Path) -> None:
    async def scenario() -> None:
        async with serving(ca, token_file) as (server, _):
            http = server.server.listeners.http
            assert http is not None
            trusting = ssl.create_default_context(cafile=ca.ca_file)
            url = f"https://{http.address}"
            body = {"query": "hamlet"}
            async with httpx.AsyncClient(verify=trusting, base_url=url, timeout=60) as client:
                answered = await client.post("/v1/retrieve", json=body, headers=dict(bearer(READ)))
                assert answered.status_code == 200
                for path, headers, code in (
                    ("/v1/retrieve", {}, 401),
                    ("/v1/retrieve", dict(bearer(NEWER)), 401),
                    ("/v1/indexes/fake:reload", dict(bearer(READ)), 403),
                    ("/v1/indexes/fake:reload", dict(bearer(ADMIN)), 200),
                    ("/v1/indexes/fake:reload", dict(bearer(ADMIN)) | {"sec-fetch-site": "cross-site"}, 403),
                ):
                    assert (await client.post(path, json={}, headers=headers)).status_code == code, path
                assert (await client.get("/metrics")).status_code == 401
                assert (await client.get("/readyz")).status_code == 200
            async with httpx.AsyncClient(base_url=f"http://{http.address}", timeout=60) as plaintext:
                with pytest.raises(httpx.TransportError):
                    await plaintext.get("/readyz")

    asyncio.run(scenario())


def test_pages_of_other_sites_do_not_reload_a_server_on_this_machine() -> None:
    async def scenario() -> None:
        async with running(FakeRetriever(), http=HttpConfig(port=0)) as server:
            http = server.server.listeners.http
            assert http is not None
            async with httpx.AsyncClient(base_url=f"http://{http.address}", timeout=60) as client:
                for headers, code in (
                    ({}, 200),
                    ({"sec-fetch-site": "same-origin"}, 200),
                    ({"origin": "https://evil.example"}, 403),
                    ({"host": "rebound.example"}, 403),
                ):
                    reply = await client.post("/v1/indexes/fake:reload", headers=headers)
                    assert reply.status_code == code, headers

    asyncio.run(scenario())


def test_a_hangup_takes_the_changed_token_file(ca: Authority, token_file: Path) -> None:
    async def scenario() -> None:
        async with serving(ca, token_file) as (server, channel):
            stub = pb_grpc.RetrievalServiceStub(channel)
            request = pb.RetrieveRequest(query="hamlet")
            write_tokens(token_file, f"read {NEWER}")
            server.server.hang_up()
            await stub.Retrieve(request, metadata=bearer(NEWER), timeout=60)
            error, _ = await failure(stub.Retrieve(request, metadata=bearer(READ), timeout=60))
            assert error.code() is grpc.StatusCode.UNAUTHENTICATED

    asyncio.run(scenario())


def test_metrics_of_a_port_of_their_own_ask_for_nothing(ca: Authority, token_file: Path) -> None:
    async def scenario() -> None:
        async with serving(ca, token_file, metrics=MetricsConfig(port=0)) as (server, _):
            monitoring = server.server.listeners.monitoring
            assert monitoring is not None
            async with httpx.AsyncClient(base_url=f"http://{monitoring.address}", timeout=60) as client:
                shown = await client.get("/metrics")
                assert shown.status_code == 200
                for secret in (READ, ADMIN):
                    assert secret not in shown.text

    asyncio.run(scenario())


@pytest.mark.parametrize("setting", ["tls.key", "auth.token_file"])
def test_what_cannot_be_used_is_told_before_anything_is_bound(
    ca: Authority, token_file: Path, setting: str
) -> None:
    tls = ca.server_tls()
    if setting == "tls.key":
        tls = TlsConfig(tls.certificate, ca.issue("another").key)
    else:
        token_file.write_text("admin short")

    async def scenario() -> None:
        async with serving(ca, token_file, tls=tls):
            raise AssertionError("the server started")

    with pytest.raises(InputError) as caught:
        asyncio.run(scenario())
    assert caught.value.field == setting
