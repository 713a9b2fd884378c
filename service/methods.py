"""Implements the methods of `genret.v1`, whatever carries them: messages in, messages out, errors raised.

A method converts the message, admits the work, waits for the device's batch and converts the result back. A
mention in context becomes a query of its own; a stream holds a bounded number of queries and a bounded
number of bytes of answers that nobody has taken yet. `failure_status` turns an error into the wire's
status: a bug is logged, and only its request id is told.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from typing import TypeVar

from grpc import StatusCode

from retrieval.answers.answer_types import AnswerRequest, AnswerResult
from retrieval.errors import InputError
from retrieval.score_types import ScoreRequest, ScoreResult
from retrieval.types import RetrievalResult, RetrieveRequest
from service.call import Call
from service.configuration.server_config import ServerConfig
from service.errors import NotReadyError, OverloadedError
from service.pb.genret.v1 import index_service_pb2 as index_pb
from service.pb.genret.v1 import retrieval_service_pb2 as pb
from service.serving.admission import estimate_tokens
from service.serving.batching import Answer, Lane, Lanes
from service.serving.executor import DeviceExecutor, contained
from service.serving.readiness import Quiet, Readiness
from service.serving.reload import Reloader
from service.serving.served import IndexDescription, IndexTable, ServedIndex
from service.status import Failure, failure_of
from service.wire.answers import answer_request_from_proto, answer_to_proto, wire_error
from service.wire.indexes import index_to_proto
from service.wire.replies import reply_to_proto
from service.wire.requests import (
    check_stream_id,
    link_options_from_proto,
    mention_error,
    mention_from_proto,
    request_error,
    request_from_proto,
)
from service.wire.rpc_status import WireStatus, failure_to_proto
from service.wire.scores import score_error, score_reply_to_proto, score_request_from_proto

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


class Linker:
    """Links the mentions of a call.

    Args:
        indexes: What is served.
        queries: Answers what mentions become.
    """

    def __init__(self, indexes: IndexTable, queries: Queries) -> None:
        self._indexes = indexes
        self._queries = queries

    async def link(self, message: pb.LinkRequest, call: Call) -> pb.LinkResponse:
        """Link mentions, each with its own outcome.

        Raises:
            InputError: the options cannot be used for any mention.
            UnknownIndexError: there is no such index.
        """
        options = link_options_from_proto(message)
        with self._indexes.use(message.index) as served:
            items = (self._item(served, mention, options, call) for mention in message.mentions)
            return pb.LinkResponse(results=await asyncio.gather(*items))

    async def _item(
        self, served: ServedIndex, mention: pb.Mention, options: RetrieveRequest, call: Call
    ) -> pb.LinkResult:
        try:
            request = served.retriever.mention_request(mention_from_proto(mention), options)
            return pb.LinkResult(response=await self._queries.answer_in_turn(served, request, call))
        except Exception as error:
            return pb.LinkResult(error=failure_status(mention_error(error), call.request_id))


# Queries of one stream that have been read and whose answers have not been taken off the server.
MAX_IN_FLIGHT = 64
# Of answers that have not been taken off the server, bytes; a single one may be larger.
MAX_HELD_BYTES = 4 * 1024 * 1024
Ask = Callable[[pb.RetrieveRequest, Call], Awaitable[pb.RetrieveResponse]]
Write = Callable[[pb.RetrieveStreamResponse], Awaitable[None]]


class Streams:
    """The open streams of a server. Lives on one event loop.

    Args:
        ask: Answers one query; waits where there is no room.
        max_in_flight: Most queries of one stream that have been read and whose answers have not been written.
        max_bytes: Most bytes of such answers; see `StreamRoom`.
    """

    def __init__(self, ask: Ask, max_in_flight: int = MAX_IN_FLIGHT, max_bytes: int = MAX_HELD_BYTES) -> None:
        self._ask = ask
        self._max_in_flight = max_in_flight
        self._max_bytes = max_bytes
        self._open: set[_Stream] = set()
        self._stopped = False

    async def serve(
        self, requests: AsyncIterator[pb.RetrieveStreamRequest], call: Call, write: Write
    ) -> None:
        """Answer the queries of a stream until there are no more.

        Args:
            requests: The queries; they are read only while there is room for them and their answers.
            call: The stream's call.
            write: Sends an answer; returns when there is room for the next one.

        Raises:
            NotReadyError: the server shuts down; every query that was read before that has been answered.
            Exception: what reading or writing raises; when reading fails, every query that was read has been
                answered.
        """
        if self._stopped:
            raise _shutting_down()
        stream = _Stream(self._ask, call, StreamRoom(self._max_in_flight, self._max_bytes))
        self._open.add(stream)
        try:
            await stream.run(requests, write)
        finally:
            self._open.discard(stream)

    def stop(self) -> None:
        """Take no more queries of any stream: each ends with what it has in flight. Idempotent."""
        self._stopped = True
        for stream in self._open:
            stream.stop()

    def __len__(self) -> int:
        return len(self._open)


class _Stream:
    """One stream: a task that reads, a task per query, and the caller's task, which alone writes."""

    def __init__(self, ask: Ask, call: Call, room: StreamRoom) -> None:
        self._ask = ask
        self._call = call
        self._room = room
        self._tasks: set[asyncio.Task[None]] = set()
        self._answers: asyncio.Queue[pb.RetrieveStreamResponse | None] = asyncio.Queue()
        self._dropping: Quiet | None = None  # None: queries are taken
        self._num_dropped = 0

    async def run(self, requests: AsyncIterator[pb.RetrieveStreamRequest], write: Write) -> None:
        """Answer everything; whatever ends it early cancels what is in flight."""
        reader = asyncio.create_task(self._read(requests))
        reader.add_done_callback(lambda _: self._answers.put_nowait(None))
        try:
            while len(self._room) or not (reader.done() or self._dropping):
                answer = await self._answers.get()
                if answer is not None:
                    await write(answer)
                    self._room.written(answer.ByteSize())
            if self._dropping is not None:
                await self._see_out(self._dropping, reader)
            reader.result()
        finally:
            tasks = [reader, *self._tasks]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def stop(self) -> None:
        """Take no more queries."""
        if self._dropping is None:
            self._dropping = Quiet()
            self._room.open()
            self._answers.put_nowait(None)

    async def _see_out(self, dropping: Quiet, reader: asyncio.Task[None]) -> None:
        """End a stream that was stopped; it ends well where the client has sent nothing in vain."""
        dropping.broken()  # the last answer may well be what the next query waits for
        ended = asyncio.Event()
        reader.add_done_callback(lambda _: ended.set())
        await dropping.come(ended)
        if self._num_dropped or not reader.done():
            raise _shutting_down()

    async def _read(self, requests: AsyncIterator[pb.RetrieveStreamRequest]) -> None:
        while True:
            # Before the query is read: one that cannot be answered yet stays in the client's hands.
            await self._room.wait()
            message = await anext(requests, None)
            if message is None:
                return
            if self._dropping is not None:
                # A stream that ends while its client is sending is, to many a client, one that broke.
                self._num_dropped += 1
                self._dropping.broken()
                continue
            self._room.asked()
            task = asyncio.create_task(self._answer(message))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _answer(self, message: pb.RetrieveStreamRequest) -> None:
        call = replace(self._call, arrived=time.monotonic())
        try:
            check_stream_id(message.id)
            response = await self._ask(message.request, call)
            answer = pb.RetrieveStreamResponse(id=message.id, response=response)
        except Exception as error:
            status = failure_status(error, call.request_id)
            answer = pb.RetrieveStreamResponse(id=message.id, error=status)
        self._room.answered(answer.ByteSize())
        self._answers.put_nowait(answer)


