"""The calls of both clients, their connection and its errors, and the bookkeeping of a stream of queries.

The blocking and the asyncio client inherit every call from `Client` and add only the waiting.
"""

from __future__ import annotations

import inspect
import json
import math
import socket
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Concatenate, Generic, ParamSpec, Protocol, TypeVar, Unpack, cast, overload

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from genret.retrieval.answers.answer_types import AnswerRequest
from genret.retrieval.arguments import check_count, check_known, sequence
from genret.retrieval.complete_types import CompleteRequest, ModelCompleteOptions
from genret.retrieval.errors import InputError
from genret.retrieval.types import Mention, MethodOptions, RequestOptions, RetrieveRequest, with_options
from genret.service.call import PRIORITY_KEY, REQUEST_ID_KEY, Priority, sane_request_id
from genret.service.client.client_options import CallOptions, ClientOptions, OptionChanges
from genret.service.client.reply import (
    AnswerReply,
    CompleteReply,
    IndexInfo,
    ReloadReply,
    Reply,
    ScoreReply,
)
from genret.service.errors import MESSAGE_TOO_LARGE, CallError
from genret.service.pb.genret.v1 import index_service_pb2 as index_pb
from genret.service.pb.genret.v1 import index_service_pb2_grpc as index_grpc
from genret.service.pb.genret.v1 import retrieval_service_pb2 as pb
from genret.service.pb.genret.v1 import retrieval_service_pb2_grpc as pb_grpc
from genret.service.wire.replies import (
    answer_from_proto,
    batch_reply_from_proto,
    complete_reply_from_proto,
    index_from_proto,
    outcome_from_proto,
    reload_from_proto,
    reply_from_proto,
    score_reply_from_proto,
)
from genret.service.wire.requests import (
    answer_request_to_proto,
    link_request_to_proto,
    options_to_proto,
    request_to_proto,
    score_request_to_proto,
)
from genret.service.wire.rpc_status import DETAILS_KEY, error_from_status, status_from_bytes

READINESS = "genret.v1.RetrievalService"
LIVENESS = ""
ASK_AGAIN_S = 0.1
UNKNOWN_SERVICE = "SERVICE_UNKNOWN"
_LONGEST_S = 1e8  # some years; gRPC takes a larger deadline for one in the past
Answered = tuple[RetrieveRequest, Reply | CallError]
P = ParamSpec("P")
T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


@dataclass(eq=False)
class UnaryCall(Generic[T]):
    """One message to the server and its answer. Raises InputError, or CallError for a passed deadline.

    `parse` converts the reply. `not_found` is the answer to NOT_FOUND, if any.
    """

    client: Client
    options: CallOptions
    method: Any
    message: Any
    parse: Callable[[Any], T]
    not_found: T | None = None

    def __post_init__(self) -> None:
        given, self.request_id = _checked(self.options)
        self.timeout_s = self.client.options.timeout_s if given is None else given

    def send(self) -> Any:
        """Send the message; returns the reply, with `grpc.aio` an awaitable of it."""
        call_metadata = self.client.metadata(self.request_id)
        return self.method(self.message, timeout=self.timeout_s, metadata=call_metadata)

    def recover(self, error: grpc.RpcError) -> T:
        """Return the answer that stands for an error of gRPC, or raise CallError."""
        failure = failed_call(error, self.client.address, self.timeout_s, self.request_id)
        if failure.code == "NOT_FOUND" and self.not_found is not None:
            return self.not_found
        raise failure from error


class _Method(Protocol[P, T_co]):
    """A call as type checkers see it: a client used with `async with` returns awaitables of its answers."""

    @overload
    def __get__(self, client: AbstractContextManager[Any, Any], owner: Any) -> Callable[P, T_co]: ...
    @overload
    def __get__(
        self, client: AbstractAsyncContextManager[Any, Any], owner: Any
    ) -> Callable[P, Coroutine[Any, Any, T_co]]: ...


_CALLS: dict[str, Callable[..., UnaryCall[Any]]] = {}


def _call(prepare: Callable[Concatenate[Any, P], UnaryCall[T]]) -> _Method[P, T]:
    _CALLS[prepare.__name__] = prepare
    return cast(_Method[P, T], prepare)


