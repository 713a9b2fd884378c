"""RetrieveStream over a real connection: order, errors, backpressure, cancellation, drain."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from genret.retrieval.errors import InputError
from genret.service import streams
from genret.service.configuration.server_config import BatchLimits, QueueLimits
from genret.service.pb.genret.v1 import retrieval_service_pb2 as pb
from genret.service.pb.genret.v1 import retrieval_service_pb2_grpc as pb_grpc
from genret.service.serving import readiness as quiet
from genret.service.streams import MAX_HELD_BYTES, MAX_IN_FLIGHT
from tests.service.fake_retriever import FakeRetriever
from tests.service.running_server import Running, failure, running, unpack, until
from tests.service.turned_clock import TurnedClock

# What gRPC and the kernel take of a connection whose client does not read.
_CONNECTION_BYTES = 8 * 1024 * 1024
_OWN_CONNECTION = [("grpc.use_local_subchannel_pool", 1)]
METHOD = "/genret.v1.RetrievalService/RetrieveStream"


class Patient(quiet.IdleWait):
    """Waits for the end, however long that takes."""

    def _left(self) -> float:
        return 60.0


def item(name: str, query: str = "hamlet", **fields: Any) -> pb.RetrieveStreamRequest:
    return pb.RetrieveStreamRequest(id=name, request=pb.RetrieveRequest(query=query, **fields))


async def collect(call: Any) -> dict[str, pb.RetrieveStreamResponse]:
    answers: dict[str, pb.RetrieveStreamResponse] = {}
    while (answer := await call.read()) is not grpc.aio.EOF:
        answers[answer.id] = answer
    return answers


def in_flight(api: Running) -> int:
    return sum(lane.admission.num_requests for lane in api.server.engine.lanes.all())


async def test_answers_come_as_they_are_ready() -> None:
    slow, fast = FakeRetriever(held=True), FakeRetriever()
    async with running(slow, fast, batch=BatchLimits(max_delay_ms=0)) as api:
        call = api.stub.RetrieveStream(timeout=60)
        await call.write(item("slow", index="fake"))
        await asyncio.to_thread(slow.running.wait, 60)
        await call.write(item("bad", ""))
        refused = await call.read()
        assert (refused.id, refused.error.code) == ("bad", grpc.StatusCode.INVALID_ARGUMENT.value[0])
        slow.hold.set()
        await call.write(item("fast", index="fake1"))
        await call.done_writing()
        assert set(await collect(call)) == {"slow", "fast"}


async def test_what_fails_alone_is_an_answer_with_a_status() -> None:
    fake = FakeRetriever(
        errors={"broken": InputError("filter", "no such column")}, bugs={"bug": ValueError("x")}
    )
    async with running(fake) as api:
        queries = [item(name, name) for name in ("ok", "broken", "bug", "k" * 256, "k" * 257, "é" * 129)]
        queries += [item("blank", " "), item("unknown", index="nowhere")]
        answers = await collect(api.stub.RetrieveStream(iter(queries), timeout=60))
        codes = {name: answer.error.code for name, answer in answers.items()}
        code = grpc.StatusCode
        invalid = code.INVALID_ARGUMENT.value[0]
        assert codes == {
            **dict.fromkeys(("ok", "k" * 256), 0),
            **dict.fromkeys(("blank", "broken", "k" * 257, "é" * 129), invalid),
            "unknown": code.NOT_FOUND.value[0],
            "bug": code.INTERNAL.value[0],
        }
        details = unpack(answers["k" * 257].error)
        assert details["BadRequest"].field_violations[0].field == "id"
        assert "ValueError" not in answers["bug"].error.message


async def test_so_many_queries_of_a_stream_are_in_flight_and_no_more() -> None:
    fake = FakeRetriever(held=True)
    async with running(fake) as api:
        call = api.stub.RetrieveStream(iter([item(str(i)) for i in range(3 * MAX_IN_FLIGHT)]), timeout=60)
        await until(lambda: in_flight(api) == MAX_IN_FLIGHT)
        check = health_pb2_grpc.HealthStub(api.channel).Check
        for _ in range(20):  # answered behind what the stream has sent
            await check(health_pb2.HealthCheckRequest(), timeout=60)
        assert in_flight(api) == MAX_IN_FLIGHT
        fake.hold.set()
        assert len(await collect(call)) == 3 * MAX_IN_FLIGHT


async def test_a_client_that_never_reads_holds_up_only_itself() -> None:
    fake = FakeRetriever()
    big = "big " * 20 + "x" * 200_000
    async with running(fake) as api, grpc.aio.insecure_channel(api.server.address) as channel:
        stub: Any = pb_grpc.RetrievalServiceStub(channel)  # generated, so untyped
        deaf = stub.RetrieveStream()
        written = 0

        async def write() -> None:
            nonlocal written
            while True:
                await deaf.write(item(str(written), big))
                written += 1

        def answered() -> int:
            return sum(query == big for batch in fake.batches for query in batch)

        writing = asyncio.create_task(write())
        before, rounds = -1, 0
        async with asyncio.timeout(60):
            while rounds < 5:  # in a row, in which nothing of it moved
                rounds = rounds + 1 if answered() == before > 0 else 0
                before = answered()
                # Others work as if it were not there.
                assert (await api.retrieve("other")).candidates
                same = pb.RetrieveRequest(query="same connection")
                assert (await stub.Retrieve(same, timeout=60)).candidates
                others = await collect(api.stub.RetrieveStream(iter([item("a"), item("b")]), timeout=60))
                assert set(others) == {"a", "b"}
                await asyncio.sleep(0.05)
        assert not writing.done(), "it cannot go on writing either"
        held = answered() * 2 * len(big)  # an answer of the fake has its query in two titles
        assert held <= MAX_HELD_BYTES + _CONNECTION_BYTES
        await until(lambda: in_flight(api) == 0)  # answers that nobody reads hold no place in the queue
        writing.cancel()
        deaf.cancel()
        assert (await api.retrieve("afterwards")).candidates


async def test_streams_leave_room_for_single_calls() -> None:
    fake = FakeRetriever(held=True)
    async with running(fake, queue=QueueLimits(max_requests=4)) as api:
        call = api.stub.RetrieveStream(iter([item(str(i)) for i in range(40)]), timeout=60)
        await until(lambda: in_flight(api) == 40)
        single = asyncio.ensure_future(api.retrieve("single"))
        await until(lambda: in_flight(api) == 41)
        fake.hold.set()
        assert (await single).candidates
        assert len(await collect(call)) == 40
        assert any("single" in batch for batch in fake.batches[:3]), "beside what was streamed before it"


async def test_the_limit_on_time_is_that_of_a_query(clock: TurnedClock) -> None:
    fake = FakeRetriever()
    async with running(fake, max_request_seconds=60) as api:
        call = api.stub.RetrieveStream(timeout=3600)
        for i in range(4):  # longer than the limit in the sum
            await call.write(item(str(i)))
            assert (await call.read()).response.candidates
            clock.forward(25)
        fake.hold.clear()
        fake.running.clear()
        await call.write(item("late"))
        await until(fake.running.is_set)
        clock.forward(60)
        late = await call.read()
        assert late.error.code == grpc.StatusCode.DEADLINE_EXCEEDED.value[0]
        fake.hold.set()
        await call.write(item("next"))
        assert (await call.read()).response.candidates
        await call.done_writing()
        assert await call.code() == grpc.StatusCode.OK


async def test_garbage_ends_the_stream_behind_what_was_asked_before_it() -> None:
    async with running(FakeRetriever()) as api:
        good = item("good").SerializeToString()
        call = api.channel.stream_stream(METHOD)(iter([good, b"\xff\xff\xff"]), timeout=60)
        answers = []

        async def read() -> None:
            async for raw in call:
                answers.append(pb.RetrieveStreamResponse.FromString(raw))

        error, details = await failure(read())
        assert error.code() == grpc.StatusCode.INVALID_ARGUMENT
        assert f"not a valid request of {METHOD}" in str(error.details())
        assert "BadRequest" in details
        assert [answer.id for answer in answers] == ["good"]


async def test_a_server_that_is_warming_up_refuses_a_stream() -> None:
    async with running(FakeRetriever(), load=False) as api:
        # Nothing is sent: a call that writes while its server ends it may be told INTERNAL by its own side.
        error, details = await failure(collect(api.stub.RetrieveStream(timeout=60)))
        assert error.code() == grpc.StatusCode.UNAVAILABLE
        assert "RetryInfo" in details


async def test_a_stream_that_has_sent_all_before_a_drain_ends_well(monkeypatch: pytest.MonkeyPatch) -> None:
    # That it has sent all may come later than what it has sent.
    monkeypatch.setattr(streams, "IdleWait", Patient)
    fake = FakeRetriever(held=True)
    async with running(fake) as api:
        call = api.stub.RetrieveStream(iter([item("a"), item("b")]), timeout=60)
        await until(lambda: in_flight(api) == 2)
        draining = asyncio.create_task(api.server.drain())
        await until(lambda: api.server.readiness.state is quiet.State.DRAINING)
        fake.hold.set()
        assert set(await collect(call)) == {"a", "b"}
        assert await call.code() == grpc.StatusCode.OK
        await draining


async def test_idle_streams_are_so_many_a_connection_and_hold_up_nobody() -> None:
    async with running(FakeRetriever(), queue=QueueLimits(max_requests=4)) as api:
        open_streams = api.server.methods.streams
        most = 1024
        assert (await api.retrieve()).candidates  # from here on the client knows the limit
        idle = [api.stub.RetrieveStream() for _ in range(most + 50)]
        await until(lambda: len(open_streams) >= most)
        async with grpc.aio.insecure_channel(api.server.address, options=_OWN_CONNECTION) as channel:
            stub: Any = pb_grpc.RetrievalServiceStub(channel)  # generated, so untyped
            assert (await stub.Retrieve(pb.RetrieveRequest(query="other"), timeout=60)).candidates
            await idle[0].write(item("late"))
            assert (await idle[0].read()).id == "late"
            assert len(open_streams) == most
            for call in idle[:100]:
                call.cancel()
            # Others take their place; some may come before the server knows of the place, and are refused.
            await until(lambda: len(open_streams) == sum(not call.done() for call in idle) < most)
            await api.server.drain()
            codes = await asyncio.gather(*(call.code() for call in idle[100:]))
            assert set(codes) == {grpc.StatusCode.UNAVAILABLE}


@pytest.mark.parametrize("names", [["same", "same"], ["", ""]])
async def test_ids_need_not_be_unique(names: list[str]) -> None:
    async with running(FakeRetriever()) as api:
        answers = api.stub.RetrieveStream(iter(map(item, names)), timeout=60)
        assert [answer.id async for answer in answers] == names
