"""The methods of `genret.v1`, without transport: a message and a `Call` in, a message out, errors raised.

`METHODS` is the table that both faces serve. `Methods` stands where clients are: it checks readiness, counts
bytes, and takes streams apart. `Answers` stands where indexes and models are, in the same process or in the
engine's: `single` resolves the index and converts the message, `_ask` estimates the work, waits for
admission and for the device's batch, and converts the result back. Batches, the mentions of a text and
streams send each of their queries that way.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, Protocol

from google.protobuf.descriptor import MethodDescriptor, ServiceDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

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
from genret.service.serving.readiness import Readiness
from genret.service.serving.reload import Reloader
from genret.service.serving.request_bytes import RequestBytes
from genret.service.serving.schema_compiler import SchemaCompiler
from genret.service.serving.served import BatchCall, IndexTable, ServedIndex, ServedRetriever, scored_forms
from genret.service.streams import QueryStream, Write
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
from genret.service.wire.rpc_status import outcome

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
    """Return who asks, for fair shares: the client, and its call."""
    if call.is_bulk:
        return Caller(f"{call.client} bulk", call.request_id, BULK_WEIGHT)
    return Caller(call.client, call.request_id)


class Answering(Protocol):
    """Answers methods: `Answers` in this process, or an engine's process."""

    async def answer(self, method: Method, message: Any, call: Call) -> Any:
        """Answer one message, of a stream one of its queries; raises what the table of statuses has."""


class Methods:
    """Runs the methods of the API. Every one raises errors that `service.status.TABLE` has rows for."""

    def __init__(self, answering: Answering, readiness: Readiness, config: ServerConfig) -> None:
        self._answering = answering
        self._readiness = readiness
        self.request_bytes = RequestBytes(config.max_client_bytes, config.max_bytes)
        self.streams: set[QueryStream] = set()  # the open ones
        self._takes_streams = True

    async def call(self, method: Method, request: Any, call: Call, *write: Write) -> Any:
        """Run a method of the table and return its reply.

        Requests for answers count in `request_bytes` until they have one, those of a stream one by one. A
        stream's `request` is the iterator of its messages; `write` sends an answer of it, and returns when
        there is room for the next one.
        """
        self._readiness.check()
        call = replace(call, client=current_client(), is_bulk=current_priority() is Priority.BULK)
        if method.is_stream:
            return await self._stream(method, request, call, *write)
        if method.service is not _RETRIEVAL:
            return await self._answering.answer(method, request, call)
        with self.request_bytes.hold(client_address(), held_bytes(request)):
            return await self._answering.answer(method, request, call)

    async def _stream(
        self, method: Method, messages: AsyncIterator[pb.RetrieveStreamRequest], call: Call, write: Write
    ) -> None:
        """Answer the queries of a stream, read only while there is room for them and their answers.

        Raises:
            NotReadyError: the server shuts down; every query read before has been answered.
            Exception: from reading or writing; when reading fails, every query read has been answered.
        """
        if not self._takes_streams:
            raise NotReadyError()
        stream = QueryStream(partial(self._answering.answer, method), call, self.request_bytes)
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


