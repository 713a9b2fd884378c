"""The methods of `genret.v1`, without transport: a message and a `Call` in, a message out, errors raised.

`METHODS` is the table that both faces serve. A query passes `Methods` from top to bottom: `call` checks
readiness, `single` resolves the index and converts the message, `_ask` estimates the work, waits for
admission and for the device's batch, and converts the result back. Batches, the mentions of a text and
streams send each of their queries that way.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

from google.protobuf.descriptor import MethodDescriptor, ServiceDescriptor
from google.protobuf.message import Message
from grpc import StatusCode

from genret.decoding.errors import PromptTooLongError
from genret.retrieval.answers.answer_types import AnswerRequest, AnswerResult, PreparedAnswer
from genret.retrieval.complete_types import CompleteRequest, ordered_by_model, score_request
from genret.retrieval.errors import InputError
from genret.retrieval.score_types import ScoreRequest, ScoreResult
from genret.retrieval.types import RetrievalResult, RetrieveRequest
from genret.service.call import (
    Call,
    Priority,
    client_address,
    current_client,
    current_priority,
    note_prompt,
)
from genret.service.client.reply import IndexInfo
from genret.service.configuration.server_config import ServerConfig
from genret.service.errors import NotReadyError, OverloadedError
from genret.service.pb.genret.v1 import index_service_pb2 as index_pb
from genret.service.pb.genret.v1 import retrieval_service_pb2 as pb
from genret.service.serving.admission import Patience, estimate_tokens
from genret.service.serving.batching import DeviceQueues
from genret.service.serving.device_threads import contained
from genret.service.serving.fair_shares import BULK_WEIGHT, Caller
from genret.service.serving.readiness import IdleWait, Readiness
from genret.service.serving.reload import Reloader
from genret.service.serving.request_bytes import RequestBytes
from genret.service.serving.schema_compiler import SchemaCompiler
from genret.service.serving.served import BatchCall, IndexTable, ServedIndex, ServedRetriever, scored_forms
from genret.service.status import Failure, failure_of
from genret.service.wire.replies import (
    answer_to_proto,
    complete_reply_to_proto,
    index_to_proto,
    reply_to_proto,
    score_reply_to_proto,
    to_proto,
)
from genret.service.wire.requests import (
    answer_request_from_proto,
    check_stream_id,
    complete_request_from_proto,
    error_on_wire,
    held_bytes,
    link_options_from_proto,
    mention_error,
    mention_from_proto,
    request_from_proto,
    score_error,
    score_request_from_proto,
)
from genret.service.wire.rpc_status import failure_to_proto

M = TypeVar("M", bound=Message)
# A longer query is tokenised off the event loop: 1 MB takes a second, 2,000 characters well under 1 ms.
_INLINE_QUERY_CHARS = 2000
# Prefixes that are completed at once, some milliseconds each, and those that may wait for them.
_COMPLETING_THREADS, _MAX_COMPLETING = 2, 128


@dataclass(frozen=True, slots=True)
class Query:
    """One kind of question to a model.

    `read` converts a message into the library's request for an index, `batch_call` selects the retriever's
    call for such requests, `write` converts a result into the reply (with the wait and the whole time,
    milliseconds), and `error` renames the field of an InputError. If it `compiles`, the request has a schema.
    """

    read: Callable[[Any, ServedIndex], Any]
    batch_call: Callable[[ServedRetriever], BatchCall]
    result: type[Any]
    write: Callable[[Any, IndexInfo, float, float], Message]
    error: Callable[[InputError, Any], InputError]
    compiles: bool = False


RETRIEVE = Query(
    read=lambda message, served: request_from_proto(message),
    batch_call=lambda retriever: retriever.retrieve_batch,
    result=RetrievalResult,
    write=reply_to_proto,
    error=lambda error, message: error_on_wire(error, RetrieveRequest),
)
SCORE = Query(
    read=lambda message, served: score_request_from_proto(message, served.retriever.mention_request),
    batch_call=lambda retriever: retriever.score_batch,
    result=ScoreResult,
    write=score_reply_to_proto,
    error=score_error,
)
ANSWER = Query(
    read=lambda message, served: answer_request_from_proto(message),
    batch_call=lambda retriever: retriever.answer_batch,
    result=AnswerResult,
    write=answer_to_proto,
    error=lambda error, message: error_on_wire(error, AnswerRequest),
    compiles=True,
)


def caller_of(call: Call) -> Caller:
    """Return who asks, for fair shares: the client, and its call; InputError for an unknown priority."""
    if current_priority() is Priority.BULK:
        return Caller(f"{current_client()} bulk", call.request_id, BULK_WEIGHT)
    return Caller(current_client(), call.request_id)


class Methods:
    """Runs the methods of the API. Every one raises errors that `service.status.TABLE` has rows for.

    `compiler` compiles schemas that are not known, off the event loop and the device.
    """

    def __init__(
        self,
        indexes: IndexTable,
        lanes: DeviceQueues,
        readiness: Readiness,
        reloader: Reloader,
        config: ServerConfig,
        compiler: SchemaCompiler,
    ) -> None:
        self._indexes = indexes
        self._lanes = lanes
        self._readiness = readiness
        self._reloader = reloader
        self._config = config
        self._compiler = compiler
        self.request_bytes = RequestBytes(config.max_client_bytes, config.max_bytes)
        self._completing = asyncio.Semaphore(_COMPLETING_THREADS)
        self._num_completing = 0
        self.streams: set[_Stream] = set()  # the open ones
        self._takes_streams = True

    async def call(self, method: Method, request: Any, call: Call, *write: Write) -> Any:
        """Run a method of the table and return its reply.

        Requests for answers count in `request_bytes` until they have one, those of a stream one by one. A
        stream's `request` is the iterator of its messages; `write` sends an answer of it, and returns when
        there is room for the next one.
        """
        self._readiness.check()
        current_priority()  # an unknown one is refused
        if method.is_stream or method.service is not _RETRIEVAL:
            return await method.run(self, request, call, *write)
        with self.request_bytes.hold(client_address(), held_bytes(request)):
            return await method.run(self, request, call)

    async def single(self, message: Any, call: Call, query: Query, patience: Patience = Patience.NONE) -> Any:
        """Convert a message and ask the index that it names, whose version stays open meanwhile."""
        with self._indexes.use(message.index) as served:
            if patience is Patience.NONE:
                # Before it is read and tokenised: under overload most of the server's time would go there.
                self._lanes.of(served.description.device).batcher.check_room(caller_of(call))
            return await self._ask(query, served, query.read(message, served), message, call, patience)

    async def _ask(
        self, query: Query, served: ServedIndex, request: Any, message: Any, call: Call, patience: Patience
    ) -> Any:
        """Estimate a request's work, admit it, wait for its batch, and convert the result back."""
        lane = self._lanes.of(served.description.device)
        batch_call = query.batch_call(served.retriever)
        try:
            if query.compiles:
                request, tokens = await self._compiled_work(served, request, call)
            else:
                tokens = await _work(served, request)
            # Who sends a batch or a stream decides how long its items wait; then the usual limit holds.
            limit = self._config.max_request_seconds
            answer = await lane.batcher.submit(
                batch_call, request, tokens, call.cancel_token(), caller_of(call), patience, limit
            )
        except InputError as error:
            raise query.error(error, message) from None
        if not isinstance(answer.result, query.result):
            raise TypeError(
                f"the retriever gave a {type(answer.result).__name__} for a {query.result.__name__}"
            )
        return query.write(answer.result, served.description, answer.queue_ms, call.elapsed_ms())

    async def _compiled_work(
        self, served: ServedIndex, request: AnswerRequest, call: Call
    ) -> tuple[AnswerRequest, int]:
        """Return a request with its schema, compiled now if it is new, and its work, tokens."""
        retriever, compile_ms = served.retriever, 0.0
        schema = retriever.find_schema(request)
        if schema is None:
            key = retriever, request.schema, request.schema_name, request.options
            compiling = partial(retriever.compile_schema, request)
            size = len(str(request.schema))
            observer = self._lanes.of(served.description.device).observer
            schema, compile_ms = await self._compiler.compile(
                key, compiling, size, current_client(), call.deadline, observer
            )
        prepared = PreparedAnswer.of(request, schema, compile_ms)
        # The schema may be part of the prompt.
        prompt_tokens = await asyncio.to_thread(contained, retriever.prompt_tokens, prepared)
        return prepared, estimate_tokens(request, note_prompt(prompt_tokens))

    async def batch_retrieve(self, message: pb.BatchRetrieveRequest, call: Call) -> pb.BatchRetrieveResponse:
        """Answer several queries, each with its own status; they wait where their queue is full."""
        self._check_items("requests", len(message.requests))
        results = (
            _outcome(pb.BatchRetrieveResult(), call, self.single, item, call, RETRIEVE, Patience.BATCH)
            for item in message.requests
        )
        return pb.BatchRetrieveResponse(results=await asyncio.gather(*results))

    async def retrieve_stream(
        self, messages: AsyncIterator[pb.RetrieveStreamRequest], call: Call, write: Write
    ) -> None:
        """Answer the queries of a stream, read only while there is room for them and their answers.

        Raises:
            NotReadyError: the server shuts down; every query read before has been answered.
            Exception: from reading or writing; when reading fails, every query read has been answered.
        """
        if not self._takes_streams:
            raise NotReadyError()
        ask = partial(self.single, query=RETRIEVE, patience=Patience.STREAM)
        stream = _Stream(ask, call, self.request_bytes)
        self.streams.add(stream)
        try:
            await stream.run(messages, write)
        finally:
            self.streams.discard(stream)

    def stop_streams(self) -> None:
        """Take no more queries of streams; each ends with what it has in flight. Idempotent."""
        self._takes_streams = False
        for stream in self.streams:
            stream.stop()

    async def link(self, message: pb.LinkRequest, call: Call) -> pb.LinkResponse:
        """Link several mentions, each with its own status; they wait where their queue is full."""
        self._check_items("mentions", len(message.mentions))
        options = link_options_from_proto(message)
        with self._indexes.use(message.index) as served:
            results = (
                _outcome(pb.LinkResult(), call, self._mention, served, mention, options, call)
                for mention in message.mentions
            )
            return pb.LinkResponse(results=await asyncio.gather(*results))

    async def _mention(
        self, served: ServedIndex, mention: pb.Mention, options: RetrieveRequest, call: Call
    ) -> Any:
        """Ask the query that stands for a mention."""
        try:
            request = served.retriever.mention_request(mention_from_proto(mention), options)
            return await self._ask(RETRIEVE, served, request, mention, call, Patience.BATCH)
        except (InputError, PromptTooLongError) as error:
            raise mention_error(error) from None

    def _check_items(self, field: str, number: int) -> None:
        if number > self._config.max_batch_items:
            raise InputError(field, f"at most {self._config.max_batch_items}, got {number}")

    async def complete(self, message: pb.CompleteRequest, call: Call) -> pb.CompleteResponse:
        """Complete a prefix on a thread of its own; only the order of a model waits for the device."""
        request = complete_request_from_proto(message)
        if self._num_completing >= _MAX_COMPLETING:
            raise OverloadedError("QUEUE_FULL", "too many prefixes are being completed", retry_after_s=0.1)
        with self._indexes.use(message.index) as served:
            self._num_completing += 1
            try:
                async with self._completing:
                    found = await asyncio.to_thread(contained, served.retriever.complete, request)
            finally:
                self._num_completing -= 1
            scored = score_request(request, found)
            if scored is None:
                return complete_reply_to_proto(found, served.description, 0.0, call.elapsed_ms())

            def write(scores: ScoreResult, *times: Any) -> pb.CompleteResponse:
                return complete_reply_to_proto(ordered_by_model(request, found, scores), *times)

            query = replace(SCORE, write=write, error=lambda error, _: error_on_wire(error, CompleteRequest))
            reply: pb.CompleteResponse = await self._ask(query, served, scored, message, call, Patience.NONE)
            return reply

    async def list_indexes(
        self, message: index_pb.ListIndexesRequest, call: Call
    ) -> index_pb.ListIndexesResponse:
        """List every index."""
        messages = [self._index(description) for description in self._indexes.describe()]
        return index_pb.ListIndexesResponse(indexes=messages)

    async def get_index(self, message: index_pb.GetIndexRequest, call: Call) -> index_pb.GetIndexResponse:
        """Describe one index."""
        return index_pb.GetIndexResponse(index=self._index(self._indexes.resolve(message.name).description))

    async def reload_index(
        self, message: index_pb.ReloadIndexRequest, call: Call
    ) -> index_pb.ReloadIndexResponse:
        """Serve the live version of an index; when the call's deadline ends the wait, the reload goes on."""
        done = await self._reloader.reload(message.name, message.force)
        index = self._index(done.description)
        reply: index_pb.ReloadIndexResponse = to_proto(done, index_pb.ReloadIndexResponse, index=index)
        return reply

    def _index(self, description: IndexInfo) -> index_pb.Index:
        default = self._indexes.resolve("").description
        return index_to_proto(description, is_default=description.name == default.name)


