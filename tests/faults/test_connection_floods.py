"""Attacks by connections: a flood of pings, crowds of idle connections, file descriptors that are used up."""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import grpc
import httpx
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from genret.service.configuration.server_config import ConnectionLimits, MetricsConfig
from genret.service.serving import connections
from tests.service.fake_retriever import FakeRetriever
from tests.service.http_gateway import connected
from tests.service.running_server import running, until

pytestmark = pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="needs Linux")

# The preface of HTTP/2 with empty settings, and a ping: length, type, flags, stream, content.
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes.fromhex("000000 04 00 00000000")
PING = bytes.fromhex("000008 06 00 00000000") + b"12345678"
MANY_PINGS = 200_000
# Of the 500 MB and more that so many pings took.
MOST_GROWTH = 60 * 2**20


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def ping_until_closed(port: int) -> tuple[bool, int]:
    """Send pings and read; return whether the connection was closed before the last, and the bytes read."""
    num_read = 0
    with socket.create_connection(("127.0.0.1", port), timeout=60) as attacker:
        attacker.sendall(PREFACE)
        try:
            for _ in range(MANY_PINGS // 100):
                attacker.sendall(PING * 100)
                with contextlib.suppress(BlockingIOError):
                    answers = attacker.recv(2**20, socket.MSG_DONTWAIT)
                    num_read += len(answers)
                    if not answers:
                        return True, num_read
        except ConnectionError:
            return True, num_read
    return False, num_read


async def is_serving(address: str) -> bool:
    """Ask gRPC's health over a new connection."""
    options = [("grpc.use_local_subchannel_pool", 1)]
    async with grpc.aio.insecure_channel(address, options=options) as channel:
        reply = await health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=30)
        return bool(reply.status == health_pb2.HealthCheckResponse.SERVING)


async def test_pings_take_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "_FLOOD_BYTES", 2**40)  # the connection stays open
    async with running(FakeRetriever()) as api:
        await api.retrieve()
        before = resident_bytes()
        is_closed, num_read = await asyncio.to_thread(ping_until_closed, api.server.port)
        assert not is_closed
        assert num_read > MANY_PINGS * len(PING) / 2  # they were answered
        assert resident_bytes() - before < MOST_GROWTH


async def test_a_flood_of_pings_is_closed() -> None:
    async with running(FakeRetriever()) as api:
        is_closed = False
        async with asyncio.timeout(60):
            while not is_closed:  # a flood may be over before it is looked at
                is_closed, num_read = await asyncio.to_thread(ping_until_closed, api.server.port)
                assert num_read > 100 * len(PING)
                assert await is_serving(api.server.address)
        assert (await api.retrieve()).candidates


@asynccontextmanager
async def crowd(port: int, size: int, says: bytes = b"") -> AsyncIterator[list[asyncio.StreamReader]]:
    """So many connections that say the same and then nothing."""
    opened = [await asyncio.open_connection("127.0.0.1", port) for _ in range(size)]
    try:
        for _, writer in opened:
            writer.write(says)
        yield [reader for reader, _ in opened]
    finally:
        for _, writer in opened:
            writer.close()


async def num_open(readers: list[asyncio.StreamReader]) -> int:
    """How many connections the server has left open."""
    for reader in readers:
        with contextlib.suppress(TimeoutError, ConnectionError):
            async with asyncio.timeout(0.001):
                while await reader.read(2**16):
                    pass
    return sum(not reader.at_eof() and reader.exception() is None for reader in readers)


@pytest.mark.parametrize("says", [b"", PREFACE])
async def test_a_crowd_of_idle_grpc_connections_shrinks_and_keeps_nobody_out(says: bytes) -> None:
    fake = FakeRetriever(held=True)
    limits = ConnectionLimits(max=16, max_per_address=8)
    async with running(fake, connections=limits) as api:
        call = asyncio.ensure_future(api.retrieve())
        await until(fake.running.is_set)
        async with crowd(api.server.port, 60, says) as readers:
            assert await is_serving(api.server.address)
            async with asyncio.timeout(60):
                while await num_open(readers) > 8:
                    await asyncio.sleep(0.05)
            assert await is_serving(api.server.address)
        fake.hold.set()
        assert (await call).candidates  # a connection with a call is kept, however silent its peer


async def test_crowds_of_idle_http_connections_keep_no_probe_out() -> None:
    limits = ConnectionLimits(max_per_address=20)
    async with connected(metrics=MetricsConfig(port=0), connections=limits) as (api, server, _):
        for port in (server.port, api.server.monitoring.port):
            async with crowd(port, 60) as readers:
                for path in ("/livez", "/readyz", "/metrics"):
                    async with httpx.AsyncClient(trust_env=False, timeout=30) as client:
                        assert (await client.get(f"http://127.0.0.1:{port}{path}")).status_code == 200
                assert await num_open(readers) <= 20


@contextmanager
def no_descriptors_left(spare: int) -> Iterator[None]:
    """Use up the file descriptors of this process, but for some."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    held = [os.open(os.devnull, os.O_RDONLY)]
    resource.setrlimit(resource.RLIMIT_NOFILE, (held[0] + 64, hard))
    try:
        with contextlib.suppress(OSError):
            while True:
                held.append(os.open(os.devnull, os.O_RDONLY))
        for _ in range(spare):
            os.close(held.pop())
        yield
    finally:
        for descriptor in held:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


async def test_without_file_descriptors_probes_are_answered_and_the_log_is_short(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with connected(metrics=MetricsConfig(port=0)) as (api, server, _):
        loop = asyncio.get_running_loop()
        for port in (server.port, api.server.monitoring.port):
            sockets = [socket.socket() for _ in range(20)]
            for made in sockets:
                made.setblocking(False)
            crowd, prober = sockets[:-1], sockets[-1]
            with no_descriptors_left(spare=0):
                for made in crowd:
                    await loop.sock_connect(made, ("127.0.0.1", port))
                await asyncio.sleep(1.5)  # time for many lines
                for made in crowd:
                    made.close()
                await loop.sock_connect(prober, ("127.0.0.1", port))
                await loop.sock_sendall(prober, b"GET /livez HTTP/1.1\r\nhost: x\r\n\r\n")
                async with asyncio.timeout(60):
                    assert (await loop.sock_recv(prober, 2**16)).startswith(b"HTTP/1.1 200")
            prober.close()
    assert len(caplog.records) <= 4
    told = [message for message in caplog.messages if "file descriptor" in message]
    assert len(told) >= 1
