"""Converts replies between protobuf messages and values: answers, scores, explanations, indexes.

Fields are converted by the descriptor of the message, under the names that `wire_name` gives them; only what
has no field of its own is written here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple, replace
from functools import cache, partial
from typing import Any, TypeVar, get_args, get_type_hints

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from genret.retrieval.answers.answer_types import AnswerResult
from genret.retrieval.complete_types import CompleteResult
from genret.retrieval.score_types import ScoreResult, TitleScore
from genret.retrieval.tables import wire_names
from genret.retrieval.types import Candidate, KvShare, MetadataValue, RetrievalResult, Timings
from genret.service.client.reply import (
    AnswerReply,
    CompleteReply,
    IndexInfo,
    IndexRef,
    ReloadReply,
    Reply,
    ScoreReply,
)
from genret.service.errors import CallError
from genret.service.pb.genret.v1 import index_service_pb2 as index_pb
from genret.service.pb.genret.v1 import retrieval_service_pb2 as pb
from genret.service.wire.requests import numbers_of, words_of
from genret.service.wire.rpc_status import error_from_status

T = TypeVar("T")
_INT64 = range(-(2**63), 2**63)
_METADATA_VALUE = pb.MetadataValue.DESCRIPTOR.full_name


def to_proto(value: Any, kind: Any, **more: Any) -> Any:
    """Return a message of a type with the fields that a value has under their names, and with `more`.

    What is None stays unset.
    """
    found = {}
    owner: Any = type(value)
    for name, attribute, write in _writers(kind, owner):
        one = more[name] if name in more else getattr(value, attribute, None)
        if one is not None:
            found[name] = write(one)
    return kind(**found)


def from_proto(message: Message, owner: Callable[..., T], **more: Any) -> T:
    """Return a dataclass of the fields that a message has under its names (None if unset), and of `more`."""
    kind: Any = type(message)
    found: dict[str, Any] = {}
    for name, wire, may_be_unset, read in _readers(kind, owner):
        if name not in more:
            is_set = not may_be_unset or message.HasField(wire)
            found[name] = read(getattr(message, wire)) if is_set else None
    return owner(**found, **more)


@cache
def _writers(kind: Any, owner: Any) -> Sequence[tuple[str, str, Callable[[Any], Any]]]:
    names = _attributes(owner)
    fields = kind.DESCRIPTOR.fields
    return [(field.name, names.get(field.name, field.name), _writer(field)) for field in fields]


@cache
def _readers(kind: Any, owner: Any) -> Sequence[tuple[str, str, bool, Callable[[Any], Any]]]:
    hints, names = get_type_hints(owner), _attributes(owner)
    shared = [(names[field.name], field) for field in kind.DESCRIPTOR.fields if field.name in names]
    return [(name, field.name, field.has_presence, _reader(field, hints[name])) for name, field in shared]


def _attributes(owner: Any) -> Mapping[str, str]:
    """Return the names of a dataclass's fields by those that messages give them."""
    known = wire_names(owner) if hasattr(owner, "__dataclass_fields__") else {}
    return {wire: name for name, wire in known.items()}


def _writer(field: FieldDescriptor) -> Callable[[Any], Any]:
    """Return what converts the library's value of a field."""
    message = field.message_type
    one: Callable[[Any], Any] = _same
    if field.enum_type is not None:
        one = numbers_of(field.enum_type).__getitem__
    elif message is not None and message.GetOptions().map_entry:
        write = _writer(message.fields_by_name["value"])
        return lambda values: {name: write(value) for name, value in values.items()}
    elif message is not None and message.full_name == _METADATA_VALUE:
        one = _metadata_to_proto
    elif message is not None:
        kind = GetMessageClass(message)
        one = lambda value: value if isinstance(value, Message) else to_proto(value, kind)  # noqa: E731
    return (lambda values: [one(value) for value in values]) if field.is_repeated else one


def _reader(field: FieldDescriptor, hint: Any) -> Callable[[Any], Any]:
    """Return what converts the message's value of a field into one of the type of a dataclass's field."""
    message = field.message_type
    one: Callable[[Any], Any] = _same
    if field.enum_type is not None:
        one = words_of(field.enum_type).__getitem__
    elif message is not None and message.GetOptions().map_entry:
        read = _reader(message.fields_by_name["value"], None)
        return lambda values: {name: read(value) for name, value in sorted(values.items())}
    elif message is not None and message.full_name == _METADATA_VALUE:
        one = _metadata_from_proto
    elif message is not None:
        owner = next(iter(get_args(hint)), hint)  # of `Owner | None` and `tuple[Owner, ...]`
        one = lambda value: from_proto(value, owner)  # noqa: E731
    return (lambda values: tuple(map(one, values))) if field.is_repeated else one


def _same(value: Any) -> Any:
    return value


def _metadata_to_proto(value: MetadataValue) -> pb.MetadataValue:
    if value is None:
        return pb.MetadataValue()
    if isinstance(value, bool):  # before int: a bool is one
        return pb.MetadataValue(bool_value=value)
    if isinstance(value, str):
        return pb.MetadataValue(string_value=value)
    is_wide = isinstance(value, float) or value not in _INT64
    return pb.MetadataValue(double_value=value) if is_wide else pb.MetadataValue(int_value=int(value))


def _metadata_from_proto(message: pb.MetadataValue) -> MetadataValue:
    kind = message.WhichOneof("kind")
    value: MetadataValue = None if kind is None else getattr(message, kind)
    return value


def _answered(kind: Any, result: Any, index: IndexInfo, queue_ms: float, total_ms: float) -> Any:
    """Return the reply of a result, with what replies of all kinds have: times, milliseconds, and index."""
    timings = to_proto(result.timings, pb.Timings, queue_ms=queue_ms, total_ms=total_ms)
    return to_proto(result, kind, timings=timings, index=index)


