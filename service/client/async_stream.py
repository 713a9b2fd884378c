"""A stream of queries on an event loop: an iterable goes in, answers come out."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, AsyncIterator, Callable, Coroutine, Iterable
from typing import Any

import grpc

from retrieval.types import RetrieveRequest
from service.client.outstanding import Answered, Outstanding
from service.errors import CallError

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
