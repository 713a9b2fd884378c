"""Signals to `genret serve` as a process, under load: what was accepted is answered, nothing is damaged."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import pytest

from genret.retrieval.index.verification import verify
from genret.service.pb.genret.v1 import index_service_pb2 as index_pb
from genret.service.pb.genret.v1 import index_service_pb2_grpc as index_grpc
from genret.service.pb.genret.v1 import retrieval_service_pb2 as pb
from genret.service.pb.genret.v1 import retrieval_service_pb2_grpc as pb_grpc
from tests.index_fixtures import files_of
from tests.service.changing_index import ChangingIndex
from tests.service.running_server import failure_code, until
from tests.service.server_process import ServerProcess, genret

StatusCode = grpc.StatusCode
_LOGGED = ("--log-level", "info", "--log-requests", "--log-format", "json")


@pytest.fixture
def index(tmp_path: Path, checkpoint: Path) -> ChangingIndex:
    return ChangingIndex(tmp_path / "served", checkpoint)


def served(index: ChangingIndex, *options: str) -> ServerProcess:
    return ServerProcess(f"{index.path}", "--model", str(index.checkpoint), *options)


@dataclass
class Load:
    """Clients that ask and ask again until the server is gone, without retrying.

    Attributes:
        codes: How calls have ended.
        answered: Request ids of calls that were answered.
        item_codes: Status codes of what streams have answered.
    """

    address: str
    codes: Counter[grpc.StatusCode] = field(default_factory=Counter)
    answered: set[str] = field(default_factory=set)
    item_codes: Counter[int] = field(default_factory=Counter)

    async def unary(self, client: int) -> None:
        async with grpc.aio.insecure_channel(self.address, options=_own_connection(client)) as channel:
            stub: Any = pb_grpc.RetrievalServiceStub(channel)  # type: ignore[no-untyped-call]
            for number in range(100_000):
                name = f"client-{client}-{number}"
                request = pb.RetrieveRequest(query=f"query {number}", k=3)
                try:
                    await stub.Retrieve(request, timeout=60, metadata=(("x-request-id", name),))
                except grpc.aio.AioRpcError as error:
                    self.codes[error.code()] += 1
                    return
                self.codes[StatusCode.OK] += 1
                self.answered.add(name)

    async def stream(self, client: int) -> None:
        async with grpc.aio.insecure_channel(self.address, options=_own_connection(client)) as channel:
            stub: Any = pb_grpc.RetrievalServiceStub(channel)  # type: ignore[no-untyped-call]
            room = asyncio.Semaphore(8)

            async def requests() -> AsyncIterator[pb.RetrieveStreamRequest]:
                for number in range(100_000):
                    await room.acquire()
                    request = pb.RetrieveRequest(query=f"item {number}", k=3)
                    yield pb.RetrieveStreamRequest(id=str(number), request=request)

            try:
                async for reply in stub.RetrieveStream(requests(), timeout=60):
                    self.item_codes[reply.error.code] += 1
                    room.release()
            except grpc.aio.AioRpcError as error:
                self.codes[error.code()] += 1
            else:
                self.codes[StatusCode.OK] += 1


def _own_connection(client: int) -> list[tuple[str, Any]]:
    return [("grpc.use_local_subchannel_pool", 1), ("grpc.primary_user_agent", f"client-{client}")]


def logged_calls(process: ServerProcess) -> Iterator[dict[str, Any]]:
    for line in process.lines:
        if line.startswith("{") and "request_id" in line:
            yield json.loads(line)


async def test_sigterm_under_load_loses_no_accepted_request(index: ChangingIndex) -> None:
    with served(index, *_LOGGED) as process:
        load = Load(await asyncio.to_thread(process.address))
        clients = [asyncio.ensure_future(load.unary(client)) for client in range(8)]
        clients += [asyncio.ensure_future(load.stream(100 + client)) for client in range(2)]
        await until(lambda: load.codes[StatusCode.OK] >= 100 and load.item_codes[0] >= 50)
        process.send(signal.SIGTERM)
        await asyncio.wait_for(asyncio.gather(*clients), 60)
        assert await asyncio.to_thread(process.exit_code) == 0
        assert set(load.codes) == {StatusCode.OK, StatusCode.UNAVAILABLE}
        assert set(load.item_codes) == {0}, "every query of a stream that was taken is answered"
        unary = [call for call in logged_calls(process) if call["request_id"].startswith("client-")]
        assert {call["code"] for call in unary} <= {"OK", "UNAVAILABLE"}
        assert {call["request_id"] for call in unary if call["code"] == "OK"} == load.answered
        assert "stopped" in process.lines[-1]


@pytest.mark.slow
async def test_a_second_signal_does_not_wait_for_what_is_in_flight(index: ChangingIndex) -> None:
    with served(index, "--lame-duck-seconds", "600") as process:
        load = Load(await asyncio.to_thread(process.address))
        clients = [asyncio.ensure_future(load.unary(client)) for client in range(4)]
        await until(lambda: load.codes[StatusCode.OK] >= 20)
        process.send(signal.SIGTERM)
        before = load.codes[StatusCode.OK]
        await until(lambda: load.codes[StatusCode.OK] >= before + 20)  # a lame duck goes on
        process.send(signal.SIGTERM)
        await asyncio.wait_for(asyncio.gather(*clients), 60)
        assert await asyncio.to_thread(process.exit_code) == 0
        assert set(load.codes) <= {StatusCode.OK, StatusCode.UNAVAILABLE, StatusCode.CANCELLED}


@pytest.mark.slow
async def test_sighup_serves_new_versions_under_load_and_logs_them(
    index: ChangingIndex, tmp_path: Path
) -> None:
    other = ChangingIndex(tmp_path / "other", index.checkpoint, ("Iron", "Mercury"))
    options = ("--index", f"other={other.path}", *_LOGGED)
    with served(index, *options) as process:
        address = await asyncio.to_thread(process.address)
        load = Load(address)
        clients = [asyncio.ensure_future(load.unary(client)) for client in range(4)]
        new = index.add("Berlin")
        process.send(signal.SIGHUP)
        await asyncio.to_thread(process.said, f"version {new} took the place of {index.versions[0]}")
        await asyncio.to_thread(process.said, f"version {other.versions[0]} is served already")
        newer = index.add("Rome")
        index.damage("trie.arrow")
        process.send(signal.SIGHUP)
        await asyncio.to_thread(process.said, "the version served stays: trie.arrow")
        async with grpc.aio.insecure_channel(address) as channel:
            stub: Any = pb_grpc.RetrievalServiceStub(channel)  # type: ignore[no-untyped-call]
            reply = await stub.Retrieve(pb.RetrieveRequest(query="x", k=100), timeout=60)
            assert reply.index.version == new != newer
            assert "Berlin" in {candidate.title for candidate in reply.candidates}
        process.send(signal.SIGTERM)
        await asyncio.wait_for(asyncio.gather(*clients), 60)
        assert await asyncio.to_thread(process.exit_code) == 0
        assert set(load.codes) == {StatusCode.OK, StatusCode.UNAVAILABLE}


@pytest.mark.fault
@pytest.mark.parametrize("kills", [2, pytest.param(20, marks=pytest.mark.slow)])
async def test_a_killed_engine_is_told_to_all_who_wait_and_comes_back(
    index: ChangingIndex, kills: int
) -> None:
    rng = random.Random(20)
    with served(index, *_LOGGED) as process:
        address = await asyncio.to_thread(process.address)
        for _ in range(kills):
            load = Load(address)
            clients = [asyncio.ensure_future(load.unary(client)) for client in range(8)]
            await until(lambda load=load: load.codes[StatusCode.OK] >= 8)  # type: ignore[misc]
            await asyncio.sleep(rng.random())
            os.kill(process.engine_pid(), signal.SIGKILL)
            await asyncio.wait_for(asyncio.gather(*clients), 60)
            assert set(load.codes) == {StatusCode.OK, StatusCode.UNAVAILABLE}
            assert load.codes[StatusCode.UNAVAILABLE] == len(clients)
            await asyncio.to_thread(wait_until_ready, address)
        engine = process.engine_pid()
        process.send(signal.SIGKILL)  # of the server, which nobody else starts again
        assert await asyncio.to_thread(process.exit_code) == -signal.SIGKILL
        await until(lambda: not Path(f"/proc/{engine}").exists() or is_zombie(engine))


def wait_until_ready(address: str) -> None:
    ready = genret("health", "--address", address, "--wait", "120")
    assert ready.returncode == 0, ready.stderr


def is_zombie(pid: int) -> bool:
    """Whether a process has ended, and only waits for its parent to notice."""
    return Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()[0] == "Z"


@pytest.mark.fault
async def test_kill_during_a_reload_leaves_the_index_intact(index: ChangingIndex) -> None:
    with served(index) as process:
        index.add("Berlin")
        before = files_of(index.path)
        async with grpc.aio.insecure_channel(await asyncio.to_thread(process.address)) as channel:
            stub: Any = index_grpc.IndexServiceStub(channel)  # type: ignore[no-untyped-call]
            request = index_pb.ReloadIndexRequest(force=True)
            done = asyncio.Event()

            async def reload_until_it_is_gone() -> None:
                # One reload after the other: whenever the kill comes, it is in one of them.
                while (await stub.ReloadIndex(request, timeout=60)).reloaded:
                    done.set()

            reloading = asyncio.ensure_future(reload_until_it_is_gone())
            await asyncio.wait_for(done.wait(), 60)
            process.send(signal.SIGKILL)
            assert await failure_code(asyncio.wait_for(reloading, 60)) is StatusCode.UNAVAILABLE
        assert await asyncio.to_thread(process.exit_code) == -signal.SIGKILL
    assert files_of(index.path) == before
    assert verify(index.path).ok
    index.add("Rome")
    assert verify(index.path).ok
