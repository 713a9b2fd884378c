"""The servicers of `genret.v1`: calls in, messages or statuses out."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, TypeVar

from service.methods.call import REQUEST_ID_KEY, Call
from service.methods.indexes import IndexMethods
from service.methods.retrieval import RetrievalMethods
from service.pb.genret.v1 import index_service_pb2 as index_pb
from service.pb.genret.v1 import index_service_pb2_grpc as index_grpc
from service.pb.genret.v1 import retrieval_service_pb2 as pb
from service.pb.genret.v1 import retrieval_service_pb2_grpc as pb_grpc
from service.rpc.call import call_of
from service.rpc.refusal import refuse

M = TypeVar("M")
R = TypeVar("R")


async def _unary(
    method: Callable[[M, Call], Awaitable[R]], request: M, context: Any, max_seconds: float
) -> R:
    call = call_of(context, max_seconds)
    context.set_trailing_metadata(((REQUEST_ID_KEY, call.request_id),))
    try:
        return await method(request, call)
    except Exception as error:
        await refuse(context, error, call.request_id)


class RetrievalServicer(pb_grpc.RetrievalServiceServicer):
    """`genret.v1.RetrievalService`.

    Args:
        methods: What is served.
        max_seconds: Longest a call may take.
    """

    def __init__(self, methods: RetrievalMethods, max_seconds: float) -> None:
        self._methods = methods
        self._max_seconds = max_seconds

    async def Retrieve(self, request: pb.RetrieveRequest, context: Any) -> pb.RetrieveResponse:  # noqa: N802
        """Answer one query."""
        return await _unary(self._methods.retrieve, request, context, self._max_seconds)

    async def BatchRetrieve(  # noqa: N802
        self, request: pb.BatchRetrieveRequest, context: Any
    ) -> pb.BatchRetrieveResponse:
        """Answer several queries, each with its own status."""
        return await _unary(self._methods.batch_retrieve, request, context, self._max_seconds)

    async def RetrieveStream(  # noqa: N802
        self, requests: AsyncIterator[pb.RetrieveStreamRequest], context: Any
    ) -> None:
        """Answer queries as they come; the limit on time is that of each query, not of the stream."""
        call = call_of(context, math.inf)
        context.set_trailing_metadata(((REQUEST_ID_KEY, call.request_id),))
        try:
            await self._methods.retrieve_stream(requests, call, context.write)
        except Exception as error:
            await refuse(context, error, call.request_id)

    async def Link(self, request: pb.LinkRequest, context: Any) -> pb.LinkResponse:  # noqa: N802
        """Link several mentions, each with its own status."""
        return await _unary(self._methods.link, request, context, self._max_seconds)

    async def Answer(self, request: pb.AnswerRequest, context: Any) -> pb.AnswerResponse:  # noqa: N802
        """Answer one query with JSON."""
        return await _unary(self._methods.answer, request, context, self._max_seconds)

    async def Score(self, request: pb.ScoreRequest, context: Any) -> pb.ScoreResponse:  # noqa: N802
        """Score given titles for one query."""
        return await _unary(self._methods.score, request, context, self._max_seconds)


class IndexServicer(index_grpc.IndexServiceServicer):
    """`genret.v1.IndexService`.

    Args:
        methods: What is served.
        max_seconds: Longest a call may take.
    """

    def __init__(self, methods: IndexMethods, max_seconds: float) -> None:
        self._methods = methods
        self._max_seconds = max_seconds

    async def ListIndexes(  # noqa: N802
        self, request: index_pb.ListIndexesRequest, context: Any
    ) -> index_pb.ListIndexesResponse:
        """List every index."""
        return await _unary(self._methods.list_indexes, request, context, self._max_seconds)

    async def GetIndex(  # noqa: N802
        self, request: index_pb.GetIndexRequest, context: Any
    ) -> index_pb.GetIndexResponse:
        """Describe one index."""
        return await _unary(self._methods.get_index, request, context, self._max_seconds)

    async def ReloadIndex(  # noqa: N802
        self, request: index_pb.ReloadIndexRequest, context: Any
    ) -> index_pb.ReloadIndexResponse:
        """Serve the live version of an index."""
        return await _unary(self._methods.reload_index, request, context, self._max_seconds)
