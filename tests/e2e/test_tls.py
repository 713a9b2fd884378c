"""TLS and mTLS over real connections, gRPC's and HTTP's: who gets through, and certificates that change."""

from __future__ import annotations

import asyncio
import shutil
import socket
import ssl
import warnings
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import grpc
import pytest
from cryptography import x509
from grpc import StatusCode

from genret.service.configuration.server_config import AuthConfig, TlsConfig
from genret.service.security.authority import Authority
from genret.service.security.tls import ssl_context
from tests.service.certificates import Authority as CertificateAuthority
from tests.service.certificates import CertificateFiles
from tests.service.secured_server import secured

ANYBODY = Authority(AuthConfig())


@pytest.fixture
def ca(tmp_path: Path) -> CertificateAuthority:
    return CertificateAuthority(tmp_path / "ca")


def client_of(ca: CertificateAuthority, files: CertificateFiles | None = None) -> grpc.ChannelCredentials:
    if files is None:
        return grpc.ssl_channel_credentials(ca.ca_bytes)
    return grpc.ssl_channel_credentials(ca.ca_bytes, files.key_bytes, files.chain_bytes)


async def test_a_client_that_trusts_the_authority_gets_through_and_others_do_not(
    ca: CertificateAuthority, tmp_path: Path
) -> None:
    stranger = CertificateAuthority(tmp_path / "stranger")
    async with secured(ANYBODY, ca.server_tls()) as running:
        assert await running.code(credentials=client_of(ca)) is StatusCode.OK
        assert await running.code(credentials=client_of(stranger)) is StatusCode.UNAVAILABLE
        assert await running.code() is StatusCode.UNAVAILABLE  # plaintext
        assert await running.code(credentials=client_of(ca)) is StatusCode.OK


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
        assert running.principals[1:] == []


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
