"""One query from its message to its answer, whatever method of the API it came by."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from typing import TypeVar

from retrieval.errors import InputError
from retrieval.score_types import ScoreRequest, ScoreResult
from retrieval.types import RetrievalResult, RetrieveRequest
from service.methods.call import Call
from service.pb.genret.v1 import retrieval_service_pb2 as pb
from service.serving.admission import estimate_tokens
from service.serving.batching import Answer
from service.serving.containment import contained
from service.serving.lanes import Lane, Lanes
from service.serving.served import IndexTable, ServedIndex
from service.wire.replies import reply_to_proto
from service.wire.requests import request_error, request_from_proto
from service.wire.scores import score_error, score_reply_to_proto, score_request_from_proto

# Above this a query is tokenised off the event loop: 1 MB takes a second, 2,000 characters well under 1 ms.
_INLINE_QUERY_CHARS = 2000
T = TypeVar("T")


class Queries:
    """Converts, admits, waits, converts back.

    Args:
        indexes: What is served.
        lanes: The devices' queues.
        max_seconds: Longest a query of a batch or stream may take once there is room for it, seconds.
    """

    def __init__(self, indexes: IndexTable, lanes: Lanes, max_seconds: float) -> None:
        self._indexes = indexes
        self._lanes = lanes
        self._max_seconds = max_seconds

    async def answer(self, message: pb.RetrieveRequest, call: Call) -> pb.RetrieveResponse:
        """Answer a single query; it is refused where its queue is full."""
        with self._indexes.use(message.index) as served:
            request = request_from_proto(message)
            try:
                tokens = await _work(served, request)
                answer = await self._submit(self._lane(served), served, request, tokens, call)
            except InputError as error:
                raise request_error(error) from None
            return _reply(answer, served, call)

    async def score(self, message: pb.ScoreRequest, call: Call) -> pb.ScoreResponse:
        """Score the titles of a request; it is refused where its queue is full."""
        with self._indexes.use(message.index) as served:
            request = score_request_from_proto(message, served.retriever.mention_request)
            try:
                tokens = await _work(served, request)
                answer = await self._submit(self._lane(served), served, request, tokens, call)
            except InputError as error:
                raise score_error(error, message.HasField("mention")) from None
            result = expected(ScoreResult, answer.result)
            return score_reply_to_proto(result, served.description, answer.queue_ms, call.elapsed_ms())

    async def answer_item(self, message: pb.RetrieveRequest, call: Call) -> pb.RetrieveResponse:
        """Answer a query of a batch; it waits where its queue is full, is refused where too much waits."""
        with self._indexes.use(message.index) as served:
            return await self.answer_in_turn(served, request_from_proto(message), call)

    async def answer_patiently(self, message: pb.RetrieveRequest, call: Call) -> pb.RetrieveResponse:
        """Answer a query of a stream; it waits where its queue is full."""
        with self._indexes.use(message.index) as served:
            return await self.answer_in_turn(served, request_from_proto(message), call, bounded=False)

    async def answer_in_turn(
        self, served: ServedIndex, request: RetrieveRequest, call: Call, bounded: bool = True
    ) -> pb.RetrieveResponse:
        """Answer a query from an index that is in use; it waits where its queue is full.

        Args:
            served: The index.
            request: The query.
            call: When the query came, and when its batch or stream must be over.
            bounded: Whether it is refused where too much waits.
        """
        try:
            tokens = await _work(served, request)
            lane = self._lane(served)
            share = lane.admission.share(request, tokens)
            async with lane.patience.room(share, call.deadline, bounded):
                # What it waits for room is the caller's affair; from here on it is a request like others.
                limited = replace(call, deadline=min(call.deadline, time.monotonic() + self._max_seconds))
                answer = await self._submit(lane, served, request, tokens, limited, share)
        except InputError as error:
            raise request_error(error) from None
        return _reply(answer, served, call)

    def _lane(self, served: ServedIndex) -> Lane:
        return self._lanes.of(served.description.device)

    @staticmethod
    async def _submit(
        lane: Lane,
        served: ServedIndex,
        request: RetrieveRequest | ScoreRequest,
        tokens: int,
        call: Call,
        share: int | None = None,
    ) -> Answer:
        return await lane.batcher.submit(served.retriever, request, tokens, call.cancel_token(), share)


def _reply(answer: Answer, served: ServedIndex, call: Call) -> pb.RetrieveResponse:
    result = expected(RetrievalResult, answer.result)
    return reply_to_proto(result, served.description, answer.queue_ms, call.elapsed_ms())


async def _work(served: ServedIndex, request: RetrieveRequest | ScoreRequest) -> int:
    """Return the work of a request, tokens; checks what only the index and the model can check."""

    def count() -> int:
        return contained(served.retriever.prompt_tokens, request)

    inline = len(request.query) <= _INLINE_QUERY_CHARS
    prompt_tokens = count() if inline else await asyncio.to_thread(count)
    if isinstance(request, ScoreRequest):
        return estimate_tokens(request, prompt_tokens)
    return estimate_tokens(request, prompt_tokens, served.description.scored_forms(request))


def expected(kind: type[T], result: object) -> T:
    """Return a result that is of the kind its request was; anything else is a bug."""
    if not isinstance(result, kind):
        raise TypeError(f"the retriever gave a {type(result).__name__} for a {kind.__name__}")
    return result
