"""Defines the calls of a client, blocking or not: the message sent, the reply made of the answer, the error.

Holds the queries of a stream that wait for their answers, too, and turns gRPC's errors into `CallError`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from grpc_health.v1 import health_pb2

from retrieval.answers.answer_types import AnswerRequest
from retrieval.errors import InputError
from retrieval.types import Mention, RequestOptions, RetrieveRequest, with_options
from service.client.channel import Stubs
from service.client.reply import AnswerReply, IndexInfo, ReloadReply, Reply, ScoreReply
from service.errors import MESSAGE_TOO_LARGE, CallError
from service.wire.answers import answer_from_proto, answer_request_to_proto
from service.wire.indexes import (
    get_index_to_proto,
    index_from_proto,
    indexes_from_proto,
    list_indexes_to_proto,
    reload_from_proto,
    reload_index_to_proto,
)
from service.wire.replies import batch_reply_from_proto, reply_from_proto
from service.wire.requests import (
    batch_request_to_proto,
    link_reply_from_proto,
    link_request_to_proto,
    request_to_proto,
    stream_reply_from_proto,
    stream_request_to_proto,
)
from service.wire.rpc_status import error_from_status, status_from_bytes
from service.wire.scores import score_reply_from_proto, score_request_to_proto

READINESS = "genret.v1.RetrievalService"
LIVENESS = ""
ASK_AGAIN_S = 0.1
UNKNOWN_SERVICE = "SERVICE_UNKNOWN"
_LONGEST_S = 1e8  # some years; gRPC takes what it cannot count for the past
T_co = TypeVar("T_co", covariant=True)


@dataclass(frozen=True, slots=True)
class UnaryCall(Generic[T_co]):
    """One question, one answer.

    Attributes:
        method: Picks the stub's method.
        message: What is sent.
        parse: Makes the answer of the message that comes back and the call's request id.
    """

    method: Callable[[Stubs], Any]
    message: Any
    parse: Callable[[Any, str], T_co]


def seconds_of(timeout_s: float | None) -> float | None:
    """Return a deadline as gRPC takes it; None is none.

    Raises:
        InputError: it is no finite number: to gRPC it would have passed.
        CallError: it has passed; gRPC might still get an answer.
    """
    if timeout_s is None:
        return None
    if isinstance(timeout_s, bool) or not (isinstance(timeout_s, int | float) and math.isfinite(timeout_s)):
        raise InputError("timeout_s", f"must be a finite number of seconds, got {timeout_s!r}")
    if timeout_s <= 0:
        raise CallError("DEADLINE_EXCEEDED", f"no time is left for the call: {timeout_s:g} s")
    return min(float(timeout_s), _LONGEST_S)


def retrieve(request: RetrieveRequest, index: str) -> UnaryCall[Reply]:
    """Answer one query."""
    return UnaryCall(
        lambda stubs: stubs.retrieval.Retrieve,
        request_to_proto(request, index),
        lambda message, _: reply_from_proto(request.query, message),
    )


def retrieve_batch(requests: Sequence[RetrieveRequest], index: str) -> UnaryCall[list[Reply | CallError]]:
    """Answer several queries."""
    queries = [request.query for request in requests]
    return UnaryCall(
        lambda stubs: stubs.retrieval.BatchRetrieve,
        batch_request_to_proto(requests, index),
        lambda message, request_id: batch_reply_from_proto(queries, message, request_id),
    )


def link(
    mentions: Sequence[Mention], k: int, method: str, index: str, options: RequestOptions
) -> UnaryCall[list[Reply | CallError]]:
    """Link mentions, all with the same options.

    Raises:
        InputError: an option is out of range.
    """
    return UnaryCall(
        lambda stubs: stubs.retrieval.Link,
        link_request_to_proto(mentions, with_options(k, method, None, options), index),
        lambda message, request_id: link_reply_from_proto(mentions, message, request_id),
    )


def answer(request: AnswerRequest, index: str) -> UnaryCall[AnswerReply]:
    """Answer one query with JSON."""
    return UnaryCall(
        lambda stubs: stubs.retrieval.Answer,
        answer_request_to_proto(request, index),
        lambda message, _: answer_from_proto(request.query, message),
    )


def score(
    subject: str | Mention, titles: Sequence[str], prompt: str | None, index: str
) -> UnaryCall[ScoreReply]:
    """Score titles for one query.

    Raises:
        InputError: the query or a title cannot be used.
    """
    query = subject.mention if isinstance(subject, Mention) else subject
    return UnaryCall(
        lambda stubs: stubs.retrieval.Score,
        score_request_to_proto(subject, titles, prompt, index),
        lambda message, _: score_reply_from_proto(query, message),
    )


def list_indexes() -> UnaryCall[list[IndexInfo]]:
    """Describe every index."""
    return UnaryCall(
        lambda stubs: stubs.indexes.ListIndexes,
        list_indexes_to_proto(),
        lambda message, _: indexes_from_proto(message),
    )


def get_index(name: str) -> UnaryCall[IndexInfo]:
    """Describe one index."""
    return UnaryCall(
        lambda stubs: stubs.indexes.GetIndex,
        get_index_to_proto(name),
        lambda message, _: index_from_proto(message.index),
    )


def reload_index(name: str, force: bool) -> UnaryCall[ReloadReply]:
    """Serve the live version of an index."""
    return UnaryCall(
        lambda stubs: stubs.indexes.ReloadIndex,
        reload_index_to_proto(name, force),
        lambda message, _: reload_from_proto(message),
    )


def health(service: str) -> UnaryCall[str]:
    """Ask for the health of a service."""
    return UnaryCall(
        lambda stubs: stubs.health.Check,
        health_pb2.HealthCheckRequest(service=service),
        lambda message, _: status_name(message),
    )


def status_name(message: Any) -> str:
    """Return what a health check's answer says."""
    return str(health_pb2.HealthCheckResponse.ServingStatus.Name(message.status))