class Client:
    """A connection to a server, and its calls. Nothing connects before the first call.

    Every method takes `timeout_s` and `request_id`, see `CallOptions`, and raises CallError when the server
    refuses the call or cannot be reached.

    Args:
        address: `host:port` of the server.
        options: Settings of the connection.
        **changes: Attributes of `ClientOptions` that differ from `options`.

    Raises:
        InputError: the address or an option cannot be used; it is named.
    """

    _transport: ClassVar[Any]  # `grpc` or `grpc.aio`

    def __init_subclass__(
        cls, ask: Callable[[Callable[..., UnaryCall[Any]]], Callable[..., Any]] | None = None
    ) -> None:
        """Make a client's methods of the calls: `ask` wraps a function that prepares one."""
        if ask is None:
            return
        for name, prepare in _CALLS.items():
            method: Any = ask(prepare)
            answer = prepare.__annotations__["return"].removeprefix("UnaryCall[").removesuffix("]")
            method.__signature__ = inspect.signature(prepare).replace(return_annotation=answer)
            setattr(cls, name, method)

    def __init__(
        self, address: str, options: ClientOptions | None = None, **changes: Unpack[OptionChanges]
    ) -> None:
        self.address = address
        self.options = replace(options or ClientOptions(), **changes)
        self.options.check(address)
        self._is_closed = False
        self._channel = _open_channel(self._transport, address, self.options)
        retrieval: Any = pb_grpc.RetrievalServiceStub  # generated, so untyped
        indexes: Any = index_grpc.IndexServiceStub
        self._retrieval = retrieval(self._channel)
        self._indexes = indexes(self._channel)
        self._health = health_pb2_grpc.HealthStub(self._channel)

    def metadata(self, request_id: str) -> tuple[tuple[str, str], ...]:
        """Return the metadata of a call; CallError once the client is closed."""
        if self._is_closed:
            raise CallError("CANCELLED", f"this client of {self.address} is closed; open another one")
        token = self.options.token
        authorization = () if token is None else (("authorization", f"Bearer {token}"),)
        named = self.options.priority
        priority = () if named == Priority.INTERACTIVE.value else ((PRIORITY_KEY, named),)
        return (*self.options.metadata, (REQUEST_ID_KEY, request_id), *priority, *authorization)

    @_call
    def retrieve(
        self, request: RetrieveRequest, index: str = "", **call: Unpack[CallOptions]
    ) -> UnaryCall[Reply]:
        """Answer one query."""
        message = request_to_proto(request, index)
        parse = partial(reply_from_proto, request.query)
        return UnaryCall(self, call, self._retrieval.Retrieve, message, parse)

    @_call
    def retrieve_batch(
        self, requests: Sequence[RetrieveRequest], index: str = "", **call: Unpack[CallOptions]
    ) -> UnaryCall[list[Reply | CallError]]:
        """Answer several queries in one call, in order; a query's own error takes the place of its reply."""
        requests = sequence("requests", requests, RetrieveRequest)
        message = pb.BatchRetrieveRequest(requests=[request_to_proto(one, index) for one in requests])
        queries = [request.query for request in requests]
        return self._batch(call, self._retrieval.BatchRetrieve, message, queries)

    @_call
    def link(
        self,
        mentions: Sequence[Mention],
        k: int = 1,
        method: str | MethodOptions = "auto",
        *,
        index: str = "",
        call: CallOptions | None = None,
        **options: Unpack[RequestOptions],
    ) -> UnaryCall[list[Reply | CallError]]:
        """Link mentions to entities, in order, all with the same options; see `RetrieveRequest`."""
        mentions = sequence("mentions", mentions, Mention)
        texts = [mention.mention for mention in mentions]
        message = link_request_to_proto(mentions, with_options(k, method, None, options), index)
        return self._batch(call or {}, self._retrieval.Link, message, texts)

    def _batch(
        self, options: CallOptions, method: Any, message: Any, queries: Sequence[str]
    ) -> UnaryCall[list[Reply | CallError]]:
        def parse(reply: Any) -> list[Reply | CallError]:
            return batch_reply_from_proto(queries, reply, call.request_id)

        call = UnaryCall(self, options, method, message, parse)
        return call

    @_call
    def answer(
        self, request: AnswerRequest, index: str = "", **call: Unpack[CallOptions]
    ) -> UnaryCall[AnswerReply]:
        """Answer one query with JSON."""
        message = answer_request_to_proto(request, index)
        parse = partial(answer_from_proto, request.query)
        return UnaryCall(self, call, self._retrieval.Answer, message, parse)

    @_call
    def score(
        self,
        subject: str | Mention,
        titles: Sequence[str],
        *,
        prompt: str | None = None,
        index: str = "",
        **call: Unpack[CallOptions],
    ) -> UnaryCall[ScoreReply]:
        """Score 1 to 10,000 titles for one query, in order: to rerank what another engine has found.

        They may be in the catalogue or not. A mention has its own `prompt`; None is the model's default one.
        InputError: the query or a title cannot be used.
        """
        query = subject.mention if isinstance(subject, Mention) else subject
        message = score_request_to_proto(subject, titles, prompt, index)
        return UnaryCall(self, call, self._retrieval.Score, message, partial(score_reply_from_proto, query))

    @_call
    def complete(
        self,
        prefix: str,
        k: int = 10,
        *,
        options: ModelCompleteOptions | None = None,
        index: str = "",
        **call: Unpack[CallOptions],
    ) -> UnaryCall[CompleteReply]:
        """Return the entities that a typed prefix may become; `options` as of `Retriever.complete`.

        InputError: the prefix or an option cannot be used.
        """
        request = CompleteRequest(prefix, k, **(options or {}))
        fields = options_to_proto(request, pb.CompleteRequest)
        message = pb.CompleteRequest(index=index, prefix=prefix, **fields)
        parse = partial(complete_reply_from_proto, prefix)
        return UnaryCall(self, call, self._retrieval.Complete, message, parse)

    @_call
    def list_indexes(self, **call: Unpack[CallOptions]) -> UnaryCall[list[IndexInfo]]:
        """Return the served indexes, the default index first."""
        message = index_pb.ListIndexesRequest()
        return UnaryCall(
            self,
            call,
            self._indexes.ListIndexes,
            message,
            lambda reply: [*map(index_from_proto, reply.indexes)],
        )

    @_call
    def get_index(self, name: str = "", **call: Unpack[CallOptions]) -> UnaryCall[IndexInfo]:
        """Return the index of a name, by default the default index."""
        message = index_pb.GetIndexRequest(name=name)
        return UnaryCall(
            self, call, self._indexes.GetIndex, message, lambda reply: index_from_proto(reply.index)
        )

    @_call
    def reload_index(
        self, name: str = "", *, force: bool = False, **call: Unpack[CallOptions]
    ) -> UnaryCall[ReloadReply]:
        """Have the live version of an index served; returns when it is, which may take minutes.

        With `force` it is loaded even if it is served already.
        """
        message = index_pb.ReloadIndexRequest(name=name, force=force)
        return UnaryCall(self, call, self._indexes.ReloadIndex, message, reload_from_proto)

    @_call
    def health(self, service: str = READINESS, **call: Unpack[CallOptions]) -> UnaryCall[str]:
        """Return the health of a service of the server: "SERVING", "NOT_SERVING" or "SERVICE_UNKNOWN"."""
        message = health_pb2.HealthCheckRequest(service=service)
        return UnaryCall(self, call, self._health.Check, message, status_name, not_found=UNKNOWN_SERVICE)

    def _watch_readiness(self, end: float, request_id: str) -> Any:
        """Start the call that reports changes of readiness until `end`, `time.monotonic()`."""
        return self._health.Watch(
            health_pb2.HealthCheckRequest(service=READINESS),
            timeout=max(0.0, end - time.monotonic()),
            metadata=self.metadata(request_id),
            wait_for_ready=True,
        )

    def _check_unready(self, error: grpc.RpcError, timeout_s: float, request_id: str) -> None:
        """Raise CallError for the end of a readiness call, unless the server may be asked again."""
        failure = failed_call(error, self.address, None, request_id)
        if failure.code == "DEADLINE_EXCEEDED":
            text = f"{self.address} was not ready within {timeout_s:g} s"
            raise CallError(failure.code, text, request_id=request_id) from error
        if failure.code != "UNAVAILABLE":
            raise failure from error