_RETRIEVAL: ServiceDescriptor = pb.DESCRIPTOR.services_by_name["RetrievalService"]
_INDEXES: ServiceDescriptor = index_pb.DESCRIPTOR.services_by_name["IndexService"]


@dataclass(frozen=True, slots=True)
class Method:
    """One row of the table of methods, named as in the `.proto`; `run` is called as in `Methods.call`.

    `is_limited` tells whether the server's limit on the time of a call holds for it.
    """

    service: ServiceDescriptor
    name: str
    run: Callable[..., Awaitable[Any]]
    is_stream: bool = False
    is_limited: bool = True

    @property
    def descriptor(self) -> MethodDescriptor:
        """Its descriptor from the `.proto`."""
        return self.service.methods_by_name[self.name]

    @property
    def full_name(self) -> str:
        """Its name in gRPC's paths."""
        return f"/{self.service.full_name}/{self.name}"


METHODS: dict[str, Method] = {
    method.name: method
    for method in (
        Method(_RETRIEVAL, "Retrieve", partial(Methods.single, query=RETRIEVE)),
        Method(_RETRIEVAL, "BatchRetrieve", Methods.batch_retrieve),
        # The limit on time holds for each query, not for the stream.
        Method(_RETRIEVAL, "RetrieveStream", Methods.retrieve_stream, is_stream=True, is_limited=False),
        Method(_RETRIEVAL, "Link", Methods.link),
        Method(_RETRIEVAL, "Answer", partial(Methods.single, query=ANSWER)),
        Method(_RETRIEVAL, "Score", partial(Methods.single, query=SCORE)),
        Method(_RETRIEVAL, "Complete", Methods.complete),
        Method(_INDEXES, "ListIndexes", Methods.list_indexes),
        Method(_INDEXES, "GetIndex", Methods.get_index),
        Method(_INDEXES, "ReloadIndex", Methods.reload_index, is_limited=False),
    )
}


