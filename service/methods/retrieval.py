"""The methods of `genret.v1.RetrievalService`: convert, admit, wait, convert back. No work of their own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from retrieval.answers.types import AnswerRequest, AnswerResult
from retrieval.errors import InputError
from service.configuration.config import ServerConfig
from service.errors import OverloadedError
from service.methods.call import Call
from service.methods.failures import failure_status
from service.methods.linking import Linker
from service.methods.queries import Queries, expected
from service.methods.streams import Streams, Write
from service.pb.genret.v1 import retrieval_service_pb2 as pb
from service.serving.admission import estimate_tokens
from service.serving.executor import DeviceExecutor
from service.serving.lanes import Lanes
from service.serving.readiness import Readiness
from service.serving.served import IndexTable, ServedIndex
from service.wire.answers import answer_request_from_proto, answer_to_proto, wire_error

# One that is known takes microseconds, a new one seconds at worst.
_MAX_COMPILING = 256


class RetrievalMethods:
    """What gRPC and HTTP serve alike. Every method raises what `service.status.TABLE` has rows for.

    Args:
        indexes: What is served.
        lanes: The devices' queues.
        readiness: Whether requests are taken.
        config: Limits.
        compiler: Where schemas are compiled, one at a time: off the event loop and off the device.

    Attributes:
        streams: The streams that are open.
    """

    def __init__(
        self,
        indexes: IndexTable,
        lanes: Lanes,
        readiness: Readiness,
        config: ServerConfig,
        compiler: DeviceExecutor,
    ) -> None:
        self._indexes = indexes
        self._lanes = lanes
        self._compiler = compiler
        self._num_compiling = 0
        self._readiness = readiness
        self._config = config
        self._queries = Queries(indexes, lanes, config.max_request_seconds)
        self._linker = Linker(indexes, self._queries)
        self.streams = Streams(self._queries.answer_patiently)

    async def retrieve(self, request: pb.RetrieveRequest, call: Call) -> pb.RetrieveResponse:
        """Answer one query."""
        self._readiness.check()
        return await self._queries.answer(request, call)

    async def batch_retrieve(self, request: pb.BatchRetrieveRequest, call: Call) -> pb.BatchRetrieveResponse:
        """Answer several queries, each with its own status."""
        self._readiness.check()
        self._check_items("requests", len(request.requests))
        results = await asyncio.gather(*(self._item(item, call) for item in request.requests))
        return pb.BatchRetrieveResponse(results=results)

    async def retrieve_stream(
        self, requests: AsyncIterator[pb.RetrieveStreamRequest], call: Call, write: Write
    ) -> None:
        """Answer queries as they come; see `Streams.serve`."""
        self._readiness.check()
        await self.streams.serve(requests, call, write)

    async def link(self, request: pb.LinkRequest, call: Call) -> pb.LinkResponse:
        """Link several mentions, each with its own status."""
        self._readiness.check()
        self._check_items("mentions", len(request.mentions))
        return await self._linker.link(request, call)

    async def answer(self, request: pb.AnswerRequest, call: Call) -> pb.AnswerResponse:
        """Answer one query with JSON."""
        self._readiness.check()
        try:
            return await self._answer(request, call)
        except InputError as error:
            raise wire_error(error) from None

    async def score(self, request: pb.ScoreRequest, call: Call) -> pb.ScoreResponse:
        """Score given titles for one query."""
        self._readiness.check()
        return await self._queries.score(request, call)

    async def _item(self, request: pb.RetrieveRequest, call: Call) -> pb.BatchRetrieveResult:
        try:
            return pb.BatchRetrieveResult(response=await self._queries.answer_item(request, call))
        except Exception as error:
            return pb.BatchRetrieveResult(error=failure_status(error, call.request_id))

    def _check_items(self, field: str, number: int) -> None:
        if number > self._config.max_batch_items:
            raise InputError(field, f"at most {self._config.max_batch_items}, got {number}")

    async def _answer(self, message: pb.AnswerRequest, call: Call) -> pb.AnswerResponse:
        with self._indexes.use(message.index) as served:
            request = answer_request_from_proto(message)
            token = call.cancel_token()
            tokens = estimate_tokens(request, await self._prepare(served, request))
            batcher = self._lanes.of(served.description.device).batcher
            answer = await batcher.submit(served.retriever, request, tokens, token)
            result = expected(AnswerResult, answer.result)
            return answer_to_proto(result, served.description, answer.queue_ms, call.elapsed_ms())

    async def _prepare(self, served: ServedIndex, request: AnswerRequest) -> int:
        """Compile the schema where it is new, and return the length of the prompt."""
        if self._num_compiling >= _MAX_COMPILING:
            self._lanes.of(served.description.device).observer.rejected("queue_full")
            held = f"{self._num_compiling} schemas wait to be compiled"
            raise OverloadedError("QUEUE_FULL", f"the queue is full: {held}", retry_after_s=1.0)
        self._num_compiling += 1
        try:
            return await self._compiler.run(served.retriever.prepare_answer, request)
        finally:
            self._num_compiling -= 1