class Stream:
    """One stream of queries: its call, and the unanswered queries. Used by one thread at a time.

    `options` are the deadline of the whole stream, by default none, and its request id. `error` is that of
    the caller's iterable, which ended the sending.
    """

    def __init__(self, client: Client, index: str, max_in_flight: int, options: CallOptions) -> None:
        check_count("max_in_flight", max_in_flight, 1)
        self._client = client
        self._index = index
        self._timeout_s, self._request_id = _checked(options)
        self._count = 0
        self._unanswered: dict[str, RetrieveRequest] = {}
        self.error: BaseException | None = None

    def start(self, messages: Any) -> Any:
        """Start and return gRPC's call with an iterator of messages."""
        call_metadata = self._client.metadata(self._request_id)
        retrieve_stream = self._client._retrieval.RetrieveStream
        return retrieve_stream(messages, timeout=self._timeout_s, metadata=call_metadata)

    def failed(self, error: grpc.RpcError) -> CallError:
        """Return the client's error for one of gRPC."""
        return failed_call(error, self._client.address, self._timeout_s, self._request_id)

    def ask(self, request: RetrieveRequest) -> Any:
        """Register a query and return its message; raises InputError or ValueError if it cannot be sent."""
        name = str(self._count)
        message = pb.RetrieveStreamRequest(id=name, request=request_to_proto(request, self._index))
        self._count += 1
        self._unanswered[name] = request
        return message

    def answer(self, message: Any) -> Answered:
        """Take out the query of an answer and return both; raises CallError for an unknown one."""
        request = self._unanswered.pop(message.id, None)
        if request is None:
            raise self._broken(f"the server answers a query it was not asked: {message.id!r}")
        return request, outcome_from_proto(request.query, message, self._request_id)

    def end(self, failure: CallError | None) -> Iterator[Answered]:
        """Yield every unanswered query with the error that ended the stream, then raise it.

        `failure` is the call's error; None if the server ended it without one.
        """
        if self._unanswered and failure is None:
            failure = self._broken("the server ended the stream without answering everything")
        if failure is not None:
            for request in list(self._unanswered.values()):
                yield request, failure
            raise failure
        if self.error is not None:
            raise self.error

    def _broken(self, what: str) -> CallError:
        return CallError("INTERNAL", what, request_id=self._request_id)