async def _work(served: ServedIndex, request: RetrieveRequest | ScoreRequest) -> int:
    """Return the work of a request, tokens; checks what needs the index and the model."""
    asked, forms = request, 0
    if isinstance(asked, ScoreRequest):
        asked = RetrieveRequest(request.query, prompt=request.prompt)
    else:
        forms = scored_forms(served.description, asked)

    def count() -> int:
        return contained(served.retriever.prompt_tokens, asked)

    inline = len(request.query) <= _INLINE_QUERY_CHARS
    prompt_tokens = note_prompt(count() if inline else await asyncio.to_thread(count))
    return estimate_tokens(request, prompt_tokens, forms)


async def _outcome(result: M, call: Call, ask: Callable[..., Awaitable[Any]], *arguments: Any) -> M:
    """Fill the message `result` with the reply of `ask`, or with the status of its error."""
    try:
        result.response.CopyFrom(await ask(*arguments))
    except Exception as error:
        result.error.CopyFrom(failure_to_proto(logged_failure(error, call.request_id)))
    return result


# Queries of one stream that were read and whose answers were not written.
MAX_IN_FLIGHT = 64
# Bytes of answers that were not written; a single answer may be larger.
MAX_HELD_BYTES = 4 * 1024 * 1024
Write = Callable[[pb.RetrieveStreamResponse], Awaitable[None]]


