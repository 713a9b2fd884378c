"""Tokens, TLS and mTLS over real connections: who is let in, to what, and files that change."""

from __future__ import annotations

import asyncio
import logging
import shutil
import socket
import ssl
import warnings
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from cryptography import x509
from grpc import StatusCode
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from grpc_status import rpc_status

from genret.retrieval.errors import InputError
from genret.retrieval.types import RetrieveRequest
from genret.service.client.clients import AsyncRetrievalClient
from genret.service.configuration.server_config import (
    LogConfig,
    TlsConfig,
)
from genret.service.errors import CallError
from genret.service.pb.genret.v1 import retrieval_service_pb2 as pb
from genret.service.pb.genret.v1 import retrieval_service_pb2_grpc as pb_grpc
from genret.service.security.authority import Authority
from genret.service.security.bearer_tokens import Scope, digest_of, line_of, new_token
from genret.service.security.tls import ssl_context
from tests.service import secured_server as methods
from tests.service.certificates import Authority as CertificateAuthority
from tests.service.certificates import CertificateFiles
from tests.service.fake_retriever import FakeRetriever
from tests.service.http_gateway import http_client
from tests.service.running_server import Running, failure, failure_code, running
from tests.service.secured_server import secured, tokens_in

READ, ADMIN, NEWER = new_token(), new_token(), new_token()
KINDS = {
    "unary_unary": methods.READ_METHOD,
    "unary_stream": methods.SERVER_STREAM,
    "stream_unary": methods.CLIENT_STREAM,
    "stream_stream": methods.BIDIRECTIONAL,
}


def bearer(token: str) -> tuple[str, str]:
    return "authorization", f"Bearer {token}"


@pytest.fixture
def token_file(tmp_path: Path) -> Path:
    return tokens_in(tmp_path, f"read {READ}", line_of(Scope.ADMIN, ADMIN))


@pytest.mark.parametrize(
    ("metadata", "method", "code"),
    [
        ([], methods.READ_METHOD, "UNAUTHENTICATED"),
        ([bearer("w" * 40)], methods.READ_METHOD, "UNAUTHENTICATED"),
        ([("authorization", "")], methods.READ_METHOD, "UNAUTHENTICATED"),
        ([bearer(READ), bearer(ADMIN)], methods.READ_METHOD, "UNAUTHENTICATED"),
        ([("authorization-bin", b"Bearer " + READ.encode())], methods.READ_METHOD, "UNAUTHENTICATED"),
        ([bearer(READ)], methods.READ_METHOD, "OK"),
        ([bearer(ADMIN)], methods.READ_METHOD, "OK"),
        ([bearer(READ)], methods.ADMIN_METHOD, "PERMISSION_DENIED"),
        ([bearer(ADMIN)], methods.ADMIN_METHOD, "OK"),
        ([], methods.HEALTH_METHOD, "OK"),
        ([bearer("w" * 40)], methods.HEALTH_METHOD, "OK"),
        ([], methods.UNLISTED_METHOD, "UNAUTHENTICATED"),
        ([bearer(ADMIN)], methods.UNLISTED_METHOD, "PERMISSION_DENIED"),
        ([], "/genret.v1.RetrievalService/Nothing", "UNAUTHENTICATED"),
        ([bearer(READ)], "/genret.v1.RetrievalService/Nothing", "UNIMPLEMENTED"),
    ],
)
async def test_a_call_is_allowed_by_its_token(
    token_file: Path, metadata: list[Any], method: str, code: str
) -> None:
    async with secured(Authority(token_file)) as running:
        assert await running.code(*metadata, method=method) is StatusCode[code]


@pytest.mark.parametrize("kind", KINDS)
async def test_every_kind_of_method_is_refused_before_its_request_is_parsed(
    token_file: Path, kind: str
) -> None:
    async with secured(Authority(token_file)) as running:
        for metadata in ((), (bearer("w" * 40),)):
            with pytest.raises(grpc.RpcError) as caught:
                await asyncio.to_thread(consume, running.port, kind, metadata)
            assert_refused(caught.value)
        assert running.parsed == []
        replies = await asyncio.to_thread(consume, running.port, kind, (bearer(READ),))
        assert b"".join(replies) in {b"one", b"oneone", b"onetwo"}
        assert running.parsed
    assert running.tokens == [digest_of(READ).hex()[:8]]