def _checked(options: CallOptions) -> tuple[float | None, str]:
    """Return a call's deadline as gRPC takes it, None without one, and its request id.

    Raises:
        InputError: there is no such option; the deadline is no finite number, which gRPC would take for a
            passed one; the id is malformed.
        CallError: the deadline has passed; gRPC might still get an answer.
    """
    told = "is no option of a call, and those of a query stand in its request"
    check_known(options, CallOptions.__annotations__, told)
    timeout_s, request_id = options.get("timeout_s"), request_id_of(options.get("request_id", ""))
    if timeout_s is None:
        return None, request_id
    if isinstance(timeout_s, bool) or not (isinstance(timeout_s, int | float) and math.isfinite(timeout_s)):
        raise InputError("timeout_s", f"must be a finite number of seconds, got {timeout_s!r}")
    if timeout_s <= 0:
        raise CallError("DEADLINE_EXCEEDED", f"no time is left for the call: {timeout_s:g} s")
    return min(float(timeout_s), _LONGEST_S), request_id


def request_id_of(given: str) -> str:
    """Return the id of a call: the given one, or a new one; raises InputError for a malformed one."""
    sane = sane_request_id(given)
    if given and sane != given:
        raise InputError("request_id", f"must be 1 to 128 of A-Z a-z 0-9 . _ : / -, got {given!r}")
    return sane


def status_name(message: Any) -> str:
    """Return the status in a health check's answer."""
    return str(health_pb2.HealthCheckResponse.ServingStatus.Name(message.status))


# grpc.aio's text for a stream that the server ended while a message was on its way; the server's own status
# is lost then.
SEND_FAILED = "Internal error from Core"
# Beginnings of gRPC's texts about a message above a limit, on the way in and on the way out.
_TOO_LARGE = ("message larger than max", "message exceeds")
_NAMES = "tls_ca (--tls-ca) names the authorities to trust, tls_server_name what the server is called there"
_HTTP = "a port of HTTP was named, and the port of gRPC is wanted"
# What to do where no server answers, by words of gRPC's, of which the first count.
_ADVICE = {
    "wrong_version_number": "it is asked without tls (--tls) and certificates",
    "certificate": _NAMES,
    "hostname verification": _NAMES,
    "something": "it may encrypt (tls, --tls), or not; 127.0.0.1 in place of localhost tells the reason",
    "socket closed": "it may encrypt (tls, --tls), or want a certificate of its clients (tls_certificate)",
    "http1.x": _HTTP,
    "http/2": _HTTP,
    "missing selected alpn": _HTTP,
    "": "start one with: genret serve INDEX; take its gRPC port, not HTTP; tls (--tls) only if it encrypts",
}