class _Stream:
    """One stream: a task that reads, a task per query, and the caller's task, the only one that writes."""

    def __init__(
        self, ask: Callable[..., Awaitable[pb.RetrieveResponse]], call: Call, request_bytes: RequestBytes
    ) -> None:
        self._ask = ask
        self._call = call
        self._bytes = request_bytes
        self._client = client_address()
        self._room = StreamRoom(MAX_IN_FLIGHT, MAX_HELD_BYTES)
        self._tasks: set[asyncio.Task[None]] = set()
        self._answers: asyncio.Queue[pb.RetrieveStreamResponse | None] = asyncio.Queue()
        self._dropping: IdleWait | None = None  # None: queries are taken
        self._num_dropped = 0

    async def run(self, requests: AsyncIterator[pb.RetrieveStreamRequest], write: Write) -> None:
        """Answer everything; an early end cancels what is in flight."""
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
            self._dropping = IdleWait()
            self._room.open()
            self._answers.put_nowait(None)

    async def _see_out(self, dropping: IdleWait, reader: asyncio.Task[None]) -> None:
        """End a stopped stream; without error if the client has sent no query in vain."""
        dropping.broken()  # the client may send its next query in response to the last answer
        ended = asyncio.Event()
        reader.add_done_callback(lambda _: ended.set())
        await dropping.come(ended)
        if self._num_dropped or not reader.done():
            raise NotReadyError()

    async def _read(self, requests: AsyncIterator[pb.RetrieveStreamRequest]) -> None:
        while True:
            # Wait before reading: a query that cannot be answered yet stays with the client.
            await self._room.wait()
            await asyncio.sleep(0)  # the query read before takes its bytes, or waits for them
            await self._bytes.turn(self._client)
            message = await anext(requests, None)
            if message is None:
                return
            if self._dropping is not None:
                # Many clients take a stream that ends while they are sending for a broken one.
                self._num_dropped += 1
                self._dropping.broken()
                continue
            self._room.asked()
            task = asyncio.create_task(self._answer(message))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
            del message, task  # they would stay while the next query is waited for

    async def _answer(self, message: pb.RetrieveStreamRequest) -> None:
        call = replace(self._call, arrived=time.monotonic())
        answer = await _outcome(pb.RetrieveStreamResponse(id=message.id), call, self._checked, message, call)
        self._room.answered(answer.ByteSize())
        self._answers.put_nowait(answer)

    async def _checked(self, message: pb.RetrieveStreamRequest, call: Call) -> pb.RetrieveResponse:
        check_stream_id(message.id)
        async with self._bytes.room(self._client, held_bytes(message)):
            return await self._ask(message.request, call)