class Answers:
    """Answers methods by the indexes and devices of this process.

    `compiler` compiles schemas that are not known, off the event loop and the device.
    """

    def __init__(
        self,
        indexes: IndexTable,
        lanes: DeviceQueues,
        reloader: Reloader,
        config: ServerConfig,
        compiler: SchemaCompiler,
    ) -> None:
        self._indexes = indexes
        self._lanes = lanes
        self._reloader = reloader
        self._config = config
        self._compiler = compiler
        self._completing = asyncio.Semaphore(_COMPLETING_THREADS)
        self._num_completing = 0

    async def answer(self, method: Method, message: Any, call: Call) -> Any:
        """Answer one message, of a stream one of its queries; raises what the table of statuses has."""
        return await method.run(self, message, call)

    async def single(self, message: Any, call: Call, query: Query, patience: Patience = Patience.NONE) -> Any:
        """Convert a message and ask the index that it names, whose version stays open meanwhile."""
        with self._indexes.use(message.index) as served:
            if patience is Patience.NONE:
                # Before it is read and tokenised: under overload most of the server's time would go there.
                self._lanes.of(served.description.device).check_room(caller_of(call))
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
            answer = await lane.submit(
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
                key, compiling, size, call.client, call.deadline, observer
            )
        prepared = PreparedAnswer.of(request, schema, compile_ms)
        # The schema may be part of the prompt.
        prompt_tokens = await asyncio.to_thread(contained, retriever.prompt_tokens, prepared)
        return prepared, estimate_tokens(request, note_prompt(prompt_tokens))

    async def batch_retrieve(self, message: pb.BatchRetrieveRequest, call: Call) -> pb.BatchRetrieveResponse:
        """Answer several queries, each with its own status; they wait where their queue is full."""
        self._check_items("requests", len(message.requests))
        ask = partial(self.single, query=RETRIEVE, patience=Patience.BATCH)
        results = (
            outcome(pb.BatchRetrieveResult(), call.request_id, ask, item, call) for item in message.requests
        )
        return pb.BatchRetrieveResponse(results=await asyncio.gather(*results))

    async def link(self, message: pb.LinkRequest, call: Call) -> pb.LinkResponse:
        """Link several mentions, each with its own status; they wait where their queue is full."""
        self._check_items("mentions", len(message.mentions))
        options = link_options_from_proto(message)
        with self._indexes.use(message.index) as served:
            results = (
                outcome(pb.LinkResult(), call.request_id, self._mention, served, mention, options, call)
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
        index = self._index(done.index)
        reply: index_pb.ReloadIndexResponse = to_proto(done, index_pb.ReloadIndexResponse, index=index)
        return reply

    def _index(self, description: IndexInfo) -> index_pb.Index:
        default = self._indexes.resolve("").description
        return index_to_proto(description, is_default=description.name == default.name)


_RETRIEVAL: ServiceDescriptor = pb.DESCRIPTOR.services_by_name["RetrievalService"]
_INDEXES: ServiceDescriptor = index_pb.DESCRIPTOR.services_by_name["IndexService"]


@dataclass(frozen=True)
class Method:
    """One row of the table of methods, named as in the `.proto`.

    `run` answers a message, of a stream one query. `is_limited` tells whether the server's limit on the time
    of a call holds for it, `needs_room` whether it is refused where its client has no room.
    """

    service: ServiceDescriptor
    name: str
    run: Callable[..., Awaitable[Any]]
    is_stream: bool = False
    is_limited: bool = True
    needs_room: bool = False

    @property
    def descriptor(self) -> MethodDescriptor:
        """Its descriptor from the `.proto`."""
        return self.service.methods_by_name[self.name]

    @property
    def full_name(self) -> str:
        """Its name in gRPC's paths."""
        return f"/{self.service.full_name}/{self.name}"

    @cached_property
    def question(self) -> Any:
        """The class of what `run` takes."""
        asked = self.descriptor.input_type
        return GetMessageClass(asked.fields_by_name["request"].message_type if self.is_stream else asked)

    @cached_property
    def reply(self) -> Any:
        """The class of what `run` returns."""
        told = self.descriptor.output_type
        return GetMessageClass(told.fields_by_name["response"].message_type if self.is_stream else told)


METHODS: dict[str, Method] = {
    method.name: method
    for method in (
        Method(_RETRIEVAL, "Retrieve", partial(Answers.single, query=RETRIEVE), needs_room=True),
        Method(_RETRIEVAL, "BatchRetrieve", Answers.batch_retrieve),
        # The limit on time holds for each query, not for the stream.
        Method(
            _RETRIEVAL,
            "RetrieveStream",
            partial(Answers.single, query=RETRIEVE, patience=Patience.STREAM),
            is_stream=True,
            is_limited=False,
        ),
        Method(_RETRIEVAL, "Link", Answers.link),
        Method(_RETRIEVAL, "Answer", partial(Answers.single, query=ANSWER), needs_room=True),
        Method(_RETRIEVAL, "Score", partial(Answers.single, query=SCORE), needs_room=True),
        Method(_RETRIEVAL, "Complete", Answers.complete),
        Method(_INDEXES, "ListIndexes", Answers.list_indexes),
        Method(_INDEXES, "GetIndex", Answers.get_index),
        Method(_INDEXES, "ReloadIndex", Answers.reload_index, is_limited=False),
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