def _shutting_down() -> NotReadyError:
    return NotReadyError("the server is shutting down", retry_after_s=1.0)


# How fast the largest answer so far is forgotten, per answer.
_DECAY = 0.95


class StreamRoom:
    """Says when a stream may read its next query. Lives on one event loop.

    A query that has no answer yet counts as many bytes as the largest of the last answers. A single query
    always fits: an answer may be larger than all the room.

    Args:
        max_queries: Most queries that have been read and whose answers have not been written.
        max_bytes: Most bytes of answers that have not been written, where the next are as large as the last.
    """

    def __init__(self, max_queries: int, max_bytes: int) -> None:
        self._max_queries = max_queries
        self._max_bytes = max_bytes
        self._num_asked = 0
        self._num_answered = 0
        self._bytes = 0
        self._expected = max_bytes / max_queries
        self._changed = asyncio.Event()
        self._is_open = False

    def __len__(self) -> int:
        """Queries that have been read and whose answers have not been written."""
        return self._num_asked + self._num_answered

    async def wait(self) -> None:
        """Wait until one more query may be read."""
        while not (self._is_open or self._fits()):
            self._changed.clear()
            await self._changed.wait()

    def asked(self) -> None:
        """Note a query that was read."""
        self._num_asked += 1

    def answered(self, size: int) -> None:
        """Note that one has its answer, of `size` bytes."""
        self._num_asked -= 1
        self._num_answered += 1
        self._bytes += size
        self._expected = max(size, self._expected * _DECAY)
        self._changed.set()

    def written(self, size: int) -> None:
        """Note that an answer has left."""
        self._num_answered -= 1
        self._bytes -= size
        self._changed.set()

    def open(self) -> None:
        """Hold nobody back any more."""
        self._is_open = True
        self._changed.set()

    def _fits(self) -> bool:
        if not len(self):
            return True
        expected = self._bytes + (self._num_asked + 1) * self._expected
        return len(self) < self._max_queries and expected <= self._max_bytes