# Factor by which the largest answer so far is forgotten, per answer.
_DECAY = 0.95


class StreamRoom:
    """Decides when a stream may read its next query. Lives on one event loop.

    `max_queries` limits queries read and not written back, `max_bytes` the unwritten answers. A query
    without an answer counts as the largest of the last answers. A single query always fits.
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
        """Queries that were read and whose answers were not written."""
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
        """Note an answer of `size` bytes."""
        self._num_asked -= 1
        self._num_answered += 1
        self._bytes += size
        self._expected = max(size, self._expected * _DECAY)
        self._changed.set()

    def written(self, size: int) -> None:
        """Note that an answer was sent."""
        self._num_answered -= 1
        self._bytes -= size
        self._changed.set()

    def open(self) -> None:
        """Lift the limits."""
        self._is_open = True
        self._changed.set()

    def _fits(self) -> bool:
        if not len(self):
            return True
        expected = self._bytes + (self._num_asked + 1) * self._expected
        return len(self) < self._max_queries and expected <= self._max_bytes


_LOG = logging.getLogger(__name__)


def logged_failure(error: Exception, request_id: str) -> Failure:
    """Return the table's failure for `error`; a bug is logged with its traceback under the request id."""
    failure = failure_of(error, request_id)
    if failure.code is StatusCode.INTERNAL:
        _LOG.error("request %s failed", request_id, exc_info=error)
    return failure
