"""The listener: addresses, connections that dawdle, TLS, and an end that loses nothing."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import socket
import ssl
from pathlib import Path

import httpx
import pytest

from retrieval.errors import InputError
from service.configuration.server_config import TlsConfig
from service.errors import BindError
from service.gateway import http_calls as calls
from service.gateway import http_server
from service.gateway.http_server import HttpServer
from tests.service.asynchronous import asynchronous
from tests.service.certificates import Authority
from tests.service.fake_retriever import FakeRetriever
from tests.service.http_gateway import gateway, listening, raw_connection
from tests.service.running_server import until
from tests.service.turned_clock import TurnedClock

QUERY = json.dumps({"query": "x"}).encode()
REQUEST = (
    b"POST /v1/retrieve HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
    b"content-length: %d\r\n\r\n%s" % (len(QUERY), QUERY)
)


async def rest(reader: asyncio.StreamReader) -> bytes:
    """What comes until the other side hangs up, which it must."""
    try:
        return await asyncio.wait_for(reader.read(-1), timeout=60)
    except ConnectionResetError:
        return b""


def client_of(server: HttpServer) -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url=f"http://{server.address}", timeout=60, trust_env=False)


def num_connections(server: HttpServer) -> int:
    return len(server._uvicorn.server_state.connections)


@asynchronous
async def test_an_address_that_is_taken_or_unknown_is_named() -> None:
    async with gateway(FakeRetriever()) as face, listening(face.app) as server:
        second = HttpServer(face.app, "127.0.0.1", server.port, TlsConfig())
        with pytest.raises(
            BindError, match=rf"^cannot listen on 127\.0\.0\.1:{server.port}: Address already"
        ):
            await second.start()
        with pytest.raises(BindError, match=r"^cannot listen on 192\.0\.2\.1:0: "):
            await HttpServer(face.app, "192.0.2.1", 0, TlsConfig()).start()
        with pytest.raises(BindError, match=r"^cannot listen on nowhere\.invalid:0: "):
            await HttpServer(face.app, "nowhere.invalid", 0, TlsConfig()).start()


@asynchronous
async def test_every_address_of_a_name_is_listened_on() -> None:
    async with gateway(FakeRetriever()) as face:
        server = HttpServer(face.app, "localhost", 0, TlsConfig())
        await server.start()
        try:
            found = {a[4][0] for a in socket.getaddrinfo("localhost", 0, type=socket.SOCK_STREAM)}
            for host in found:
                async with raw_connection(server.port, str(host)) as (_, writer):
                    assert writer.get_extra_info("peername")
        finally:
            await server.stop(1)


@asynchronous
async def test_signals_are_left_to_the_server() -> None:
    before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
    async with gateway(FakeRetriever()) as face, listening(face.app):
        assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)) == before


@asynchronous
async def test_half_sent_requests_hold_up_nobody_and_are_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = TurnedClock(monkeypatch)
    async with (
        gateway(FakeRetriever()) as face,
        listening(face.app) as server,
        contextlib.AsyncExitStack() as stack,
        client_of(server) as client,
    ):
        streams = [await stack.enter_async_context(raw_connection(server.port)) for _ in range(20)]
        for _, writer in streams[1:]:
            writer.write(REQUEST[:20])
        assert (await client.get("/v1/indexes")).status_code == 200
        await until(lambda: num_connections(server) == 21)
        clock.forward(http_server._HEADER_SECONDS)
        for reader, _ in streams:
            assert await rest(reader) == b""


@asynchronous
async def test_a_second_request_that_comes_half_is_cut_off_too(monkeypatch: pytest.MonkeyPatch) -> None:
    received = asyncio.Queue[bytes]()
    receive = http_server._Protocol.data_received

    def noting(protocol: http_server._Protocol, data: bytes) -> None:
        receive(protocol, data)
        received.put_nowait(data)

    monkeypatch.setattr(http_server._Protocol, "data_received", noting)
    clock = TurnedClock(monkeypatch)
    async with (
        gateway(FakeRetriever()) as face,
        listening(face.app) as server,
        raw_connection(server.port) as (reader, writer),
    ):
        writer.write(REQUEST)
        assert (await reader.readline()).startswith(b"HTTP/1.1 200")
        writer.write(REQUEST[:20])
        while await received.get() != REQUEST[:20]:
            pass
        clock.forward(http_server._HEADER_SECONDS)
        assert b"HTTP/1.1" not in await rest(reader)


@asynchronous
async def test_a_request_that_runs_long_is_not_taken_for_a_half_sent_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = TurnedClock(monkeypatch)
    fake = FakeRetriever()
    fake.hold.clear()
    async with gateway(fake) as face, listening(face.app) as server, client_of(server) as client:
        running = asyncio.create_task(client.post("/v1/retrieve", json={"query": "x"}))
        await until(fake.running.is_set)
        clock.forward(2 * http_server._HEADER_SECONDS)
        await asyncio.sleep(0.01)
        fake.hold.set()
        assert (await running).status_code == 200


@asynchronous
async def test_headers_above_the_limit_and_noise_are_refused() -> None:
    async with gateway(FakeRetriever()) as face, listening(face.app) as server:
        endless = b"GET / HTTP/1.1\r\nhost: x\r\nlong: " + b"x" * 100_000
        for sent in (b"\x16\x03\x01\x02\x00\x01\r\n\r\n", endless):
            async with raw_connection(server.port) as (reader, writer):
                writer.write(sent)
                assert (await reader.readline()).startswith(b"HTTP/1.1 400")
        async with client_of(server) as client:
            assert (await client.get("/v1/indexes")).status_code == 200


@pytest.mark.parametrize("path", ["/livez", "/v1/indexes", "/nothing"])
@asynchronous
async def test_headers_above_the_limit_that_come_at_once_are_refused_too(path: str) -> None:
    async with gateway(FakeRetriever()) as face, listening(face.app) as server, client_of(server) as client:
        for large in ({"headers": {"long": "x" * 17_000}}, {"params": {"long": "x" * 17_000}}):
            reply = await client.get(path, **large)  # type: ignore[arg-type]
            assert (reply.status_code, reply.headers["connection"]) == (431, "close")
        many = await client.get(path, headers={f"h-{i}": "x" * 100 for i in range(160)})
        assert many.status_code == 431
        assert (await client.get(path, headers={"long": "x" * 15_000})).status_code != 431


@asynchronous
async def test_bodies_that_do_not_come_are_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "_BODY_SECONDS", 0.2)
    async with (
        gateway(FakeRetriever()) as face,
        listening(face.app) as server,
        raw_connection(server.port) as (reader, writer),
    ):
        writer.write(REQUEST[:-3])
        reply = await rest(reader)
        assert reply.startswith(b"HTTP/1.1 408")
        assert b"the body did not arrive within" in reply


@asynchronous
async def test_more_connections_than_the_most_are_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_server, "_MAX_CONNECTIONS", 3)
    async with gateway(FakeRetriever()) as face, listening(face.app) as server, client_of(server) as client:
        assert (await client.get("/livez")).status_code == 200
        async with raw_connection(server.port), raw_connection(server.port):
            await until(lambda: num_connections(server) == 3)
            assert (await client.get("/livez")).status_code == 503
        await until(lambda: num_connections(server) <= 1)
        assert (await client.get("/livez")).status_code == 200


@asynchronous
async def test_noise_behind_a_reply_ends_the_connection_and_nothing_else(
    caplog: pytest.LogCaptureFixture,
) -> None:
    head = b"POST %s HTTP/1.1\r\nhost: x\r\ncontent-type: %s\r\ntransfer-encoding: chunked\r\n\r\n"
    query = b'{"id": "a", "request": {"query": "x"}}\n'
    refused = head % (b"/v1/retrieve", b"text/plain")
    answered = head % (b"/v1/retrieveStream", b"application/x-ndjson") + b"%x\r\n%s\r\n" % (len(query), query)
    async with gateway(FakeRetriever()) as face, listening(face.app) as server:
        for sent, until_then in ((refused, b"415"), (answered, b'"response"')):
            async with raw_connection(server.port) as (reader, writer):
                writer.write(sent)
                await asyncio.wait_for(reader.readuntil(until_then), timeout=60)
                writer.write(b"no chunk\r\n")
                await rest(reader)
        async with client_of(server) as client:
            assert (await client.get("/v1/indexes")).status_code == 200
    assert not caplog.records


@asynchronous
async def test_stopping_waits_for_what_is_in_flight_and_takes_nothing_new() -> None:
    fake = FakeRetriever()
    fake.hold.clear()
    async with gateway(fake) as face, listening(face.app) as server, client_of(server) as client:
        running = asyncio.create_task(client.post("/v1/retrieve", json={"query": "x"}))
        await until(fake.running.is_set)
        stopping = asyncio.create_task(server.stop(600))
        await until(lambda: not connects(server.port))
        assert not running.done()
        fake.hold.set()
        assert (await running).status_code == 200
        await stopping


def connects(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=60).close()
    except ConnectionError:
        return False
    return True


@asynchronous
async def test_after_the_grace_what_is_left_is_cancelled_and_told_so() -> None:
    fake = FakeRetriever()
    fake.hold.clear()
    async with gateway(fake) as face, listening(face.app) as server, client_of(server) as client:
        running = asyncio.create_task(client.post("/v1/retrieve", json={"query": "x"}))
        await until(fake.running.is_set)
        async with asyncio.timeout(60):
            await server.stop(0.05)
        reply = await running
        assert reply.status_code == 503
        assert reply.json()["error"]["status"] == "UNAVAILABLE"
        assert reply.headers["retry-after"] == "1"
        await until(lambda: bool(fake.stopped_by))


@asynchronous
async def test_stopping_again_hurries() -> None:
    fake = FakeRetriever()
    fake.hold.clear()
    async with gateway(fake) as face, listening(face.app) as server, client_of(server) as client:
        running = asyncio.create_task(client.post("/v1/retrieve", json={"query": "x"}))
        await until(fake.running.is_set)
        stopping = asyncio.create_task(server.stop(600))
        await until(lambda: not connects(server.port))
        async with asyncio.timeout(60):
            await server.stop(None)
            await stopping
        assert (await running).status_code == 503


@asynchronous
async def test_idle_connections_do_not_keep_the_server_up() -> None:
    async with gateway(FakeRetriever()) as face, listening(face.app) as server, client_of(server) as client:
        assert (await client.get("/livez")).status_code == 200
        async with raw_connection(server.port), asyncio.timeout(60):
            await server.stop(600)


@pytest.fixture
def ca(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "ca")


@asynchronous
async def test_with_a_certificate_the_api_is_encrypted(ca: Authority) -> None:
    files = ca.issue("server")
    tls = TlsConfig(certificate=files.certificate, key=files.key)
    async with gateway(FakeRetriever()) as face, listening(face.app, tls) as server:
        trusting = ssl.create_default_context(cafile=str(ca.ca_file))
        async with httpx.AsyncClient(verify=trusting, trust_env=False, timeout=20) as client:
            reply = await client.post(f"https://{server.address}/v1/retrieve", json={"query": "x"})
            assert reply.status_code == 200
        async with httpx.AsyncClient(trust_env=False, timeout=20) as client:
            with pytest.raises(httpx.TransportError):
                await client.get(f"http://{server.address}/livez")


@asynchronous
async def test_with_a_client_authority_a_certificate_is_asked_for(ca: Authority) -> None:
    files, mine = ca.issue("server"), ca.issue("client", client=True)
    tls = TlsConfig(certificate=files.certificate, key=files.key, client_ca=ca.ca_file)
    async with gateway(FakeRetriever()) as face, listening(face.app, tls) as server:
        for certificate, expected in ((mine, True), (None, False)):
            context = ssl.create_default_context(cafile=str(ca.ca_file))
            if certificate is not None:
                context.load_cert_chain(certificate.certificate, certificate.key)
            async with httpx.AsyncClient(verify=context, trust_env=False, timeout=20) as client:
                try:
                    reply = await client.get(f"https://{server.address}/livez")
                    let_in = reply.status_code == 200
                except httpx.TransportError:
                    let_in = False
            assert let_in is expected


@asynchronous
async def test_a_certificate_that_cannot_be_used_is_told_before_anything_listens(tmp_path: Path) -> None:
    tls = TlsConfig(certificate=tmp_path / "no.pem", key=tmp_path / "no.key")
    async with gateway(FakeRetriever()) as face:
        with pytest.raises(InputError, match=r"^tls"):
            await HttpServer(face.app, "127.0.0.1", 0, tls).start()