def watch_request() -> Any:
    """Return the request for every change of a server's readiness."""
    return health_pb2.HealthCheckRequest(service=READINESS)


def never_ready(address: str, timeout_s: float, request_id: str) -> CallError:
    """Return the error of a server that did not become ready in time."""
    return CallError(
        "DEADLINE_EXCEEDED", f"{address} was not ready within {timeout_s:g} s", request_id=request_id
    )


Answered = tuple[RetrieveRequest, Reply | CallError]


class Outstanding:
    """Names the queries of a stream and knows which are not answered. Belongs to one thread at a time.

    Args:
        index: Which index they ask.
        request_id: Name of the stream in the server's log.
    """

    def __init__(self, index: str, request_id: str) -> None:
        self._index = index
        self._request_id = request_id
        self._count = 0
        self._requests: dict[str, RetrieveRequest] = {}

    def __len__(self) -> int:
        return len(self._requests)

    def ask(self, request: RetrieveRequest) -> Any:
        """Take a query in; returns its message.

        Raises:
            TypeError: it is no query.
            ValueError: it cannot be sent.
        """
        if not isinstance(request, RetrieveRequest):
            raise TypeError(f"a stream takes RetrieveRequest, got {type(request).__name__}")
        name = str(self._count)
        message = stream_request_to_proto(name, request, self._index)
        self._count += 1
        self._requests[name] = request
        return message

    def answer(self, message: Any) -> Answered:
        """Take the query of an answer out; returns both.

        Raises:
            CallError: nobody asked for this answer.
        """
        request = self._requests.pop(message.id, None)
        if request is None:
            raise self._broken(f"the server answers a query it was not asked: {message.id!r}")
        return request, stream_reply_from_proto(request.query, message, self._request_id)

    def rest(self) -> list[RetrieveRequest]:
        """Return all that is left."""
        return list(self._requests.values())

    def unanswered(self) -> CallError:
        """Return the error of a server that ends a stream well and leaves queries without an answer."""
        return self._broken("the server ended the stream without answering everything")

    def _broken(self, what: str) -> CallError:
        return CallError("INTERNAL", what, request_id=self._request_id)


_DETAILS_KEY = "grpc-status-details-bin"
# What gRPC's asyncio says of a stream that the server ended while a message was on its way; the server's own
# status is lost then.
_SEND_FAILED = "Internal error from Core"
# How both sides of gRPC begin what they say about a message above a limit, on the way in and on the way out.
_TOO_LARGE = ("message larger than max", "message exceeds")


def failed_call(error: Any, address: str, timeout_s: float | None, request_id: str) -> CallError:
    """Return the error of a call.

    Args:
        error: A `grpc.RpcError` of a call, or a `grpc.aio.AioRpcError`.
        address: What was called.
        timeout_s: The call's deadline, seconds; None: it had none.
        request_id: Name of the call in the server's log.
    """
    for key, value in error.trailing_metadata() or ():
        status = status_from_bytes(value) if key == _DETAILS_KEY else None
        if status is not None:
            return error_from_status(status, request_id)
    code, details = error.code().name, str(error.details() or error.code().name)
    reason = ""
    if code == "INTERNAL" and details.startswith(_SEND_FAILED):
        # Why is told to whoever tries again.
        code, message = "UNAVAILABLE", f"{address} ended the stream while queries were being sent"
    elif code == "UNAVAILABLE":
        # grpc puts the reason last, behind the addresses it tried, in a list with brackets.
        message = f"no server answers at {address}: {details.rsplit(': ', 1)[-1].rstrip(']')}"
    elif code == "DEADLINE_EXCEEDED" and timeout_s is not None:
        message = f"no answer from {address} within {timeout_s:g} s"
    else:
        message = f"{address}: {details}"
        # Without ErrorInfo it is gRPC itself that is exhausted.
        if code == "RESOURCE_EXHAUSTED" and any(words in details.lower() for words in _TOO_LARGE):
            reason = MESSAGE_TOO_LARGE
    return CallError(code, message, reason=reason, request_id=request_id)
