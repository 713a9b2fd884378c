"""The blocking and the asyncio client: how each waits for single calls, and for streams of queries."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterable, AsyncIterator, Callable, Coroutine, Iterable, Iterator
from functools import wraps
from typing import Any, Self, TypeVar, Unpack

import grpc

from genret.retrieval.types import RetrieveRequest
from genret.service.client.calls import (
    ASK_AGAIN_S,
    SEND_FAILED,
    Answered,
    Client,
    Stream,
    UnaryCall,
    request_id_of,
    status_name,
)
from genret.service.client.client_options import CallOptions
from genret.service.errors import CallError

T = TypeVar("T")
Requests = Iterable[RetrieveRequest] | AsyncIterable[RetrieveRequest]
_END: Any = object()


def _ask(prepare: Callable[..., UnaryCall[T]]) -> Callable[..., T]:
    """Wrap a prepared call into a method that waits for its answer."""

    @wraps(prepare)
    def ask(client: RetrievalClient, *args: Any, **kwargs: Any) -> T:
        call = prepare(client, *args, **kwargs)
        try:
            message = call.send()
        except grpc.RpcError as error:
            return call.recover(error)
        return call.parse(message)

    return ask


class RetrievalClient(Client, ask=_ask):
    """A connection that threads may share. Its arguments and calls are those of `Client`."""

    _transport = grpc

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection; calls that run are cancelled. Idempotent."""
        self._is_closed = True
        self._channel.close()

    def retrieve_stream(
        self,
        requests: Iterable[RetrieveRequest],
        index: str = "",
        *,
        max_in_flight: int = 64,
        **call: Unpack[CallOptions],
    ) -> Iterator[Answered]:
        """Answer any number of queries, each as soon as it is ready, so in any order.

        The iterable is read in a thread of gRPC's, only as far as answers are taken: it may be endless.
        The server answers 64 queries of a stream at a time, so a larger `max_in_flight` brings nothing.

        Args:
            requests: The queries. An error of theirs is raised here when those before it are answered.
            index: Name of the index that they ask.
            max_in_flight: Most queries that were read and are not answered.
            **call: The deadline here is that of the whole stream; left out, it has none.

        Yields:
            A query with its answer, or with the error that concerns it alone.

        Raises:
            CallError: the stream broke. Queries that were read and not answered were yielded with this error.
            InputError: `max_in_flight` is below 1.
        """
        return _BlockingStream(self, index, max_in_flight, call).answers(requests)

    def wait_until_ready(self, timeout_s: float) -> None:
        """Return once the server takes requests; it may be started after this call.

        Raises:
            CallError: DEADLINE_EXCEEDED after `timeout_s` seconds; any other failure but UNAVAILABLE.
        """
        end = time.monotonic() + timeout_s
        request_id = request_id_of("")
        while True:
            watch = self._watch_readiness(end, request_id)
            try:
                for message in watch:
                    if status_name(message) == "SERVING":
                        return
            except grpc.RpcError as error:
                self._check_unready(error, timeout_s, request_id)
            finally:
                watch.cancel()
            # A proxy without a server refuses at once: wait before asking again.
            time.sleep(ASK_AGAIN_S)


class _BlockingStream(Stream):
    """Hands queries to gRPC's sending thread while few enough are unanswered."""

    def __init__(self, client: Client, index: str, max_in_flight: int, options: CallOptions) -> None:
        super().__init__(client, index, max_in_flight, options)
        self._slots = threading.Semaphore(max_in_flight)
        self._lock = threading.Lock()
        self._stopped = False

    def answers(self, requests: Iterable[RetrieveRequest]) -> Iterator[Answered]:
        failure: CallError | None = None
        call = self.start(self._messages(requests))
        try:
            for message in call:
                with self._lock:
                    answered = self.answer(message)
                self._slots.release()
                yield answered
        except grpc.RpcError as error:
            failure = self.failed(error)
        finally:
            call.cancel()
            with self._lock:
                self._stopped = True
            self._slots.release()
        yield from self.end(failure)

    def _messages(self, requests: Iterable[RetrieveRequest]) -> Iterator[Any]:
        """Yield the messages to send. An error of the iterable ends the sending and is kept."""
        try:
            queries = iter(requests)
            while self._slots.acquire() and not self._stopped:
                request = next(queries, _END)
                with self._lock:
                    if request is _END or self._stopped:
                        return
                    message = self.ask(request)
                yield message
        except GeneratorExit:
            raise
        except BaseException as error:  # gRPC would log it and cancel the call without saying why
            self.error = error


