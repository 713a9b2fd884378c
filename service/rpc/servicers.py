"""The methods of `genret.v1`: convert, admit, wait, convert back. No work of their own."""

from __future__ import annotations

import asyncio
from typing import Any, TypeVar

from retrieval.answers.types import AnswerRequest, AnswerResult
from retrieval.errors import InputError
from retrieval.types import RetrievalResult, RetrieveRequest
from service.serving.admission import estimate_tokens
from service.serving.batching import Batcher
from service.rpc.call import REQUEST_ID_KEY, Call
from service.configuration.config import ServerConfig
from service.wire.retrieval import index_to_proto, reply_to_proto, request_from_proto
from service.wire.answers import answer_request_from_proto, answer_to_proto, wire_error
from service.errors import OverloadedError
from service.serving.executor import DeviceExecutor
from service.serving.readiness import Readiness
from service.pb.genret.v1 import index_service_pb2 as index_pb
from service.pb.genret.v1 import index_service_pb2_grpc as index_grpc
from service.pb.genret.v1 import retrieval_service_pb2 as pb
from service.pb.genret.v1 import retrieval_service_pb2_grpc as pb_grpc
from service.rpc.refusal import failure_status, refuse
from service.serving.served import IndexTable, ServedIndex

# Above this a query is tokenised off the event loop: 1 MB takes a second, 2,000 characters well under 1 ms.
_INLINE_QUERY_CHARS = 2000
# One that is known takes microseconds, a new one seconds at worst.
_MAX_COMPILING = 256
T = TypeVar("T")


class RetrievalServicer(pb_grpc.RetrievalServiceServicer):
    """`genret.v1.RetrievalService`.

    Args:
        indexes: What is served.
        batcher: The device's queue.
        readiness: Whether requests are taken.
        config: Limits.
        compiler: Where schemas are compiled, one at a time: off the event loop and off the device.
    """

    def __init__(
        self,
        indexes: IndexTable,
        batcher: Batcher,
        readiness: Readiness,
        config: ServerConfig,
        compiler: DeviceExecutor,
    ) -> None:
        self._indexes = indexes
        self._batcher = batcher
        self._compiler = compiler
        self._num_compiling = 0
        self._readiness = readiness
        self._config = config

    async def Retrieve(self, request: pb.RetrieveRequest, context: Any) -> pb.RetrieveResponse:  # noqa: N802
        """Answer one query."""
        call = self._begin(context)
        try:
            self._readiness.check()
            return await self._retrieve(request, call)
        except Exception as error:
            await refuse(context, error, call.request_id)

    async def BatchRetrieve(  # noqa: N802
        self, request: pb.BatchRetrieveRequest, context: Any
    ) -> pb.BatchRetrieveResponse:
        """Answer several queries, each with its own status."""
        call = self._begin(context)
        try:
            self._readiness.check()
            if len(request.requests) > self._config.max_batch_items:
                raise InputError(
                    "requests", f"at most {self._config.max_batch_items}, got {len(request.requests)}"
                )
            results = await asyncio.gather(*(self._item(item, call) for item in request.requests))
            return pb.BatchRetrieveResponse(results=results)
        except Exception as error:
            await refuse(context, error, call.request_id)

    async def Answer(self, request: pb.AnswerRequest, context: Any) -> pb.AnswerResponse:  # noqa: N802
        """Answer one query with JSON."""
        call = self._begin(context)
        try:
            self._readiness.check()
            return await self._answer(request, call)
        except InputError as error:
            await refuse(context, wire_error(error), call.request_id)
        except Exception as error:
            await refuse(context, error, call.request_id)

    def _begin(self, context: Any) -> Call:
        call = Call.begin(context, self._config.max_request_seconds)
        context.set_trailing_metadata(((REQUEST_ID_KEY, call.request_id),))
        return call

    async def _item(self, request: pb.RetrieveRequest, call: Call) -> pb.BatchRetrieveResult:
        try:
            return pb.BatchRetrieveResult(response=await self._retrieve(request, call))
        except Exception as error:
            return pb.BatchRetrieveResult(error=failure_status(error, call.request_id))

    async def _retrieve(self, message: pb.RetrieveRequest, call: Call) -> pb.RetrieveResponse:
        served = self._indexes.resolve(message.index)
        request = request_from_proto(message)
        tokens = estimate_tokens(request, await _prompt_tokens(served, request))
        answer = await self._batcher.submit(served.retriever, request, tokens, call.cancel_token())
        result = expected(RetrievalResult, answer.result)
        return reply_to_proto(result, served.description, answer.queue_ms, call.elapsed_ms())

    async def _answer(self, message: pb.AnswerRequest, call: Call) -> pb.AnswerResponse:
        served = self._indexes.resolve(message.index)
        request = answer_request_from_proto(message)
        token = call.cancel_token()
        prompt = await self._prepare(served, request)
        tokens = estimate_tokens(request, prompt)
        answer = await self._batcher.submit(served.retriever, request, tokens, token)
        result = expected(AnswerResult, answer.result)
        return answer_to_proto(result, served.description, answer.queue_ms, call.elapsed_ms())

    async def _prepare(self, served: ServedIndex, request: AnswerRequest) -> int:
        """Compile the schema where it is new, and return the length of the prompt."""
        if self._num_compiling >= _MAX_COMPILING:
            held = f"{self._num_compiling} schemas wait to be compiled"
            raise OverloadedError("QUEUE_FULL", f"the queue is full: {held}", retry_after_s=1.0)
        self._num_compiling += 1
        try:
            return await self._compiler.run(served.retriever.prepare_answer, request)
        finally:
            self._num_compiling -= 1


class IndexServicer(index_grpc.IndexServiceServicer):
    """`genret.v1.IndexService`.

    Args:
        indexes: What is served.
        readiness: Whether requests are taken.
        config: Limits.
    """

    def __init__(self, indexes: IndexTable, readiness: Readiness, config: ServerConfig) -> None:
        self._indexes = indexes
        self._readiness = readiness
        self._config = config

    async def ListIndexes(  # noqa: N802
        self, request: index_pb.ListIndexesRequest, context: Any
    ) -> index_pb.ListIndexesResponse:
        """List every index."""
        call = Call.begin(context, self._config.max_request_seconds)
        try:
            self._readiness.check()
            described = self._indexes.describe()
            messages = [index_to_proto(index, is_default=i == 0) for i, index in enumerate(described)]
            return index_pb.ListIndexesResponse(indexes=messages)
        except Exception as error:
            await refuse(context, error, call.request_id)

    async def GetIndex(  # noqa: N802
        self, request: index_pb.GetIndexRequest, context: Any
    ) -> index_pb.GetIndexResponse:
        """Describe one index."""
        call = Call.begin(context, self._config.max_request_seconds)
        try:
            self._readiness.check()
            description = self._indexes.resolve(request.name).description
            is_default = description is self._indexes.resolve("").description
            return index_pb.GetIndexResponse(index=index_to_proto(description, is_default))
        except Exception as error:
            await refuse(context, error, call.request_id)


async def _prompt_tokens(served: ServedIndex, request: RetrieveRequest) -> int:
    if len(request.query) <= _INLINE_QUERY_CHARS:
        return served.retriever.prompt_tokens(request)
    return await asyncio.to_thread(served.retriever.prompt_tokens, request)


def expected(kind: type[T], result: object) -> T:
    """Return a result that is of the kind its request was; anything else is a bug."""
    if not isinstance(result, kind):
        raise TypeError(f"the retriever gave a {type(result).__name__} for a {kind.__name__}")
    return result