def assert_refused(error: Any) -> None:
    assert error.code() is StatusCode.UNAUTHENTICATED
    assert "bearer" in error.details()
    assert ("x-request-id", "of-the-client") in {(key, value) for key, value in error.trailing_metadata()}
    status = rpc_status.from_call(error)
    assert status.message == error.details()


def consume(port: int, kind: str, metadata: tuple[tuple[str, str], ...]) -> list[bytes]:
    """Call with the blocking client: asyncio's says INTERNAL when a call ends while a request is written."""
    with grpc.insecure_channel(f"localhost:{port}") as channel:
        multicallable = getattr(channel, kind)(KINDS[kind])
        request = iter([b"one", b"two"]) if kind.startswith("stream") else b"one"
        reply = multicallable(request, metadata=(*metadata, ("x-request-id", "of-the-client")), timeout=60)
        return list(reply) if kind.endswith("stream") else [reply]


@pytest.mark.parametrize(("trusted", "code"), [(True, StatusCode.OK), (False, StatusCode.PERMISSION_DENIED)])
async def test_without_tokens_reading_is_free_and_the_rest_depends_on_who_can_connect(
    trusted: bool, code: StatusCode
) -> None:
    async with secured(Authority(None, admin_without_token=trusted)) as running:
        assert await running.code(method=methods.READ_METHOD) is StatusCode.OK
        unasked = bearer("not asked for")
        assert await running.code(unasked, method=methods.UNLISTED_METHOD) is StatusCode.OK
        assert await running.code(method=methods.ADMIN_METHOD) is code
        unknown = await running.code(method="/genret.v1.RetrievalService/Nothing")
        assert unknown is StatusCode.UNIMPLEMENTED


@pytest.fixture
def ca(tmp_path: Path) -> CertificateAuthority:
    return CertificateAuthority(tmp_path / "ca")


@asynccontextmanager
async def serving(
    ca: CertificateAuthority, token_file: Path, **options: Any
) -> AsyncIterator[tuple[Running, Any]]:
    """Run a server; yields it with a channel that trusts its certificate."""
    settings = {"tls": ca.server_tls(), "token_file": token_file} | options
    async with running(FakeRetriever(), **settings) as server:
        credentials = grpc.ssl_channel_credentials(ca.ca_bytes)
        async with grpc.aio.secure_channel(server.server.address, credentials) as channel:
            yield server, channel


