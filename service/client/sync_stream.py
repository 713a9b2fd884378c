"""A stream of queries from a thread's point of view: an iterable goes in, answers come out."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import grpc

from retrieval.types import RetrieveRequest
from service.client.outstanding import Answered, Outstanding
from service.errors import CallError

_END: Any = object()


class Sender:
    """Hands queries to gRPC, which takes them in a thread of its own, while few enough are outstanding.

    Args:
        requests: The queries.
        outstanding: Where they wait for their answers.
        max_in_flight: Most of them that wait.
    """

    def __init__(
        self, requests: Iterable[RetrieveRequest], outstanding: Outstanding, max_in_flight: int
    ) -> None:
        self._requests = requests
        self._outstanding = outstanding
        self._max_in_flight = max_in_flight
        self._changed = threading.Condition()
        self._stopped = False
        self.error: BaseException | None = None

    def messages(self) -> Iterator[Any]:
        """Yield what is to be sent. An error of the iterable ends the sending and is kept."""
        try:
            queries = iter(self._requests)
            while self._wait():
                request = next(queries, _END)
                if request is _END:
                    return
                with self._changed:
                    if self._stopped:
                        return
                    message = self._outstanding.ask(request)
                yield message
        except GeneratorExit:
            raise
        except BaseException as error:  # gRPC would log it and cancel the call without saying why
            self.error = error

    def answered(self, message: Any) -> Answered:
        """Return an answer with its query, and let the next query go."""
        with self._changed:
            answered = self._outstanding.answer(message)
            self._changed.notify_all()
        return answered

    def stop(self) -> list[RetrieveRequest]:
        """Send nothing more; returns what is not going to be answered."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()
            return self._outstanding.rest()

    def _wait(self) -> bool:
        """Wait until one more query may go; returns whether any may."""
        with self._changed:
            self._changed.wait_for(lambda: self._stopped or len(self._outstanding) < self._max_in_flight)
            return not self._stopped


def exchange(
    sender: Sender,
    outstanding: Outstanding,
    start: Callable[[Iterator[Any]], Any],
    failed: Callable[[grpc.RpcError], CallError],
) -> Iterator[Answered]:
    """Yield answers as they come; see `RetrievalClient.retrieve_stream`.

    Args:
        sender: What is sent.
        outstanding: Where queries wait.
        start: Starts the call with an iterator of messages.
        failed: Makes the client's error of gRPC's.
    """
    failure: CallError | None = None
    call = start(sender.messages())
    try:
        for message in call:
            yield sender.answered(message)
    except grpc.RpcError as error:
        failure = failed(error)
    finally:
        call.cancel()
        left = sender.stop()
    if left and failure is None:
        failure = outstanding.unanswered()
    if failure is not None:
        for request in left:
            yield request, failure
        raise failure
    if sender.error is not None:
        raise sender.error