# The wire's forms of JSON answers and of completions, which have nothing of their own.
answer_to_proto: Callable[[AnswerResult, IndexInfo, float, float], pb.AnswerResponse]
answer_to_proto = partial(_answered, pb.AnswerResponse)
complete_reply_to_proto: Callable[[CompleteResult, IndexInfo, float, float], pb.CompleteResponse]
complete_reply_to_proto = partial(_answered, pb.CompleteResponse)


def _reply(
    kind: Callable[..., T],
    query: str,
    message: Any,
    result: Callable[..., Any],
    asked: str = "query",
    **more: Any,
) -> T:
    """Return the client's reply of a message; the total time of its result is the model's."""
    timings = from_proto(message.timings, Timings, total_ms=0.0)
    timings = replace(timings, total_ms=sum(astuple(timings)))
    kv = from_proto(message.kv_usage, KvShare)
    found = from_proto(message, result, timings=timings, kv=kv, **{asked: query}, **more)
    index = from_proto(message.index, IndexRef)
    return kind(found, message.timings.queue_ms, message.timings.total_ms, index)


def reply_to_proto(
    result: RetrievalResult, index: IndexInfo, queue_ms: float, total_ms: float
) -> pb.RetrieveResponse:
    """Return the wire's form of an answer; times are milliseconds."""
    message: pb.RetrieveResponse = _answered(pb.RetrieveResponse, result, index, queue_ms, total_ms)
    message.finish_reason = pb.FINISH_REASON_NO_MATCH if result.no_match else pb.FINISH_REASON_OK
    for rank, candidate in enumerate(message.candidates, start=1):
        candidate.rank = rank
    return message


def reply_from_proto(query: str, message: pb.RetrieveResponse) -> Reply:
    """Return the library's form of an answer to `query`."""
    return _reply(
        Reply,
        query,
        message,
        RetrievalResult,
        method=words_of(pb.RetrievalMethod.DESCRIPTOR)[message.method] if message.method else "auto",
        candidates=tuple(
            # Shares by their size: a map of the wire has no order.
            from_proto(
                one, Candidate, shares=dict(sorted(one.shares.items(), key=lambda s: (-abs(s[1]), s[0])))
            )
            for one in message.candidates
        ),
    )


def outcome_from_proto(query: str, message: Any, request_id: str) -> Reply | CallError:
    """Return the answer to `query`, or its error, from an item of a batch or a stream."""
    if message.WhichOneof("outcome") == "response":
        return reply_from_proto(query, message.response)
    return error_from_status(message.error, request_id)


def batch_reply_from_proto(
    queries: Sequence[str], message: pb.BatchRetrieveResponse | pb.LinkResponse, request_id: str = ""
) -> list[Reply | CallError]:
    """Return the answers and errors of a batch, in the order of its queries."""
    return [
        outcome_from_proto(query, result, request_id)
        for query, result in zip(queries, message.results, strict=True)
    ]


def answer_from_proto(query: str, message: pb.AnswerResponse) -> AnswerReply:
    """Return the library's form of a JSON answer to `query`."""
    method = words_of(pb.AnswerMethod.DESCRIPTOR).get(message.method, "greedy")
    return _reply(AnswerReply, query, message, AnswerResult, method=method)


def score_reply_to_proto(
    result: ScoreResult, index: IndexInfo, queue_ms: float, total_ms: float
) -> pb.ScoreResponse:
    """Return the wire's form of scores; times are milliseconds."""
    message: pb.ScoreResponse = _answered(pb.ScoreResponse, result, index, queue_ms, total_ms)
    for score in message.scores:
        if not score.HasField("logprob"):
            score.ClearField("probability")
    return message


def score_reply_from_proto(query: str, message: pb.ScoreResponse) -> ScoreReply:
    """Return the library's form of scores of titles for `query`."""
    scores = tuple(from_proto(one, TitleScore, probability=one.probability) for one in message.scores)
    return _reply(ScoreReply, query, message, ScoreResult, scores=scores)


def complete_reply_from_proto(prefix: str, message: pb.CompleteResponse) -> CompleteReply:
    """Return the library's form of the completions of a prefix."""
    return _reply(CompleteReply, prefix, message, CompleteResult, "prefix")


def index_to_proto(index: IndexInfo, is_default: bool) -> index_pb.Index:
    """Return the wire's form of an index description."""
    columns = [index_pb.Column(name=name, type=kind) for name, kind in index.columns]
    message: index_pb.Index = to_proto(
        index, index_pb.Index, is_default=is_default, columns=columns, loaded_at=None
    )
    if index.loaded_at:
        message.loaded_at.FromMilliseconds(int(index.loaded_at * 1000))
    return message


def index_from_proto(message: index_pb.Index) -> IndexInfo:
    """Return the client's form of an index description."""
    at = message.loaded_at
    loaded_at = at.seconds + at.nanos / 1e9 if message.HasField("loaded_at") else None
    columns = tuple((column.name, column.type) for column in message.columns)
    return from_proto(message, IndexInfo, loaded_at=loaded_at, columns=columns)


def reload_from_proto(message: index_pb.ReloadIndexResponse) -> ReloadReply:
    """Return the client's form of a reload's outcome."""
    return from_proto(message, ReloadReply, index=index_from_proto(message.index))


def index_of(reply: Any) -> tuple[str, str]:
    """Return name and version of the index that answered; empty if there is no single one."""
    replies = [item.response for item in reply.results] if hasattr(reply, "results") else [reply]
    indexes = {(one.index.name, one.index.version) for one in replies if hasattr(one, "index")}
    named = [index for index in indexes if index[0]]  # an item that failed has none
    return named[0] if len(named) == 1 else ("", "")
