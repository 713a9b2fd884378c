"""The whole server in one process, over a real socket, with retrievers that do what a test needs."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from genret.decoding.errors import DeadlineExceededError, DecodingCancelledError
from genret.retrieval.errors import IndexMismatchError
from genret.service.configuration.server_config import BatchLimits, QueueLimits
from genret.service.errors import BindError
from genret.service.pb.genret.v1 import index_service_pb2 as index_pb
from genret.service.pb.genret.v1 import index_service_pb2_grpc as index_grpc
from genret.service.pb.genret.v1 import retrieval_service_pb2 as pb
from genret.service.serving.readiness import State
from genret.service.serving.server import Server
from tests.service.fake_retriever import FakeRetriever, served
from tests.service.running_server import (
    Running,
    TableOpener,
    failure,
    make_config,
    overtaken,
    running,
    unpack,
    until,
)
from tests.service.turned_clock import TurnedClock

StatusCode = grpc.StatusCode
BEAM = pb.RETRIEVAL_METHOD_BEAM
READINESS = "genret.v1.RetrievalService"
SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


async def health(channel: Any, service: str = READINESS) -> int:
    request = health_pb2.HealthCheckRequest(service=service)
    reply = await health_pb2_grpc.HealthStub(channel).Check(request, timeout=60)
    return int(reply.status)


def test_a_query_is_answered_with_everything_known_of_it() -> None:
    async def scenario() -> None:
        async with running(FakeRetriever()) as api:
            reply = await api.retrieve("hamlet", k=2, method=pb.RETRIEVAL_METHOD_DISC, seed=5)
            assert [c.rank for c in reply.candidates] == [1, 2]
            assert reply.candidates[0].title == "title of hamlet"
            assert reply.candidates[0].metadata["year"].int_value == 1600
            assert reply.candidates[0].metadata["note"].WhichOneof("kind") is None
            assert reply.finish_reason == pb.FINISH_REASON_OK
            assert (reply.mass, reply.mass_stderr, reply.num_draws, reply.seed) == (0.25, 0.01, 7, 5)
            assert (reply.mass_lower_bound, reply.mass_upper_bound, reply.num_nodes) == (0.125, 0.5, 11)
            assert not reply.abstained
            assert not reply.HasField("certified")
            assert (reply.index.name, reply.index.version, reply.index.digest) == ("fake", "v1", "d1")
            assert reply.timings.prefill_ms == 1.0
            assert 0 <= reply.timings.queue_ms <= reply.timings.total_ms

    asyncio.run(scenario())


def test_an_answer_below_the_least_mass_is_no_match_with_its_mass() -> None:
    async def scenario() -> None:
        async with running(FakeRetriever()) as api:
            for least, finish_reason in ((0.2, pb.FINISH_REASON_OK), (0.3, pb.FINISH_REASON_NO_MATCH)):
                reply = await api.retrieve("hamlet", method=pb.RETRIEVAL_METHOD_DISC, min_mass=least)
                assert reply.finish_reason == finish_reason
                assert reply.abstained == (least == 0.3) == (not reply.candidates)
                assert reply.mass == 0.25

    asyncio.run(scenario())


def test_scores_proof_and_memory_are_told() -> None:
    async def scenario() -> None:
        async with running(FakeRetriever()) as api:
            reply = await api.retrieve("hamlet", k=2, exact=True, exact_budget=9)
            assert reply.certified
            assert [c.score for c in reply.candidates] == [-1.5, -2.5]
            assert (reply.num_nodes, reply.num_exact_nodes) == (11, 5)
            kv = reply.kv_usage
            assert (kv.peak_bytes, kv.per_branch_bytes, kv.saved_bytes) == (1000, 4000, 3000)
            assert (kv.shared_prefix_bytes, kv.num_collections) == (500, 2)

    asyncio.run(scenario())


def test_what_a_proof_may_take_is_work() -> None:
    async def scenario() -> None:
        fake = FakeRetriever()
        fake.hold.clear()
        async with running(fake, queue=QueueLimits(max_tokens=1500)) as api:
            # Of each budget a quarter of the queue counts, 375, and a little more for its branches.
            first = [asyncio.ensure_future(api.retrieve(f"q{i}", method=BEAM, exact=True)) for i in range(3)]
            await until(fake.running.is_set)
            await until(lambda: api.server.lanes.of("cpu").admission.num_requests == 3)
            error, details = await failure(api.retrieve("two", method=BEAM, exact=True))
            assert error.code() is StatusCode.RESOURCE_EXHAUSTED
            assert details["ErrorInfo"].reason == "QUEUE_FULL"
            small = asyncio.ensure_future(api.retrieve("three", method=BEAM, exact=True, exact_budget=5))
            fake.hold.set()
            assert all([(await call).candidates for call in first])
            assert (await small).candidates
            fake.hold.clear()
            # Each of them took five tokens of its budget.
            more = [asyncio.ensure_future(api.retrieve(f"r{i}", method=BEAM, exact=True)) for i in range(8)]
            await until(lambda: api.server.lanes.of("cpu").admission.num_requests == 8)
            fake.hold.set()
            assert all([(await call).candidates for call in more])

    asyncio.run(scenario())


def test_options_left_out_take_the_defaults_and_zero_is_not_left_out() -> None:
    async def scenario() -> None:
        async with running(FakeRetriever()) as api:
            reply = await api.retrieve("hamlet")
            assert reply.method == pb.RETRIEVAL_METHOD_AUTO
            assert reply.certified
            assert not reply.HasField("seed")
            for field in (
                "k",
                "beam_size",
                "num_draws",
                "num_samples",
                "temperature",
                "top_m",
                "shortlist_size",
            ):
                error, details = await failure(api.retrieve("hamlet", **{field: 0}))
                assert error.code() is StatusCode.INVALID_ARGUMENT
                assert details["BadRequest"].field_violations[0].field == field

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"query": ""}, "query"),
        ({"query": " \t\n"}, "query"),
        ({"query": "word " * 101}, "query"),
        ({"query": "word " * 100_000}, "query"),
        ({"k": 10**6}, "k"),
        ({"beam_size": 10**6}, "beam_size"),
        ({"num_draws": 2**32 - 1}, "num_draws"),
        ({"temperature": float("nan")}, "temperature"),
        ({"temperature": float("inf")}, "temperature"),
        ({"temperature": -1.0}, "temperature"),
        ({"method": 77}, "method"),
        ({"min_mass": 0.5}, "min_mass"),
        ({"adaptive": True}, "adaptive"),
        ({"exact_budget": 5}, "exact_budget"),
        ({"exact": True, "exact_budget": 2**32 - 1}, "exact_budget"),
        ({"length_penalty": float("nan")}, "length_penalty"),
        ({"length_penalty": 5.0}, "length_penalty"),
        ({"length_penalty": 1.0, "aggregation": pb.AGGREGATION_SUM}, "aggregation"),
        ({"aggregation": 9}, "aggregation"),
        ({"method": pb.RETRIEVAL_METHOD_DISC, "exact": True}, "exact"),
        ({"method": pb.RETRIEVAL_METHOD_DISC, "length_penalty": 1.0}, "length_penalty"),
        ({"method": pb.RETRIEVAL_METHOD_DISC, "aggregation": pb.AGGREGATION_MAX}, "aggregation"),
        ({"method": pb.RETRIEVAL_METHOD_DISC, "min_mass": float("nan")}, "min_mass"),
        ({"method": pb.RETRIEVAL_METHOD_DISC, "min_mass": -0.5}, "min_mass"),
        ({"method": pb.RETRIEVAL_METHOD_DISC, "beam_size": 65}, "beam_size"),
        ({"method": pb.RETRIEVAL_METHOD_DISC, "adaptive": True, "beam_size": 2}, "adaptive"),
        ({"method": pb.RETRIEVAL_METHOD_DISC, "adaptive": True, "top_m": 2}, "adaptive"),
        ({"method": pb.RETRIEVAL_METHOD_DISC, "num_draws": 256, "beam_size": 64}, "num_samples"),
    ],
)
def test_bad_fields_are_named(fields: dict[str, Any], field: str) -> None:
    async def scenario() -> None:
        async with running(FakeRetriever()) as api:
            error, details = await failure(api.retrieve(**{"query": "hamlet", **fields}))
            assert error.code() is StatusCode.INVALID_ARGUMENT
            assert [v.field for v in details["BadRequest"].field_violations] == [field]
            assert details["BadRequest"].field_violations[0].description in error.details()

    asyncio.run(scenario())


def test_indexes_are_found_by_name_and_the_first_is_the_default() -> None:
    async def scenario() -> None:
        async with running(FakeRetriever(), FakeRetriever()) as api:
            assert (await api.retrieve()).index.name == "fake"
            assert (await api.retrieve(index="fake1")).index.name == "fake1"
            error, details = await failure(api.retrieve(index="other"))
            assert error.code() is StatusCode.NOT_FOUND
            assert details["ResourceInfo"].resource_name == "other"
            assert "fake1" in error.details()
            stub = index_grpc.IndexServiceStub(api.channel)
            listed = (await stub.ListIndexes(index_pb.ListIndexesRequest())).indexes
            assert [(i.name, i.is_default, i.num_rows) for i in listed] == [
                ("fake", True, 30),
                ("fake1", False, 30),
            ]
            assert (await stub.GetIndex(index_pb.GetIndexRequest())).index == listed[0]
            assert (await stub.GetIndex(index_pb.GetIndexRequest(name="fake1"))).index == listed[1]
            error, _ = await failure(stub.GetIndex(index_pb.GetIndexRequest(name="other")))
            assert error.code() is StatusCode.NOT_FOUND

    asyncio.run(scenario())


def test_an_enormous_index_name_is_refused_within_the_limits_of_trailers() -> None:
    async def scenario() -> None:
        async with running(FakeRetriever()) as api:
            error, details = await failure(api.retrieve(index="ä" * 1_000_000))
            assert error.code() is StatusCode.NOT_FOUND
            assert len(details["ResourceInfo"].resource_name) <= 500

    asyncio.run(scenario())


def test_nothing_found_is_an_answer() -> None:
    async def scenario() -> None:
        async with running(FakeRetriever()) as api:
            reply = await api.retrieve("nothing")
            assert reply.finish_reason == pb.FINISH_REASON_NO_MATCH
            assert not reply.candidates

    asyncio.run(scenario())


def test_a_batch_has_a_status_per_item() -> None:
    async def scenario() -> None:
        fake = FakeRetriever(errors={"torn": IndexMismatchError("another tokenizer")})
        async with running(fake) as api:
            reply = await api.batch(
                pb.RetrieveRequest(query="a"),
                pb.RetrieveRequest(query=""),
                pb.RetrieveRequest(query="b", index="other"),
                pb.RetrieveRequest(query="torn"),
                pb.RetrieveRequest(query="c", method=pb.RETRIEVAL_METHOD_DISC),
            )
            outcomes = [result.WhichOneof("outcome") for result in reply.results]
            assert outcomes == ["response", "error", "error", "error", "response"]
            assert [reply.results[i].error.code for i in (1, 2, 3)] == [3, 5, 9]
            assert "BadRequest" in unpack(reply.results[1].error)
            assert "PreconditionFailure" in unpack(reply.results[3].error)
            assert fake.batches == [["a", "torn", "c"]], "good items share one batch"
            assert not (await api.batch()).results
            error, details = await failure(api.batch(*[pb.RetrieveRequest(query="a")] * 257))
            assert error.code() is StatusCode.INVALID_ARGUMENT
            assert details["BadRequest"].field_violations[0].field == "requests"

    asyncio.run(scenario())


def test_concurrent_requests_share_batches_off_the_event_loop() -> None:
    async def scenario() -> None:
        fake = FakeRetriever()
        fake.hold.clear()
        async with running(fake) as api:
            first = api.retrieve("first")
            await until(fake.running.is_set)
            others = [api.retrieve(f"q{i}") for i in range(40)]
            await until(lambda: api.waiting == 40)
            fake.hold.set()
            replies = await asyncio.gather(first, *others)
            assert [r.candidates[0].title for r in replies[1:]] == [f"title of q{i}" for i in range(40)]
            assert [len(batch) for batch in fake.batches] == [1, 32, 8]
            assert fake.threads == {"genret-cpu_0"}

    asyncio.run(scenario())


def test_health_answers_while_the_model_works() -> None:
    async def scenario() -> None:
        fake = FakeRetriever()
        fake.hold.clear()
        async with running(fake) as api:
            busy = api.retrieve()
            await until(fake.running.is_set)
            for _ in range(50):
                assert await health(api.channel) == SERVING
            assert not busy.done(), "on the model's thread no check would have returned"
            fake.hold.set()
            await busy

    asyncio.run(scenario())


def test_a_cancelled_call_stops_decoding_and_frees_its_place() -> None:
    async def scenario() -> None:
        fake = FakeRetriever()
        fake.hold.clear()
        async with running(fake, queue=QueueLimits(max_requests=2)) as api:
            running_call = api.retrieve("running")
            await until(fake.running.is_set)
            waiting_call = api.retrieve("waiting")
            await until(lambda: api.waiting == 1)
            waiting_call.cancel()
            await until(lambda: api.waiting == 0)
            running_call.cancel()
            await until(lambda: len(fake.stopped_by) == 1)
            assert type(fake.stopped_by[0]) is DecodingCancelledError
            fake.hold.set()
            await asyncio.gather(api.retrieve("a"), api.retrieve("b"))
            assert all("waiting" not in batch for batch in fake.batches)

    asyncio.run(scenario())


def test_a_deadline_stops_decoding() -> None:
    async def scenario() -> None:
        fake = FakeRetriever()
        fake.hold.clear()
        async with running(fake) as api:
            error, _ = await overtaken(
                lambda seconds: failure(api.retrieve("slow", timeout=seconds)), fake.running.is_set
            )
            assert error.code() is StatusCode.DEADLINE_EXCEEDED
            await until(lambda: len(fake.stopped_by) == 1)
            assert isinstance(fake.stopped_by[0], DecodingCancelledError | DeadlineExceededError)

    asyncio.run(scenario())


def test_the_server_has_a_deadline_of_its_own() -> None:
    async def scenario() -> None:
        fake = FakeRetriever()
        fake.hold.clear()
        async with running(fake, max_request_seconds=0.2) as api:
            error, _ = await failure(api.retrieve("slow"))
            assert error.code() is StatusCode.DEADLINE_EXCEEDED

    asyncio.run(scenario())


def test_a_full_queue_refuses_at_once_and_says_when_to_return() -> None:
    async def scenario() -> None:
        fake = FakeRetriever()
        fake.hold.clear()
        async with running(fake, queue=QueueLimits(max_requests=3)) as api:
            first = api.retrieve("first")
            await until(fake.running.is_set)
            accepted = [api.retrieve("a"), api.retrieve("b")]
            await until(lambda: api.waiting == 2)
            error, details = await failure(api.retrieve("c"))
            assert error.code() is StatusCode.RESOURCE_EXHAUSTED
            assert (details["ErrorInfo"].reason, details["ErrorInfo"].domain) == ("QUEUE_FULL", "genret")
            assert details["RetryInfo"].retry_delay.ToNanoseconds() > 0
            assert await health(api.channel) == SERVING
            fake.hold.set()
            await asyncio.gather(first, *accepted)
            await api.retrieve("c")

    asyncio.run(scenario())


def test_a_bug_tells_the_request_id_and_nothing_else(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        fake = FakeRetriever(bugs={"bad": RuntimeError("secret path /srv/x")})
        fake.hold.clear()
        async with running(fake) as api:
            first = api.retrieve("first")
            await until(fake.running.is_set)
            good = api.retrieve("good")
            await until(lambda: api.waiting == 1)
            bad = api.stub.Retrieve(pb.RetrieveRequest(query="bad"), metadata=(("x-request-id", "abc-1"),))
            await until(lambda: api.waiting == 2)
            fake.hold.set()
            await first
            assert (await good).candidates, "a neighbour in the batch is answered all the same"
            error, details = await failure(bad)
            assert error.code() is StatusCode.INTERNAL
            assert error.details() == "internal error; request id abc-1"
            assert not details
            assert dict(list(error.trailing_metadata()))["x-request-id"] == "abc-1"
            assert fake.batches[1:] == [["good", "bad"], ["good"], ["bad"]]

    with caplog.at_level(logging.ERROR, logger="genret.service"):
        asyncio.run(scenario())
    (record,) = [r for r in caplog.records if r.levelno == logging.ERROR]
    assert "abc-1" in record.getMessage()
    assert record.exc_info is not None
    assert "secret path" in str(record.exc_info[1])


def test_memory_that_does_not_suffice_is_no_bug() -> None:
    async def scenario() -> None:
        async with running(FakeRetriever(bugs={"big": MemoryError()})) as api:
            error, details = await failure(api.retrieve("big"))
            assert error.code() is StatusCode.RESOURCE_EXHAUSTED
            assert details["ErrorInfo"].reason == "MEMORY_FULL"

    asyncio.run(scenario())


def test_request_ids_are_returned_or_made() -> None:
    async def scenario() -> None:
        async with running(FakeRetriever()) as api:
            for sent, expected in (("mine-7", "mine-7"), ("no good !", None), ("x" * 200, None)):
                call = api.stub.Retrieve(pb.RetrieveRequest(query="a"), metadata=(("x-request-id", sent),))
                await call
                got = dict(list(await call.trailing_metadata()))["x-request-id"]
                assert got == expected if expected else len(got) == 32

    asyncio.run(scenario())


def test_readiness_follows_the_life_of_the_server() -> None:
    async def scenario() -> None:
        fake = FakeRetriever()
        async with running(fake, load=False) as api:
            assert await health(api.channel, "") == SERVING
            assert await health(api.channel) == NOT_SERVING
            error, details = await failure(api.retrieve())
            assert error.code() is StatusCode.UNAVAILABLE
            assert "RetryInfo" in details
            await api.server.load()
            assert fake.num_warm_ups == 1
            assert await health(api.channel) == SERVING
            await api.retrieve()
            error, _ = await failure(
                health_pb2_grpc.HealthStub(api.channel).Check(
                    health_pb2.HealthCheckRequest(service="no.such.Service")
                )
            )
            assert error.code() is StatusCode.NOT_FOUND

    asyncio.run(scenario())


def test_draining_finishes_what_was_accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = TurnedClock(monkeypatch)

    async def knock(api: Running) -> grpc.StatusCode:
        async with grpc.aio.insecure_channel(api.server.address) as another:
            check = health_pb2_grpc.HealthStub(another).Check(health_pb2.HealthCheckRequest(), timeout=60)
            code: grpc.StatusCode = await check.code()
            return code

    async def scenario() -> None:
        fake = FakeRetriever()
        fake.hold.clear()
        async with running(fake, lame_duck_seconds=30, drain_seconds=600) as api:
            admission = api.server.lanes.of("cpu").admission
            accepted = [api.retrieve(f"q{i}") for i in range(5)]
            await until(lambda: admission.num_requests == 5)
            drain = asyncio.create_task(api.server.drain())
            await until(lambda: api.server.readiness.state is State.DRAINING)
            assert await health(api.channel) == NOT_SERVING
            late = api.retrieve("in the lame-duck time")
            await until(lambda: admission.num_requests == 6)
            assert await knock(api) is StatusCode.OK
            clock.forward(30)
            async with asyncio.timeout(60):
                # What gRPC has read as its listener closes, and not handed over, it resets.
                while (code := await knock(api)) is not StatusCode.UNAVAILABLE:
                    assert code in (StatusCode.OK, StatusCode.CANCELLED)
            assert not drain.done()
            fake.hold.set()
            replies = await asyncio.gather(*accepted, late)
            assert all(reply.candidates for reply in replies)
            await asyncio.wait_for(drain, 60)

    asyncio.run(scenario())


def test_a_hurried_drain_cancels_what_is_in_flight() -> None:
    async def scenario() -> None:
        fake = FakeRetriever()
        fake.hold.clear()
        async with running(fake, lame_duck_seconds=600, drain_seconds=600) as api:
            call = api.retrieve("never ends")
            await until(fake.running.is_set)
            hurry = asyncio.Event()
            drain = asyncio.create_task(api.server.drain(hurry))
            await asyncio.sleep(0.05)
            hurry.set()
            await asyncio.wait_for(drain, 60)
            error, _ = await failure(call)
            assert error.code() in (StatusCode.UNAVAILABLE, StatusCode.CANCELLED)
            await until(lambda: len(fake.stopped_by) == 1)

    asyncio.run(scenario())


def test_a_port_in_use_is_an_error_that_names_the_address() -> None:
    async def scenario() -> None:
        async with running(FakeRetriever()) as api:
            config = make_config(port=api.server.port)
            second = Server(config, TableOpener({"fake": served(FakeRetriever())}))
            with pytest.raises(BindError, match=rf"127\.0\.0\.1:{api.server.port}: .*in use"):
                await second.start()
            await second.drain()
            await api.retrieve()

    asyncio.run(scenario())


def test_a_host_that_does_not_exist_is_named() -> None:
    async def scenario() -> None:
        opener = TableOpener({"fake": served(FakeRetriever())})
        server = Server(make_config(host="host.invalid", insecure=True), opener)
        with pytest.raises(BindError, match=r"cannot listen on host\.invalid:0"):
            await server.start()
        await server.drain()

    asyncio.run(scenario())


def test_an_index_that_cannot_be_opened_leaves_the_server_not_ready() -> None:
    async def scenario() -> None:
        server = Server(make_config(), TableOpener({"fake": IndexMismatchError("another tokenizer")}))
        await server.start()
        with pytest.raises(IndexMismatchError):
            await server.load()
        async with grpc.aio.insecure_channel(server.address) as channel:
            assert await health(channel) == NOT_SERVING
        await server.drain()

    asyncio.run(scenario())


def test_reflection_lists_the_services() -> None:
    async def scenario() -> None:
        async with running(FakeRetriever()) as api:
            stub = reflection_pb2_grpc.ServerReflectionStub(api.channel)
            request = reflection_pb2.ServerReflectionRequest(list_services="")
            async for reply in stub.ServerReflectionInfo(iter([request])):
                names = {service.name for service in reply.list_services_response.service}
                assert {"genret.v1.RetrievalService", "genret.v1.IndexService"} <= names
                assert "grpc.health.v1.Health" in names

    asyncio.run(scenario())


def test_a_message_above_the_limit_is_refused() -> None:
    async def scenario() -> None:
        async with running(FakeRetriever()) as api:
            error, details = await failure(api.retrieve("x" * (4 * 2**20 + 1)))
            assert error.code() is StatusCode.RESOURCE_EXHAUSTED
            assert not details, "clients tell it from overload by the missing ErrorInfo"

    asyncio.run(scenario())


def test_a_batch_too_large_for_one_pass_is_cut_by_work() -> None:
    async def scenario() -> None:
        fake = FakeRetriever()
        limits = BatchLimits(max_size=100, max_tokens=250, max_delay_ms=50)
        async with running(fake, batch=limits) as api:
            await api.batch(*[pb.RetrieveRequest(query="one two", method=BEAM)] * 6)  # 82 tokens of work each
            assert [len(batch) for batch in fake.batches] == [3, 3]

    asyncio.run(scenario())
