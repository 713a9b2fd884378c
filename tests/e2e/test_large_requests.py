"""Clients that send as much as the limits allow to `genret serve`: its memory stays bounded, others go on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from genret.service.pb.genret.v1 import retrieval_service_pb2 as pb
from genret.service.pb.genret.v1 import retrieval_service_pb2_grpc as pb_grpc
from tests.service.changing_index import ChangingIndex
from tests.service.server_process import ServerProcess

MIB = 2**20
_LIMITS = ("--max-client-bytes", str(32 * MIB))
# 64 queries of a stream would take 1,000 MiB.
_GROWTH = 200 * MIB
_OPTIONS = [("grpc.use_local_subchannel_pool", 1), ("grpc.max_send_message_length", -1)]


@pytest.fixture
def server(tmp_path: Path, checkpoint: Path) -> Iterator[ServerProcess]:
    index = ChangingIndex(tmp_path / "served", checkpoint)
    with ServerProcess(f"{index.path}", "--model", str(index.checkpoint), *_LIMITS) as process:
        process.address()
        yield process


def anonymous(server: ServerProcess) -> int:
    """Bytes that are no file's: pages of libraries come back after a load, whatever is asked."""
    pids = (server.pid, server.engine_pid())
    pages = [Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1:3] for pid in pids]
    return sum(int(resident) - int(of_files) for resident, of_files in pages) * 4096


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="memory is read from /proc")
async def test_streams_of_large_queries_take_bounded_memory(server: ServerProcess) -> None:
    ids = [f"{number:030d}" for number in range(100_000)]
    query = pb.RetrieveStreamRequest(
        id="a",
        request=pb.RetrieveRequest(query="x", k=1, method="RETRIEVAL_METHOD_BEAM", deny_entity_ids=ids),
    )
    before, peak, answers = anonymous(server), 0, 0

    async def queries() -> AsyncIterator[pb.RetrieveStreamRequest]:
        for _ in range(40):
            yield query

    async def stream(stub: Any) -> None:
        nonlocal answers, peak
        async for answer in stub.RetrieveStream(queries(), timeout=300):
            assert not answer.error.code
            answers += 1
            peak = max(peak, anonymous(server))

    async with (
        grpc.aio.insecure_channel(server.address(), options=_OPTIONS) as one,
        grpc.aio.insecure_channel(server.address(), options=_OPTIONS) as other,
    ):
        await asyncio.gather(*(stream(pb_grpc.RetrievalServiceStub(at)) for at in (one, other)))  # type: ignore[no-untyped-call]
    assert answers == 80
    assert peak - before < _GROWTH


@pytest.mark.parametrize("field", ["query", "shortlist_query", "mention", "title"])
async def test_texts_of_4_mb_are_refused_before_they_are_tokenised(server: ServerProcess, field: str) -> None:
    text = "ab" * (2 * MIB - 100)
    async with grpc.aio.insecure_channel(server.address(), options=_OPTIONS) as channel:
        stub: Any = pb_grpc.RetrievalServiceStub(channel)  # type: ignore[no-untyped-call]
        match field:
            case "mention":
                reply = await stub.Link(pb.LinkRequest(mentions=[pb.Mention(mention=text)]), timeout=300)
                assert "too long: it has" in reply.results[0].error.message
                return
            case "title":
                # The estimate of its work may be more than the queue takes.
                call = stub.Score(pb.ScoreRequest(query="x", titles=[text[: MIB // 2]]), timeout=300)
            case _:
                call = stub.Retrieve(pb.RetrieveRequest(**{"query": "x", field: text}), timeout=300)
        with pytest.raises(grpc.aio.AioRpcError, match="too long: it has") as refused:
            await call
        assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
