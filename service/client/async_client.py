"""Calls a server from asyncio: single calls, and streams of queries.

A stream takes an iterable of queries, synchronous or not, and yields answers as they are ready.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterable, AsyncIterator, Callable, Coroutine, Iterable, Sequence
from dataclasses import replace
from types import TracebackType
from typing import Any, Self, TypeVar, Unpack

import grpc

from retrieval.answers.answer_types import AnswerRequest
from retrieval.errors import InputError
from retrieval.types import Mention, RequestOptions, RetrieveRequest
from service.client import calls
from service.client.calls import Answered, Outstanding, failed_call
from service.client.channel import Stubs, metadata, open_channel, request_id_of
from service.client.client_options import CallOptions, ClientOptions, OptionChanges
from service.client.reply import AnswerReply, IndexInfo, ReloadReply, Reply, ScoreReply
from service.errors import CallError

T = TypeVar("T")


class AsyncRetrievalClient:
    """A connection to a server, for the tasks of one event loop. Nothing connects before the first call.

    Every method takes `timeout_s` and `request_id`, see `CallOptions`, and raises CallError when the server
    refuses the call or cannot be reached.

    Args:
        address: `host:port` of the server.
        options: How to connect.
        **changes: Attributes of `ClientOptions` that are to be otherwise.

    Attributes:
        address: As given.
        options: How the client connects.

    Raises:
        InputError: the address or an option cannot be used; it is named.
    """

    def __init__(
        self, address: str, options: ClientOptions | None = None, **changes: Unpack[OptionChanges]
    ) -> None:
        self.address = address
        self.options = replace(options or ClientOptions(), **changes)
        self.options.check(address)
        self._channel = open_channel(grpc.aio, address, self.options)
        self._stubs = Stubs(self._channel)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connection; calls that run are cancelled. Idempotent."""
        await self._channel.close()

    async def retrieve(self, request: RetrieveRequest, index: str = "", **call: Unpack[CallOptions]) -> Reply:
        """Answer one query."""
        return await self._call(calls.retrieve(request, index), call)

    async def retrieve_batch(
        self, requests: Sequence[RetrieveRequest], index: str = "", **call: Unpack[CallOptions]
    ) -> list[Reply | CallError]:
        """Answer several queries in one call, in their order; what failed alone is an error in the list."""
        return await self._call(calls.retrieve_batch(requests, index), call)

    def retrieve_stream(
        self,
        requests: Requests,
        index: str = "",
        *,
        max_in_flight: int = 64,
        **call: Unpack[CallOptions],
    ) -> AsyncIterator[tuple[RetrieveRequest, Reply | CallError]]:
        """Answer any number of queries, each as soon as it is ready, so in any order.

        The iterable, an asynchronous one or not, is read only as far as answers are taken: it may be endless.
        Leave the loop over it early inside `contextlib.aclosing`, which ends the stream at once.
        The server answers 64 queries of a stream at a time, so a larger `max_in_flight` brings nothing.

        Args:
            requests: The queries. An error of theirs is raised here when those before it are answered.
            index: Which index they ask.
            max_in_flight: Most queries that were read and are not answered.
            **call: The deadline here is that of the whole stream; left out, it has none.

        Yields:
            A query with its answer, or with the error that concerns it alone.

        Raises:
            CallError: the stream broke. Queries that were read and not answered were yielded with this error.
            InputError: `max_in_flight` is below 1.
        """
        if max_in_flight < 1:
            raise InputError("max_in_flight", f"must be at least 1, got {max_in_flight}")
        timeout_s = calls.seconds_of(call.get("timeout_s"))
        request_id = request_id_of(call.get("request_id", ""))
        outstanding = Outstanding(index, request_id)
        return exchange(
            AsyncSender(requests, outstanding, max_in_flight),
            outstanding,
            lambda messages: self._stubs.retrieval.RetrieveStream(
                messages, timeout=timeout_s, metadata=metadata(self.options, request_id)
            ),
            lambda error: failed_call(error, self.address, timeout_s, request_id),
        )

    async def link(
        self,
        mentions: Sequence[Mention],
        k: int = 1,
        method: str = "auto",
        *,
        index: str = "",
        call: CallOptions | None = None,
        **options: Unpack[RequestOptions],
    ) -> list[Reply | CallError]:
        """Link mentions to entities, in their order, all with the same options; see `RetrieveRequest`.

        Raises:
            InputError: an option is out of range.
        """
        return await self._call(calls.link(mentions, k, method, index, options), call or {})

    async def answer(
        self, request: AnswerRequest, index: str = "", **call: Unpack[CallOptions]
    ) -> AnswerReply:
        """Answer one query with JSON."""
        return await self._call(calls.answer(request, index), call)

    async def score(
        self,
        subject: str | Mention,
        titles: Sequence[str],
        *,
        prompt: str | None = None,
        index: str = "",
        **call: Unpack[CallOptions],
    ) -> ScoreReply:
        """Score given titles for one query, in their order: to rank again what another engine has found.

        Args:
            subject: The query, or a mention in its context.
            titles: From 1 to 10,000 texts, in the catalogue or not.
            prompt: Name of the prompt template; None: the model's default one. Not with a mention.
            index: Whose model scores; empty for the default one.
            **call: See `CallOptions`.

        Raises:
            InputError: the query or a title cannot be used.
        """
        return await self._call(calls.score(subject, titles, prompt, index), call)

    async def list_indexes(self, **call: Unpack[CallOptions]) -> list[IndexInfo]:
        """Return what the server serves, the default index first."""
        return await self._call(calls.list_indexes(), call)

    async def get_index(self, name: str = "", **call: Unpack[CallOptions]) -> IndexInfo:
        """Return what is served under a name; without one the default index."""
        return await self._call(calls.get_index(name), call)

    async def reload_index(
        self, name: str = "", *, force: bool = False, **call: Unpack[CallOptions]
    ) -> ReloadReply:
        """Have the live version of an index served; returns when it is.

        Args:
            name: Which index; empty for the default one.
            force: Load it also when it is the version that is served.
            **call: See `CallOptions`. Loading may take minutes.
        """
        return await self._call(calls.reload_index(name, force), call)

    async def health(self, service: str = calls.READINESS, **call: Unpack[CallOptions]) -> str:
        """Return the health of a service of the server: "SERVING", "NOT_SERVING" or "SERVICE_UNKNOWN"."""
        try:
            return await self._call(calls.health(service), call)
        except CallError as error:
            if error.code == "NOT_FOUND":
                return calls.UNKNOWN_SERVICE
            raise

    async def wait_until_ready(self, timeout_s: float) -> None:
        """Return once the server takes requests; it may be started later than this is called.

        Raises:
            CallError: DEADLINE_EXCEEDED, it was not within `timeout_s` seconds; or what else stands in the
                way, but not UNAVAILABLE.
        """
        end = time.monotonic() + timeout_s
        request_id = request_id_of("")
        while True:
            watch = self._stubs.health.Watch(
                calls.watch_request(),
                timeout=max(0.0, end - time.monotonic()),
                metadata=metadata(self.options, request_id),
                wait_for_ready=True,
            )
            try:
                async for message in watch:
                    if calls.status_name(message) == "SERVING":
                        return
            except grpc.aio.AioRpcError as error:
                failure = failed_call(error, self.address, None, request_id)
                if failure.code == "DEADLINE_EXCEEDED":
                    raise calls.never_ready(self.address, timeout_s, request_id) from error
                if failure.code != "UNAVAILABLE":
                    raise failure from error
            finally:
                watch.cancel()
            # Who refuses at once, as a proxy does that has no server, is not asked again at once.
            await asyncio.sleep(calls.ASK_AGAIN_S)

    async def _call(self, prepared: calls.UnaryCall[T], options: CallOptions) -> T:
        given = calls.seconds_of(options.get("timeout_s"))
        timeout_s = self.options.timeout_s if given is None else given
        request_id = request_id_of(options.get("request_id", ""))
        method: Any = prepared.method(self._stubs)
        try:
            message = await method(
                prepared.message, timeout=timeout_s, metadata=metadata(self.options, request_id)
            )
        except grpc.aio.AioRpcError as error:
            raise failed_call(error, self.address, timeout_s, request_id) from error
        return prepared.parse(message, request_id)


