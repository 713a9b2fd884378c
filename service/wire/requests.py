"""Converts queries between protobuf messages and the library's values: alone, as mentions, and in streams."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from genret.decoding.errors import PromptTooLongError
from genret.retrieval.errors import InputError
from genret.retrieval.types import Mention, RetrieveRequest
from genret.service.pb.genret.v1 import index_service_pb2 as index_pb
from genret.service.pb.genret.v1 import retrieval_service_pb2 as pb
from genret.service.wire.fields import error_on_wire, options_from_proto, options_to_proto


def request_from_proto(message: pb.RetrieveRequest) -> RetrieveRequest:
    """Return the library's form of a request; raises InputError for a field out of range."""
    options = options_from_proto(message, RetrieveRequest)
    try:
        return RetrieveRequest(message.query, **options)
    except InputError as error:
        raise request_error(error) from None


def request_error(error: InputError) -> InputError:
    """Return an error with the message's name of the field."""
    return error_on_wire(error, RetrieveRequest)


def request_to_proto(request: RetrieveRequest, index: str = "") -> pb.RetrieveRequest:
    """Return the wire's form of a request."""
    options = options_to_proto(request, pb.RetrieveRequest)
    return pb.RetrieveRequest(index=index, query=request.query, **options)


def batch_request_to_proto(requests: Sequence[RetrieveRequest], index: str = "") -> pb.BatchRetrieveRequest:
    """Return the wire's form of several requests to one index."""
    return pb.BatchRetrieveRequest(requests=[request_to_proto(request, index) for request in requests])


_PLACEHOLDER = "-"
_DEFAULT_K = 1
# Options that each mention, or the whole call, has itself.
_OWN = ("index", "query", "prompt_template")
_MENTION_FIELDS = ("mention", "left", "right")


def link_options_from_proto(message: pb.LinkRequest) -> RetrieveRequest:
    """Return the options for every mention, with a placeholder as query; raises InputError."""
    options = pb.RetrieveRequest()
    options.CopyFrom(message.options)
    for name in _OWN:
        if getattr(options, name):
            raise InputError(f"options.{name}", "must be empty in the options of mentions")
    options.query = _PLACEHOLDER
    if not options.HasField("k"):
        options.k = _DEFAULT_K
    try:
        return request_from_proto(options)
    except InputError as error:
        raise InputError(f"options.{error.field}", error.message) from None


def mention_from_proto(message: pb.Mention) -> Mention:
    """Return the library's form of a mention."""
    return Mention(message.mention, message.left, message.right)


def mention_error(error: Exception) -> Exception:
    """Return the error of one mention with the message's names of fields."""
    if isinstance(error, PromptTooLongError):
        return InputError("mention", str(error))
    if not isinstance(error, InputError) or error.field in _MENTION_FIELDS:
        return error
    return InputError("mention" if error.field == "query" else f"options.{error.field}", error.message)


def link_request_to_proto(
    mentions: Sequence[Mention], options: RetrieveRequest, index: str = ""
) -> pb.LinkRequest:
    """Return the wire's form of mentions with their options; the query of `options` is not sent."""
    asked = request_to_proto(options)
    asked.query = ""
    return pb.LinkRequest(
        index=index,
        mentions=[pb.Mention(mention=m.mention, left=m.left, right=m.right) for m in mentions],
        options=asked,
    )


MAX_ID_BYTES = 256


def check_stream_id(name: str) -> None:
    """Refuse an id that is too long, by InputError."""
    size = len(name.encode())
    if size > MAX_ID_BYTES:
        raise InputError("id", f"must be at most {MAX_ID_BYTES} bytes, got {size}")


def stream_request_to_proto(name: str, request: RetrieveRequest, index: str = "") -> pb.RetrieveStreamRequest:
    """Return the wire's form of a query of a stream."""
    return pb.RetrieveStreamRequest(id=name, request=request_to_proto(request, index))


_QUERIES: dict[type, Callable[[Any], Sequence[str]]] = {
    pb.RetrieveRequest: lambda m: (m.query,),
    pb.AnswerRequest: lambda m: (m.query,),
    pb.ScoreRequest: lambda m: (m.mention.mention if m.HasField("mention") else m.query,),
    pb.RetrieveStreamRequest: lambda m: (m.request.query,),
    pb.BatchRetrieveRequest: lambda m: [item.query for item in m.requests],
    pb.LinkRequest: lambda m: [item.mention for item in m.mentions],
}
_INDEXES: dict[type, Callable[[Any], Any]] = {
    pb.RetrieveResponse: lambda m: m.index,
    pb.AnswerResponse: lambda m: m.index,
    pb.ScoreResponse: lambda m: m.index,
    index_pb.GetIndexResponse: lambda m: m.index,
    index_pb.ReloadIndexResponse: lambda m: m.index,
    # Every item names one index; if all agree, it is the answer's.
    pb.BatchRetrieveResponse: lambda m: _common([item.response.index for item in m.results]),
    pb.LinkResponse: lambda m: _common([item.response.index for item in m.results]),
}


def queries_of(message: object) -> Sequence[str]:
    """Return the query texts of a request of the API; none for other messages."""
    read = _QUERIES.get(type(message))
    return () if read is None else read(message)


def index_of(message: object) -> tuple[str, str]:
    """Return name and version of the index that answered; empty if there is no single one."""
    read = _INDEXES.get(type(message))
    index = None if read is None else read(message)
    return ("", "") if index is None else (index.name, index.version)


def _common(indexes: Sequence[Any]) -> Any:
    named = [index for index in indexes if index.name]
    same = {(index.name, index.version) for index in named}
    return named[0] if len(same) == 1 else None
