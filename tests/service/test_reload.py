"""Hot reload with retrievers that do what a test needs: what waits, what joins, what stays, what goes."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import grpc
import pytest

from genret.retrieval.errors import (
    IndexChecksumError,
    IndexFormatError,
    IndexMismatchError,
    IndexNotFoundError,
    ModelError,
)
from genret.service.pb.genret.v1 import index_service_pb2 as pb
from genret.service.serving.served import IndexTable, ServedIndex
from tests.service.fake_retriever import FakeRetriever, version
from tests.service.running_server import Running, failure, failure_code, running, until

StatusCode = grpc.StatusCode


class SlowToWarm(FakeRetriever):
    """Warms up in pieces that a test lets through one by one, or that fail."""

    def __init__(self, error: Exception | None = None) -> None:
        super().__init__()
        self.error = error
        self.gate = threading.Semaphore(0)
        self.begun = 0

    def warm_up_steps(self) -> Iterator[Callable[[], object]]:
        for _ in range(3):
            yield self._step

    def is_at(self, piece: int) -> bool:
        return self.begun == piece + 1 and self.num_warm_ups == piece

    def _step(self) -> None:
        self.begun += 1
        if self.error is not None:
            raise self.error
        if not self.gate.acquire(timeout=60):
            raise TimeoutError("nobody let the warm-up go on")
        self.num_warm_ups += 1


def reload(api: Running, name: str = "", force: bool = False, timeout: float = 60) -> Any:
    request = pb.ReloadIndexRequest(name=name, force=force)
    return api.indexes.ReloadIndex(request, timeout=timeout)


def is_next(api: Running) -> bool:
    """Whether a request waits for the device and for nothing else."""
    lane = api.server.engine.lanes.of("cpu")
    return lane.num_waiting == 1


async def served_version(api: Running, index: str = "") -> str:
    return str((await api.retrieve(index=index)).index.version)


async def test_a_reload_serves_the_live_version_and_says_so() -> None:
    async with running(FakeRetriever()) as api:
        api.opener.table["fake"] = version(2)
        reply = await reload(api)
        assert (reply.index.name, reply.index.version, reply.index.is_default) == ("fake", "v2", True)
        assert (reply.previous_version, reply.reloaded) == ("v1", True)
        assert reply.open_ms > 0
        assert reply.warm_up_ms > 0
        assert await served_version(api) == "v2"
        error, details = await failure(reload(api, "other"))
        assert (error.code(), details["ResourceInfo"].resource_name) == (StatusCode.NOT_FOUND, "other")
        again = await reload(api)
        assert (again.reloaded, again.previous_version, again.index.version) == (False, "v2", "v2")
        assert len(api.opener.opened) == 2
        forced = await reload(api, force=True)
        assert forced.reloaded
        assert len(api.opener.opened) == 3


async def test_requests_finish_with_the_version_they_began_with_and_it_goes_with_the_last() -> None:
    old = FakeRetriever()
    async with running(old) as api:
        old.hold.clear()
        first, second = (asyncio.ensure_future(api.retrieve(q)) for q in ("one", "two"))
        await until(old.running.is_set)
        await until(lambda: api.server.engine.lanes.of("cpu").admission.num_requests == 2)
        before = api.server.engine.indexes.resolve("")
        api.opener.table["fake"] = version(2)
        # The device is busy with requests of the old version, which the test holds: publish without it.
        api.server.engine.reloader._publish(version(2))
        assert api.opener.retired == []
        old.hold.set()
        assert {(await call).index.version for call in (first, second)} == {"v1"}
        assert await served_version(api) == "v2"
        await until(lambda: api.opener.released == [before])
        assert api.opener.retired == [before]


async def test_requests_go_on_while_a_version_is_opened_and_between_the_pieces_of_its_warm_up() -> None:
    async with running(FakeRetriever()) as api:
        slow = SlowToWarm()
        api.opener.table["fake"] = version(2, slow)
        api.opener.hold.clear()
        waiting = asyncio.ensure_future(reload(api))
        await until(lambda: len(api.opener.opened) == 2)
        assert await served_version(api) == "v1"
        api.opener.hold.set()
        for piece in range(3):
            await until(partial(slow.is_at, piece))
            between = asyncio.ensure_future(api.retrieve(f"beside piece {piece}"))
            await until(partial(is_next, api))
            slow.gate.release()
            assert (await between).index.version == "v1"
        assert (await waiting).reloaded
        assert await served_version(api) == "v2"


async def test_whoever_asks_for_an_index_that_is_being_reloaded_waits_for_that_reload() -> None:
    async with running(FakeRetriever()) as api:
        api.opener.table["fake"] = version(2)
        api.opener.hold.clear()
        calls = [asyncio.ensure_future(reload(api, force=force)) for force in (False, True, False, True)]
        await until(lambda: len(api.opener.opened) == 2)
        for _ in range(5):  # calls that came later: were a second one to be opened, it would be by then
            assert await served_version(api) == "v1"
        api.opener.hold.set()
        assert [(await call).index.version for call in calls] == ["v2"] * 4
        assert len(api.opener.opened) == 2


async def test_a_forced_reload_beside_one_that_had_nothing_to_do_is_done() -> None:
    async with running(FakeRetriever()) as api:
        calls = [
            asyncio.ensure_future(api.server.engine.reloader.reload("", force)) for force in (False, True)
        ]
        assert [(await call).reloaded for call in calls] == [False, True]


async def test_reloads_of_different_indexes_follow_each_other() -> None:
    async with running(FakeRetriever(), FakeRetriever()) as api:
        for name in ("fake", "fake1"):
            api.opener.table[name] = version(2, name=name)
        api.opener.hold.clear()
        calls = [asyncio.ensure_future(reload(api, name)) for name in ("fake", "fake1")]
        await until(lambda: len(api.opener.opened) == 3)
        for _ in range(5):
            assert await served_version(api) == "v1"
        assert len(api.opener.opened) == 3
        api.opener.hold.set()
        assert [(await call).index.name for call in calls] == ["fake", "fake1"]
        assert len(api.opener.opened) == 4
        assert not (await calls[1]).index.is_default


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (IndexChecksumError("trie.arrow", "digest"), StatusCode.DATA_LOSS, "trie.arrow"),
        (IndexMismatchError("another tokenizer"), StatusCode.FAILED_PRECONDITION, "another tokenizer"),
        (IndexFormatError("/a/path: damaged"), StatusCode.FAILED_PRECONDITION, "cannot be read"),
        (IndexNotFoundError("/a/path: gone"), StatusCode.FAILED_PRECONDITION, "the index is not there"),
    ],
)
async def test_a_version_that_cannot_be_served_changes_nothing(
    error: Exception, code: grpc.StatusCode, said: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.ERROR, "genret.service.serving.reload")
    async with running(FakeRetriever()) as api:
        api.opener.table["fake"] = error
        refused, details = await failure(reload(api))
        assert refused.code() is code
        assert said in refused.details()
        assert "/a/path" not in refused.details()
        if code is StatusCode.DATA_LOSS:
            assert details["ErrorInfo"].metadata["file"] == "trie.arrow"
        if isinstance(error, IndexMismatchError):
            assert details["PreconditionFailure"].violations[0].type == "INDEX_MISMATCH"
        assert await served_version(api) == "v1"
        assert api.opener.retired == []
        api.opener.table["fake"] = version(2)
        assert (await reload(api)).reloaded
    mine = [record for record in caplog.records if record.name == "genret.service.serving.reload"]
    (line,) = (record.getMessage() for record in mine)
    assert line.startswith("index 'fake': the version served stays: ")


async def test_a_version_that_cannot_be_warmed_up_is_released_and_changes_nothing() -> None:
    async with running(FakeRetriever()) as api:
        broken = version(2, SlowToWarm(ModelError("broken logits")))
        api.opener.table["fake"] = broken
        assert await failure_code(reload(api)) is StatusCode.FAILED_PRECONDITION
        await until(lambda: api.opener.released == [broken])
        assert await served_version(api) == "v1"


async def test_a_callers_deadline_ends_the_wait_and_not_the_reload() -> None:
    async with running(FakeRetriever(), max_request_seconds=0.05) as api:
        api.opener.table["fake"] = version(2)
        api.opener.hold.clear()
        assert await failure_code(reload(api, timeout=0.2)) is StatusCode.DEADLINE_EXCEEDED
        patient = asyncio.ensure_future(reload(api))
        await asyncio.sleep(0.1)  # longer than a request may take
        api.opener.hold.set()
        assert (await patient).index.version == "v2"
        assert len(api.opener.opened) == 2


async def test_a_server_that_warms_up_or_drains_reloads_nothing() -> None:
    async with running(FakeRetriever(), load=False) as api:
        assert await failure_code(reload(api)) is StatusCode.UNAVAILABLE
        api.server.hang_up()
        await asyncio.sleep(0)
        assert api.opener.opened == []
    async with running(FakeRetriever(), drain_seconds=0.2) as api:
        api.opener.table["fake"] = version(2)
        api.opener.hold.clear()
        waiting = asyncio.ensure_future(failure(reload(api)))
        await until(lambda: len(api.opener.opened) == 2)
        draining = asyncio.ensure_future(api.server.drain())
        error, _ = await waiting
        assert error.code() in (StatusCode.UNAVAILABLE, StatusCode.CANCELLED)
        api.opener.hold.set()
        await draining


async def test_a_hangup_reloads_what_changed_and_logs_it(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "genret.service.serving.reload")
    async with running(FakeRetriever(), FakeRetriever(), FakeRetriever()) as api:
        api.opener.table["fake"] = IndexNotFoundError("gone")
        api.opener.table["fake2"] = version(2, name="fake2")
        api.server.hang_up()
        async with asyncio.timeout(60):
            while await served_version(api, "fake2") != "v2":
                await asyncio.sleep(0.002)
        assert [await served_version(api, name) for name in ("fake", "fake1")] == ["v1", "v1"]
        assert len(api.opener.opened) == 4
    said = sorted(caplog.messages)
    assert said[0] == "index 'fake': the version served stays: gone"
    assert said[1] == "index 'fake1': version v1 is served already"
    assert said[2].startswith("index 'fake2': version v2 took the place of v1; opened in ")


async def test_of_several_indexes_the_one_that_cannot_be_served_is_named() -> None:
    async with running(FakeRetriever(), FakeRetriever(), load=False) as api:
        api.opener.table["fake1"] = IndexChecksumError("trie.arrow", "its digest differs")
        with pytest.raises(Exception, match=r"index 'fake1': trie\.arrow: its digest differs"):
            await api.server.load()


def test_a_table_tells_of_replaced_indexes_when_nobody_uses_them() -> None:
    table = IndexTable()
    free: list[ServedIndex] = []
    table.on_free(free.append)
    first, second, third = version(1), version(2), version(3)
    table.put(first)
    table.put(first)
    with table.use("") as used, table.use("fake") as again:
        assert used is again is first
        table.put(second)
        assert free == []
        table.put(third)
        assert free == [second]
    assert free == [second, first]
    with table.use("") as used:
        assert used is third
    assert free == [second, first]
