"""Limits on connections: origins, file descriptors, which end first, and hosts that are answered."""

from __future__ import annotations

import asyncio
import logging
import os
import resource
import socket
import ssl
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest
from grpc_reflection.v1alpha import reflection_pb2

from genret.service.configuration.server_config import ConnectionLimits, HttpConfig, MetricsConfig, RulesError
from genret.service.gateway import http_server
from genret.service.reflection import V1, V1ALPHA
from genret.service.security.authority import HostNames
from genret.service.serving import connections
from genret.service.serving.connections import (
    ConnectionGuard,
    OpenCalls,
    RareWarning,
    Reserve,
    core_limit,
    descriptor_limit,
    origin_of,
    port_limit,
    raise_descriptor_limit,
)
from tests.service.certificates import Authority
from tests.service.fake_retriever import FakeRetriever
from tests.service.http_gateway import connected, raw_connection
from tests.service.running_server import make_config, running, until
from tests.service.turned_clock import TurnedClock


@pytest.mark.parametrize(
    ("address", "origin"),
    [
        ("192.0.2.7", "192.0.2.7"),
        ("::ffff:192.0.2.7", "192.0.2.7"),
        ("2001:db8:0:1::1", "2001:0db8:0000:0001"),
        ("2001:db8:0:1:ffff::2", "2001:0db8:0000:0001"),
        ("2001:db8:0:2::1", "2001:0db8:0000:0002"),
        ("fe80::1%eth0", "fe80:0000:0000:0000"),
    ],
)
def test_an_address_counts_for_itself_or_its_network(address: str, origin: str) -> None:
    assert origin_of(address) == origin


@pytest.mark.parametrize(
    ("descriptors", "port", "core"),
    [(2**20, 4096, 4 * 4096), (20_000, 4096, 20_000 - 256 - 2 * 4096), (1_256, 250, 500), (100, 16, 16)],
)
def test_limits_fit_the_limit_on_open_files(
    monkeypatch: pytest.MonkeyPatch, descriptors: int, port: int, core: int
) -> None:
    monkeypatch.setattr(connections, "descriptor_limit", lambda: descriptors)
    assert (port_limit(ConnectionLimits()), core_limit(ConnectionLimits())) == (port, core)
    if descriptors > 256 + 5 * 16:
        assert core + 2 * port <= descriptors - 256


def test_the_limit_on_open_files_is_raised_to_the_most_allowed() -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    lower = min(before[0], before[1] - 1, 512)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (lower, before[1]))
        raise_descriptor_limit()
        assert descriptor_limit() == min(before[1], 2**20) > lower
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_a_warning_that_comes_often_is_logged_once_a_minute(
    stopped_clock: TurnedClock, caplog: pytest.LogCaptureFixture
) -> None:
    warning = RareWarning()
    for _ in range(1000):
        warning.log("too many")
    stopped_clock.forward(60)
    warning.log("too many")
    assert caplog.messages == ["too many", "too many (999 more times since the last line)"]


def test_a_reserve_knows_the_lowest_free_descriptor() -> None:
    reserve = Reserve(2)
    lowest = reserve.renew()
    with socket.socket() as taken:
        reserve.close()
        assert taken.fileno() > lowest
        with socket.socket() as low:
            assert low.fileno() == lowest
            assert reserve.renew() > lowest
    assert reserve.free()
    reserve.close()
    assert not reserve.free()


def test_a_connection_is_busy_until_a_look_after_its_last_call() -> None:
    calls = OpenCalls()
    with calls.running("a"), calls.running("b"):
        with calls.running("a"):
            assert calls.take_busy() == {"a", "b"}
        assert calls.take_busy() == {"a", "b"}
    assert calls.take_busy() == {"a", "b"}
    assert calls.take_busy() == set()


def connection(peer: str, origin: str, silent_ms: int, traffic: int = 0) -> connections._Connection:
    return connections._Connection(0, peer, origin, silent_ms, traffic, traffic)


def test_of_too_many_connections_those_silent_for_longest_end() -> None:
    guard = ConnectionGuard(ConnectionLimits(max=16, max_per_address=3), OpenCalls())
    crowd = [connection(f"a{i}", "a", 100 * i) for i in range(5)]
    others = [connection(f"b{i}", "b", 1000 + i) for i in range(2)]
    found = [*crowd, *others]
    assert [one.peer for one in guard._excess(found, found, 16)] == ["a4", "a3"]
    # Those with a call are not among the idle ones.
    assert [one.peer for one in guard._excess(found, [*crowd[:2], *others], 16)] == ["a1", "a0"]
    # In all, those give way that have the most.
    assert [one.peer for one in guard._excess(found, found, 4)] == ["a4", "a3", "a2"]


