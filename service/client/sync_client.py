"""Calls a server from threads: single calls, and streams of queries.

A stream takes an iterable of queries and yields answers as they are ready.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
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


class RetrievalClient:
    """A connection to a server. Safe to share among threads. Nothing connects before the first call.

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
        self._channel = open_channel(grpc, address, self.options)
        self._stubs = Stubs(self._channel)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection; calls that run are cancelled. Idempotent."""
        self._channel.close()

    def retrieve(self, request: RetrieveRequest, index: str = "", **call: Unpack[CallOptions]) -> Reply:
        """Answer one query."""
        return self._call(calls.retrieve(request, index), call)

    def retrieve_batch(
        self, requests: Sequence[RetrieveRequest], index: str = "", **call: Unpack[CallOptions]
    ) -> list[Reply | CallError]:
        """Answer several queries in one call, in their order; what failed alone is an error in the list."""
        return self._call(calls.retrieve_batch(requests, index), call)

    def retrieve_stream(
        self,
        requests: Iterable[RetrieveRequest],
        index: str = "",
        *,
        max_in_flight: int = 64,
        **call: Unpack[CallOptions],
    ) -> Iterator[tuple[RetrieveRequest, Reply | CallError]]:
        """Answer any number of queries, each as soon as it is ready, so in any order.

        The iterable is read in a thread of gRPC's, only as far as answers are taken: it may be endless.
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
            Sender(requests, outstanding, max_in_flight),
            outstanding,
            lambda messages: self._stubs.retrieval.RetrieveStream(
                messages, timeout=timeout_s, metadata=metadata(self.options, request_id)
            ),
            lambda error: failed_call(error, self.address, timeout_s, request_id),
        )

    def link(
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
        return self._call(calls.link(mentions, k, method, index, options), call or {})

    def answer(self, request: AnswerRequest, index: str = "", **call: Unpack[CallOptions]) -> AnswerReply:
        """Answer one query with JSON."""
        return self._call(calls.answer(request, index), call)

    def score(
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
        return self._call(calls.score(subject, titles, prompt, index), call)

    def list_indexes(self, **call: Unpack[CallOptions]) -> list[IndexInfo]:
        """Return what the server serves, the default index first."""
        return self._call(calls.list_indexes(), call)

    def get_index(self, name: str = "", **call: Unpack[CallOptions]) -> IndexInfo:
        """Return what is served under a name; without one the default index."""
        return self._call(calls.get_index(name), call)

    def reload_index(
        self, name: str = "", *, force: bool = False, **call: Unpack[CallOptions]
    ) -> ReloadReply:
        """Have the live version of an index served; returns when it is.

        Args:
            name: Which index; empty for the default one.
            force: Load it also when it is the version that is served.
            **call: See `CallOptions`. Loading may take minutes.
        """
        return self._call(calls.reload_index(name, force), call)

    def health(self, service: str = calls.READINESS, **call: Unpack[CallOptions]) -> str:
        """Return the health of a service of the server: "SERVING", "NOT_SERVING" or "SERVICE_UNKNOWN"."""
        try:
            return self._call(calls.health(service), call)
        except CallError as error:
            if error.code == "NOT_FOUND":
                return calls.UNKNOWN_SERVICE
            raise

    def wait_until_ready(self, timeout_s: float) -> None:
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
                for message in watch:
                    if calls.status_name(message) == "SERVING":
                        return
            except grpc.RpcError as error:
                failure = failed_call(error, self.address, None, request_id)
                if failure.code == "DEADLINE_EXCEEDED":
                    raise calls.never_ready(self.address, timeout_s, request_id) from error
                if failure.code != "UNAVAILABLE":
                    raise failure from error
            finally:
                watch.cancel()
            # Who refuses at once, as a proxy does that has no server, is not asked again at once.
            time.sleep(calls.ASK_AGAIN_S)

    def _call(self, prepared: calls.UnaryCall[T], options: CallOptions) -> T:
        given = calls.seconds_of(options.get("timeout_s"))
        timeout_s = self.options.timeout_s if given is None else given
        request_id = request_id_of(options.get("request_id", ""))
        method: Any = prepared.method(self._stubs)
        try:
            message = method(prepared.message, timeout=timeout_s, metadata=metadata(self.options, request_id))
        except grpc.RpcError as error:
            raise failed_call(error, self.address, timeout_s, request_id) from error
        return prepared.parse(message, request_id)


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