class IndexMethods:
    """What gRPC and HTTP serve alike. Every method raises what `service.status.TABLE` has rows for.

    Args:
        indexes: What is served.
        readiness: Whether requests are taken.
        reloader: Serves new versions.
    """

    def __init__(self, indexes: IndexTable, readiness: Readiness, reloader: Reloader) -> None:
        self._indexes = indexes
        self._readiness = readiness
        self._reloader = reloader

    async def list_indexes(
        self, request: index_pb.ListIndexesRequest, call: Call
    ) -> index_pb.ListIndexesResponse:
        """List every index."""
        self._readiness.check()
        described = self._indexes.describe()
        messages = [index_to_proto(index, is_default=i == 0) for i, index in enumerate(described)]
        return index_pb.ListIndexesResponse(indexes=messages)

    async def get_index(self, request: index_pb.GetIndexRequest, call: Call) -> index_pb.GetIndexResponse:
        """Describe one index."""
        self._readiness.check()
        description = self._indexes.resolve(request.name).description
        return index_pb.GetIndexResponse(index=self._message(description))

    async def reload_index(
        self, request: index_pb.ReloadIndexRequest, call: Call
    ) -> index_pb.ReloadIndexResponse:
        """Serve the live version of an index.

        It takes as long as it takes, whatever a request may: the call's own deadline ends the wait, and the
        reload goes on.
        """
        self._readiness.check()
        done = await self._reloader.reload(request.name, request.force)
        return index_pb.ReloadIndexResponse(
            index=self._message(done.description),
            previous_version=done.previous_version,
            reloaded=done.reloaded,
            open_ms=done.open_ms,
            warm_up_ms=done.warm_up_ms,
        )

    def _message(self, description: IndexDescription) -> index_pb.Index:
        default = self._indexes.resolve("").description
        return index_to_proto(description, is_default=description.name == default.name)


_LOG = logging.getLogger(__name__)


def failure_status(error: Exception, request_id: str) -> WireStatus:
    """Return the wire's status for `error`; a bug is logged with its traceback under the request id."""
    return failure_to_proto(logged_failure(error, request_id))


def logged_failure(error: Exception, request_id: str) -> Failure:
    """Return the table's failure for `error`; a bug is logged with its traceback under the request id."""
    failure = failure_of(error, request_id)
    if failure.code is StatusCode.INTERNAL:
        _LOG.error("request %s failed", request_id, exc_info=error)
    return failure