def test_a_flood_is_much_traffic_both_ways_since_the_last_look() -> None:
    guard = ConnectionGuard(ConnectionLimits(), OpenCalls())
    much = 2 * connections._FLOOD_BYTES
    assert guard._floods(connection("a", "a", 0, much))
    assert not guard._floods(replace(connection("a", "a", 0, much), sent=much // 10))  # a large request
    guard._before = {"a": connection("a", "a", 0, much)}
    assert not guard._floods(connection("a", "a", 0, much + 1000))


async def test_a_peer_is_named_as_grpc_names_it() -> None:
    seen: list[str] = []

    class Noting(OpenCalls):
        def running(self, peer: str):  # type: ignore[no-untyped-def]
            seen.append(peer)
            return super().running(peer)

    for host, target in (("127.0.0.1", "127.0.0.1"), ("::", "127.0.0.1"), ("::", "[::1]")):
        async with running(FakeRetriever(), host=host, insecure=True) as api:
            observing: Any = api.server.interceptors[0]
            observing._open_calls = api.server._guard._calls = Noting()
            address = f"{target}:{api.server.port}"
            async with grpc.aio.insecure_channel(address) as channel:
                await channel.unary_unary("/genret.v1.IndexService/ListIndexes")(b"", timeout=60)
                looked = [
                    connections._look_at(int(fd), api.server.port) for fd in os.listdir("/proc/self/fd")
                ]
            assert [found.peer for found in looked if found is not None] == [seen.pop()]


@pytest.mark.parametrize(
    ("host", "allowed"),
    [
        ("", True),
        ("localhost:8080", True),
        ("app.localhost", True),
        ("127.0.0.1:8080", True),
        ("[::1]:8080", True),
        ("10.1.2.3", True),
        ("genret:8080", True),
        ("bound.example", True),
        ("BOUND.example.:80", True),
        ("good.example.com", True),
        ("deep.in.example.org:1", True),
        ("example.org", False),
        ("evil.example", False),
        ("evil.example:8080", False),
        ("127.0.0.1.evil.example", False),
        ("good.example.com.evil.example", False),
        ("[::1", False),
    ],
)
def test_a_host_is_allowed_if_no_page_can_have_made_it_up(host: str, allowed: bool) -> None:
    config = make_config(
        http=HttpConfig("bound.example"), insecure=True, allowed_hosts="Good.example.com, *.example.org"
    )
    assert HostNames.of(config).allow(host) is allowed
    assert HostNames.of(replace(config, allowed_hosts="*")).allow("evil.example")


@pytest.mark.parametrize("text", ["a.example:80", "http://a.example", "a b", "a,,b", ","])
def test_allowed_hosts_that_can_never_match_are_refused(text: str) -> None:
    with pytest.raises(RulesError, match="allowed_hosts: must be names without ports"):
        make_config(allowed_hosts=text)


async def test_a_request_for_another_host_is_told_what_to_set() -> None:
    async with connected(metrics=MetricsConfig(port=0)) as (api, server, _):
        for port, path in ((server.port, "/v1/indexes"), (api.server.monitoring.port, "/metrics")):
            async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=60) as client:
                refused = await client.get(path, headers={"host": "evil.example"})
                assert (refused.status_code, refused.headers["connection"]) == (421, "close")
                assert "'evil.example'" in refused.text
                assert "--allowed-hosts NAME" in refused.text
                for fine in ({"host": "localhost"}, {"host": f"127.0.0.1:{port}"}, {}):
                    assert (await client.get(path, headers=fine)).status_code == 200
                # Balancers probe under any name.
                assert (await client.get("/readyz", headers={"host": "evil.example"})).status_code == 200
    async with connected(allowed_hosts="evil.example") as (_, _, client):
        assert (await client.get("/v1/indexes", headers={"host": "evil.example"})).status_code == 200


async def test_a_body_with_two_lengths_is_refused_and_its_connection_closed() -> None:
    body = b'{"query": "x"}'
    head = b"POST /v1/retrieve HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
    lengths = b"content-length: %d\r\ntransfer-encoding: chunked\r\n\r\n" % len(body)
    sent = head + lengths + b"%x\r\n%s\r\n0\r\n\r\nGET /livez HTTP/1.1\r\nhost: x\r\n\r\n" % (len(body), body)
    async with connected() as (_, server, _), raw_connection(server.port) as (reader, writer):
        writer.write(sent)
        reply = await asyncio.wait_for(reader.read(-1), timeout=60)
        assert reply.startswith(b"HTTP/1.1 400 ")
        assert reply.count(b"HTTP/1.1") == 1
        assert b"both Content-Length and Transfer-Encoding" in reply


async def test_an_old_connection_ends_with_its_next_reply(clock: TurnedClock) -> None:
    ask = b"GET /livez HTTP/1.1\r\nhost: x\r\n\r\n"
    limits = ConnectionLimits(max_age_seconds=10)
    async with (
        connected(connections=limits) as (_, server, _),
        raw_connection(server.port) as (reader, writer),
    ):
        writer.write(ask)
        assert b"connection: close" not in await reader.readuntil(b"turns\n")
        clock.forward(11)
        writer.write(ask)
        assert b"connection: close" in await asyncio.wait_for(reader.read(-1), timeout=60)


async def test_when_no_connection_is_idle_probes_are_answered_and_nothing_else(
    caplog: pytest.LogCaptureFixture,
) -> None:
    fake = FakeRetriever(held=True)
    limits = ConnectionLimits(max_per_address=3)
    async with connected(fake, connections=limits) as (api, server, client):
        calls = [asyncio.create_task(client.post("/v1/retrieve", json={"query": "x"})) for _ in range(3)]
        await until(lambda: api.server.engine.lanes.of("cpu").admission.num_requests == 3)
        for path, code in (("/livez", 200), ("/readyz", 200), ("/v1/indexes", 503), ("/livez", 200)):
            async with httpx.AsyncClient(base_url=f"http://{server.address}", timeout=60) as another:
                reply = await another.get(path)
                assert (reply.status_code, reply.headers["connection"]) == (code, "close")
        fake.hold.set()
        assert [(await call).status_code for call in calls] == [200, 200, 200]
        assert (await client.get("/v1/indexes")).status_code == 200
    assert not caplog.records


async def test_connections_that_never_shake_hands_keep_nobody_out(tmp_path: Path) -> None:
    ca = Authority(tmp_path / "ca")
    context = ssl.create_default_context(cafile=str(ca.ca_file))
    limits = ConnectionLimits(max_per_address=2)
    async with (
        connected(tls=ca.server_tls(), connections=limits) as (_, server, _),
        raw_connection(server.port) as (oldest, _),
        raw_connection(server.port),
        httpx.AsyncClient(verify=context, trust_env=False, timeout=60) as client,
    ):
        assert (await client.get(f"https://{server.address}/livez")).status_code == 200
        assert await asyncio.wait_for(oldest.read(-1), timeout=60) == b""


async def test_beyond_the_room_for_probes_connections_are_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_server, "_FOR_PROBES", 0)
    fake = FakeRetriever(held=True)
    async with connected(fake, connections=ConnectionLimits(max_per_address=1)) as (_, server, client):
        call = asyncio.create_task(client.post("/v1/retrieve", json={"query": "x"}))
        await until(fake.running.is_set)
        async with raw_connection(server.port) as (reader, _):
            assert await asyncio.wait_for(reader.read(-1), timeout=60) == b""
        fake.hold.set()
        assert (await call).status_code == 200


async def test_reflection_answers_under_both_names() -> None:
    async with running(FakeRetriever()) as api:
        for name in (V1, V1ALPHA):
            ask = api.channel.stream_stream(
                f"/{name}/ServerReflectionInfo",
                request_serializer=reflection_pb2.ServerReflectionRequest.SerializeToString,
                response_deserializer=reflection_pb2.ServerReflectionResponse.FromString,
            )
            asked = [
                reflection_pb2.ServerReflectionRequest(list_services=""),
                reflection_pb2.ServerReflectionRequest(file_containing_symbol=V1),
            ]
            listed, described = [reply async for reply in ask(iter(asked), timeout=60)]
            names = {service.name for service in listed.list_services_response.service}
            assert {V1, V1ALPHA, "genret.v1.RetrievalService", "grpc.health.v1.Health"} <= names
            (file,) = described.file_descriptor_response.file_descriptor_proto
            assert b"grpc/reflection/v1/reflection.proto" in file


async def test_too_few_open_files_for_the_settings_are_said_at_the_start(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(connections, "descriptor_limit", lambda: 1_256)
    with caplog.at_level(logging.WARNING):
        async with running(FakeRetriever()):
            pass
    assert "suffices for 250 connections of a port; connections.max is 4096" in caplog.text
