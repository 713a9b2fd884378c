"""Listeners: addresses, slow connections, TLS, and a drain that loses nothing."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import signal
import socket
import ssl
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest
from starlette.applications import Starlette

from genret.service.configuration.server_config import (
    ConnectionLimits,
    HttpConfig,
    MetricsConfig,
    TlsConfig,
)
from genret.service.errors import BindError
from genret.service.gateway import http_calls as calls
from genret.service.gateway import http_server
from genret.service.gateway.http_server import HttpServer
from genret.service.serving import readiness as quiet
from genret.service.serving.server import Server
from tests.service.certificates import Authority
from tests.service.fake_retriever import FakeRetriever, served
from tests.service.http_gateway import connected, http_client, raw_connection
from tests.service.running_server import Running, TableOpener, failure_code, make_config, until
from tests.service.turned_clock import TurnedClock

QUERY = json.dumps({"query": "x"}).encode()
LINE = b'{"id": "a", "request": {"query": "x"}}\n'
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


def num_connections(server: HttpServer) -> int:
    return len(server._uvicorn.server_state.connections)


@pytest.mark.parametrize("host", ["192.0.2.1", "nowhere.invalid"])
async def test_an_address_that_is_not_here_is_named(host: str) -> None:
    with pytest.raises(BindError, match=f"^cannot listen on {re.escape(host)}:0: "):
        await HttpServer(Starlette(), host, 0, TlsConfig()).start()


async def test_every_address_of_a_name_is_listened_on() -> None:
    async with connected(http=HttpConfig("localhost", 0)) as (_, server, _):
        for found in socket.getaddrinfo("localhost", 0, type=socket.SOCK_STREAM):
            async with raw_connection(server.port, str(found[4][0])) as (_, writer):
                assert writer.get_extra_info("peername")


async def test_signals_are_left_to_the_server() -> None:
    before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
    async with connected():
        assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)) == before


async def test_half_sent_requests_hold_up_nobody_and_are_cut_off(clock: TurnedClock) -> None:
    async with connected() as (_, server, client), contextlib.AsyncExitStack() as stack:
        streams = [await stack.enter_async_context(raw_connection(server.port)) for _ in range(20)]
        for _, writer in streams[1:]:
            writer.write(REQUEST[:20])
        assert (await client.get("/v1/indexes")).status_code == 200
        await until(lambda: num_connections(server) == 21)
        clock.forward(http_server._HEADER_SECONDS)
        for reader, _ in streams:
            assert await rest(reader) == b""


async def test_a_second_request_that_comes_half_is_cut_off_too(
    clock: TurnedClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    received = asyncio.Queue[bytes]()
    receive = http_server._Protocol.data_received

    def noting(protocol: http_server._Protocol, data: bytes) -> None:
        receive(protocol, data)
        received.put_nowait(data)

    monkeypatch.setattr(http_server._Protocol, "data_received", noting)
    async with connected() as (_, server, _), raw_connection(server.port) as (reader, writer):
        writer.write(REQUEST)
        assert (await reader.readline()).startswith(b"HTTP/1.1 200")
        writer.write(REQUEST[:20])
        while await received.get() != REQUEST[:20]:
            pass
        clock.forward(http_server._HEADER_SECONDS)
        assert b"HTTP/1.1" not in await rest(reader)


async def test_a_request_that_runs_long_is_not_taken_for_a_half_sent_one(clock: TurnedClock) -> None:
    fake = FakeRetriever(held=True)
    async with http_client(fake) as client:
        running = asyncio.create_task(client.post("/v1/retrieve", json={"query": "x"}))
        await until(fake.running.is_set)
        clock.forward(2 * http_server._HEADER_SECONDS)
        await asyncio.sleep(0.01)
        fake.hold.set()
        assert (await running).status_code == 200


async def test_headers_above_the_limit_and_noise_are_refused() -> None:
    async with connected() as (_, server, client):
        endless = b"GET / HTTP/1.1\r\nhost: x\r\nlong: " + b"x" * 100_000
        for sent in (b"\x16\x03\x01\x02\x00\x01\r\n\r\n", endless):
            async with raw_connection(server.port) as (reader, writer):
                writer.write(sent)
                assert (await reader.readline()).startswith(b"HTTP/1.1 400")
        assert (await client.get("/v1/indexes")).status_code == 200


@pytest.mark.parametrize("path", ["/livez", "/v1/indexes", "/nothing"])
async def test_headers_above_the_limit_that_come_at_once_are_refused_too(path: str) -> None:
    async with http_client() as client:
        for large in ({"headers": {"long": "x" * 17_000}}, {"params": {"long": "x" * 17_000}}):
            reply = await client.get(path, **large)  # type: ignore[arg-type]
            assert (reply.status_code, reply.headers["connection"]) == (431, "close")
        many = await client.get(path, headers={f"h-{i}": "x" * 100 for i in range(160)})
        assert many.status_code == 431
        assert (await client.get(path, headers={"long": "x" * 15_000})).status_code != 431


async def test_bodies_that_do_not_come_are_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "_BODY_SECONDS", 0.2)
    async with connected() as (_, server, _), raw_connection(server.port) as (reader, writer):
        writer.write(REQUEST[:-3])
        reply = await rest(reader)
        assert reply.startswith(b"HTTP/1.1 408")
        assert b"the body did not arrive within" in reply


async def test_for_a_connection_too_many_the_one_idle_for_longest_is_closed() -> None:
    async with connected(connections=ConnectionLimits(max_per_address=3)) as (_, server, client):
        assert (await client.get("/livez")).status_code == 200
        async with raw_connection(server.port) as (oldest, _), raw_connection(server.port) as (newer, _):
            await until(lambda: num_connections(server) == 3)
            assert (await client.get("/livez")).status_code == 200
            async with httpx.AsyncClient(base_url=f"http://{server.address}", timeout=60) as another:
                assert (await another.get("/livez")).status_code == 200
                assert await rest(oldest) == b""
                assert not newer.at_eof()
                assert num_connections(server) == 3


async def test_noise_behind_a_reply_ends_the_connection_and_nothing_else(
    caplog: pytest.LogCaptureFixture,
) -> None:
    head = b"POST %s HTTP/1.1\r\nhost: x\r\ncontent-type: %s\r\ntransfer-encoding: chunked\r\n\r\n"
    refused = head % (b"/v1/retrieve", b"text/plain")
    answered = head % (b"/v1/retrieveStream", b"application/x-ndjson") + b"%x\r\n%s\r\n" % (len(LINE), LINE)
    async with connected() as (_, server, client):
        for sent, until_then in ((refused, b"415"), (answered, b'"response"')):
            async with raw_connection(server.port) as (reader, writer):
                writer.write(sent)
                await asyncio.wait_for(reader.readuntil(until_then), timeout=60)
                writer.write(b"no chunk\r\n")
                await rest(reader)
        assert (await client.get("/v1/indexes")).status_code == 200
    assert not caplog.records


@pytest.mark.parametrize(
    ("path", "kind", "body"), [("retrieve", "json", QUERY), ("retrieveStream", "x-ndjson", LINE)]
)
async def test_after_the_grace_what_is_left_is_cancelled_and_told_so(
    path: str, kind: str, body: bytes
) -> None:
    fake, headers = FakeRetriever(held=True), {"content-type": f"application/{kind}"}
    async with connected(fake) as (_, server, client):
        running = asyncio.create_task(client.post(f"/v1/{path}", content=body, headers=headers))
        await until(fake.running.is_set)
        async with asyncio.timeout(60):
            await server.stop(0.05)
        reply = await running
        assert reply.status_code == 503
        assert reply.json()["error"]["status"] == "UNAVAILABLE"
        assert reply.headers["retry-after"] == "1"
        await until(lambda: bool(fake.stopped_by))


async def test_idle_connections_do_not_keep_the_server_up() -> None:
    async with connected() as (_, server, client):
        assert (await client.get("/livez")).status_code == 200
        async with raw_connection(server.port), asyncio.timeout(60):
            await server.stop(600)


async def test_with_a_client_authority_a_certificate_is_asked_for(tmp_path: Path) -> None:
    ca = Authority(tmp_path / "ca")
    mine = ca.issue("client", client=True)
    async with connected(tls=ca.server_tls(client_ca=ca.ca_file)) as (_, server, _):
        for is_shown in (True, False):
            context = ssl.create_default_context(cafile=str(ca.ca_file))
            if is_shown:
                context.load_cert_chain(mine.certificate, mine.key)
            async with httpx.AsyncClient(verify=context, trust_env=False, timeout=60) as client:
                try:
                    let_in = (await client.get(f"https://{server.address}/livez")).status_code == 200
                except httpx.TransportError:
                    let_in = False
            assert let_in is is_shown


async def ask(http: httpx.AsyncClient) -> httpx.Response:
    return await http.post("/v1/retrieve", json={"query": "hamlet"})


async def test_replies_of_a_lame_duck_end_their_connection() -> None:
    async with connected(lame_duck_seconds=600.0) as (api, _, client):
        assert "connection" not in (await ask(client)).headers
        hurry = asyncio.Event()
        draining = asyncio.create_task(api.server.drain(hurry))
        await asyncio.sleep(0)
        for _ in range(2):
            reply = await ask(client)
            assert (reply.status_code, reply.headers["connection"]) == (200, "close")
        hurry.set()
        await draining


async def test_clients_that_ask_on_are_answered_or_refused_or_find_nobody(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(quiet, "_QUIET_S", quiet._MAX_S)  # time for clients that take theirs
    # Those who stop when they are refused always learn it; who knocks again at once may do so just as the
    # listener closes, and is reset. Nobody is left waiting.
    seen: Counter[int] = Counter()
    async with connected() as (api, server, _):

        async def ask_on(gives_up: bool) -> None:
            async with httpx.AsyncClient(base_url=f"http://{server.address}", timeout=60) as client:
                code = 200
                while code == 200 or not gives_up:
                    try:
                        code = (await ask(client)).status_code
                        seen[code] += 1
                    except httpx.ConnectError:
                        return
                    except httpx.ReadError:
                        assert not gives_up
                        return

        asking = [asyncio.create_task(ask_on(bool(i % 2))) for i in range(10)]
        await until(lambda: seen[200] > 50)
        await api.server.drain()
        await asyncio.gather(*asking)
    assert set(seen) == {200, 503}


@asynccontextmanager
async def watched(
    fake: FakeRetriever, **options: Any
) -> AsyncIterator[tuple[Running, httpx.AsyncClient, httpx.AsyncClient]]:
    """A server with all listeners, a client of its HTTP face, and one of its monitoring port."""
    async with (
        connected(fake, metrics=MetricsConfig(port=0), **options) as (api, _, http),
        httpx.AsyncClient(base_url=f"http://{api.server.monitoring.address}", timeout=60) as watch,
    ):
        yield api, http, watch


async def test_draining_answers_what_is_in_flight_everywhere_and_watching_ends_last() -> None:
    fake = FakeRetriever(held=True)
    async with watched(fake) as (api, http, watch):
        over_grpc, over_http = asyncio.ensure_future(api.retrieve()), asyncio.ensure_future(ask(http))
        await until(lambda: api.server.engine.lanes.of("cpu").admission.num_requests == 2)
        draining = asyncio.ensure_future(api.server.drain())
        async with asyncio.timeout(60):
            while (await watch.get("/readyz")).status_code != 503:
                await asyncio.sleep(0.002)
        assert (await watch.get("/metrics")).status_code == 200
        fake.hold.set()
        assert (await over_grpc).candidates
        assert (await over_http).status_code == 200
        await draining
        for client in (http, watch):
            with pytest.raises(httpx.TransportError):
                await client.get("/livez")
        assert await failure_code(api.retrieve()) is grpc.StatusCode.UNAVAILABLE


async def test_hurry_cancels_what_is_in_flight_on_every_listener() -> None:
    fake = FakeRetriever(held=True)
    async with watched(fake, lame_duck_seconds=600, drain_seconds=600) as (api, http, _):
        over_grpc, over_http = asyncio.ensure_future(api.retrieve()), asyncio.ensure_future(ask(http))
        await until(lambda: api.server.engine.lanes.of("cpu").admission.num_requests == 2)
        hurry = asyncio.Event()
        draining = asyncio.ensure_future(api.server.drain(hurry))
        hurry.set()
        await asyncio.wait_for(draining, 60)
        stopped = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)
        assert await failure_code(over_grpc) in stopped
        assert (await over_http).status_code == 503
        # One of them may never have begun.
        await until(lambda: len(fake.stopped_by) == sum(map(len, fake.batches)) > 0)


@pytest.mark.parametrize("setting", ["http", "metrics"])
async def test_a_port_in_use_stops_the_start_and_leaves_nothing_behind(setting: str) -> None:
    async with connected() as (_, first, _):
        taken: Any = HttpConfig(port=first.port) if setting == "http" else MetricsConfig(port=first.port)
        options = {"http": HttpConfig(port=0), "metrics": MetricsConfig(port=0), setting: taken}
        second = Server.in_one_process(make_config(**options), TableOpener({"fake": served(FakeRetriever())}))
        with pytest.raises(BindError, match=rf"^cannot listen on 127\.0\.0\.1:{first.port}: Address already"):
            await second.start()
        await second.drain()
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.1", second.port)