def failed_call(error: Any, address: str, timeout_s: float | None, request_id: str) -> CallError:
    """Return the client's error for a `grpc.RpcError` or `grpc.aio.AioRpcError` of a call.

    `timeout_s` is the call's deadline, seconds; None without one.
    """
    for key, value in error.trailing_metadata() or ():
        status = status_from_bytes(value) if key == DETAILS_KEY else None
        if status is not None:
            return error_from_status(status, request_id)
    code, details = error.code().name, str(error.details() or error.code().name).removesuffix(": OK")
    reason = ""
    if code == "INTERNAL" and details.startswith(SEND_FAILED):
        # Another try gets the reason.
        code, message = "UNAVAILABLE", f"{address} ended the stream while queries were being sent"
    elif details == code == "CANCELLED":  # by the server: one that stops resets what it has not begun
        code, message = "UNAVAILABLE", f"{address} ended the call"
    elif code == "UNAVAILABLE":
        # grpc puts the reason last, after the addresses it tried, in a list with brackets.
        is_plain, said = "WRONG_VERSION_NUMBER" in details, details.rsplit(": ", 1)[-1].rstrip("].")
        if "refused" in said and _listens(address):
            details = said = "something listens there, and did not answer"
        advice = next(text for words, text in _ADVICE.items() if words in details.lower())
        message = f"no server answers at {address}: {'it does not encrypt' if is_plain else said}; {advice}"
    elif code == "DEADLINE_EXCEEDED" and timeout_s is not None:
        message = f"no answer from {address} within {timeout_s:g} s"
    else:
        message = f"{address}: {details}"
        # Without ErrorInfo gRPC's own limit was passed.
        if code == "RESOURCE_EXHAUSTED" and any(words in details.lower() for words in _TOO_LARGE):
            reason = MESSAGE_TOO_LARGE
    return CallError(code, message, reason=reason, request_id=request_id)


def _listens(address: str) -> bool:
    """Return whether a port of localhost is open, though gRPC may tell of the one of two that refuses."""
    host, _, port = address.rpartition(":")
    with suppress(OSError, ValueError):
        if host == "localhost":
            socket.create_connection((host, int(port)), timeout=1).close()
            return True
    return False


_SERVICE_CONFIG = {
    "methodConfig": [
        {
            "name": [{"service": "genret.v1.RetrievalService"}, {"service": "genret.v1.IndexService"}],
            "retryPolicy": {
                "maxAttempts": 4,
                "initialBackoff": "0.1s",
                "maxBackoff": "1s",
                "backoffMultiplier": 2,
                "retryableStatusCodes": ["UNAVAILABLE"],
            },
        }
    ]
}
_KEEPALIVE_TIMEOUT_MS = 10_000
# gRPC's own backoff goes from 1 s to 2 minutes: a client that waits for a server's start would notice late.
_FIRST_BACKOFF_MS, _LAST_BACKOFF_MS = 100, 5_000


def _open_channel(transport: Any, address: str, options: ClientOptions) -> Any:
    """Open a channel of `transport`, `grpc` or `grpc.aio`; InputError for an unreadable PEM file."""
    compression = grpc.Compression.Gzip if options.gzip else grpc.Compression.NoCompression
    arguments = {"options": _arguments(options), "compression": compression}
    if options.encrypted:
        return transport.secure_channel(address, _credentials(options), **arguments)
    return transport.insecure_channel(address, **arguments)


def _arguments(options: ClientOptions) -> list[tuple[str, str | int]]:
    arguments: list[tuple[str, str | int]] = [
        ("grpc.service_config", json.dumps(_SERVICE_CONFIG)),
        ("grpc.max_receive_message_length", options.max_reply_bytes),
        ("grpc.initial_reconnect_backoff_ms", _FIRST_BACKOFF_MS),
        ("grpc.min_reconnect_backoff_ms", _FIRST_BACKOFF_MS),
        ("grpc.max_reconnect_backoff_ms", _LAST_BACKOFF_MS),
    ]
    if options.tls_server_name is not None:
        arguments.append(("grpc.ssl_target_name_override", options.tls_server_name))
    if options.keepalive_s is not None:
        arguments.append(("grpc.keepalive_time_ms", int(options.keepalive_s * 1000)))
        arguments.append(("grpc.keepalive_timeout_ms", _KEEPALIVE_TIMEOUT_MS))
    return arguments


def _credentials(options: ClientOptions) -> grpc.ChannelCredentials:
    return grpc.ssl_channel_credentials(
        root_certificates=_pem("tls_ca", options.tls_ca),
        private_key=_pem("tls_key", options.tls_key, "PRIVATE KEY"),
        certificate_chain=_pem("tls_certificate", options.tls_certificate),
    )


def _pem(name: str, path: Path | None, kind: str = "CERTIFICATE") -> bytes | None:
    if path is None:
        return None
    try:
        text = Path(path).read_bytes()
    except OSError as error:
        raise InputError(name, f"{path}: {error.strerror or error}") from error
    if f"{kind}-----".encode() not in text:
        raise InputError(name, f"{path}: not a PEM file with a {kind.lower()}")
    return text
