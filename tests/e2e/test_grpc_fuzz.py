"""Whatever bytes and messages are sent, the answer is never INTERNAL or UNKNOWN, and the server stays up."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from typing import Any

import grpc
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from genret.service.pb.genret.v1 import retrieval_service_pb2 as pb
from tests.service.fake_retriever import FakeRetriever
from tests.service.running_server import Running, running

UNARY = (
    "/genret.v1.RetrievalService/Retrieve",
    "/genret.v1.RetrievalService/BatchRetrieve",
    "/genret.v1.RetrievalService/Link",
    "/genret.v1.RetrievalService/Answer",
    "/genret.v1.IndexService/ListIndexes",
    "/genret.v1.IndexService/GetIndex",
    "/genret.v1.IndexService/ReloadIndex",
    "/grpc.health.v1.Health/Check",
)
STREAM = "/genret.v1.RetrievalService/RetrieveStream"
STREAMS = (STREAM, "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo")
NEVER = {grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN, grpc.StatusCode.DATA_LOSS}
CASES = int(os.environ.get("GENRET_FUZZ_CASES", "150"))


async def call(api: Running, method: str, raw: bytes) -> grpc.StatusCode:
    try:
        await api.channel.unary_unary(method)(raw, timeout=60)
    except grpc.aio.AioRpcError as error:
        return error.code()
    return grpc.StatusCode.OK


async def call_stream(api: Running, method: str, *raws: bytes) -> grpc.StatusCode:
    try:
        async for raw in api.channel.stream_stream(method)(iter(raws), timeout=60):
            if method == STREAM:
                failed = pb.RetrieveStreamResponse.FromString(raw).error.code
                assert failed not in [code.value[0] for code in NEVER]
    except grpc.aio.AioRpcError as error:
        if str(error.details()).startswith("Internal error from Core"):
            return grpc.StatusCode.CANCELLED  # the client's own words: the server ended what it was sending
        return error.code()
    return grpc.StatusCode.OK


def on_a_server(scenario: Callable[[Running], Any]) -> None:
    async def run() -> None:
        async with running(FakeRetriever()) as api:
            await scenario(api)
            assert (await api.retrieve()).candidates, "the server still answers"

    asyncio.run(run())


def test_random_bytes_at_every_method() -> None:
    seen: set[grpc.StatusCode] = set()

    async def scenario(api: Running) -> None:
        @settings(max_examples=CASES, deadline=None, suppress_health_check=list(HealthCheck), database=None)
        @given(st.data())
        def explore(data: st.DataObject) -> None:
            raws.append(data.draw(st.binary(max_size=200)))

        raws: list[bytes] = []
        explore()
        for method in UNARY:
            for raw in raws:
                code = await call(api, method, raw)
                assert code not in NEVER, (method, raw, code)
                seen.add(code)
        for method in STREAMS:
            for raw in raws:
                assert await call_stream(api, method, raw) not in NEVER, (method, raw)

    on_a_server(scenario)
    assert grpc.StatusCode.INVALID_ARGUMENT in seen


@pytest.mark.parametrize("method", UNARY)
def test_bytes_that_are_no_message_are_the_callers_mistake(method: str) -> None:
    async def scenario(api: Running) -> None:
        # Field 1, length-delimited, ten bytes announced and one there.
        assert await call(api, method, b"\x0a\x0a\x01") is grpc.StatusCode.INVALID_ARGUMENT

    on_a_server(scenario)


def test_text_that_is_not_utf8_is_the_callers_mistake() -> None:
    async def scenario(api: Running) -> None:
        raw = pb.RetrieveRequest(query="ab").SerializeToString().replace(b"ab", b"\xff\xfe")
        assert await call(api, UNARY[0], raw) is grpc.StatusCode.INVALID_ARGUMENT

    on_a_server(scenario)


@pytest.mark.parametrize("method", STREAMS)
def test_malformed_requests_of_streams_are_the_callers_mistake(method: str) -> None:
    async def scenario(api: Running) -> None:
        assert await call_stream(api, method, b"\x0a\x0a\x01") is grpc.StatusCode.INVALID_ARGUMENT

    on_a_server(scenario)


def test_mutated_requests() -> None:
    async def scenario(api: Running) -> None:
        @settings(max_examples=CASES, deadline=None, suppress_health_check=list(HealthCheck), database=None)
        @given(st.data())
        def explore(data: st.DataObject) -> None:
            request = pb.RetrieveRequest(
                index=data.draw(st.sampled_from(["", "fake", "x"])),
                query=data.draw(st.text(st.characters(exclude_categories=["Cs"]), max_size=20)),
                method=data.draw(st.integers(-(2**31), 2**31 - 1)),
                prompt_template=data.draw(st.text("ab", max_size=2)),
                temperature=data.draw(st.floats()),
                min_mass=data.draw(st.none() | st.floats()),
                adaptive=data.draw(st.booleans()),
                seed=data.draw(st.integers(-(2**63), 2**63 - 1)),
            )
            for field in ("k", "beam_size", "num_draws", "num_samples", "top_m"):
                if data.draw(st.booleans()):
                    setattr(request, field, data.draw(st.integers(0, 2**32 - 1)))
            raw = bytearray(request.SerializeToString())
            for _ in range(data.draw(st.integers(0, 3))):
                if raw:
                    raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
            raws.append(bytes(raw))

        raws: list[bytes] = []
        explore()
        for raw in raws:
            assert await call(api, UNARY[0], raw) not in NEVER, raw
        whole = [pb.RetrieveRequest(query="a").SerializeToString(), *raws]
        batches = [whole[i : i + 7] for i in range(0, len(whole), 7)]
        for batch in batches:  # each item as the length-delimited field 1 of a BatchRetrieveRequest
            message = b"".join(b"\x0a" + _varint(len(raw)) + raw for raw in batch)
            assert await call(api, UNARY[1], message) not in NEVER, batch
            stream = [b"\x12" + _varint(len(raw)) + raw for raw in batch]  # as field 2 of a query of a stream
            assert await call_stream(api, STREAM, *stream) not in NEVER, batch

    on_a_server(scenario)


def test_unknown_methods_are_unimplemented() -> None:
    async def scenario(api: Running) -> None:
        for method in ("/genret.v1.RetrievalService/Nothing", "/no.Service/Nothing"):
            assert await call(api, method, b"") is grpc.StatusCode.UNIMPLEMENTED

    on_a_server(scenario)


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])
