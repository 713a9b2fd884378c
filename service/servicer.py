"""The methods of `genret.v1`: convert, admit, wait, convert back. No work of their own."""

from __future__ import annotations

import asyncio
from typing import Any

from retrieval.errors import InputError
from retrieval.types import RetrieveRequest
from service.admission import estimate_tokens
from service.batching import Batcher
from service.call import REQUEST_ID_KEY, Call
from service.config import ServerConfig
from service.convert import index_to_proto, reply_to_proto, request_from_proto
from service.health import Readiness
from service.pb.genret.v1 import index_service_pb2 as index_pb
from service.pb.genret.v1 import index_service_pb2_grpc as index_grpc
from service.pb.genret.v1 import retrieval_service_pb2 as pb
from service.pb.genret.v1 import retrieval_service_pb2_grpc as pb_grpc
from service.refusal import failure_status, refuse
from service.served import IndexTable, ServedIndex

# Above this a query is tokenised off the event loop: 1 MB takes a second, 2,000 characters well under 1 ms.
_INLINE_QUERY_CHARS = 2000


class RetrievalServicer(pb_grpc.RetrievalServiceServicer):
    """`genret.v1.RetrievalService`.

    Args:
        indexes: What is served.
        batcher: The device's queue.
        readiness: Whether requests are taken.
        config: Limits.
    """

    def __init__(
        self, indexes: IndexTable, batcher: Batcher, readiness: Readiness, config: ServerConfig
    ) -> None:
        self._indexes = indexes
        self._batcher = batcher
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
        return reply_to_proto(answer.result, served.description, answer.queue_ms, call.elapsed_ms())


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