def _ask_async(prepare: Callable[..., UnaryCall[T]]) -> Callable[..., Coroutine[Any, Any, T]]:
    """Wrap a prepared call into a method that awaits its answer."""

    @wraps(prepare)
    async def ask(client: AsyncRetrievalClient, *args: Any, **kwargs: Any) -> T:
        call = prepare(client, *args, **kwargs)
        try:
            message = await call.send()
        except grpc.aio.AioRpcError as error:
            return call.recover(error)
        return call.parse(message)

    return ask


class AsyncRetrievalClient(Client, ask=_ask_async):
    """A connection for the tasks of one event loop. Its arguments and calls are those of `Client`."""

    _transport = grpc.aio

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connection; calls that run are cancelled. Idempotent."""
        self._is_closed = True
        await self._channel.close()

    def retrieve_stream(
        self, requests: Requests, index: str = "", *, max_in_flight: int = 64, **call: Unpack[CallOptions]
    ) -> AsyncIterator[Answered]:
        """Answer any number of queries as `RetrievalClient.retrieve_stream` does.

        The iterable, asynchronous or not, is read only as far as answers are taken. To leave the loop early,
        use `contextlib.aclosing`, which ends the stream at once.
        """
        return _AsyncStream(self, index, max_in_flight, call).answers(requests)

    async def wait_until_ready(self, timeout_s: float) -> None:
        """Return once the server takes requests, as `RetrievalClient.wait_until_ready` does."""
        end = time.monotonic() + timeout_s
        request_id = request_id_of("")
        while True:
            watch = self._watch_readiness(end, request_id)
            try:
                async for message in watch:
                    if status_name(message) == "SERVING":
                        return
            except grpc.aio.AioRpcError as error:
                self._check_unready(error, timeout_s, request_id)
            finally:
                watch.cancel()
            # A proxy without a server refuses at once: wait before asking again.
            await asyncio.sleep(ASK_AGAIN_S)


class _AsyncStream(Stream):
    """Hands queries to gRPC while few enough are unanswered."""

    def __init__(self, client: Client, index: str, max_in_flight: int, options: CallOptions) -> None:
        super().__init__(client, index, max_in_flight, options)
        self._slots = asyncio.Semaphore(max_in_flight)

    async def answers(self, requests: Requests) -> AsyncIterator[Answered]:
        failure: CallError | None = None
        call = self.start(self._messages(requests))
        first = _FirstStatus(call)
        try:
            async for message in call:
                answered = self.answer(message)
                self._slots.release()
                yield answered
        except grpc.aio.AioRpcError as error:
            failure = self.failed(first.of(error))
        finally:
            call.cancel()
        for answered in self.end(failure):
            yield answered

    async def _messages(self, requests: Requests) -> AsyncIterator[Any]:
        """Yield the messages to send. An error of the iterable ends the sending and is kept."""
        queries = _asynchronously(requests)
        while True:
            await self._slots.acquire()
            try:
                request = await anext(queries, _END)
                if request is _END:
                    return
                message = self.ask(request)
            except Exception as error:  # gRPC would log it and cancel the call without saying why
                self.error = error
                return
            yield message


class _FirstStatus:
    """The status a call ended with, before grpc.aio may replace it.

    When the server ends a stream while a message is being sent, grpc.aio reads the server's status and then
    replaces it by INTERNAL because the sending failed (https://github.com/grpc/grpc/issues/36066).
    """

    def __init__(self, call: Any) -> None:
        self._error: grpc.aio.AioRpcError | None = None
        call.add_done_callback(self._note)

    def of(self, error: grpc.aio.AioRpcError) -> grpc.aio.AioRpcError:
        """Return the server's error if `error` has replaced it, else `error`."""
        return error if self._error is None or error.details() != SEND_FAILED else self._error

    def _note(self, call: Any) -> None:
        if self._error is None:
            read = (call.code(), call.initial_metadata(), call.trailing_metadata(), call.details())
            self._error = grpc.aio.AioRpcError(*map(_result_now, read))


def _result_now(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """Return the result of a coroutine that does not wait."""
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
