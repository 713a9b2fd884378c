"""Link over a real connection: what is asked of the retriever, and what is refused under which name."""

from __future__ import annotations

from typing import Any

import grpc
import pytest

from genret.retrieval.errors import InputError
from genret.service.pb.genret.v1 import retrieval_service_pb2 as pb
from tests.service.asynchronous import asynchronous
from tests.service.fake_retriever import FakeRetriever
from tests.service.running_server import Running, failure, running, unpack

INVALID = grpc.StatusCode.INVALID_ARGUMENT.value[0]


def link(api: Running, *mentions: pb.Mention, **fields: Any) -> Any:
    return api.stub.Link(pb.LinkRequest(mentions=mentions, **fields), timeout=60)


def violation(status: Any) -> tuple[str, str]:
    (found,) = unpack(status)["BadRequest"].field_violations
    return found.field, found.description


@asynchronous
async def test_mentions_are_asked_with_the_template_for_mentions() -> None:
    fake = FakeRetriever()
    async with running(fake) as api:
        mentions = [pb.Mention(mention="Lion", left="The ", right=" roared."), pb.Mention(mention="Paris")]
        reply = await link(api, *mentions)
        titles = [result.response.candidates[0].title for result in reply.results]
        assert titles == ["title of The [Lion] roared.", "title of [Paris]"]
        assert [len(result.response.candidates) for result in reply.results] == [1, 1], "one without k"
        assert reply.results[0].response.index.name == "fake"


@asynchronous
async def test_options_are_those_of_every_mention() -> None:
    async with running(FakeRetriever(), FakeRetriever()) as api:
        options = pb.RetrieveRequest(k=2, method=pb.RETRIEVAL_METHOD_DISC, seed=7)
        reply = await link(
            api, pb.Mention(mention="a"), pb.Mention(mention="b"), options=options, index="fake1"
        )
        for result in reply.results:
            assert (len(result.response.candidates), result.response.seed) == (2, 7)
            assert result.response.index.name == "fake1"


@asynchronous
async def test_no_mentions_are_no_error() -> None:
    async with running(FakeRetriever()) as api:
        assert not (await link(api)).results


@pytest.mark.parametrize(
    ("options", "field"),
    [
        (pb.RetrieveRequest(query="q"), "options.query"),
        (pb.RetrieveRequest(index="fake"), "options.index"),
        (pb.RetrieveRequest(prompt_template="plain"), "options.prompt_template"),
        (pb.RetrieveRequest(k=0), "options.k"),
        (pb.RetrieveRequest(filter="kind ="), "options.filter"),
        (
            pb.RetrieveRequest(allow_entity_ids=pb.EntityIds(ids=["x"] * 100_001)),
            "options.allow_entity_ids.ids",
        ),
    ],
)
@asynchronous
async def test_options_that_no_mention_can_have_fail_the_call(
    options: pb.RetrieveRequest, field: str
) -> None:
    async with running(FakeRetriever()) as api:
        error, details = await failure(link(api, pb.Mention(mention="a"), options=options))
        assert error.code() == grpc.StatusCode.INVALID_ARGUMENT
        assert details["BadRequest"].field_violations[0].field == field


@asynchronous
async def test_more_mentions_than_a_call_may_have() -> None:
    async with running(FakeRetriever(), max_batch_items=2) as api:
        error, details = await failure(link(api, *[pb.Mention(mention="a")] * 3))
        assert error.code() == grpc.StatusCode.INVALID_ARGUMENT
        assert details["BadRequest"].field_violations[0].field == "mentions"
        assert "at most 2, got 3" in str(error.details())


@asynchronous
async def test_an_unknown_index_fails_the_call() -> None:
    async with running(FakeRetriever()) as api:
        error, details = await failure(link(api, pb.Mention(mention="a"), index="nowhere"))
        assert error.code() == grpc.StatusCode.NOT_FOUND
        assert details["ResourceInfo"].resource_name == "nowhere"


@asynchronous
async def test_a_server_that_is_warming_up_links_nothing() -> None:
    async with running(FakeRetriever(), load=False) as api:
        error, _ = await failure(link(api, pb.Mention(mention="a")))
        assert error.code() == grpc.StatusCode.UNAVAILABLE


@asynchronous
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