async def test_logs_tell_callers_apart_without_their_tokens(
    ca: CertificateAuthority, token_file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    log = LogConfig(level="debug", requests=True)
    async with serving(ca, token_file, log=log) as (_, channel):
        stub = pb_grpc.RetrievalServiceStub(channel)
        request = pb.RetrieveRequest(query="to be or not to be")
        await stub.Retrieve(request, metadata=[bearer(READ)], timeout=60)
        for wrong in (bearer(NEWER), bearer(READ[:-1]), ("authorization", READ)):
            await failure(stub.Retrieve(request, metadata=[wrong], timeout=60))
    logged = " ".join(f"{record.getMessage()} {vars(record)}" for record in caplog.records)
    assert digest_of(READ).hex()[:8] in logged
    assert logged.count("UNAUTHENTICATED") >= 3
    for secret in (READ[:-1], NEWER, ADMIN, "not to be"):
        assert secret not in logged


async def code_of_end(answers: AsyncIterator[Any]) -> str:
    try:
        async for _, answer in answers:
            assert isinstance(answer, CallError)
    except CallError as error:
        return error.code
    return "OK"


async def test_a_refused_stream_says_why_whatever_is_being_sent(
    ca: CertificateAuthority, token_file: Path
) -> None:
    async with serving(ca, token_file) as (server, _):
        address = server.server.address
        for _ in range(20):
            async with AsyncRetrievalClient(address, tls_ca=ca.ca_file, token=NEWER) as client:
                answers = client.retrieve_stream([RetrieveRequest(query) for query in "abcde"])
                assert await code_of_end(answers) == "UNAUTHENTICATED"


async def test_reflection_needs_a_token(ca: CertificateAuthority, token_file: Path) -> None:
    async with serving(ca, token_file) as (_, channel):
        reflection = reflection_pb2_grpc.ServerReflectionStub(channel)
        refused = reflection.ServerReflectionInfo(timeout=60)
        assert await refused.code() is grpc.StatusCode.UNAUTHENTICATED
        asked = [reflection_pb2.ServerReflectionRequest(list_services="")]
        replies = reflection.ServerReflectionInfo(iter(asked), metadata=[bearer(READ)], timeout=60)
        names = [s.name async for reply in replies for s in reply.list_services_response.service]
        assert "genret.v1.RetrievalService" in names


async def test_pages_of_other_sites_do_not_reload_a_server_on_this_machine() -> None:
    async with http_client() as client:
        for headers, code in (
            ({}, 200),
            ({"sec-fetch-site": "same-origin"}, 200),
            ({"origin": "https://evil.example"}, 403),
            ({"host": "rebound"}, 403),
            ({"host": "rebound.example"}, 421),
        ):
            reply = await client.post("/v1/indexes/fake:reload", headers=headers)
            assert reply.status_code == code, headers
            assert "access-control-allow-origin" not in reply.headers


async def test_a_hangup_takes_the_changed_token_file(ca: CertificateAuthority, token_file: Path) -> None:
    async with serving(ca, token_file) as (server, channel):
        stub = pb_grpc.RetrievalServiceStub(channel)
        request = pb.RetrieveRequest(query="hamlet")
        tokens_in(token_file.parent, f"read {NEWER}")
        server.server.hang_up()
        await stub.Retrieve(request, metadata=[bearer(NEWER)], timeout=60)
        refused = stub.Retrieve(request, metadata=[bearer(READ)], timeout=60)
        assert await failure_code(refused) is grpc.StatusCode.UNAUTHENTICATED


@pytest.mark.parametrize("setting", ["tls.key", "auth.token_file"])
async def test_what_cannot_be_used_is_told_before_anything_is_bound(
    ca: CertificateAuthority, token_file: Path, setting: str
) -> None:
    tls = ca.server_tls()
    if setting == "tls.key":
        tls = TlsConfig(tls.certificate, ca.issue("another").key)
    else:
        token_file.write_text("admin short")

    with pytest.raises(InputError) as caught:
        async with serving(ca, token_file, tls=tls):
            raise AssertionError("the server started")
    assert caught.value.field == setting


ANYBODY = Authority(None)


def client_of(ca: CertificateAuthority, files: CertificateFiles | None = None) -> grpc.ChannelCredentials:
    if files is None:
        return grpc.ssl_channel_credentials(ca.ca_bytes)
    return grpc.ssl_channel_credentials(ca.ca_bytes, files.key_bytes, files.chain_bytes)


async def test_a_chain_with_an_intermediate_authority_is_sent_whole(ca: CertificateAuthority) -> None:
    async with secured(ANYBODY, ca.intermediate().server_tls()) as running:
        assert await running.code(credentials=client_of(ca)) is StatusCode.OK


async def test_with_a_client_authority_only_its_clients_get_through(
    ca: CertificateAuthority, tmp_path: Path
) -> None:
    clients = CertificateAuthority(tmp_path / "clients", "clients' CA")
    right = clients.issue("client", client=True)
    expired = clients.issue("expired client", client=True, days_valid=-1)
    of_another = ca.issue("client of another", client=True)
    async with secured(ANYBODY, ca.server_tls(client_ca=clients.ca_file)) as running:
        assert await running.code(credentials=client_of(ca, right)) is StatusCode.OK
        for refused in (None, of_another, expired):
            assert await running.code(credentials=client_of(ca, refused)) is StatusCode.UNAVAILABLE
        assert running.tokens[1:] == []


def replace_files(target: TlsConfig, source: CertificateFiles) -> None:
    """Put a certificate and its key in place as certificate managers do: by renaming, one file at a time."""
    for path, new in ((target.certificate, source.certificate), (target.key, source.key)):
        staged = path.with_suffix(".staged")
        shutil.copy(new, staged)
        staged.rename(path)


def serial_shown(port: int, ca: CertificateAuthority) -> int:
    """Return the serial number of the certificate that the server on `port` shows to a new connection."""
    pem = ssl.get_server_certificate(("localhost", port), ca_certs=str(ca.ca_file), timeout=60)
    return x509.load_pem_x509_certificate(pem.encode()).serial_number


Listener = Callable[[TlsConfig], AbstractAsyncContextManager[int]]


@asynccontextmanager
async def grpc_listener(tls: TlsConfig) -> AsyncIterator[int]:
    async with secured(ANYBODY, tls) as running:
        yield running.port


@asynccontextmanager
async def http_listener(tls: TlsConfig) -> AsyncIterator[int]:
    async with greeting_listener(ssl_context(tls)) as port:
        yield port


@asynccontextmanager
async def permissive_listener(tls: TlsConfig) -> AsyncIterator[int]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tls.certificate, tls.key)
    allow_only(context, ssl.TLSVersion.TLSv1_1)
    async with greeting_listener(context) as port:
        yield port