_END: Any = object()
_OWN_INTERNAL = "Internal error from Core"  # what grpc.aio calls a failed write
Requests = Iterable[RetrieveRequest] | AsyncIterable[RetrieveRequest]


class AsyncSender:
    """Hands queries to gRPC while few enough are outstanding.

    Args:
        requests: The queries.
        outstanding: Where they wait for their answers.
        max_in_flight: Most of them that wait.
    """

    def __init__(self, requests: Requests, outstanding: Outstanding, max_in_flight: int) -> None:
        self._requests = requests
        self._outstanding = outstanding
        self._slots = asyncio.Semaphore(max_in_flight)
        self.error: Exception | None = None

    async def messages(self) -> AsyncIterator[Any]:
        """Yield what is to be sent. An error of the iterable ends the sending and is kept."""
        queries = _asynchronously(self._requests)
        while True:
            await self._slots.acquire()
            try:
                request = await anext(queries, _END)
                if request is _END:
                    return
                message = self._outstanding.ask(request)
            except Exception as error:  # gRPC would log it and cancel the call without saying why
                self.error = error
                return
            yield message

    def answered(self, message: Any) -> Answered:
        """Return an answer with its query, and let the next query go."""
        answered = self._outstanding.answer(message)
        self._slots.release()
        return answered


