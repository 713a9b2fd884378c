"""The whole server in one process, over a real socket, with retrievers that do what a test needs."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from genret.retrieval.errors import IndexMismatchError, InputError
from genret.service.configuration.server_config import QueueLimits
from genret.service.errors import BindError
from genret.service.pb.genret.v1 import retrieval_service_pb2 as pb
from genret.service.serving.readiness import State
from genret.service.serving.server import Server
from tests.service.fake_retriever import FakeRetriever, served
from tests.service.running_server import Running, TableOpener, failure, make_config, running, unpack, until
from tests.service.turned_clock import TurnedClock

StatusCode = grpc.StatusCode
BEAM = pb.RETRIEVAL_METHOD_BEAM
SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


async def health(channel: Any) -> int:
    request = health_pb2.HealthCheckRequest(service="genret.v1.RetrievalService")
    reply = await health_pb2_grpc.HealthStub(channel).Check(request, timeout=60)
    return int(reply.status)


async def test_what_a_proof_may_take_is_work() -> None:
    fake = FakeRetriever(held=True)
    async with running(fake, queue=QueueLimits(max_tokens=1500)) as api:
        # Of each budget a quarter of the queue counts, 375, and a little more for its branches.
        first = [asyncio.ensure_future(api.retrieve(f"q{i}", method=BEAM, exact=True)) for i in range(3)]
        await until(fake.running.is_set)
        await until(lambda: api.server.engine.lanes.of("cpu").admission.num_requests == 3)
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
        await until(lambda: api.server.engine.lanes.of("cpu").admission.num_requests == 8)
        fake.hold.set()
        assert all([(await call).candidates for call in more])


async def test_a_batch_has_a_status_per_item() -> None:
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
        assert fake.batches == [["a", "torn"], ["c"]], "good items of one kind share one batch"
        assert not (await api.batch()).results


async def test_draining_finishes_what_was_accepted(clock: TurnedClock) -> None:
    async def knock(api: Running) -> grpc.StatusCode:
        async with grpc.aio.insecure_channel(api.server.address) as another:
            check = health_pb2_grpc.HealthStub(another).Check(health_pb2.HealthCheckRequest(), timeout=60)
            return await check.code()

    fake = FakeRetriever(held=True)
    async with running(fake, lame_duck_seconds=30, drain_seconds=600) as api:
        admission = api.server.engine.lanes.of("cpu").admission
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


async def test_a_host_that_does_not_exist_is_named() -> None:
    opener = TableOpener({"fake": served(FakeRetriever())})
    server = Server.in_one_process(make_config(host="host.invalid", insecure=True), opener)
    with pytest.raises(BindError, match=r"cannot listen on host\.invalid:0"):
        await server.start()
    await server.drain()


MANY_IDS = pb.EntityIds(ids=["x"] * 100_001)
INVALID = grpc.StatusCode.INVALID_ARGUMENT.value[0]


def link(api: Running, *mentions: pb.Mention, **fields: Any) -> Any:
    return api.stub.Link(pb.LinkRequest(mentions=mentions, **fields), timeout=60)


def violation(status: Any) -> tuple[str, str]:
    (found,) = unpack(status)["BadRequest"].field_violations
    return found.field, found.description


async def test_mentions_are_asked_with_their_template_and_the_options_of_all() -> None:
    mentions = [pb.Mention(mention="Lion", left="The ", right=" roared."), pb.Mention(mention="Paris")]
    options = pb.RetrieveRequest(k=2, method=pb.RETRIEVAL_METHOD_DISC, seed=7)
    async with running(FakeRetriever(), FakeRetriever()) as api:
        plain, asked = await link(api, *mentions), await link(api, *mentions, options=options, index="fake1")
        for reply, k, index in ((plain, 1, "fake"), (asked, 2, "fake1")):
            answers = [result.response for result in reply.results]
            titles = [answer.candidates[0].title for answer in answers]
            assert titles == ["title of The [Lion] roared.", "title of [Paris]"]
            assert [(len(answer.candidates), answer.index.name) for answer in answers] == [(k, index)] * 2
        assert {result.response.seed for result in asked.results} == {7}


@pytest.mark.parametrize(
    ("options", "field"),
    [
        (pb.RetrieveRequest(query="q"), "options.query"),
        (pb.RetrieveRequest(index="fake"), "options.index"),
        (pb.RetrieveRequest(prompt_template="plain"), "options.prompt_template"),
        (pb.RetrieveRequest(k=0), "options.k"),
        (pb.RetrieveRequest(filter="kind ="), "options.filter"),
        (pb.RetrieveRequest(allow_entity_ids=MANY_IDS), "options.allow_entity_ids.ids"),
    ],
)
async def test_options_that_no_mention_can_have_fail_the_call(
    options: pb.RetrieveRequest, field: str
) -> None:
    async with running(FakeRetriever()) as api:
        error, details = await failure(link(api, pb.Mention(mention="a"), options=options))
        assert error.code() == grpc.StatusCode.INVALID_ARGUMENT
        assert details["BadRequest"].field_violations[0].field == field


async def test_calls_to_link_are_refused_as_those_to_retrieve() -> None:
    mention = pb.Mention(mention="a")
    async with running(FakeRetriever(), max_batch_items=2) as api:
        assert not (await link(api)).results
        error, details = await failure(link(api, *[mention] * 3))
        assert error.code() == grpc.StatusCode.INVALID_ARGUMENT
        assert details["BadRequest"].field_violations[0].field == "mentions"
        assert "at most 2, got 3" in str(error.details())
        error, details = await failure(link(api, mention, index="nowhere"))
        assert error.code() == grpc.StatusCode.NOT_FOUND
        assert details["ResourceInfo"].resource_name == "nowhere"


async def test_mentions_fail_alone_under_the_names_their_fields_have() -> None:
    errors = {"[unfit]": InputError("filter", "no such column")}
    fake = FakeRetriever(errors, bugs={"[bug]": ValueError("secret")})
    async with running(fake) as api:
        mentions = ["fine", " ", "word " * 200, "unfit", "bug"]
        reply = await link(api, *(pb.Mention(mention=text) for text in mentions))
        fine, blank, long, unfit, bug = reply.results
        assert fine.response.candidates
        assert violation(blank.error) == ("mention", "must not be empty")
        assert violation(long.error)[0] == "mention"
        assert violation(unfit.error) == ("options.filter", "no such column")
        assert {blank.error.code, long.error.code, unfit.error.code} == {INVALID}
        assert bug.error.code == grpc.StatusCode.INTERNAL.value[0]
        assert "secret" not in bug.error.message