@asynccontextmanager
async def greeting_listener(context: ssl.SSLContext) -> AsyncIterator[int]:
    async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"hello")
        writer.close()

    server = await asyncio.start_server(greet, "localhost", 0, ssl=context)
    async with server:
        yield server.sockets[0].getsockname()[1]


@pytest.mark.parametrize("listener", [grpc_listener, http_listener])
async def test_changed_files_serve_new_connections_and_broken_ones_do_not(
    ca: CertificateAuthority, caplog: pytest.LogCaptureFixture, listener: Listener
) -> None:
    first, second = ca.issue("first"), ca.issue("second")
    files = ca.issue("live")
    tls = TlsConfig(files.certificate, files.key)
    replace_files(tls, first)

    async with listener(tls) as port:

        async def shown() -> int:
            return await asyncio.to_thread(serial_shown, port, ca)

        assert await shown() == first.serial
        replace_files(tls, second)
        assert await shown() == second.serial
        files.key.write_text("no key")
        assert await shown() == second.serial
        assert await shown() == second.serial
        files.key.unlink()
        assert await shown() == second.serial
        replace_files(tls, first)
        assert await shown() == first.serial
    errors = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    assert len(errors) == 2  # once for each state of the files
    assert "tls.key" in errors[0]
    assert "no key" not in "".join(errors)


def context_of_version(ca: CertificateAuthority, version: ssl.TLSVersion) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=ca.ca_file)
    context.set_alpn_protocols(["h2", "http/1.1"])
    allow_only(context, version)
    return context


def allow_only(context: ssl.SSLContext, version: ssl.TLSVersion) -> None:
    context.set_ciphers("ALL:@SECLEVEL=0")  # or OpenSSL would not offer old versions
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        context.minimum_version = context.maximum_version = version


def negotiated(port: int, context: ssl.SSLContext) -> str | None:
    with (
        socket.create_connection(("localhost", port), timeout=60) as plain,
        context.wrap_socket(plain, server_hostname="localhost") as connection,
    ):
        return connection.version()


@pytest.mark.parametrize("listener", [grpc_listener, http_listener])
async def test_tls_before_1_2_is_refused(ca: CertificateAuthority, listener: Listener) -> None:
    newest, older, too_old = (
        context_of_version(ca, version)
        for version in (ssl.TLSVersion.TLSv1_3, ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_1)
    )

    async with listener(ca.server_tls()) as port:
        assert await asyncio.to_thread(negotiated, port, newest) == "TLSv1.3"
        assert await asyncio.to_thread(negotiated, port, older) == "TLSv1.2"
        with pytest.raises((ssl.SSLError, ConnectionError)):
            await asyncio.to_thread(negotiated, port, too_old)
    async with permissive_listener(ca.server_tls()) as port:  # it is the server that refuses
        assert await asyncio.to_thread(negotiated, port, too_old) == "TLSv1.1"
