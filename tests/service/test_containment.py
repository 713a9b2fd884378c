"""What is worse than an exception ends the call it happened in, and nothing else."""

from __future__ import annotations

import asyncio
import concurrent.futures

import grpc
import pytest

from retrieval.types import RetrieveRequest
from service.pb.genret.v1 import retrieval_service_pb2 as pb
from service.serving.batching import DeviceExecutor, contained
from tests.service.asynchronous import asynchronous
from tests.service.fake_retriever import FakeRetriever
from tests.service.running_server import failure, running


class PanicError(BaseException):
    """As extensions written in Rust raise it: no Exception."""


WORST = [
    PanicError("index out of bounds"),
    StopIteration(),
    GeneratorExit(),
    SystemExit(3),
    concurrent.futures.CancelledError(),
    asyncio.CancelledError(),
]
kinds = pytest.mark.parametrize("bug", WORST, ids=lambda bug: type(bug).__module__ + type(bug).__name__)


class PanickingTokenizer(FakeRetriever):
    def prompt_tokens(self, request: RetrieveRequest) -> int:  # type: ignore[override]
        if request.query.startswith("bad"):
            raise PanicError("no boundary of a character")
        return super().prompt_tokens(request)


def raising(error: BaseException) -> None:
    raise error


@kinds
@asynchronous
async def test_executor_tells_whoever_waits(bug: BaseException) -> None:
    executor = DeviceExecutor("cpu")
    try:
        with pytest.raises(RuntimeError, match=type(bug).__name__) as caught:
            await asyncio.wait_for(executor.run(raising, bug), 60)
        assert caught.value.__cause__ is bug
        assert await executor.run(int, "7") == 7
    finally:
        executor.close()


def test_exceptions_pass_as_they_are() -> None:
    with pytest.raises(KeyError, match="mine"):
        contained(raising, KeyError("mine"))


@kinds
@asynchronous
async def test_worst_of_a_batch_fails_its_request_alone(bug: BaseException) -> None:
    async with running(FakeRetriever(bugs={"bad": bug})) as s:
        bad, good = await asyncio.gather(failure(s.retrieve("bad")), s.retrieve("good"))
        assert bad[0].code() is grpc.StatusCode.INTERNAL
        assert good.candidates[0].title == "title of good"
        assert (await s.retrieve("after")).candidates
        lane = s.server.lanes.of("cpu")
        assert (lane.admission.num_requests, lane.admission.num_tokens) == (0, 0)


@pytest.mark.parametrize("query", ["bad", "bad" + 1000 * " word"], ids=["inline", "in a thread"])
@asynchronous
async def test_panic_of_a_tokenizer_ends_the_call(query: str) -> None:
    async with running(PanickingTokenizer()) as s:
        error, _ = await failure(s.retrieve(query))
        assert error.code() is grpc.StatusCode.INTERNAL
        reply = await s.batch(pb.RetrieveRequest(query=query), pb.RetrieveRequest(query="good"))
        assert [result.WhichOneof("outcome") for result in reply.results] == ["error", "response"]


@asynchronous
async def test_panic_of_a_tokenizer_ends_an_item_of_a_stream_alone() -> None:
    async with running(PanickingTokenizer()) as s:
        queries = [
            pb.RetrieveStreamRequest(id=name, request=pb.RetrieveRequest(query=name))
            for name in ("bad", "good")
        ]
        answers = {answer.id: answer async for answer in s.stub.RetrieveStream(iter(queries), timeout=60)}
        assert answers["bad"].error.code == grpc.StatusCode.INTERNAL.value[0]
        assert answers["good"].response.candidates