async def exchange(
    sender: AsyncSender,
    outstanding: Outstanding,
    start: Callable[[AsyncIterator[Any]], Any],
    failed: Callable[[grpc.aio.AioRpcError], CallError],
) -> AsyncIterator[Answered]:
    """Yield answers as they come; see `AsyncRetrievalClient.retrieve_stream`.

    Args:
        sender: What is sent.
        outstanding: Where queries wait.
        start: Starts the call with an iterator of messages.
        failed: Makes the client's error of gRPC's.
    """
    failure: CallError | None = None
    call = start(sender.messages())
    first = _FirstStatus(call)
    try:
        async for message in call:
            yield sender.answered(message)
    except grpc.aio.AioRpcError as error:
        failure = failed(first.of(error))
    finally:
        call.cancel()
    left = outstanding.rest()
    if left and failure is None:
        failure = outstanding.unanswered()
    if failure is not None:
        for request in left:
            yield request, failure
        raise failure
    if sender.error is not None:
        raise sender.error


class _FirstStatus:
    """The status a call ended with, before grpc.aio may put another one in its place.

    When a message is being sent as the server ends a stream, grpc.aio reads the server's status, and then
    replaces it by INTERNAL because the sending failed (https://github.com/grpc/grpc/issues/36066).
    """

    def __init__(self, call: Any) -> None:
        self._error: grpc.aio.AioRpcError | None = None
        call.add_done_callback(self._note)

    def of(self, error: grpc.aio.AioRpcError) -> grpc.aio.AioRpcError:
        """Return the error that the server ended the call with, if it was put in the place of `error`."""
        return error if self._error is None or error.details() != _OWN_INTERNAL else self._error

    def _note(self, call: Any) -> None:
        if self._error is None:
            read = (call.code(), call.initial_metadata(), call.trailing_metadata(), call.details())
            self._error = grpc.aio.AioRpcError(*map(_result_now, read))


def _result_now(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """Return the result of a coroutine that has nothing to wait for."""
    try:
        coroutine.send(None)
    except StopIteration as stop:
        return stop.value
    coroutine.close()
    raise AssertionError("a call that has ended has its status")


async def _asynchronously(requests: Requests) -> AsyncIterator[RetrieveRequest]:
    if isinstance(requests, AsyncIterable):
        async for request in requests:
            yield request
    else:
        for request in requests:
            yield request
